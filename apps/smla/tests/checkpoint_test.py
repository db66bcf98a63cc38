#!/usr/bin/env python3
"""Checkpoints: made, read, run."""

import json
import os
import shutil
import subprocess

from harness import FAILURES, PROGRAM, main, run


def check_checkpoint(folder):
    """Random weights written and read back run as the same weights made in memory; every encoding runs; hostile ones
    are refused."""
    quick = ["--max-requests", 2, "--scale-lengths", 0.02, "--check", 3, "-q"]

    def digest(*args):
        run("run", *args, *quick, "--json", folder / "run.json", code=0)
        return [request["digest"] for request in json.loads((folder / "run.json").read_text())["requests"]]

    memory = digest("--model", "tiny", "--seed", 4)
    for dtype, compressor, shards in (
        ("bf16", "bf16", 1),
        ("fp8", "bf16", 3),
        ("nvfp4", "nvfp4", 2),
        ("fp8", "fp8", 1),
    ):
        made = folder / f"made_{dtype}_{compressor}"
        run(
            "make-checkpoint",
            made,
            "--dtype",
            dtype,
            "--compressor-dtype",
            compressor,
            "--shards",
            shards,
            "--seed",
            4,
            code=0,
            out=f"in {shards} file",
        )
        if (digest("--weights", made, "--seed", 4) == memory) != (dtype == "bf16"):
            FAILURES.append(dtype)
            print("FAIL: digests of weights in memory and from", made)
    fp8 = folder / "made_fp8_bf16"
    kept = digest("--weights", fp8, "--fp8-weights", "on")
    if kept == digest("--weights", fp8, "--fp8-weights", "off") or digest("--weights", fp8) != kept:
        FAILURES.append("fp8 weights")
        print("FAIL: --fp8-weights on changes nothing, or auto keeps no FP8 weights on a CPU")
    run("run", "--weights", fp8, "--fp8-weights", "on", *quick, code=0, out=["FP8 as stored", "PASS"])
    run("run", "--weights", fp8, "--fp8-weights", "some", code=2, err="--fp8-weights")
    nvfp4 = folder / "made_nvfp4_nvfp4"
    kept = digest("--weights", nvfp4, "--nvfp4-weights", "on")
    if kept == digest("--weights", nvfp4, "--nvfp4-weights", "off") or digest("--weights", nvfp4) != kept:
        FAILURES.append("nvfp4 weights")
        print("FAIL: --nvfp4-weights on changes nothing, or auto keeps no NVFP4 weights on a CPU")
    run("run", "--weights", nvfp4, "--nvfp4-weights", "on", *quick, code=0, out=["NVFP4 as stored", "PASS"])
    scaled = folder / "scaled"
    run(
        "make-checkpoint",
        scaled,
        "--layers",
        2,
        "--kv-scale",
        0.5,
        "--q-scale",
        0.5,
        "--model-prefix",
        code=0,
        out="2 layers",
    )
    per_tensor = ["--cache-dtype", "fp8_per_tensor"]
    if digest("--weights", scaled, *per_tensor) != digest(
        "--model", "tiny", "--layers", 2, *per_tensor, "--kv-scale", 0.5, "--q-scale", 0.5
    ):
        FAILURES.append("scales")
        print("FAIL: scales of the checkpoint were not used")
    run("run", "--weights", made, *per_tensor, *quick, code=0, err="no KV or q scales")
    run("run", "--weights", made / "model.safetensors", code=2, err="config.json")
    run("run", "--weights", made / "model.safetensors", "--model", "tiny", *quick, code=0)
    run(
        "run",
        "--weights",
        made,
        "--model",
        "v4-flash",
        "--layers",
        1,
        code=2,
        err=["misshaped: wq_a.weight", "misshaped: wo_b.weight"],
    )
    run("run", "--weights", scaled, "--model", "tiny", code=2, err="layers.2.attn")
    run("run", "--weights", folder / "nowhere", code=2, err="nowhere")
    run("make-checkpoint", made, code=2, err=["empty", "--force"])
    run("make-checkpoint", folder / "m", "--layers", 5, code=2, err="--layers")
    run("make-checkpoint", folder / "m", "--layers", 1, "--shards", 500, code=2, err="shards")
    # Layer by layer: the whole of it would not fit this address space.
    limited = [
        "bash",
        "-c",
        f'ulimit -v 800000; exec "{PROGRAM}" make-checkpoint "{folder / "big"}" --model v4-flash --layers 4',
    ]
    done = subprocess.run(
        limited, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    print("ok  " if done.returncode == 0 else "FAIL", "make-checkpoint of 4 V4-Flash layers, 0.9 GB, in 0.8 GB")
    if done.returncode != 0 or "4 layers" not in done.stdout:
        FAILURES.append("make-checkpoint streams")
        print(done.stdout[-500:], done.stderr[-500:])
    shutil.rmtree(folder / "big", ignore_errors=True)
    raw = (made / "model.safetensors").read_bytes()
    (made / "model.safetensors").write_bytes(raw[:-1])
    run("run", "--weights", made, code=2, err=["model.safetensors", "data_offsets"])
    (made / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../x.safetensors"}}')
    run("run", "--weights", made, code=2, err="same folder")


main(check_checkpoint)
