#!/usr/bin/env python3
"""`smla run`: its check against float64, ranks, reports and the prefix cache."""

import json
import struct

from harness import FAILURES, main, run


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
    # A config.json says it, too; its reusing layers need no weights of an indexer.
    patterned = folder / "patterned"
    run("make-checkpoint", patterned, "-q", code=0)
    config = json.loads((patterned / "config.json").read_text())
    (patterned / "config.json").write_text(json.dumps(config | {"index_topk_pattern": "FSSFS"}))
    run(*reused, "--weights", patterned, code=2, err=["index_topk_pattern: got FSSFS", "the 2 C4A layers"])
    (patterned / "config.json").write_text(json.dumps(config | {"index_topk_pattern": "FS"}))
    for option, pattern in (([], "FS"), (["--index-topk-freq", 1], "FF"), (["--index-topk-pattern", "FF"], "FF")):
        run(*reused, "--weights", patterned, *option, "--json", report, code=0, out="PASS")
        if json.loads(report.read_text())["index_topk_pattern"] != pattern:
            FAILURES.append(("pattern", option))
            print("FAIL: pattern of", option, json.loads(report.read_text())["index_topk_pattern"])
    run(*reused, "--index-topk-pattern", "FSS", code=2, err=["index_topk_pattern: got FSS", "2 in all"])


def check_dspark(folder):
    """Drafts that the MTP layer computes: the same outputs as without, blocks that pass the check, clear refusals."""
    small = ["run", "-q", "--max-requests", 3, "--scale-lengths", 0.05, "--deterministic"]

    def digests(*args):
        run(*small, "--check", 0, *args, "--json", folder / "dspark.json", code=0)
        report = json.loads((folder / "dspark.json").read_text())
        return [r["digest"] for r in report["requests"]], report

    plain, _ = digests()
    drafted, report = digests("--speculative", 3, "--dspark")
    if drafted != plain or report["dspark_layers"] != [4] or not 0 < report["draft_blocks"] <= report["draft_tokens"]:
        FAILURES.append("dspark")
        print("FAIL dspark:", plain, drafted, report["dspark_layers"], report["draft_blocks"])
    text = ["PASS", "and DSpark drafts by 4 on cpu", " DSpark blocks", "      4  DSpark "]
    run(*small, "--speculative", 3, "--dspark", "--check", 10, code=0, out=text)
    run(*small, "--speculative", 2, "--dspark", "--check", 10, "--tp", 2, code=0, out=text)
    run(*small, "--speculative", 2, "--dspark", "--check", 10, "--cp", 2, code=0, out=text)
    run(*small, "--dspark", code=2, err="--dspark: got it without --speculative, expected --speculative of 1 or more")
    run("make-checkpoint", folder / "decoder_layers", "-q", code=0)
    run(
        *small,
        "--weights",
        folder / "decoder_layers",
        "--speculative",
        2,
        "--dspark",
        code=2,
        err=["--dspark: got tiny without MTP layers", "num_nextn_predict_layers"],
    )


def check_ranks(_folder):
    small = ["run", "-q", "--max-requests", 2, "--scale-lengths", 0.1, "--check", 6]
    run(*small, "--tp", 2, code=0, out=["PASS", "ranks: 2, 2 that share out heads", "sum over ranks"])
    run(*small, "--cp", 3, code=0, out=["PASS", "ranks: 3, 1 that share out heads x 3"])
    run(*small, "--tp", 2, "--cp", 2, "--speculative", 2, code=0, out=["PASS", "ranks: 4,"])
    run(*small, "--tp", 3, code=2, err="num_heads: got 8, expected a multiple of tp_size 3")
    run(*small, "--cp", 2, "--front-end", "flashinfer", code=2, err=["flashinfer with context_parallel", "flashmla"])


def check_run(folder):
    """Only what is refused before any work: `smla run` has tests of its own."""
    bad = folder / "bad.jsonl"
    bad.write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}\n'
        '{"timestamp": 0, "input_length": -5}\n'
    )
    run("run", "--trace", bad, code=2, err=["bad.jsonl:2", "input_length"])
    run("run", "--trace", folder / "absent.jsonl", code=2, err="absent.jsonl")
    (folder / "config.json").write_text('{"hidden_size": NaN}')
    run("run", "--model", folder / "config.json", code=2, err="hidden_size")
    run("run", "--model", "v5", code=2, err=["v5", "v4-flash"])
    run("run", "--cache-dtype", "e5m2", code=2, err=["e5m2", "fp8_ds_mla"])


def check_run_report(folder):
    """The report names the layers, the path of a config.json, and the implementations of every step."""
    config = folder / "named" / "config.json"
    run("make-checkpoint", folder / "named", "-q", code=0)
    # A long prompt that ends at once, then decodes of a short one, which has too few entries to choose among.
    (folder / "two.jsonl").write_text(
        '{"timestamp": 0, "input_length": 300, "output_length": 1}\n'
        '{"timestamp": 0, "input_length": 5, "output_length": 6}\n'
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


main(check_run_checks, check_ranks, check_dspark, check_run, check_run_report, check_prefix_cache)
