#!/usr/bin/env python3
"""`smla soak`: under load outputs are right, memory has a bound, and what goes wrong ends with status 1."""

import json

from harness import FAILURES, main, run


def check_soak(folder):
    short = ["soak", "-q", "--threads", 1, "--seconds", 600]
    report = folder / "soak.json"
    # Some 20 s of work on one core. Memory is judged, with a wide bound: the program has just started.
    judged = ["--memory-growth", 0.5, "--warm-up-steps", 100]
    texts = ["outputs     PASS", "memory      PASS", "blocks      PASS", "progress    PASS", "soak: PASS"]
    run(*short, "--arrivals", 100, *judged, "--json", report, code=0, out=texts)
    j = json.loads(report.read_text())
    problems = [] if j["schema"] == "smla-soak/1" and j["passed"] else ["schema or outcome"]
    counts = ("finished", "cancelled", "rejected_drafts", "preemptions", "evicted_tails")
    problems += [f"no {key}" for key in counts if not j[key] > 0]
    if j["finished"] + j["cancelled"] != j["submitted"] or j["submitted"] != 100 or j["lost_blocks"] != 0:
        problems.append("requests or blocks were lost")
    if not 0 < j["memory"]["first_bytes"] <= j["memory"]["most_bytes"]:
        problems.append("no memory")
    few = [*short, "--max-requests", 3, "--scale-lengths", 0.02, "--arrivals", 9]
    run(*few, "--tp", 2, code=0, out=["ranks: 2 that share out heads", "outputs     PASS", "memory      SKIP"])
    run(*few, "--cp", 2, code=0, out=["x 2 that share out compressed", "outputs     PASS"])
    run(*few, "--dspark", code=0, out=["and DSpark drafts by 4", "DSpark blocks", "outputs     PASS", "blocks      PASS"])
    run(*few, "--dspark", "--speculative", 0, code=2, err="--dspark: got it without --speculative")
    run(*few, "--plant-error", "block", code=1, out=["outputs     FAIL", "not so:", "soak: FAIL"])
    run(*few, "--stall-seconds", "1e-6", code=1, err="a step has not ended for 1e-06 s")
    run(*few, "--kv-blocks", 1, code=2, err="--kv-blocks: got 1 blocks, expected enough for one request")
    run(*few, "--cp", 2, "--prefix-retention", 256, code=2, err="--prefix-retention: got it without a prefix cache")
    run("soak", "--cancel", 2, code=2, err="--cancel: got 2, expected")
    if problems:
        FAILURES.append("soak")
        print("FAIL soak:", *problems, sep="\n    ")


main(check_soak)
