"""The pages: what data/side_by_side/*.csv says, as tables, a few sentences and a picture. Standard library only."""

from __future__ import annotations

import csv
import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pages

from .attention.cells import DECODE_LAYERS, FEW_HEADS, LAYERS
from .bars import Row, compared, mean, us
from .fault import Fault
from .index.cells import DECODE_GRID, INDEX_GRIDS
from .ops.cells import OPS_GRIDS

FOLDER = "data/side_by_side"
PICTURE = "docs/pictures/decode_side_by_side.svg"
COLOURS = dict(zip(DECODE_LAYERS, ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b")))
FEW = 16
WIDTH = 120
"""Columns of a page's lines of text."""
TIMES = {"peer_us": "peer", "ours_us": "ours"}
"""Columns of times, and the sides whose they are."""
FP8_ROWS = "fp8_ds_mla rows"


@dataclass(frozen=True)
class Kept:
    """One file of data/side_by_side: its columns before the times, and where they are in a run's rows."""

    file: str
    title: str
    columns: dict[str, str]
    grids: tuple[str, ...]
    heads: tuple[int, ...] = ()
    """Empty: any."""
    times: dict[str, str] = field(default_factory=lambda: TIMES)
    rows: str = FP8_ROWS
    digits: int = 1
    """Of a time behind the point."""


FILES = {
    "decode": Kept(
        "decode_h200.csv",
        "Decode attention of a peer and of this library in one process on one card: the same caches, queries and "
        "index lists, the same clock",
        {"heads": "heads", "layer": "layer", "requests": "requests"},
        ("decode",),
        (64, 128),
    ),
    "prefill": Kept(
        "prefill_h200.csv",
        "Prefill attention of a peer, over rows gathered before as bf16, and of this library from fp8_ds_mla caches, "
        "in one process on one card",
        {"heads": "heads", "pool": "entries", "keys": "keys", "queries": "tokens"},
        ("prefill", "prefill_few"),
        (*FEW_HEADS, 64, 128),
    ),
    "index": Kept(
        "index_h200.csv",
        "Index scores and exact top-k of 512 of a peer and of this library in one process on one card",
        {"grid": "grid", "requests": "requests", "queries": "queries", "entries": "entries"},
        tuple(INDEX_GRIDS),
        times=TIMES
        | {
            "peer_uncleared_us": "peer_uncleared",
            "peer_scores_us": "peer_scores",
            "ours_two_ops_us": "ours_two_ops",
            "ours_scores_us": "ours_scores",
        },
        rows="index_fp8 rows",
        digits=2,
    ),
    "ops": Kept(
        "ops_h200.csv",
        "Ops around attention of a peer and of this library in one process on one card",
        {"op": "layer", "tokens": "tokens"},
        tuple(OPS_GRIDS),
        digits=2,
    ),
}

Cell = dict[str, Any]


def load(kind: str) -> tuple[dict[str, str], list[Cell]]:
    """What a file's comments say by key, and its cells; nothing where it does not exist."""
    path = pages.ROOT / FOLDER / FILES[kind].file
    if not path.exists():
        return {}, []
    lines = path.read_text().splitlines()
    says = {}
    for comment in (line[1:] for line in lines if line.startswith("#")):
        for part in comment.split("; "):
            key, colon, text = part.strip().partition(": ")
            if colon:
                says[key] = text
    cells: list[Cell] = []
    for record in csv.DictReader(line for line in lines if not line.startswith("#")):
        cells.append({k: float(v) if k.endswith("_us") else int(v) if v.isdigit() else v for k, v in record.items()})
    return says, cells


def ratio(cell: Cell) -> float:
    return float(cell["peer_us"] / cell["ours_us"])


def mean_ratio(cells: Sequence[Cell]) -> float:
    return mean(ratio(c) for c in cells)


def place(cell: Cell) -> str:
    many = f"{cell['requests']} request" + ("s" if cell["requests"] > 1 else "")
    return f"{cell['heads']} heads, {LAYERS[cell['layer']].title}, {many}"


def sentences(cells: Sequence[Cell], prefill: Sequence[Cell]) -> str:
    few = [c for c in cells if c["requests"] <= FEW]
    many = [c for c in cells if c["requests"] > FEW]
    best, worst = max(cells, key=ratio), min(cells, key=ratio)
    text = (
        f"- up to {FEW} requests: {mean_ratio(few):.2f} times as fast as FlashMLA "
        f"(geometric mean of {len(few)} cells)\n"
        f"- {min(c['requests'] for c in many)} requests and more: {mean_ratio(many):.2f} times as fast "
        f"({len(many)} cells)\n"
        f"- all {len(cells)} cells: {mean_ratio(cells):.2f} times as fast\n"
        f"- best cell: {ratio(best):.2f} ({place(best)})\n"
        f"- worst cell: {ratio(worst):.2f} ({place(worst)})\n"
    )
    for title, heads in (("64 and 128 heads", (64, 128)), ("8 to 32 heads", FEW_HEADS)):
        chosen = [c for c in prefill if c["heads"] in heads]
        if chosen:
            text += (
                f"- prefill, {title}: {mean_ratio(chosen):.2f} times as fast ({len(chosen)} cells, "
                f"{min(map(ratio, chosen)):.2f} to {max(map(ratio, chosen)):.2f}), FlashMLA's rows gathered before\n"
            )
    return text


def decode_table(cells: Sequence[Cell]) -> str:
    counts = sorted({c["requests"] for c in cells})
    text = ""
    for heads in sorted({c["heads"] for c in cells}):
        text += f"| {heads} heads, by requests | " + " | ".join(map(str, counts)) + " |\n|---"
        text += "|---" * len(counts) + "|\n"
        for layer in DECODE_LAYERS:
            row = [c for n in counts for c in cells if (c["heads"], c["layer"], c["requests"]) == (heads, layer, n)]
            text += f"| {LAYERS[layer].title} | " + " | ".join(
                f"{c['peer_us']:.1f} / {c['ours_us']:.1f} ({ratio(c):.2f})" for c in row
            )
            text += " |\n"
        text += "\n"
    return text


def prefill_table(cells: Sequence[Cell]) -> str:
    """TFLOP/s of the peer and of this library; nothing without cells."""
    if not cells:
        return ""
    counts = sorted({c["queries"] for c in cells})
    text = "| heads, pool, keys; by queries | " + " | ".join(f"{n:,}" for n in counts) + " |\n|---"
    text += "|---" * len(counts) + "|\n"
    for group in sorted({(c["heads"], c["pool"], c["keys"]) for c in cells}):
        row = []
        for n in counts:
            found = [c for c in cells if (c["heads"], c["pool"], c["keys"], c["queries"]) == (*group, n)]
            row.append("-" if not found else rates(found[0]))
        text += f"| {group[0]}, {group[1]:,}, {group[2]:,} | " + " | ".join(row) + " |\n"
    return text + "\n"


def rates(cell: Cell) -> str:
    work = 4 * cell["heads"] * 512 * cell["keys"] * cell["queries"] * 1e-6
    return f"{work / cell['peer_us']:.0f} / {work / cell['ours_us']:.0f} ({ratio(cell):.2f})"


def source(says: dict[str, str]) -> str:
    """Where the cells of a table are from; nothing without cells."""
    if not says:
        return ""
    text = f"{says['card']}; {says['date']}; ours: {says['ours']}; peer: {says['peer']}."
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n\n"


def pair(cell: Cell) -> str:
    return f"{cell['peer_us']:.1f} / {cell['ours_us']:.1f} ({ratio(cell):.2f})"


def grid_table(head: str, rows: dict[str, dict[int, Cell]]) -> str:
    """A line for each name, a column for each number that any of them has."""
    counts = sorted({n for cells in rows.values() for n in cells})
    text = f"| {head} | " + " | ".join(f"{n:,}" for n in counts) + " |\n|---" + "|---" * len(counts) + "|\n"
    for name, cells in rows.items():
        text += f"| {name} | " + " | ".join(pair(cells[n]) if n in cells else "-" for n in counts) + " |\n"
    return text + "\n"


def index_table(cells: Sequence[Cell]) -> str:
    """Times of the chain in microseconds, the peer's first; nothing without cells."""
    decode: dict[str, dict[int, Cell]] = {}
    prefill: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        if cell["grid"] == DECODE_GRID:
            decode.setdefault(f"{cell['requests']} x {cell['queries']}", {})[cell["entries"]] = cell
        else:
            prefill.setdefault(f"{cell['queries']:,}", {})[cell["entries"]] = cell
    text = grid_table("requests x queries; by entries", decode) if decode else ""
    return text + (grid_table("queries of a prefill; by entries", prefill) if prefill else "")


def ops_table(cells: Sequence[Cell]) -> str:
    """The same of the ops around attention."""
    rows: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        rows.setdefault(f"`{cell['op']}`", {})[cell["tokens"]] = cell
    return grid_table("op; by tokens", rows) if rows else ""


def picture(says: dict[str, str], cells: Sequence[Cell]) -> str:
    """Two panels, one for each number of heads: FlashMLA's time over ours by requests."""
    counts = sorted({c["requests"] for c in cells})
    left, top, width, height, gap = 50, 50, 360, 260, 60
    most = max(1.8, math.ceil(max(map(ratio, cells)) * 5) / 5)

    def x(panel: int, requests: int) -> float:
        return left + panel * (width + gap) + 20 + (width - 40) * math.log2(requests) / math.log2(counts[-1])

    def y(value: float) -> float:
        return top + height * (1 - value / most)

    out = []
    for panel, heads in enumerate(sorted({c["heads"] for c in cells})):
        start = left + panel * (width + gap)
        out.append(f'<text x="{start + width / 2:.0f}" y="{top - 12}" text-anchor="middle">{heads} heads</text>')
        out.append(f'<rect x="{start}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>')
        for step in range(round(most / 0.2) + 1):
            value = step * 0.2
            stroke = "#000" if step == 5 else "#ddd"
            out.append(
                f'<line x1="{start}" y1="{y(value):.1f}" x2="{start + width}" y2="{y(value):.1f}" stroke="{stroke}"/>'
            )
            out.append(f'<text x="{start - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>')
        for n in counts:
            out.append(f'<text x="{x(panel, n):.1f}" y="{top + height + 18}" text-anchor="middle">{n}</text>')
        out.append(f'<text x="{start + width / 2:.0f}" y="{top + height + 38}" text-anchor="middle">requests</text>')
        for layer, colour in COLOURS.items():
            points = [
                (x(panel, c["requests"]), y(ratio(c))) for c in cells if c["heads"] == heads and c["layer"] == layer
            ]
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in points]
    for i, (layer, colour) in enumerate(COLOURS.items()):
        at = left + i * 158
        out.append(f'<circle cx="{at}" cy="{top + height + 66}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{at + 10}" y="{top + height + 70}">{LAYERS[layer].title}</text>')
    card = says["card"].split(",")[0]
    title = f"Decode attention, one {card}, {says['date']}: FlashMLA&#39;s time / SparseMLA&#39;s"
    title += " (above 1: SparseMLA is faster)"
    size = (left + 2 * width + gap + 20, top + height + 90)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{size[0]}" height="{size[1]}" fill="#fff"/>\n'
        f'<text x="{size[0] / 2:.0f}" y="20" text-anchor="middle" font-size="14">{title}</text>\n'
        + "\n".join(out)
        + "\n</svg>\n"
    )


def stale() -> dict[str, str]:
    """{page or picture: what it should be} of those that are out of date."""
    says, decode = load("decode")
    prefill = load("prefill")[1]
    short = sentences(decode, prefill)
    wanted = {PICTURE: picture(says, decode)}
    index, ops = load("index"), load("ops")
    for page, sections in (
        ("README.md", {"side_by_side": short}),
        (
            "docs/performance.md",
            {
                "side_by_side": decode_table(decode),
                "side_by_side_prefill": prefill_table(prefill),
                "in_short": short,
            },
        ),
        (
            "docs/performance/side_by_side.md",
            {
                "side_by_side_index": source(index[0]) + index_table(index[1]),
                "side_by_side_ops": source(ops[0]) + ops_table(ops[1]),
            },
        ),
    ):
        wanted |= pages.fill(pages.read([page]), sections)
    return {
        name: text
        for name, text in wanted.items()
        if not (pages.ROOT / name).exists() or (pages.ROOT / name).read_text() != text
    }


def write() -> int:
    """Rewrites what is out of date and names it; the exit status."""
    for name, text in stale().items():
        (pages.ROOT / name).write_text(text)
        print(name)
    return 0


def check() -> int:
    """Names what is out of date; the exit status."""
    names = ", ".join(stale())
    if names:
        print(f"out of date: {names}; `python3 tools/side_by_side write` rewrites them", file=sys.stderr)
    return 1 if names else 0


def csv_of(kept: Kept, results: dict[str, Any], rows: Sequence[Row]) -> str:
    """The file of some rows, with where they come from."""
    machine, peer, rates_ = results["machine"], results["peer"], results["ceilings"].get("before") or {}
    ours = " ".join(filter(None, (results["library"]["version"], results.get("note", ""))))
    implementations = sorted({r["sides"]["ours"].get("implementation", "") for r in rows})
    said = [
        kept.title,
        f"peer: {peer['name']}, {Path(peer['file']).name}; not in its time: {peer['uncounted'] or 'nothing'}",
        f"ours: {ours}, by {', '.join(implementations)}, {kept.rows}",
        f"card: {machine['card']}, CUDA {machine['cuda']}, "
        f"bf16 product {rates_.get('product_tflops', math.nan):.0f} TFLOP/s in the same run; date: {results['date']}",
        "method: what a call adds to a CUDA graph behind a kernel that reads four times L2; medians; outputs of both "
        "checked against float64",
    ]
    lines = [f"# {text}" for text in said] + [",".join((*kept.columns, *kept.times))]
    for row in rows:
        names = [str(row[member]) for member in kept.columns.values()]
        lines.append(",".join([*names, *(f"{us(row, side):.{kept.digits}f}" for side in kept.times.values())]))
    return "\n".join(lines) + "\n"


def keep(results: dict[str, Any]) -> None:
    """Writes data/side_by_side/*.csv of the results' whole grids. @raises Fault: no cell has a peer's time"""
    wrote = False
    for kept in FILES.values():
        rows = [r for r in compared(results["rows"]) if r["grid"] in kept.grids]
        rows = [r for r in rows if not kept.heads or r["heads"] in kept.heads]
        if rows:
            (pages.ROOT / FOLDER / kept.file).write_text(csv_of(kept, results, rows))
            print(f"{FOLDER}/{kept.file}")
            wrote = True
    if not wrote:
        raise Fault("no cell of decode, prefill, index or ops has a time of ours and of a peer's")
