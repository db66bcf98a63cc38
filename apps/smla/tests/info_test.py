#!/usr/bin/env python3
"""`smla info`, `smla why` and the help."""

import json

from harness import FAILURES, NO_GPU, main, run


def check_info_and_why(_folder):
    run("--version", code=0, out="smla ")
    run("--help", code=0, out=["run", "verify", "info", "why", "Exit status"])
    for command in ("run", "verify", "info", "why"):
        run(command, "--help", code=0, out=["--help", command])
    run(code=2, err="smla: got no command, expected run, ")
    run("walk", code=2, err='smla: got "walk", expected run, ')
    run("help", code=2, err='got "help", expected run, ')
    run("walk", "--help", code=2, err="walk")
    run("info", code=0, out=["CPU", "oneDNN", "sparse_attention", "GPU"])
    info = json.loads(run("info", "--json", "-", code=0))
    if not info["gpus"] and run("info", code=0).count(info["no_gpu_reason"]) != 1:
        FAILURES.append("info")
        print("FAIL: why there is no GPU is not told once")
    for op in info["ops"]:
        names = [i["name"] for i in op["implementations"]]
        if names[-1] != "ref" or not op["runs"]:
            FAILURES.append(op["name"])
            print("FAIL", op["name"], "has no ref at the end or nothing runs:", names)
        run("why", op["name"], code=0, out=["chosen", "ref"])
    run("info", code=0, out="this CPU has no AVX2", env={"SMLA_CPU": "generic"})
    run("info", code=2, err="SMLA_CPU", env={"SMLA_CPU": "quantum"})
    shape = ["--heads", 7, "--tokens", 3, "--width", "128,512", "--format", "fp8_ds_mla,bf16", "--block-size", "64,2"]
    run("why", "sparse_attention", *shape, code=0, out=["7 heads", "width 512 of bf16 in blocks of 2", "chosen"])
    run("why", "sparse_attention", "--width", 9, "--q", "e4m3", "--impl", "ref", code=0, out=["* ref", "e4m3 q"])
    run("why", "sparse_attention", "--device", "cuda", code=1, out="runs on cpu, asked for cuda", env=NO_GPU)
    run("why", "sparse_attention", "--format", "e5m2", code=2, err=["e5m2", "fp8_ds_mla"])
    run("why", "sparse_attention", "--width", "1,2,3", code=2, err="--width")
    run("why", "sparse_attention", "--width", "1,2", "--block-size", "1,2,3", code=2, err="--block-size")
    run("why", "sparse_attention", "--heads", 129, code=2, err="129")
    run("why", "sparse_attention", "--heads", "many", code=2, err="--heads")
    run("why", "sparse_attention", "--tokens", -1, code=2)
    run("why", "sparse_attention", "--impl", "abacus", code=2, err="abacus")
    run("why", "topk", "--heads", 3, code=2, err="topk")
    tables = run("why", "sparse_attention", "--cells", code=0)
    details = run("why", "sparse_attention", "--cells", "--details", "--impl", "cpu", "--format", "bf16", code=0)
    if details.count("\n") != details.count(": cpu") or details.count("\n") != 5 * 6 * 6 + 5 * 3 * 4:
        FAILURES.append("why --cells --details")
        print("FAIL: a line of each cell, by cpu:", details[:300])
    details_of_best = run("why", "sparse_attention", "--cells", "--details", code=0).splitlines()
    best = {line.split(": ")[1].split(",")[0] for line in details_of_best}
    everywhere = "| 8, 16, 32, 64, 128 heads: "
    if len(best) == 1 and (tables.count(everywhere) != 2 or tables.count(f" | {best.pop()}") != 6 + 4):
        FAILURES.append("why --cells")
        print("FAIL: the tables of cells:", tables)
    # A card that need not be there: the kernels decide where they are built, else they say why not.
    known = run("why", "sparse_attention", "--cells", "--gpu", "h200", "--details", code=(0, 2))
    if known and "decode, 8 heads, window only, 1 requests: " not in known:
        FAILURES.append("why --cells --gpu")
        print("FAIL: cells of an H200:", known[:300])
    run("why", "sparse_attention", "--cells", "--gpu", "z80", code=2, err=["--gpu", "z80", "h200"])
    run("why", "sparse_attention", "--gpu", "h200", code=2, err="--cells")
    run("why", "topk", "--cells", code=2, err=["--cells", "topk"])
    run("why", "sparse_attention", "--cells", "--device", "cuda", code=1, out="none", env=NO_GPU)
    run("why", "nothing", code=2, err=["nothing", "topk"])


main(check_info_and_why)
