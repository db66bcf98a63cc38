#!/usr/bin/env python3
"""`smla bench`: groups, reports, comparison of GPU reports, accuracy."""

import csv
import json
import subprocess
import sys

from harness import FAILURES, SOURCE, main, run


def gpu_report(path, speed=1.0, time_ms=0.01, **row):
    """A report as a GPU's run would write it, its ceilings `speed` times those of the peers' run."""
    ceilings = {
        "peak_gflops": {"product": 799e3 * speed, "mma": 6e5},
        "bandwidth_gbs": {"copy": 4271 * speed, "gather_2": 3350, "gather_64": 3580 * speed},
        "timer_us": 1.0,
        "product": "cublaslt",
    }
    rows = [
        {
            "group": "attention",
            "name": name,
            "shape": "s",
            "cell": name,
            "implementation": "cuda",
            "runs": 9,
            "median_ms": time_ms,
            "p10_ms": time_ms,
            "p90_ms": time_ms,
            "best_ms": time_ms,
            "gflop": 1.0,
            "megabytes": 35.8,
            "traffic": "gather",
            "over_floor": 1.0,
            "l2": 1e-3,
            "check": "ok",
            **row,
        }
        for name in ("decode/64/swa/1", "decode/64/swa/16")
    ]
    path.write_text(
        json.dumps(
            {
                "format": "smla-bench/1",
                "version": "0",
                "date": "now",
                "cpu": "c",
                "cores": 1,
                "threads": 1,
                "clock": "wall",
                "model": "v4-flash",
                "device": "a GPU",
                "driver": "1",
                "cuda": "13.0",
                "machine": {"before": ceilings, "after": ceilings},
                "rows": rows,
            }
        )
    )
    return path


def check_gpu_bench(folder):
    """bench compare, bench serve and --device cuda, as far as they go without a GPU."""
    problems = []
    a, b = gpu_report(folder / "a.json"), gpu_report(folder / "b.json", time_ms=0.005)
    run("bench", "compare", a, b, code=0, out=["2.000x", "2 rows: geometric mean 2.000x"])
    run("bench", "compare", a, gpu_report(folder / "fast.json", speed=1.07), code=1, out=["VOID", "product"])
    run("bench", "compare", a, gpu_report(folder / "wrong.json", check="WRONG: no"), code=0, out="WRONG: no")
    run("bench", "compare", a, "--peers", code=0, out=["1.15x", "FlashMLA", "decode/* up to 16", "geometric mean"])
    run("bench", "compare", folder / "fast.json", "--peers", code=1, out="VOID")
    run("bench", "compare", a, code=2, err="one with --peers")
    run("bench", "compare", a, b, "--peers", code=2, err="2 files")
    run("bench", "compare", a, folder / "absent.json", code=2, err="absent.json")
    (folder / "no.json").write_text('{"format": "other"}')
    run("bench", "compare", a, folder / "no.json", code=2, err=["no.json", "smla-bench/1"])
    for text, expected in (
        ("{}", "format: got no such key"),
        ("[", "not JSON at byte"),
        ('{"format": "smla-bench/1", "model": 5}', "model: got 5, expected text"),
    ):
        (folder / "odd.json").write_text(text)
        run("bench", "compare", a, folder / "odd.json", code=2, err=["odd.json: ", expected])
    run("bench", "compare", "--help", code=0, out=["--peers", "VOID"])
    run("bench", "serve", "--help", code=0, out=["--requests", "--whole-stack", "TTFT"])
    fp8 = ("--device", "cuda", "--fp8-weights")
    run("bench", "ops", *fp8, code=2, err=["--fp8-weights: got it on ops", "expected projection or layer"])
    run("bench", "topk", "--nvfp4-weights", code=2, err=["--nvfp4-weights: got it on topk", "projection or layer"])
    for what in ("layer", "serve"):
        both = (what, "--fp8-weights", "--nvfp4-weights")
        run("bench", *both, code=2, err="--nvfp4-weights: got it beside --fp8-weights, expected one of the two")
    plot = subprocess.run(
        [sys.executable, SOURCE / "tools/plot.py", a, "--text"], capture_output=True, text=True, check=False
    )
    problems += [] if plot.returncode == 0 and "decode/64/swa" in plot.stdout else [f"plot: {plot.stderr}"]
    bad = subprocess.run(
        [sys.executable, SOURCE / "tools/plot.py", folder / "no.json"], capture_output=True, text=True, check=False
    )
    problems += [] if bad.returncode == 1 and "no.json" in bad.stderr else [f"plot of a bad file: {bad.stderr}"]
    if "GPU      none" not in run("info", code=0):
        print("SKIP smla bench --device cuda: there is a GPU; the tests gpu.BenchGpu use it")
        return problems
    run("bench", "machine", "--device", "cuda", code=2, err="no GPU")
    run("bench", "serve", code=2, err="no GPU")
    run("bench", "serve", "--whole-stack", code=2, err="no GPU")
    run("bench", "serve", "--prompt", "3", code=2, err="--prompt: got 3, expected 4 or more: a decode is")
    run("bench", "serve", "--prompt", "6", "--whole-stack", code=2, err="--prompt: got 6, expected 7 or more with --wh")
    run("bench", "serve", "--prompt", "4", code=2, err="no GPU")
    return problems


def check_accuracy(folder):
    """bench accuracy: the table and the JSON tell the same, and formats err in the order of their bits."""
    out = run("bench", "accuracy", "cache", "--small", "--context", 300, "--measured", 8, "--json", folder / "a.json",
              code=0, out=["| fp8_ds_mla |", "300 tokens, cache"], err="tokens, cache: bf16")  # fmt: skip
    report = json.loads((folder / "a.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    problems = [] if report["format"] == "smla-accuracy/1" and report["measured"] == 8 else ["bench accuracy: head"]
    if not rows["f32 throughout"]["stack"] < rows["bf16"]["stack"] < rows["fp8_ds_mla"]["stack"] < 0.1:
        problems.append(f"bench accuracy: {rows}")
    for name, row in rows.items():
        if f"| {name} | {row['swa']:.2e} | {row['c4a']:.2e} |" not in out:
            problems.append(f"bench accuracy: {name} is not in the table")
    run("bench", "accuracy", "weather", code=2, err="weather")
    run("bench", "accuracy", "--context", 10, "--small", "-q", code=2, err=["context: got 10", "32, the measured"])
    run("bench", "accuracy", "--json", folder, "-q", code=2, err="could not be written")
    run("bench", "accuracy", "--help", code=0, out=["--measured", "docs/accuracy.md"])
    return problems


def check_bench(folder):
    """Tiny shapes through every group; the three formats tell the same."""
    steps = ["--model", "tiny", "--batch", "1,2"]
    attention = [*steps, "--tokens", 5, "--keys", "3,200"]
    layer = [*steps, "--context", 700, "--prefill", 40, "--chunk", 16]
    small = [*attention, *layer[len(steps) :]]
    quick = ["--min-time", 0, "--min-runs", 2, "-q"]
    groups = ["attention", "indexer", "topk", "projection", "layer"]
    report = json.loads(run("bench", *small, *quick, "--format", "json", code=0))
    machine, rows = report["machine"], report["rows"]
    problems = [f"no rows of {g}" for g in groups if not any(r["group"] == g for r in rows)]
    problems += [
        f"ceiling {n}: {v}"
        for n, v in [*machine["peak_gflops"].items(), ("read", machine["read_gbs"])]
        if not 0.01 < v < 1e7
    ]
    for row in rows:
        good = (
            row["runs"] >= 2
            and 0 < row["best_ms"] <= row["p10_ms"] <= row["median_ms"] <= row["p90_ms"]
            and row["implementation"]
            and row["megabytes"] > 0
        )
        good = good and abs(row["gflops"] - row["gflop"] / row["median_ms"] * 1e3) <= 1e-6 * row["gflops"]
        in_turn = row["group"] == "projection" or row["group"] == "layer" and "decode" in row["name"]
        good = good and row["reading_in_turn"] == in_turn and (in_turn or row["reading_gbs"] == machine["read_gbs"])
        good = good and abs(row["bandwidth_share"] - row["gbs"] / row["reading_gbs"]) <= 1e-6 * row["bandwidth_share"]
        good = good and (row["group"] != "layer" or abs(sum(row["stages"].values()) - 1) < 1e-6)
        problems += [] if good else [f"row {row}"]
    flop = {(r["name"], r["shape"]): r["gflop"] for r in rows if r["group"] == "attention"}
    heads = int(next(shape for _, shape in flop).split("heads ")[1].split(",")[0])
    if flop.get(("2 tokens", f"tokens 2, heads {heads}, keys 200, fp8_ds_mla")) != 4 * 2 * heads * 200 * 512 * 1e-9:
        problems.append(f"operations of attention: {flop}")
    run("bench", *small, *quick, "--format", "csv", "--output", folder / "bench.csv", code=0)
    lines = list(csv.DictReader((folder / "bench.csv").open()))
    told = [(r["group"], r["name"], r["shape"], r["implementation"]) for r in lines if r["group"] != "machine"]
    if told != [(r["group"], r["name"], r["shape"], r["implementation"]) for r in rows] or any(
        None in r or None in r.values() for r in lines
    ):
        problems.append("CSV and JSON differ")
    table = run("bench", *layer, *quick, "layer", code=0, out=["CPU", "GB/s", "C128A prefill", "output projection"])
    if "topk top" in table:
        problems.append("other groups ran")
    run("bench", "machine", *quick, code=0, out=["GFLOP/s", "GB/s"])
    forced = json.loads(
        run(
            "bench",
            "attention",
            *attention,
            *quick,
            "--impl",
            "sparse_attention=ref",
            "--heads",
            7,
            "--format",
            "json",
            code=0,
        )
    )
    if {r["implementation"] for r in forced["rows"]} != {"ref"} or "heads 7" not in forced["rows"][0]["shape"]:
        problems.append("--impl or --heads was not heeded")
    halves = [
        json.loads(run("bench", "attention", *attention, *quick, "--only", half, "--format", "json", code=0))
        for half in ("decode", "prefill")
    ]
    if [[row["name"] for row in half["rows"]] for half in halves] != [["1 tokens", "2 tokens"] * 2, ["5 tokens"] * 2]:
        problems.append("--only was not heeded")
    if (
        json.loads(run("bench", "machine", *quick, "--clock", "cpu", "--format", "json", code=0))["clock"] != "cpu"
        or report["clock"] != "wall"
    ):
        problems.append("--clock was not told")
    run("bench", "--help", code=0, out=["machine", "--kind", "attention", "Exit status"])
    run("bench", "weather", code=2, err=["weather", "attention"])
    run("bench", "--model", "v5", code=2, err=["v5", "v4-flash"])
    run("bench", "machine", "--kind", "c8a", code=2, err="--kind")
    run("bench", "machine", "--batch", 0, code=2, err="--batch")
    run("bench", "machine", "--format", "xml", code=2, err="--format")
    run("bench", "machine", *quick, "--output", folder / "nowhere" / "x", code=2, err="--output")
    problems += check_gpu_bench(folder)
    problems += check_accuracy(folder)
    run("bench", "attention", *attention, *quick, "--heads", "7,8", code=2, err="--heads")
    if json.loads(run("bench", "machine", *quick, "--json", "-", code=0))["format"] != "smla-bench/1" or not run(
        "bench", "machine", *quick, "--csv", "-", code=0
    ).startswith("group,"):
        problems.append("--json or --csv was not heeded")
    run("bench", "attention", *attention, *quick, "--impl", "sparse_attention=abacus", code=2, err="abacus")
    run("bench", "attention", *attention, *quick, "--cache-dtype", "e5m2", code=2, err="e5m2")
    if problems:
        FAILURES.append("bench")
        print("FAIL bench:", *problems, sep="\n    ")


main(check_bench)
