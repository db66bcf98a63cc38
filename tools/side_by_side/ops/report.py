"""Results of the ops around attention as text. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..bars import Row, mean, ratio, us
from ..cell_text import failed, failures, number
from .cells import KINDS, OPS_GRIDS


def op_line(row: Row) -> str:
    """A cell's result in one line."""
    text = f"{row['name']}:"
    for name, side in row["sides"].items():
        text += f" {name} {side['us']:.1f} us ({side['p10']:.1f} to {side['p90']:.1f}), error {side['error']:.1e};"
    if "peer" in row["sides"]:
        text += f" ratio {ratio(row):.2f}, peer_error {row['peer_error']:.1e}"
    return text + failures(row)


def op_columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table of some rows: its head and its lines. Without a peer its columns are left out."""
    peer = any("peer" in row["sides"] or "peer_failure" in row for row in rows)
    top = ["cell", "floor", "ours", "p10", "p90", "x floor", *["peer", "peer/ours"] * peer, "error"]
    top += [*["peer's error", "difference"] * peer, "by", *["peer's"] * peer]
    lines = []
    for row in rows:
        if "failure" in row:
            lines.append(failed(row, len(top)))
            continue
        ours, theirs = row["sides"]["ours"], row["sides"].get("peer", {})
        cells = [row["name"], number(row["floor_us"], 2), *(number(ours[k]) for k in ("us", "p10", "p90"))]
        cells.append(number(ours["us"] / row["floor_us"], 2))
        if peer:
            cells += [number(us(row, "peer")), number(ratio(row), 2)]
        cells.append(f"{ours['error']:.1e}")
        if peer:
            cells += [f"{theirs['error']:.1e}" if theirs else "-", f"{row['peer_error']:.1e}" if theirs else "-"]
        cells.append(ours.get("implementation", ""))
        if peer:
            cells.append(row.get("peer_failure", theirs.get("implementation", "-")))
        lines.append(cells)
    return top, lines


def op_means(rows: Sequence[Row]) -> list[str]:
    """Geometric means of the peer's times over ours, by kind of op and of all."""
    ratios = {r["name"]: value for r in rows if r["grid"] in OPS_GRIDS and not math.isnan(value := ratio(r))}
    layers = {r["name"]: r["layer"] for r in rows}
    out = []
    for kind in KINDS:
        chosen = [value for name, value in ratios.items() if layers[name] == kind]
        if chosen:
            span = f"{min(chosen):.2f} to {max(chosen):.2f}"
            out.append(f"{kind}, peer/ours: {mean(chosen):.3f} of {len(chosen)} cells, {span}")
    if ratios:
        out.append(f"ops, peer/ours: {mean(ratios.values()):.3f} of {len(ratios)} cells")
    return out
