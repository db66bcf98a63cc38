#!/usr/bin/env python3
"""What is wrong with an option or a trace is told in words, before any work."""

import json
import os
import subprocess
from pathlib import Path

from harness import FAILURES, PROGRAM, main, one_request, run

SMALL = ["--max-requests", 1, "--scale-lengths", 0.01, "-q"]


def check_arguments(folder):
    """What is wrong with an option is told in the program's words, before any work."""
    # Ranges: the limits that hold, and no number that only looks like one.
    for option, bad, expected in (
        ("--max-requests", "0", "1 or more"),
        ("--max-requests", "-1", "1 or more"),
        ("--max-requests", "99999999999999999999", "1 or more"),
        ("--max-requests", "1.5", "1 or more"),
        ("--max-requests", "0x10", "1 or more"),
        ("--dump-step", "99999999999999999999", "1 or more"),
        ("--scale-lengths", "0", "to 1000"),
        ("--scale-lengths", "nan", "to 1000"),
        ("--arrival-speed", "nan", "0 to"),
        ("--arrival-speed", "inf", "0 to"),
        ("--kv-scale", "nan", "to 1000000"),
        ("--q-scale", "NaN", "to 1000000"),
        ("--draft-acceptance", "nan", "0 to 1"),
        ("--seed", "-1", "0 or more"),
        ("--seed", "99999999999999999999999", "0 or more"),
        ("--threads", "5000", "0 to 4096"),
        ("--fp8-weights", "some", "auto, on or off"),
        ("--nvfp4-weights", "some", "auto, on or off"),
        ("--precision", "f16", "bf16 or f32"),
    ):
        run(
            "run",
            option,
            bad,
            code=2,
            err=f"smla: {option}: got {bad}, expected ",
        )
        run("run", option, bad, code=2, err=expected)
    run("make-checkpoint", folder / "x", "--layers", "0", code=2, err="smla: --layers: got 0, expected 1 or more")
    for option in ("--q-scale", "--kv-scale"):
        run("make-checkpoint", folder / "x", option, "nan", code=2, err=f"smla: {option}: got nan, expected ")
    run("bench", "machine", "--min-time", "nan", code=2, err="smla: --min-time: got nan, expected 0 to 3600")
    # A value that is missing does not swallow what follows.
    for option in (
        "--json",
        "--weights",
        "--model",
        "--trace",
        "--dump",
        "--impl",
        "--layers",
        "--kv-bytes",
        "--cache-dtype",
    ):
        run("run", f"{option}=", "-q", code=2, err=f"smla: {option}: got an empty value")
        run("run", option, "", "-q", code=2, err=f"smla: {option}: got an empty value")
        run("run", option, "-q", code=2, err=f"smla: {option}: got -q, expected a value")
        run("run", option, code=2, err=f"smla: {option}: got no value")
    run("run", "--draft-acceptance=", "--speculative", 2, code=2, err="--draft-acceptance: got an empty value")
    run("make-checkpoint", "", code=2, err="smla: got an empty argument after make-checkpoint")
    run("make-checkpoint", "/dev/null/x", code=2, err=["/dev/null/x: got ", "expected a folder"])
    run("run", "--seed", 1, "--seed", 2, code=2, err="smla: --seed: got it twice, expected it once")
    run("run", "--sed", 1, code=2, err="smla: got --sed 1, which is no option")
    # Implementations.
    for choice, text in (
        ("frob", "got frob, expected one of"),
        ("sparse_atention=ref", "sparse_attention"),
        ("cuda", "got cuda, expected one of"),
        ("=", "expected NAME or OP=NAME"),
        ("topk=", "expected NAME or OP=NAME"),
        ("=ref", "expected NAME or OP=NAME"),
        ("sparse_attention=frob", "got frob for sparse_attention, expected one of"),
        ("topk=frob", "got frob for topk"),
    ):
        run("run", *SMALL, "--impl", choice, code=2, err=["smla: --impl: ", text])
        run("bench", "attention", "-q", "--impl", choice, code=2, err=["smla: --impl: ", text])
    run("run", *SMALL, "--impl", "ref", "--impl", "cpu", code=2, err="--impl: got cpu beside ref")
    run(
        "run",
        *SMALL,
        "--impl",
        "avx2",
        code=2,
        err="--impl: got avx2, expected one that runs here: this CPU has no AVX2",
        env={"SMLA_CPU": "generic"},
    )
    run("run", *SMALL, "--impl", "ref", code=0, out=["sparse_attention ref", "PASS"])


def check_combinations(folder):
    """Options without effect beside the others are refused by name; nothing that was typed is dropped unseen."""
    f32 = ("--precision", "f32")
    for option, value, others, text in (
        ("--cache-dtype", "fp8_per_tensor", f32, "--precision f32"),
        ("--index-dtype", "mxfp4", f32, "--precision f32"),
        ("--cache-dtype", "nonsense", f32, "--precision f32"),
        ("--kv-scale", "2", f32, "--precision f32"),
        ("--q-scale", "2", f32, "--precision f32"),
        ("--kv-scale", "2", (), "fp8_ds_mla rows"),
        ("--q-scale", "2", ("--cache-dtype", "bf16"), "bf16 rows"),
        ("--gather-prefill", None, ("--front-end", "flashinfer"), "--front-end flashinfer"),
        ("--gather-prefill", None, ("--cache-dtype", "bf16"), "bf16 rows"),
        ("--gather-prefill", None, f32, "--precision f32"),
        ("--fp8-weights", "on", (), "without --weights"),
        ("--fp8-weights", "auto", (), "without --weights"),
        ("--nvfp4-weights", "on", (), "without --weights"),
        ("--adaptive-speculation", None, (), "--speculative"),
        ("--draft-acceptance", "0.5", (), "--speculative"),
        ("--no-graphs", None, (), "--device cuda"),
        ("--stage-times", None, (), "--device cuda"),
        ("--plant-error", "block", ("--check", 0), "--check 0"),
        ("--dump-step", "2", (), "without --dump"),
        ("--clock", "cpu", ("--arrival-speed", 1), "--arrival-speed"),
        ("--prefix-retention", "256", (), "without --prefix-cache"),
        ("--prefix-compare", None, (), "without --prefix-cache"),
        ("--dump", folder, ("--prefix-cache", "--prefix-compare"), "--prefix-compare"),
        ("--dump", folder, ("--tp", 2), "beside --tp or --cp"),
        ("--prefix-cache", None, ("--cp", 2), "beside --cp"),
        ("--kv-bytes", "2G", ("--kv-blocks", 100), "--kv-blocks"),
        ("--index-topk-freq", 2, ("--index-topk-pattern", "FS"), "beside --index-topk-pattern"),
    ):
        run("run", *others, option, *([] if value is None else [value]), code=2, err=[f"smla: {option}: got it ", text])
    for option, value in (("--grid", "decode"), ("--layer", "swa"), ("--pool", "8"), ("--next-n", "2")):
        run("bench", "attention", option, value, code=2, err=[f"smla: {option}: got it ", "--device cuda"])
    for group, option, value, expected in (
        ("topk", "--heads", 3, "expected attention or projection or layer"),
        ("attention", "--context", 77, "expected indexer or topk or layer"),
        ("machine", "--keys", 5, "expected attention"),
        ("indexer", "--chunk", 5, "expected layer"),
    ):
        run("bench", group, option, value, code=2, err=[f"smla: {option}: got it on {group}, ", expected])
    trace = one_request(folder)
    for value in ("50000000", "50M", "0.05G", "64MB", "64mib", "0.05g", "0.0001T", "0.05 GB", "65536KiB", "65536k"):
        run("run", "--trace", trace, "--kv-bytes", value, "--check", 0, "-q", code=0)
    for value in ("G", "5X", "-1", "nan", "1e30", "5GG"):
        run(
            "run",
            "--trace",
            trace,
            "--kv-bytes",
            value,
            code=2,
            err=f"--kv-bytes: got {value}, expected a number of bytes",
        )


def check_output_paths(folder):
    """Output paths are opened before the work; - is stdout; JSON is the same kind of option everywhere."""
    problems = []
    quick = ["--min-time", 0, "--min-runs", 2, "-q"]
    for command in (("run", "-q"), ("bench", *quick), ("info",)):
        run(
            *command,
            "--json",
            "/nope/x.json",
            code=2,
            err="smla: --json: /nope/x.json could not be written: No such file or directory",
        )
    run("bench", *quick, "--output", "/nope/x", code=2, err="smla: --output: /nope/x could not be written")
    run("bench", *quick, "--json", folder, code=2, err="could not be written: Is a directory")
    run("bench", *quick, "--json", "layer", code=2, err="smla: --json: got layer, which is something to measure")
    run("bench", "--csv", "-q", code=2, err="smla: --csv: got -q, expected a value")
    run("info", "--json", code=2, err="smla: --json: got no value")
    report = json.loads(run("run", *SMALL, "--json", "-", code=0, err=["requests", "PASS"]))
    problems += [] if report["schema"] == "smla-run/1" and not Path("-").exists() else ["run --json -"]
    run("bench", "machine", *quick, "--json", folder / "m.json", "--csv", folder / "m.csv", code=0, out="GFLOP/s")
    problems += [] if json.loads((folder / "m.json").read_text())["format"] == "smla-bench/1" else ["bench --json"]
    problems += [] if (folder / "m.csv").read_text().startswith("group,") else ["bench --csv"]
    run("info", "--json", folder / "i.json", code=0, out="CPU")
    problems += [] if json.loads((folder / "i.json").read_text())["ops"] else ["info --json FILE"]
    # A run that fails leaves what was there, and no empty file.
    (folder / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        run("run", "--trace", folder / "absent.jsonl", "--json", folder / name, code=2, err="absent.jsonl")
    problems += (
        []
        if (folder / "old.json").read_text() == "old" and not (folder / "new.json").exists()
        else ["a failed run touched --json"]
    )
    if problems:
        FAILURES.append("output paths")
        print("FAIL output paths:", *problems, sep="\n    ")


def check_traces(folder):
    """Times count from the first request, waits are told, ids are optional, hostile lengths cost nothing."""
    line = '{"timestamp": %d, "input_length": %d, "output_length": 2}\n'
    epoch = folder / "epoch.jsonl"
    epoch.write_text(line % (1732250000000, 5) + line % (1732250006600, 5))
    run(
        "run",
        "--trace",
        epoch,
        "--arrival-speed",
        1,
        "--check",
        0,
        code=0,
        out="2 finished",
        err=["waiting for request 1", "which comes in "],
    )
    run("run", "--trace", epoch, "--arrival-speed", 1000, "--check", 0, "-q", code=0, out="2 finished")
    huge = folder / "huge.jsonl"
    huge.write_text(line % (0, 2147483647) + line % (0, 5))
    limited = [
        "bash",
        "-c",
        f'ulimit -v 8000000; exec "{PROGRAM}" run --trace "{huge}" --max-batched-tokens 64 --check 2 --threads 1 -q '
        "--json -",
    ]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    good = (
        done.returncode == 0
        and json.loads(done.stdout)["finished"] == 1
        and "request 0: got 2147483648 positions" in done.stdout
    )
    print("ok  " if good else "FAIL", "a request of 2^31 tokens is refused and costs no memory")
    if not good:
        FAILURES.append("huge request")
        print(done.stdout[-800:], done.stderr[-800:])
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    run("run", "--trace", pipe, code=2, err=[str(pipe), "no regular file"])
    run("run", "--model", pipe, code=2, err=[str(pipe), "no regular file"])
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / "config.json")
    run("run", "--weights", folder / "piped", code=2, err=["config.json", "no regular file"])


main(check_arguments, check_combinations, check_output_paths, check_traces)
