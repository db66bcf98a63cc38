#!/usr/bin/env python3
"""`smla verify`: case files, their tolerances and bounds."""

import json
import random
import struct
import subprocess

from harness import FAILURES, NO_GPU, PROGRAM, SOURCE, load, main, run, save


def attention_case(rng, cache_format):
    """Random queries over random rows; the expected results are filled in later."""
    tokens, heads, width, blocks, rows = 3, 4, 6, 3, 5

    def bf16(n):
        return b"".join(struct.pack("<f", rng.gauss(0, 1))[2:] for _ in range(n))

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
        # A line of an implementation says why it does not run here, if it does not.
        if any(line.split()[:1] == [impl] and "; no:" not in line for line in run("info", code=0).splitlines()):
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


main(check_verify, check_verify_bounds)
