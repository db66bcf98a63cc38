#!/usr/bin/env python3
"""Drives the smla program as a user does: cli_test.py PROGRAM SOURCE_DIR. Prints each check; exit 1 when one fails."""

import csv
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM, SOURCE = sys.argv[1], Path(sys.argv[2])
FAILURES = []


# What the program does where there is no GPU, on any machine.
NO_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": ""}


def run(*args, code, out="", err="", env=None):
    """Runs the program and checks status (one of several) and texts; returns stdout."""
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=300, check=False, env=env)
    codes = code if isinstance(code, tuple) else (code,)
    problems = [] if done.returncode in codes else [f"status {done.returncode}, expected {code}"]
    problems += [
        f"no {text!r} on stdout" for text in ([out] if isinstance(out, str) else out) if text not in done.stdout
    ]
    problems += [
        f"no {text!r} on stderr" for text in ([err] if isinstance(err, str) else err) if text not in done.stderr
    ]
    print(
        ("ok  " if not problems else "FAIL"),
        "smla",
        *[str(a) if len(str(a)) < 60 else "..." + str(a)[-50:] for a in args],
    )
    if problems:
        FAILURES.append(args)
        print("    " + "; ".join(problems), done.stdout[-1500:], done.stderr[-1500:], sep="\n    ")
    return done.stdout


def save(path, op, params, tensors):
    """A smla-case/1 file; tensors: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": {"format": "smla-case/1", "op": op, "params": json.dumps(params)}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    meta = header.pop("__metadata__")
    return meta, {
        n: (t["dtype"], t["shape"], raw[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]])
        for n, t in header.items()
    }


def attention_case(rng, cache_format):
    """Random queries over random rows; the expected results are filled in later."""
    tokens, heads, width, blocks, rows = 3, 4, 6, 3, 5
    bf16 = lambda n: b"".join(struct.pack("<f", rng.gauss(0, 1))[2:] for _ in range(n))
    row = {"bf16": 1024, "fp8_per_tensor": 512}[cache_format]
    cache = bf16(blocks * rows * 512) if row == 1024 else bytes(rng.randrange(0x70) for _ in range(blocks * rows * row))
    indices = [rng.randrange(-2, blocks * rows + 2) for _ in range(tokens * width)]
    params = {
        "scale": 512**-0.5,
        "format0": cache_format,
        "block_size0": rows,
        "tolerance": {"o": {"l2": 2.2e-3}, "lse": {"abs": 1e-5, "rel": 1e-5}},
    }
    tensors = {
        "in.q": ("BF16", [tokens, heads, 512], bf16(tokens * heads * 512)),
        "in.cache0": ("U8", [blocks, rows * row], cache),
        "in.indices0": ("I32", [tokens, width], struct.pack(f"<{len(indices)}i", *indices)),
        "in.sink": ("F32", [heads], struct.pack("<4f", float("-inf"), float("inf"), 0.0, 1.5)),
        "out.o": ("BF16", [tokens, heads, 512], bytes(2 * tokens * heads * 512)),
        "out.lse": ("F32", [tokens, heads], bytes(4 * tokens * heads)),
    }
    return params, tensors


def check_verify(folder):
    rng = random.Random(5)
    for cache_format in ("bf16", "fp8_per_tensor"):
        blank, good = folder / f"blank_{cache_format}.safetensors", folder / f"good_{cache_format}.safetensors"
        params, tensors = attention_case(rng, cache_format)
        save(blank, "sparse_attention", params, tensors)
        run("verify", "--impl", "ref", "--dump", good, blank, code=1, out=["FAIL", "o  worst"])
        run("verify", good, code=0, out=["PASS", "lse", "[", "l2"])
        run("verify", "--impl", "ref", good, code=0, out="[ref]")
        run("verify", "--impl", "cpu", "--threads", "1", good, code=0, out="[cpu]")

    meta, tensors = load(good)
    broken = bytearray(tensors["out.o"][2])
    broken[1] ^= 0x40  # another exponent
    save(
        folder / "wrong.safetensors",
        meta["op"],
        json.loads(meta["params"]),
        {**tensors, "out.o": (*tensors["out.o"][:2], bytes(broken))},
    )
    run("verify", folder / "wrong.safetensors", code=1, out=["FAIL", "at [0, 0, 0]", "PASS"])

    raw = good.read_bytes()
    for keep in (0, 4, 100, len(raw) // 2, len(raw) - 1):
        (folder / "cut.safetensors").write_bytes(raw[:keep])
        run("verify", folder / "cut.safetensors", code=2, err="cut.safetensors")
    run(
        "verify",
        folder / "cut.safetensors",
        good,
        folder / "wrong.safetensors",
        code=2,
        out=["PASS", "FAIL"],
        err="cut.safetensors",
    )
    save(
        folder / "no_q.safetensors",
        meta["op"],
        json.loads(meta["params"]),
        {n: t for n, t in tensors.items() if n != "in.q"},
    )
    run("verify", folder / "no_q.safetensors", code=2, err="in.q")
    save(folder / "op.safetensors", "magic", {}, tensors)
    run("verify", folder / "op.safetensors", code=2, err=["magic", "sparse_attention", "attention_layer"])
    save(folder / "op.safetensors", "\033[2J\n" + "x" * 1000000, {}, tensors)
    done = subprocess.run(
        [PROGRAM, "verify", folder / "op.safetensors"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 2 or "\033" in done.stderr or len(done.stderr) > 4000 or done.stderr.count("\n") != 1:
        FAILURES.append("hostile op")
        print("FAIL: an op's name in a file reaches the terminal:", len(done.stderr), repr(done.stderr[:200]))
    run("verify", folder / "absent.safetensors", code=2, err="absent.safetensors")
    run("verify", folder, code=2, err="regular file")
    run("verify", "--impl", "abacus", good, code=2, err=["abacus", "ref"])
    run("verify", "--impl", "abacus", SOURCE / "tests/golden/layer_swa.safetensors", code=2, err=["abacus", "ref"])
    run("verify", "--device", "cuda", SOURCE / "tests/golden/layer_swa.safetensors", code=2, err="cuda", env=NO_GPU)
    run("verify", "--device", "tpu", good, code=2, err=["tpu", "cuda"])
    run("verify", code=2, err="FILE")
    run("verify", "--dump", folder / "nowhere", good, good, code=2, err="folder")
    (folder / "dumped").mkdir()
    run("verify", "--dump", folder / "dumped", good, SOURCE / "tests/golden/layer_swa.safetensors", code=0)
    run("verify", folder / "dumped" / good.name, folder / "dumped" / "layer_swa.safetensors", code=0)
    run(
        "verify", "--validate", good, code=2, err=["sparse_attention: scopes[0].indices row ", "expected -1 or 0..14"]
    )  # it holds wild indices
    run(
        "verify",
        "--validate",
        *sorted((SOURCE / "tests/golden").glob("layer_*.safetensors")),
        code=0,
        out=["layer_yarn_c4a.safetensors  topk", "index_scores"],
    )


def check_verify_bounds(folder):
    """Bounds that cannot fail, results and parameters that do not exist, dumps over what is verified."""
    rng = random.Random(6)
    params, tensors = attention_case(rng, "bf16")
    blank, good = folder / "b.safetensors", folder / "g.safetensors"
    save(blank, "sparse_attention", params, tensors)
    run("verify", "--impl", "ref", "--dump", good, blank, code=1)
    meta, tensors = load(good)
    op, params = meta["op"], json.loads(meta["params"])
    run("verify", good, code=0, out=["bound l2 ", "bound abs "])

    def altered(name, changed_params=None, changed_tensors=None):
        save(folder / name, op, {**params, **(changed_params or {})}, {**tensors, **(changed_tensors or {})})
        return folder / name

    garbage = ("BF16", tensors["out.o"][1], bytes(rng.randrange(60) for _ in range(len(tensors["out.o"][2]))))
    for bound in ({"abs": 1e9}, {"rel": 1e300}, {"l2": 1e9}, {"l2": 1}, {"cos": 2}, {"cos": 1}, {"ulp": 65535}):
        wide = altered("wide.safetensors", {"tolerance": {"o": bound}}, {"out.o": garbage})
        run("verify", wide, code=2, err=["wide.safetensors", "tolerance", "zeros"])
    run("verify", altered("ouput.safetensors", {"tolerance": {"ouput": {"l2": 1e-3}}}), code=2, err=["ouput", "lse, o"])
    for name, value in (("scael", 0.1), ("causal", True)):
        run("verify", altered("param.safetensors", {name: value}), code=2, err=[name, "scale", "q_scale"])
    run(
        "verify",
        altered("weight.safetensors", None, {"weights.wq_a.weight": ("F32", [1], bytes(4))}),
        code=2,
        err="weights.wq_a.weight",
    )
    layer = SOURCE / "tests/golden/layer_swa.safetensors"
    layer_meta, layer_tensors = load(layer)
    layer_params = json.loads(layer_meta["params"])
    save(
        folder / "layer.safetensors",
        "attention_layer",
        layer_params,
        {**layer_tensors, "weights.wq_c.weight": ("F32", [1], bytes(4))},
    )
    run("verify", folder / "layer.safetensors", code=2, err="weights.wq_c.weight")
    save(folder / "layer.safetensors", "attention_layer", {**layer_params, "windw": 128}, layer_tensors)
    run("verify", folder / "layer.safetensors", code=2, err=["windw", "window"])
    run("verify", altered("heads.safetensors", {"out_heads": 1 << 20}), code=2, err="out_heads")
    run(
        "verify",
        layer,
        code=0,
        out=["output, not observed", "output, bf16 with fp8_ds_mla rows, not observed", "bound l2 "],
    )
    for impl in (
        "ref",
        "cpu",
        "avx2",
        "avx512",
    ):  # the reference's own case with a negative scale; wild indices mask columns
        negative = altered("negative.safetensors", {"scale": -0.06})
        run("verify", "--impl", "ref", "--dump", folder / "negative_want.safetensors", negative, code=1)
        if impl in run("info", code=0):
            run("verify", "--impl", impl, folder / "negative_want.safetensors", code=0, out="PASS")

    # Nothing that is verified is written over, and no dump takes the place of another.
    evidence = folder / "evidence"
    evidence.mkdir()
    before = altered("evidence/x.safetensors", None, {"out.o": garbage}).read_bytes()
    run("verify", evidence / "x.safetensors", "--dump", evidence, code=2, err=["--dump", "x.safetensors", "itself"])
    run("verify", evidence / "x.safetensors", "--dump", evidence / "x.safetensors", code=2, err="itself")
    (evidence / "link.safetensors").symlink_to(evidence / "x.safetensors")
    run("verify", evidence / "x.safetensors", "--dump", evidence / "link.safetensors", code=2, err="itself")
    (evidence / "other").mkdir()
    (evidence / "dumps").mkdir()
    (evidence / "other/x.safetensors").write_bytes(good.read_bytes())
    run(
        "verify",
        evidence / "x.safetensors",
        evidence / "other/x.safetensors",
        "--dump",
        evidence / "dumps",
        code=2,
        err="both",
    )
    if (evidence / "x.safetensors").read_bytes() != before or any((evidence / "dumps").iterdir()):
        FAILURES.append("evidence")
        print("FAIL: a verified case was written over")


def check_run_checks(folder):
    """What `run --check` says where nothing, or nothing but zeros, was computed; and what `run --dump` records."""
    trace = folder / "one.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [1]}\n')
    report = folder / "report.json"
    run(
        "run",
        "--trace",
        trace,
        "--kv-blocks",
        1,
        "--check",
        2,
        "-q",
        "--json",
        report,
        code=1,
        out="nothing was checked",
    )
    check = json.loads(report.read_text())["check"]
    if (
        check["passed"]
        or check["verdict"] != "nothing was checked"
        or check["computed"] != 0
        or check["samples"][0]["relative_l2"] is not None
    ):
        FAILURES.append("nothing checked")
        print("FAIL: a check of nothing in JSON:", check)
    run("run", "--trace", trace, "--kv-blocks", 1, "--check", 0, "-q", code=0)
    run("run", "--help", code=0, out="1 a check failed or nothing was checked")
    run("run", "--trace", trace, "-q", "--plant-error", "rope", code=1, out="FAIL")
    for projection in ("fp8", "fp8-ue8m0"):
        for rows in ("bf16", "fp8_ds_mla"):
            run(
                "run",
                "--trace",
                trace,
                "-q",
                "--output-projection",
                projection,
                "--cache-dtype",
                rows,
                code=0,
                out=["PASS", "bound 0.0"],
            )

    # attn_sink +inf in every head: outputs of 0, which are right.
    made = folder / "sinks"
    run("make-checkpoint", made, "--layers", 2, "--seed", 4, code=0)
    for path in made.glob("*.safetensors"):
        raw = bytearray(path.read_bytes())
        size = struct.unpack("<Q", raw[:8])[0]
        for name, entry in json.loads(raw[8 : 8 + size]).items():
            if name.endswith("attn_sink"):
                begin, end = (8 + size + offset for offset in entry["data_offsets"])
                infinity = struct.pack("<f", float("inf")) if entry["dtype"] == "F32" else struct.pack("<H", 0x7F80)
                raw[begin:end] = infinity * ((end - begin) // len(infinity))
        path.write_bytes(raw)
    text = run("run", "--weights", made, "--trace", trace, "-q", code=0, out="PASS")
    if "nan" in text:
        FAILURES.append("nan")
        print("FAIL: nan in", text)

    dump = folder / "dump"
    small = [
        "run",
        "-q",
        "--max-requests",
        2,
        "--scale-lengths",
        0.02,
        "--kv-blocks",
        300,
        "--check",
        0,
        "--layers",
        "1,",
        "--dump",
        dump,
    ]
    run(*small, "--dump-step", 99, code=2, err=["--dump-step: got 99", "expected at most"])
    run(*small, "--dump-step", 1, code=0, out=["recorded ", " MB"])
    cases = sorted(dump.glob("*.safetensors"))
    run("verify", *cases, code=0, out=["compress_store", "topk"])
    if sum(path.stat().st_size for path in cases) > 100e6:
        FAILURES.append("dump size")
        print("FAIL: the dump of one layer's step has", sum(path.stat().st_size for path in cases), "bytes")
    run(*small, "--dump-step", 1, code=2, err=["--dump", "recorded calls"])
    reused = ["run", "-q", "--max-requests", 2, "--scale-lengths", 0.1, "--check", 4]
    run(*reused, "--index-topk-pattern", "FS", code=0, out=["PASS", "C4A"])
    run(*reused, "--index-topk-pattern", "FSS", code=2, err=["index_topk_pattern: got FSS", "2 in all"])


def check_ranks():
    small = ["run", "-q", "--max-requests", 2, "--scale-lengths", 0.1, "--check", 6]
    run(*small, "--tp", 2, code=0, out=["PASS", "ranks: 2, 2 that share out heads", "sum over ranks"])
    run(*small, "--cp", 3, code=0, out=["PASS", "ranks: 3, 1 that share out heads x 3"])
    run(*small, "--tp", 2, "--cp", 2, "--speculative", 2, code=0, out=["PASS", "ranks: 4,"])
    run(*small, "--tp", 3, code=2, err="num_heads: got 8, expected a multiple of tp_size 3")
    run(*small, "--cp", 2, "--front-end", "flashinfer", code=2, err=["flashinfer with context_parallel", "flashmla"])


def check_info_and_why():
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


def check_run(folder):
    """Only what is refused before any work: `smla run` has tests of its own."""
    bad = folder / "bad.jsonl"
    bad.write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}\n{"timestamp": 0, "input_length": -5}\n'
    )
    run("run", "--trace", bad, code=2, err=["bad.jsonl:2", "input_length"])
    run("run", "--trace", folder / "absent.jsonl", code=2, err="absent.jsonl")
    (folder / "config.json").write_text('{"hidden_size": NaN}')
    run("run", "--model", folder / "config.json", code=2, err="hidden_size")
    run("run", "--model", "v5", code=2, err=["v5", "v4-flash"])
    run("run", "--cache-dtype", "e5m2", code=2, err=["e5m2", "fp8_ds_mla"])


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
    for value in ("50000000", "50M", "0.05G", "64MB", "64mib", "0.05g", "0.0001T", "0.05 GB", "65536KiB", "65536k"):
        run("run", "--trace", folder / "one.jsonl", "--kv-bytes", value, "--check", 0, "-q", code=0)
    for value in ("G", "5X", "-1", "nan", "1e30", "5GG"):
        run(
            "run",
            "--trace",
            folder / "one.jsonl",
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
    epoch.write_text(line % (1732250000000, 5) + line % (1732250002600, 5))
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
        err=["waiting for request 1", "which comes in 3 s"],
    )
    run("run", "--trace", epoch, "--arrival-speed", 1000, "--check", 0, "-q", code=0, out="2 finished")
    huge = folder / "huge.jsonl"
    huge.write_text(line % (0, 2147483647) + line % (0, 5))
    limited = [
        "bash",
        "-c",
        f'ulimit -v 8000000; exec "{PROGRAM}" run --trace "{huge}" --max-batched-tokens 64 --check 2 --threads 1 -q --json -',
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


def check_run_report(folder):
    """The report names the layers, the path of a config.json, and the implementations of every step."""
    config = folder / "named" / "config.json"
    run("make-checkpoint", folder / "named", "-q", code=0)
    # A long prompt that ends at once, then decodes of a short one, which has too few entries to choose among.
    (folder / "two.jsonl").write_text(
        '{"timestamp": 0, "input_length": 300, "output_length": 1}\n{"timestamp": 0, "input_length": 5, "output_length": 6}\n'
    )
    text = run(
        "run",
        "--trace",
        folder / "two.jsonl",
        "--check",
        2,
        "-q",
        "--layers",
        "0,2,3",
        "--model",
        config,
        code=0,
        out=[f"{config} (tiny): 3 layers 0, 2-3 (1 window, 1 C4A, 1 C128A)"],
    )
    bad = json.loads(config.read_text())
    bad["hidden_size"] = -1
    config.write_text(json.dumps(bad))
    run("run", "--model", config, code=2, err=f"smla: {config}: hidden_size: got -1")
    if "topk " not in text or "indexer_logits " not in text:
        FAILURES.append("implementations")
        print("FAIL: implementations of the prefill are missing:", text)


def check_prefix_cache(folder):
    """Prompts that begin alike: what is found, and the same outputs as without; prompts that share nothing."""
    (folder / "alike.jsonl").write_text(
        '{"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [1, 2]}\n'
        '{"timestamp": 0, "input_length": 900, "output_length": 3, "hash_ids": [1, 3]}\n'
        '{"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [1, 2]}\n'
    )
    (folder / "apart.jsonl").write_text('{"timestamp": 0, "input_length": 600, "output_length": 2}\n' * 2)
    cache = ["--prefix-cache", "--prefix-compare", "--deterministic", "--max-seqs", 1, "--layers", "1,2", "-q"]

    def report(name, *args):
        text = run(
            "run",
            "--trace",
            folder / name,
            *cache,
            *args,
            "--json",
            folder / "run.json",
            code=0,
            out=["the same outputs, bit for bit", "without     TTFT ms mean"],
        )
        return text, json.loads((folder / "run.json").read_text())

    text, found = report("alike.jsonl", "--check", 6)
    got = (found["prefix_cache"]["cached_tokens"], [r["cached_tokens"] for r in found["requests"]])
    if got != (1024, [0, 512, 512]) or "2 of 3 requests began in the cache, 1024 of 2300 prompt tokens" not in text:
        FAILURES.append("prefix cache")
        print("FAIL: prefixes found:", got, text)
    _, found = report("alike.jsonl", "--prefix-retention", 256, "--check", 0)
    got = [r["cached_tokens"] for r in found["requests"]]
    if got != [0, 512, 512] or found["prefix_cache"]["without"]["different_outputs"] != 0:
        FAILURES.append("prefix retention")
        print("FAIL: prefixes found with an interval of 256:", got)
    _, found = report("apart.jsonl", "--check", 2)
    if found["prefix_cache"]["hit_rate"] != 0:
        FAILURES.append("prompts that share nothing")
        print("FAIL: prefixes found where none are shared:", found["prefix_cache"])
    run(
        "run",
        "--trace",
        folder / "alike.jsonl",
        "--prefix-cache",
        "--prefix-retention",
        300,
        code=2,
        err="retention_interval: got 300, expected a multiple of 256",
    )


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
    run("bench", "serve", "--help", code=0, out=["--requests", "TTFT"])
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


with tempfile.TemporaryDirectory() as temporary:
    check_verify(Path(temporary))
    check_verify_bounds(Path(temporary))
    check_run_checks(Path(temporary))
    check_ranks()
    check_info_and_why()
    (Path(temporary) / "one.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n'
    )
    check_run(Path(temporary))
    check_arguments(Path(temporary))
    check_combinations(Path(temporary))
    check_output_paths(Path(temporary))
    check_traces(Path(temporary))
    check_run_report(Path(temporary))
    check_prefix_cache(Path(temporary))
    check_checkpoint(Path(temporary))
    check_bench(Path(temporary))
print(f"{len(FAILURES)} failed")
sys.exit(1 if FAILURES else 0)
