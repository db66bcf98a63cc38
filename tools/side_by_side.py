#!/usr/bin/env python3
"""What data/side_by_side/decode_h200.csv says, as a table, a few sentences and a picture. Standard library only.

side_by_side.py write    rewrites its sections of README.md and docs/performance.md and
docs/pictures/decode_side_by_side.svg side_by_side.py check    exits 1 and names what is out of date
"""

import csv
import math
import sys

import pages

DATA = "data/side_by_side/decode_h200.csv"
PICTURE = "docs/pictures/decode_side_by_side.svg"
LAYERS = {
    "swa": "window only, 128 keys",
    "c4a_32k": "C4A, 32k tokens",
    "c128_8k": "C128A, 8k tokens",
    "c128_128k": "C128A, 128k tokens",
    "c128_1M": "C128A, 1M tokens",
}
COLOURS = {"swa": "#1f77b4", "c4a_32k": "#ff7f0e", "c128_8k": "#2ca02c", "c128_128k": "#9467bd", "c128_1M": "#8c564b"}
FEW = 16


def load():
    lines = [line for line in (pages.ROOT / DATA).read_text().splitlines() if not line.startswith("#")]
    return [
        {
            "heads": int(r["heads"]),
            "layer": r["layer"],
            "requests": int(r["requests"]),
            "peer": float(r["peer_us"]),
            "ours": float(r["ours_us"]),
        }
        for r in csv.DictReader(lines)
    ]


def ratio(cell):
    return cell["peer"] / cell["ours"]


def mean(cells):
    return math.exp(sum(math.log(ratio(c)) for c in cells) / len(cells))


def place(cell):
    many = f"{cell['requests']} request" + ("s" if cell["requests"] > 1 else "")
    return f"{cell['heads']} heads, {LAYERS[cell['layer']]}, {many}"


def sentences(cells):
    few = [c for c in cells if c["requests"] <= FEW]
    many = [c for c in cells if c["requests"] > FEW]
    best, worst = max(cells, key=ratio), min(cells, key=ratio)
    return (
        f"- up to {FEW} requests: {mean(few):.2f} times as fast as FlashMLA (geometric mean of {len(few)} cells)\n"
        f"- {min(c['requests'] for c in many)} requests and more: {mean(many):.2f} times as fast ({len(many)} cells)\n"
        f"- all {len(cells)} cells: {mean(cells):.2f} times as fast\n"
        f"- best cell: {ratio(best):.2f} ({place(best)})\n"
        f"- worst cell: {ratio(worst):.2f} ({place(worst)})\n"
    )


def table(cells):
    counts = sorted({c["requests"] for c in cells})
    text = ""
    for heads in sorted({c["heads"] for c in cells}):
        text += (
            f"| {heads} heads, by requests | "
            + " | ".join(str(n) for n in counts)
            + " |\n|---"
            + "|---" * len(counts)
            + "|\n"
        )
        for layer, title in LAYERS.items():
            row = [c for n in counts for c in cells if (c["heads"], c["layer"], c["requests"]) == (heads, layer, n)]
            text += (
                f"| {title} | "
                + " | ".join(f"{c['peer']:.1f} / {c['ours']:.1f} ({ratio(c):.2f})" for c in row)
                + " |\n"
            )
        text += "\n"
    return text


def picture(cells):
    """Two panels, one for each number of heads: FlashMLA's time over ours by requests."""
    counts = sorted({c["requests"] for c in cells})
    left, top, width, height, gap, most = 50, 50, 360, 260, 60, 1.8

    def x(panel, requests):
        return left + panel * (width + gap) + 20 + (width - 40) * math.log2(requests) / math.log2(counts[-1])

    def y(value):
        return top + height * (1 - value / most)

    out = []
    for panel, heads in enumerate(sorted({c["heads"] for c in cells})):
        start = left + panel * (width + gap)
        out.append(f'<text x="{start + width / 2:.0f}" y="{top - 12}" text-anchor="middle">{heads} heads</text>')
        out.append(f'<rect x="{start}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>')
        for step in range(0, 10):
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
            out.append(
                f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
            out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in points]
    for i, (layer, title) in enumerate(LAYERS.items()):
        at = left + i * 158
        out.append(f'<circle cx="{at}" cy="{top + height + 66}" r="5" fill="{COLOURS[layer]}"/>')
        out.append(f'<text x="{at + 10}" y="{top + height + 70}">{title}</text>')
    title = "Decode attention, one NVIDIA H200, 2026-11-22: FlashMLA&#39;s time / SparseMLA&#39;s (above 1: SparseMLA is faster)"
    size = (left + 2 * width + gap + 20, top + height + 90)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{size[0]}" height="{size[1]}" fill="#fff"/>\n'
        f'<text x="{size[0] / 2:.0f}" y="20" text-anchor="middle" font-size="14">{title}</text>\n'
        + "\n".join(out)
        + "\n</svg>\n"
    )


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    cells = load()
    wanted = {PICTURE: picture(cells)}
    for page, sections in (
        ("README.md", {"side_by_side": sentences(cells)}),
        ("docs/performance.md", {"side_by_side": table(cells), "in_short": sentences(cells)}),
    ):
        wanted |= pages.fill(pages.read([page]), sections)
    stale = [
        name
        for name, text in wanted.items()
        if not (pages.ROOT / name).exists() or (pages.ROOT / name).read_text() != text
    ]
    if sys.argv[1] == "write":
        for name in stale:
            (pages.ROOT / name).write_text(wanted[name])
            print(name)
    elif stale:
        sys.exit(f"out of date: {', '.join(stale)}; `python3 tools/side_by_side.py write` rewrites them")


if __name__ == "__main__":
    main()
