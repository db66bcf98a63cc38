#!/usr/bin/env python3
"""Measures the CPU tables of docs/performance.md and docs/performance/cpu.md and writes them. Standard library only.

performance.py measure PROGRAM [--out DIR] [--clock wall|cpu] [--threads N] [--quick] [--no-transformers]
    Runs `smla bench` and tools/compare_transformers.py; their JSON goes to DIR (build/performance). About 5 minutes on
    two quiet cores. The comparison runs in a virtual environment DIR/venv, made with pip when it is missing
    (SMLA_HF_PYTHON names another python that has torch and transformers); where it cannot be made the other
    measurements stand and the page says so.
performance.py render [--out DIR]
    Rewrites the sections between <!-- NAME:begin --> and <!-- NAME:end --> of those pages from that JSON.
performance.py check [--out DIR]
    Prints the targets; exit 1 when one is missed.
"""

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ("targets", "machine", "attention", "indexer", "topk", "projection", "fp32", "avx2", "layer", "transformers")
# What each file of results holds: the arguments of `smla bench`.
RUNS = {
    "ops": ["attention", "indexer", "topk", "projection", "--batch", "1,16", "--tokens", "512"],
    "fp32": ["projection", "--only", "prefill", "--tokens", "512", "--impl", "projection=avx512"],
    "avx2": ["attention", "indexer", "projection", "--batch", "1,16", "--tokens", "512", "--keys", "1152"],
    "layer": ["layer", "--batch", "1", "--prefill", "1024,2048", "--chunk", "512"],
    "layer_fp8": ["layer", "--only", "decode", "--batch", "1", "--fp8-weights"],
    "layer_1k": ["layer", "--only", "prefill", "--prefill", "1024", "--chunk", "1024"],
}
ENVIRONMENT = {"avx2": {"SMLA_CPU": "avx2"}}


def say(text):
    print(f"performance: {text}", file=sys.stderr, flush=True)


def hugging_face_python(out):
    """A python with torch and transformers, or None and the reason."""
    if os.environ.get("SMLA_HF_PYTHON"):
        return os.environ["SMLA_HF_PYTHON"], ""
    python = out / "venv" / "bin" / "python"
    ready = [str(python), "-c", "import torch, transformers.models.deepseek_v4"]
    if python.exists() and subprocess.run(ready, capture_output=True, check=False).returncode == 0:
        return str(python), ""
    say(f"installing torch and transformers in {out / 'venv'}")
    cpu_index = ["--index-url", "https://download.pytorch.org/whl/cpu"]
    subprocess.run([sys.executable, "-m", "venv", str(out / "venv")], capture_output=True, check=False)
    if not python.exists():
        return None, "python3 -m venv failed (Debian: python3-venv)"
    for command in ([*cpu_index, "torch"], ["torch", "transformers", "numpy"]):
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *command], capture_output=True, text=True, check=False
        )
    if done.returncode == 0 and subprocess.run(ready, capture_output=True, check=False).returncode == 0:
        return str(python), ""
    return None, (done.stderr.strip().splitlines() or ["no deepseek_v4 in the transformers that pip found"])[-1]


def measure(args):
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    start = time.monotonic()
    common = [
        "--threads",
        str(args.threads),
        "--clock",
        args.clock,
        *(["--min-time", "0.05", "--min-runs", "2"] if args.quick else []),
    ]
    for name, what in RUNS.items():
        say(f"smla bench {' '.join(what)}")
        command = [
            str(args.program),
            "bench",
            *what,
            *common,
            "--format",
            "json",
            "--output",
            str(out / f"{name}.json"),
            "-q",
        ]
        done = subprocess.run(command, env={**environment, **ENVIRONMENT.get(name, {})}, check=False)
        if done.returncode != 0:
            (out / f"{name}.json").unlink(missing_ok=True)
            say(f"{name}: not measured, smla bench ended with {done.returncode}")
    target = out / "transformers.json"
    target.unlink(missing_ok=True)
    python, reason = (None, "--no-transformers") if args.no_transformers else hugging_face_python(out)
    if python is None:
        say(f"SKIP transformers: {reason}")
        target.write_text(json.dumps({"skipped": reason}))
    else:
        rounds = "1" if args.quick else "3"
        command = [
            python,
            str(ROOT / "tools" / "compare_transformers.py"),
            "--program",
            str(args.program),
            "--clock",
            args.clock,
            "--rounds",
            rounds,
            "--json",
            str(target),
            *(["--threads", str(args.threads)] if args.threads else []),
        ]
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            target.write_text(json.dumps({"skipped": "tools/compare_transformers.py failed"}))
    say(f"done in {time.monotonic() - start:.0f} s; results in {out}")


class Results:
    """The JSON of one measurement."""

    def __init__(self, folder):
        def load(name):
            path = folder / f"{name}.json"
            return json.loads(path.read_text()) if path.exists() else None

        self.runs = {name: load(name) for name in RUNS}
        self.transformers = load("transformers") or {"skipped": "not measured"}
        if self.runs["ops"] is None or self.runs["layer"] is None:
            sys.exit(f"{folder}: expected ops.json and layer.json; `performance.py measure` makes them")

    def rows(self, run, group, *words):
        report = self.runs[run]
        return [
            r
            for r in (report["rows"] if report else [])
            if r["group"] == group and all(w in r["name"] + "; " + r["shape"] + "," for w in words)
        ]


@dataclasses.dataclass
class Target:
    """What is wanted of values that were measured; `instead` may be reached in its place."""

    what: str
    bound: float
    unit: str
    values: list
    at_least: bool = True
    instead: "Target | None" = None

    def reached(self):
        own = min(self.values) >= self.bound if self.at_least else max(self.values) <= self.bound
        return own or (self.instead is not None and self.instead.reached())

    def bound_text(self):
        space = "" if self.unit == "x" else " "
        text = f"{'at least' if self.at_least else 'at most'} {self.bound:g}{space}{self.unit}"
        return text + (f", or {self.instead.bound_text()} {self.instead.what}" if self.instead else "")

    def values_text(self):
        low, high = number(min(self.values)), number(max(self.values))
        space = "" if self.unit == "x" else " "
        text = f"{low if low == high else f'{low} to {high}'}{space}{self.unit}"
        return text + (f"; {self.instead.values_text()}" if self.instead else "")


def targets(results):
    """Every Target that was measured."""

    def share(rows, key):
        return [100 * row[key] for row in rows]

    def attention_share(row):
        return 100 * sum(row["stages"].get(stage, 0) for stage in ("attention", "indexer", "top-k"))

    def together(rows, value):
        """The share that one call of each row reaches in sum; value(row) is that of a row."""
        spent = sum(row["median_ms"] for row in rows)
        return [100 * sum(row["median_ms"] * value(row) for row in rows) / spent] if rows else []

    def fp32_share(row):
        return row["fp32_peak_share"]

    def reading_share(row):
        return row["bandwidth_share"]

    def decode(kind, run):
        return results.rows(run, "layer", f"{kind} decode")

    big = results.rows("ops", "attention", "keys 1152,", "tokens 16,") + results.rows(
        "ops", "attention", "keys 1152,", "tokens 512,"
    )
    bf16_peak = results.runs["ops"]["machine"]["peak_gflops"].get("avx512_bf16")
    prompts = results.rows("ops", "projection", "rows 512,")
    products = [Target("of the bf16 peak in its products", 85, "%", together(prompts, lambda r: r["gflops"] / bf16_peak))] if bf16_peak else []  # fmt: skip
    found = [
        Target(
            "attention, 64 heads x 1,152 keys, 16 and 512 tokens: of the fp32 peak",
            30,
            "%",
            share(big, "fp32_peak_share"),
        ),
        Target(
            "prefill index scores: of the fp32 peak",
            30,
            "%",
            share(results.rows("ops", "indexer", "tokens 512,"), "fp32_peak_share"),
        ),
        Target("GEMMs, 512 rows: of the fp32 peak", 60, "%", share(prompts, "fp32_peak_share")),
        Target(
            "GEMMs without bf16 units (avx512), 512 rows, a layer's maps together: of the fp32 peak",
            60,
            "%",
            together(results.rows("fp32", "projection"), fp32_share),
        ),
        Target(
            "GEMMs, 1 row, a layer's maps together: of reading in turn",
            85,
            "%",
            together(results.rows("ops", "projection", "rows 1,"), reading_share),
        ),
        Target(
            "decode attention, 1 token: of the fp32 peak",
            20,
            "%",
            share(results.rows("ops", "attention", "tokens 1,"), "fp32_peak_share"),
        ),
        Target(
            "decode index scores, 1 request: of the fp32 peak",
            20,
            "%",
            share(results.rows("ops", "indexer", "requests 1,"), "fp32_peak_share"),
        ),
        Target(
            "attention + indexer, 1k prefill: share of the layer, every kind",
            30,
            "%",
            [
                attention_share(r)
                for run in ("layer", "layer_1k")
                for r in results.rows(run, "layer", "prefill", "tokens 1024 ")
            ],
            at_least=False,
        ),
    ]
    # At one bandwidth: the runs are minutes apart, and a shared host's memory has fast and slow ones.
    for kind in ("SWA", "C4A", "C128A"):
        pairs = [(a, b) for a in decode(kind, "layer") for b in decode(kind, "layer_fp8")]
        for a, b in pairs:
            if not 0.9 < a["reading_gbs"] / b["reading_gbs"] < 1.1:
                say(f"SKIP {a['name']} with FP8 weights beside bf16 ones: the memory gave another bandwidth, measure again")
        pairs = [(a, b) for a, b in pairs if 0.9 < a["reading_gbs"] / b["reading_gbs"] < 1.1]
        ratios = [a["median_ms"] / b["median_ms"] for a, b in pairs]
        found.append(Target(f"{kind} decode: times faster with FP8 weights", 1.6, "x", ratios))
    for row in results.transformers.get("rows", []):
        reading = [Target("of reading in turn", 85, "%", share(decode(row["kind"], "layer"), "bandwidth_share"))]
        instead = [t for t in (reading if row["task"] == "decode" else products) if t.values]
        found.append(
            Target(
                f"{row['kind']} {row['task']}: times faster than transformers' faster dtype",
                row["target"],
                "x",
                [row["ratio"]],
                instead=instead[0] if instead else None,
            )
        )
        if row["target_bfloat16"]:
            found.append(
                Target(
                    f"{row['kind']} {row['task']}: times faster than its bfloat16",
                    row["target_bfloat16"],
                    "x",
                    [row["ratio_bfloat16"]],
                )
            )
    return [t for t in found if t.values]


def number(value):
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 0.1
        else f"{value:.4f}"
    )


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]) + "\n"


def target_table(results):
    rows = [[t.what, t.bound_text(), t.values_text(), "met" if t.reached() else "**missed**"] for t in targets(results)]
    return table(["target", "bound", "measured", ""], rows)


def machine_table(results):
    rows = []
    for name, report in results.runs.items():
        if report:
            peaks = report["machine"]["peak_gflops"]
            rows.append(
                [
                    name,
                    *(number(peaks[n]) if n in peaks else "-" for n in ("generic", "avx2", "avx512", "avx512_bf16")),
                    number(report["machine"]["read_gbs"]),
                    f"{100 * report['machine']['drift']:.1f} %",
                ]
            )
    first = results.runs["ops"]
    text = f"CPU: {first['cpu']}, {first['threads']} of {first['cores']} processors. Version {first['version']}, {first['date'][:10]}, {first['clock']} clock.\n"
    if first["clock"] == "cpu":
        text += "Preliminary: the machine was not quiet, so this is processor time, not what a user waits.\n"
    text += "\n"
    return text + table(
        ["run", "generic", "AVX2", "AVX-512", "bf16 dot products", "reading, GB/s", "before / after"], rows
    )


def op_table(results, run, group, flops=True):
    rows = []
    for r in results.rows(run, group):
        spread = f"{number(r['p10_ms'])} .. {number(r['p90_ms'])}"
        cells = [r["shape"], r["implementation"], number(r["median_ms"]), spread]
        cells += [number(r["gflops"]), f"{100 * r['fp32_peak_share']:.0f} %"] if flops else []
        rows.append([*cells, number(r["gbs"]), f"{100 * r['bandwidth_share']:.0f} %", number(r["floor_ms"])])
    head = [
        "shape",
        "runs",
        "ms",
        "p10 .. p90",
        *(["GFLOP/s", "of fp32 peak"] if flops else []),
        "GB/s",
        "of reading",
        "floor, ms",
    ]
    return table(head, rows)


def avx2_table(results):
    rows = []
    for r in (results.runs["avx2"] or {"rows": []})["rows"]:
        rows.append(
            [
                r["group"],
                r["shape"],
                r["implementation"],
                number(r["median_ms"]),
                number(r["gflops"]),
                f"{100 * r['fp32_peak_share']:.0f} %",
                f"{100 * r['bandwidth_share']:.0f} %",
            ]
        )
    return table(["op", "shape", "runs", "ms", "GFLOP/s", "of fp32 peak", "of reading"], rows)


def layer_table(results):
    stages = ["input projections", "q projection", "output projection", "attention", "indexer", "top-k", "compressor"]
    rows = []
    for run in ("layer", "layer_fp8", "layer_1k"):
        for r in results.rows(run, "layer"):
            known = [r["stages"].get(s, 0) for s in stages]
            rows.append(
                [
                    r["name"],
                    r["shape"].split(", heads")[0] + (", FP8 weights" if run == "layer_fp8" else ""),
                    number(r["median_ms"]),
                    f"{number(r['p10_ms'])} .. {number(r['p90_ms'])}",
                    number(r["floor_ms"]),
                    f"{100 * r['bandwidth_share']:.0f}" if r["reading_in_turn"] else "-",
                    *(f"{100 * s:.1f}" for s in known),
                    f"{100 * (1 - sum(known)):.1f}",
                ]
            )
    return table(
        ["layer", "step", "ms", "p10 .. p90", "floor, ms", "of reading, %", *(f"{s}, %" for s in stages), "rest, %"],
        rows,
    )


def transformers_table(results):
    report = results.transformers
    if "skipped" in report:
        return f"Not measured in this run: {report['skipped']}.\n"
    head = (
        f"torch {report['torch']}, transformers {report['transformers']}, {report['threads']} threads, {report['rounds']} rounds in turn; medians in ms, "
        f"smallest and largest behind them. Decode: {report['context']:,} tokens in the cache; prefill: {report['prefill']:,} tokens in chunks of "
        f"{report['chunk']}."
    )
    text = textwrap.fill(head, 120, break_on_hyphens=False) + "\n\n"

    def cell(row, name):
        low, high = row[name + "_spread_ms"]
        return f"{number(row[name + '_ms'])} ({number(low)} .. {number(high)})"

    rows = []
    for row in report["rows"]:
        bound = f", {row['target_bfloat16']:g}x to bfloat16" if row["target_bfloat16"] else ""
        rows.append(
            [
                f"{row['kind']} {row['task']}",
                *(cell(row, n) for n in ("float32", "bfloat16", "smla")),
                f"{row['ratio']:.2f}x",
                f"{row['ratio_bfloat16']:.2f}x",
                f"{row['target']:g}x{bound}",
            ]
        )
    return text + table(["task", "float32", "bfloat16", "smla", "to the faster", "to bfloat16", "target"], rows)


def render(args):
    results = Results(args.out)
    sections = {
        "targets": target_table(results),
        "machine": machine_table(results),
        "attention": op_table(results, "ops", "attention"),
        "indexer": op_table(results, "ops", "indexer"),
        "topk": op_table(results, "ops", "topk", flops=False),
        "projection": op_table(results, "ops", "projection"),
        "fp32": op_table(results, "fp32", "projection"),
        "avx2": avx2_table(results),
        "layer": layer_table(results),
        "transformers": transformers_table(results),
    }
    assert set(sections) == set(SECTIONS)
    say(f"wrote {', '.join(pages.rewrite(pages.PERFORMANCE, sections))} on {datetime.date.today()}")


def check(args):
    found = targets(Results(args.out))
    for t in found:
        print(f"{'met   ' if t.reached() else 'MISSED'} {t.what}: {t.values_text()}, {t.bound_text()}")
    sys.exit(0 if all(t.reached() for t in found) else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, action in (("measure", measure), ("render", render), ("check", check)):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("--out", type=Path, default=ROOT / "build" / "performance")
        if action is measure:
            command.add_argument("program", type=Path)
            command.add_argument("--clock", choices=["wall", "cpu"], default="wall")
            command.add_argument("--threads", type=int, default=0)
            command.add_argument("--quick", action="store_true", help="a few calls each, to see that everything runs")
            command.add_argument("--no-transformers", action="store_true")
    args = parser.parse_args()
    args.action(args)


if __name__ == "__main__":
    main()
