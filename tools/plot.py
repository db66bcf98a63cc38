#!/usr/bin/env python3
"""Draws what `smla bench --device cuda --json FILE` measured: time over floor and ratio to the peer, by the last number
of a cell's name (batch, tokens).

    smla bench attention --device cuda --json run.json
    python3 tools/plot.py run.json --output run.png
    python3 tools/plot.py run.json --text          # the same numbers, no matplotlib

Needs matplotlib (Debian: python3-matplotlib) unless --text is given. Wrong and skipped rows are left out and named on
stderr.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

FORMAT = "smla-bench/1"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("results", type=Path, help="JSON of smla bench --device cuda")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("bench.png"),
        help="picture to write, .png, .svg or .pdf (default: %(default)s)",
    )
    parser.add_argument("--cells", default="", help="only cells whose names begin so, decode/64 for example")
    parser.add_argument("--text", action="store_true", help="print the series instead of drawing them")
    return parser.parse_args()


def load(path):
    """The report, or an end with a reason."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"plot: {path}: {error}")
    if not isinstance(report, dict) or report.get("format") != FORMAT or "device" not in report:
        sys.exit(f"plot: {path}: expected a {FORMAT} report of a run with --device cuda")
    return report


def series(report, prefix):
    """{line: [(x, time over floor, ratio to the peer or None)]}; a line is a cell's name without its last part."""
    lines = defaultdict(list)
    for row in report["rows"]:
        cell = row.get("cell", "")
        if not cell.startswith(prefix) or "/" not in cell:
            continue
        if "skipped" in row or row.get("check", "ok") != "ok":
            print(f"plot: {cell} left out: {row.get('skipped') or row['check']}", file=sys.stderr)
            continue
        line, x = cell.rsplit("/", 1)
        if x.isdigit():
            lines[line].append((int(x), row["over_floor"], row.get("peer_ratio")))
    return {line: sorted(points) for line, points in lines.items()}


def text(lines):
    for line, points in lines.items():
        print(line)
        for x, over, ratio in points:
            print(f"  {x:>8}  {over:8.2f} x floor" + ("" if ratio is None else f"  {ratio:6.2f} x peer"))


def draw(lines, report, output):
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        import matplotlib.ticker
    except ImportError:
        sys.exit(
            "plot: matplotlib was not found (Debian: python3-matplotlib; pip install matplotlib); --text prints the numbers without it"
        )
    figure, (floors, peers) = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    for line, points in lines.items():
        floors.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=line)
        known = [p for p in points if p[2] is not None]
        if known:
            peers.plot([p[0] for p in known], [p[2] for p in known], marker="o", label=line)
    peers.axhline(1.0, color="black", linewidth=0.8)
    places = sorted({p[0] for points in lines.values() for p in points})
    what = {"decode": "requests", "prefill": "queries", "ops": "tokens"}.get(
        next(iter(lines)).split("/")[0], "last number of the cell's name"
    )
    for axes, title in ((floors, "time / floor"), (peers, "peer's time / ours, scaled by ceilings")):
        axes.set(xscale="log", title=title, xlabel=what)
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
        axes.grid(True, alpha=0.3)
    floors.set_yscale("log")
    floors.yaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    peers.set_ylim(bottom=0)
    floors.legend(fontsize="small")
    figure.suptitle(f"{report['device']}, {report['date'][:10]}, smla {report['version']}")
    figure.savefig(output)
    print(output)


def main():
    args = arguments()
    report = load(args.results)
    lines = series(report, args.cells)
    if not lines:
        sys.exit(f"plot: {args.results}: no cell to draw" + (f" begins with {args.cells}" if args.cells else ""))
    text(lines) if args.text else draw(lines, report, args.output)


if __name__ == "__main__":
    main()
