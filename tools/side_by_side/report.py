"""Results as text: a line a cell, tables, means and bars. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .bars import Bar, Row, bars, compared, mean, ratio, us
from .fault import Fault
from .index.cells import INDEX_GRIDS
from .index.report import index_columns, index_line, index_means
from .ops.cells import OPS_GRIDS
from .ops.report import op_columns, op_line, op_means

MEMBERS = ("name", "grid", "heads", "layer", "requests", "queries", "keys", "tokens", "floor_us", "sides")


def load(paths: Iterable[str]) -> dict[str, Any]:
    """Results of files that `run --json` wrote, joined: of a cell that several have, the last.

    @raises Fault: a file cannot be read or holds something else
    """
    joined: dict[str, Any] = {}
    rows: dict[str, Row] = {}
    for path in paths:
        try:
            found = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise Fault(f"{path}: {error}") from error
        if (
            not isinstance(found, dict)
            or found.get("tool") != "side_by_side"
            or not isinstance(found.get("rows"), list)
        ):
            raise Fault(f"{path}: expected a file of `side_by_side run --json`")
        for row in found["rows"]:
            lacking = [m for m in MEMBERS if m not in row]
            if lacking:
                raise Fault(f"{path}: a row has no {lacking[0]}: {str(row)[:100]}")
            rows[row["name"]] = row
        joined = found
    if not rows:
        raise Fault("the files hold no row")
    return joined | {"rows": list(rows.values())}


def head(results: dict[str, Any]) -> str:
    """Who was measured where."""
    machine, peer, options = results["machine"], results["peer"], results["options"]
    ours = options["impl"] or "the library's choice"
    lines = [
        f"{machine['card']}, CUDA {machine.get('cuda') or 'none'}, torch {machine['torch']}, {results['date']}",
        f"ours: {results['library']['file']} {results['library']['version']}, {ours}"
        + (f", and ours2: {options['impl2'] or 'the choice'}" if options["impl2"] is not None else "")
        + (", deterministic" if options["deterministic"] else ""),
    ]
    if peer:
        lines.append(f"peer: {peer['name']} ({peer['file']}); not counted: {peer['uncounted'] or 'nothing'}")
    for when, rates in results["ceilings"].items():
        if rates:
            lines.append(
                f"{when}: bf16 product {rates['product_tflops']:.0f} TFLOP/s, copy {rates['copy_gbs']:,.0f} GB/s"
            )
    return "\n".join(lines)


def _number(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _scientific(side: dict[str, Any], member: str) -> str:
    return f"{side[member]:.1e}" if member in side else "-"


def line(row: Row) -> str:
    """A cell's result in one line."""
    if row["grid"] in INDEX_GRIDS:
        return index_line(row)
    if row["grid"] in OPS_GRIDS:
        return op_line(row)
    if "failure" in row:
        return f"{row['name']}: FAILED {row['failure']}"
    text = f"{row['name']}:"
    for name, side in row["sides"].items():
        text += f" {name} {side['us']:.1f} us ({side['p10']:.1f} to {side['p90']:.1f}), error {side['error']:.2e};"
    return text + (f" ratio {ratio(row):.2f}" if "peer" in row["sides"] else "")


def columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table of some rows: its head and its lines. A column that says nothing is left out."""
    if rows and rows[0]["grid"] in INDEX_GRIDS:
        return index_columns(rows)
    if rows and rows[0]["grid"] in OPS_GRIDS:
        return op_columns(rows)
    names = {side for row in rows for side in row["sides"]}
    second, peer = "ours2" in names, "peer" in names
    top = ["cell", "floor", "ours", "p10", "p90", "x floor", "TFLOP/s"]
    top += ["ours2", "ours2/ours"] * second + ["peer", "peer/ours"] * peer + ["peer/ours2"] * (second and peer)
    top += ["error", "lse"] + ["peer's error"] * peer + ["by"]
    lines = []
    for row in rows:
        if "failure" in row:
            lines.append([row["name"], "FAILED", *[""] * (len(top) - 3), row["failure"]])
            continue
        ours = row["sides"]["ours"]
        cells = [row["name"], _number(row["floor_us"]), *(_number(ours[k]) for k in ("us", "p10", "p90"))]
        cells += [_number(ours["us"] / row["floor_us"], 2), _number(row["flops"] / ours["us"] * 1e-6, 0)]
        if second:
            cells += [_number(us(row, "ours2")), _number(us(row, "ours2") / us(row), 2)]
        if peer:
            cells += [_number(us(row, "peer")), _number(ratio(row), 2)]
        if second and peer:
            cells.append(_number(ratio(row, "ours2"), 2))
        cells += [_scientific(ours, "error"), _scientific(ours, "lse_error")]
        if peer:
            cells.append(_scientific(row["sides"].get("peer", {}), "error"))
        lines.append([*cells, ours.get("implementation", "")])
    return top, lines


def text_table(top: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool) -> str:
    """A table for a terminal, or for a page."""
    if markdown:
        rows = ["| " + " | ".join(r) + " |" for r in (top, ["---"] + ["---:"] * (len(top) - 1), *lines)]
        return "\n".join(rows) + "\n"
    shown = [line for line in lines if line[1] != "FAILED"]
    widths = [max(len(r[i]) for r in (top, *shown)) for i in range(len(top))]
    out = []
    for row in (top, *lines):
        if row[1] == "FAILED":
            out.append(f"{row[0].ljust(widths[0])}  FAILED {row[-1]}")
            continue
        first = row[0].ljust(widths[0])
        out.append("  ".join([first, *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]).rstrip())
    return "\n".join(out) + "\n"


def means(rows: Sequence[Row]) -> list[str]:
    """Geometric means of the peer's time over ours, and of the second implementation's."""
    out = []
    grids = list(dict.fromkeys(row["grid"] for row in rows if row["grid"] not in {*INDEX_GRIDS, *OPS_GRIDS}))
    for grid in grids:
        cells = compared(rows, grid=grid)
        for heads in sorted({r["heads"] for r in cells}):
            ratios = {r["name"]: ratio(r) for r in cells if r["heads"] == heads}
            low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
            out.append(
                f"{grid}, {heads} heads, peer/ours: {mean(ratios.values()):.3f} of {len(ratios)} cells, "
                f"{ratios[low]:.2f} ({low}) to {ratios[high]:.2f} ({high})"
            )
        if cells:
            out.append(f"{grid}, peer/ours: {mean(map(ratio, cells)):.3f} of {len(cells)} cells")
        both = [r for r in rows if r["grid"] == grid and not math.isnan(us(r) / us(r, "ours2"))]
        if both:
            value = mean(us(r) / us(r, "ours2") for r in both)
            out.append(f"{grid}, ours/ours2: {value:.3f} of {len(both)} cells")
    return out + index_means(rows) + op_means(rows)


def bars_table(found: Sequence[Bar], markdown: bool) -> str:
    """Bars that something was measured for."""
    shown = [bar for bar in found if bar.verdict != "not measured"]
    if not shown:
        return ""
    lines = [[bar.what, bar.bound, bar.measured, bar.verdict] for bar in shown]
    if markdown:
        return text_table(["what", "bound", "measured", ""], lines, markdown=True)
    return "".join(f"{bar.verdict:<6}  {bar.what}: {bar.bound}: {bar.measured}\n" for bar in shown)


def render(results: dict[str, Any], markdown: bool = False) -> str:
    """Everything that a file of results says."""
    rows = results["rows"]
    out = head(results).replace("\n", "\n\n" if markdown else "\n") + "\n\n"
    for grid in dict.fromkeys(row["grid"] for row in rows):
        out += text_table(*columns([row for row in rows if row["grid"] == grid]), markdown) + "\n"
    listed = means(rows)
    if listed:
        out += "Geometric means of times:\n" + ("\n" if markdown else "")
        out += "".join(f"{'- ' if markdown else '  '}{text}\n" for text in listed) + "\n"
    out += bars_table(bars(rows), markdown)
    left = results.get("not_run") or []
    return out + (f"\n{len(left)} cells were not begun, the first {left[0]}\n" if left else "")
