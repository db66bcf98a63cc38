"""Results of the index chain as text. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..bars import INDEX_GROUPS, Row, index_group, mean, ratio, us
from ..cell_text import failed, failures, number

SIDES = {
    "ours": "ours",
    "ours_two_ops": "two ops",
    "peer": "peer",
    "peer_uncleared": "uncleared",
    "ours_scores": "our scores",
    "peer_scores": "peer's scores",
}
"""What the tables call the sides of a row."""


def index_line(row: Row) -> str:
    """A cell's result in one line."""
    sides = row["sides"]
    text = "; ".join(f"{title} {sides[name]['us']:.1f} us" for name, title in SIDES.items() if name in sides)
    text = f"{row['name']}: {text}"
    if "peer" in sides:
        text += f"; ratio {ratio(row):.2f}, set_wrong {sides['peer']['set_wrong']}"
    return text + failures(row)


def index_columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table of some rows: its head and its lines. Without a peer its columns are left out."""
    peer = any("peer" in row["sides"] or "peer_failure" in row for row in rows)
    top = ["cell", "floor", "ours", "p10", "p90", "two ops", *["peer", "peer/ours", "uncleared"] * peer]
    top += ["our scores", *["peer's scores", "ratio"] * peer, "passed over", *["wrong", "other"] * peer]
    top += ["by", *["peer's"] * peer]
    lines = []
    for row in rows:
        if "failure" in row:
            lines.append(failed(row, len(top)))
            continue
        ours, theirs = row["sides"]["ours"], row["sides"].get("peer", {})
        times = {name: number(us(row, name)) for name in SIDES}
        cells = [row["name"], number(row["floor_us"]), times["ours"], number(ours["p10"]), number(ours["p90"])]
        cells += [times["ours_two_ops"]]
        if peer:
            cells += [times["peer"], number(ratio(row), 2), times["peer_uncleared"]]
        cells.append(times["ours_scores"])
        if peer:
            cells += [times["peer_scores"], number(ratio(row, "ours_scores", "peer_scores"), 2)]
        cells.append(f"{ours['error']:.0e}")
        if peer:
            cells += [str(theirs.get(name, "-")) for name in ("set_wrong", "set_other")]
        cells.append(ours.get("implementation", ""))
        if peer:
            cells.append(row.get("peer_failure", theirs.get("implementation", "-")))
        lines.append(cells)
    return top, lines


def index_means(rows: Sequence[Row]) -> list[str]:
    """Geometric means of the peer's times over ours by group of cells: of the chain, of it without readying the
    output, and of scores alone."""
    out = []
    for group in INDEX_GROUPS:
        of_group = [row for row in rows if index_group(row) == group]
        for title, ours, theirs in (
            ("", "ours", "peer"),
            (", uncleared", "ours", "peer_uncleared"),
            (", scores", "ours_scores", "peer_scores"),
        ):
            ratios = {r["name"]: value for r in of_group if not math.isnan(value := ratio(r, ours, theirs))}
            if ratios:
                low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
                out.append(
                    f"{group}{title}, peer/ours: {mean(ratios.values()):.3f} of {len(ratios)} cells, "
                    f"{ratios[low]:.2f} ({low}) to {ratios[high]:.2f} ({high})"
                )
    return out
