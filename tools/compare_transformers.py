#!/usr/bin/env python3
"""Times one attention layer of Hugging Face transformers' eager deepseek_v4 beside `smla bench layer`: same shapes,
same threads, turn by turn.

    python3 -m venv build/hf && build/hf/bin/pip install torch transformers
    build/hf/bin/python tools/compare_transformers.py --program build/dev/apps/smla/smla --json build/transformers.json

Random weights of V4-Flash's shapes in float32 and in bfloat16. Tasks: decode of one token with 8192 tokens in the
cache, prefill of 2048 tokens in chunks of 512. A round takes each of the three implementations once; the times are
medians over all rounds. As in `smla bench`, what a model makes once for all its layers (masks, rope of the step's
positions; step metadata) is not in the time, and caches hold random rows. `--clock cpu` counts processor time over
threads instead of waiting time, for a machine that is not quiet.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# Waiting threads sleep, in both programs. To be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import transformers
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

KINDS = {"SWA": "sliding_attention", "C4A": "compressed_sparse_attention", "C128A": "heavily_compressed_attention"}
RATIO = {"C4A": 4, "C128A": 128}
# Least ratio to the faster of float32 and bfloat16.
TARGETS = {
    (kind, task): bound for kind in ("C4A", "C128A", "SWA") for task, bound in (("decode", 2.5), ("prefill", 4.0))
}
TARGET_BF16 = {("C4A", "decode"): 10.0}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--program", default="build/dev/apps/smla/smla", help="the smla program (default: %(default)s)")
    parser.add_argument("--kinds", default="C4A,C128A,SWA", help="layer kinds (default: %(default)s)")
    parser.add_argument("--tasks", default="decode,prefill", help="(default: %(default)s)")
    parser.add_argument(
        "--context", type=int, default=8192, help="tokens in the cache of a decode (default: %(default)s)"
    )
    parser.add_argument("--prefill", type=int, default=2048, help="(default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=512, help="(default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of all three implementations (default: %(default)s)"
    )
    parser.add_argument(
        "--decode-calls",
        type=int,
        default=10,
        help="decodes a turn, after one that is not counted (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="(default: %(default)s)")
    parser.add_argument("--json", help="write the results to this file as well")
    return parser.parse_args()


def make_layer(config, index, dtype):
    layer = hf.DeepseekV4Attention(config, index).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if weight.dim() == 2 and "position_bias" not in name:
                weight.uniform_(-1, 1, generator=generator).mul_((3.0 / weight.shape[1]) ** 0.5)
            elif name.endswith("norm.weight"):
                weight.fill_(1.0)
            else:
                weight.uniform_(-0.3, 0.3, generator=generator)
    return layer.to(dtype)


def filled_cache(config, index, kind, context, dtype):
    """A cache as `context` tokens would leave it, with random rows."""
    cache = DynamicCache(config=config)
    layer = cache.layers[index]
    rows = torch.randn(1, 1, config.sliding_window - 1, config.head_dim).to(dtype)
    layer.lazy_initialization(rows, rows)
    layer.keys = layer.values = rows
    layer.cumulative_length = context
    if kind == "SWA":
        return cache
    ratio = RATIO[kind]
    for name in layer.compressed_kv:
        dim = config.head_dim if name == "compressor" else config.index_head_dim
        wide = dim * (2 if kind == "C4A" else 1)
        layer.compressed_kv[name] = torch.randn(1, context // ratio, dim).to(dtype)
        layer.entry_count[name] = context // ratio
        layer.buffer_kv[name] = torch.randn(1, context % ratio, wide).to(dtype)
        layer.buffer_gate[name] = torch.randn(1, context % ratio, wide).to(dtype)
        if kind == "C4A":
            layer.overlap_kv[name] = torch.randn(1, ratio, dim).to(dtype)
            layer.overlap_gate[name] = torch.randn(1, ratio, dim).to(dtype)
    return cache


def window_mask(before, tokens, window, dtype):
    """[1, 1, tokens, keys] for the keys that the cache returns: up to window - 1 old ones, then the new ones."""
    old = min(before, window - 1)
    query = torch.arange(tokens).unsqueeze(1)
    key = torch.arange(-old, tokens).unsqueeze(0)
    seen = (key <= query) & (key > query - window)
    return torch.zeros(tokens, old + tokens, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]


class Bench:
    """transformers' layer of one kind and dtype."""

    def __init__(self, args, config, kind, dtype):
        self.args, self.config, self.kind, self.dtype = args, config, kind, dtype
        self.index = list(KINDS).index(kind)
        self.layer = make_layer(config, self.index, dtype)
        self.rope = hf.DeepseekV4RotaryEmbedding(config)

    def now(self):
        return time.process_time() / self.args.threads if self.args.clock == "cpu" else time.perf_counter()

    def step(self, cache, hidden, before):
        """One call of the layer; the time of that alone."""
        tokens = hidden.shape[1]
        positions = torch.arange(before, before + tokens).unsqueeze(0)
        rope = {name: self.rope(hidden, position_ids=positions, layer_type=name) for name in ("main", "compress")}
        mask = window_mask(before, tokens, self.config.sliding_window, self.dtype)
        start = self.now()
        output = self.layer(hidden, rope, positions, mask, cache)[0]
        spent = self.now() - start
        if not torch.isfinite(output).all():
            sys.exit(f"transformers' {self.kind} layer gave numbers that are not finite")
        return spent

    def hidden(self, tokens):
        return torch.randn(1, tokens, self.config.hidden_size).to(self.dtype)

    def decode(self):
        cache = filled_cache(self.config, self.index, self.kind, self.args.context, self.dtype)
        times = [self.step(cache, self.hidden(1), self.args.context + i) for i in range(self.args.decode_calls + 1)]
        return times[1:]

    def prefill(self):
        cache = DynamicCache(config=self.config)
        hidden = self.hidden(self.args.prefill)
        chunks = range(0, self.args.prefill, self.args.chunk)
        return [sum(self.step(cache, hidden[:, at : at + self.args.chunk], at) for at in chunks)]


def run_smla(args, kind, task):
    """Times of one turn of `smla bench layer`, in seconds; and the whole report."""
    size = (
        ["--context", args.context, "--prefill", args.chunk]
        if task == "decode"
        else ["--context", 256, "--prefill", args.prefill]
    )
    runs = (
        ["--min-runs", args.decode_calls, "--min-time", 0] if task == "decode" else ["--min-runs", 1, "--min-time", 0]
    )
    command = [
        args.program,
        "bench",
        "layer",
        "--kind",
        kind.lower(),
        "--batch",
        1,
        *size,
        "--chunk",
        args.chunk,
        *runs,
        "--threads",
        args.threads,
        "--clock",
        args.clock,
        "--only",
        task,
        "--format",
        "json",
        "-q",
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    report = json.loads(done.stdout)
    return [row["median_ms"] * 1e-3 for row in report["rows"]], report


def compare(args, config, kind):
    """Medians in ms of each task of one kind."""
    benches = {
        "float32": Bench(args, config, kind, torch.float32),
        "bfloat16": Bench(args, config, kind, torch.bfloat16),
    }
    results = []
    for task in args.tasks.split(","):
        times = {name: [] for name in [*benches, "smla"]}
        for turn in range(args.rounds):
            for name, bench in benches.items():
                with torch.inference_mode():
                    times[name] += bench.decode() if task == "decode" else bench.prefill()
            ours, report = run_smla(args, kind, task)
            times["smla"] += ours
            print(
                f"{kind} {task} {turn + 1}/{args.rounds}: "
                + ", ".join(f"{n} {t[-1] * 1e3:.1f} ms" for n, t in times.items()),
                file=sys.stderr,
            )
        row = {"kind": kind, "task": task, "read_gbs": report["machine"]["read_gbs"]}
        for name, values in times.items():
            row[name + "_ms"] = statistics.median(values) * 1e3
            row[name + "_spread_ms"] = [min(values) * 1e3, max(values) * 1e3]
        row["ratio"] = min(row["float32_ms"], row["bfloat16_ms"]) / row["smla_ms"]
        row["target"] = TARGETS[kind, task]
        row["ratio_bfloat16"] = row["bfloat16_ms"] / row["smla_ms"]
        row["target_bfloat16"] = TARGET_BF16.get((kind, task))
        results.append(row)
    return results


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = DeepseekV4Config(num_hidden_layers=len(KINDS), layer_types=list(KINDS.values()))
    config._attn_implementation = "eager"
    kinds = args.kinds.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        sys.exit(f"--kinds: got {', '.join(unknown)}, expected some of {', '.join(KINDS)}")
    report = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": args.threads,
        "clock": args.clock,
        "context": args.context,
        "prefill": args.prefill,
        "chunk": args.chunk,
        "rounds": args.rounds,
        "rows": [],
    }
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {args.threads} threads, {args.clock} clock; medians in ms"
    )
    print(
        f"{'kind':<6} {'task':<8} {'float32':>9} {'bfloat16':>9} {'smla':>9}  {'ratio':>6} {'target':>6}  {'to bf16':>7} {'target':>6}"
    )
    for kind in kinds:
        for row in compare(args, config, kind):
            report["rows"].append(row)
            print(
                f"{row['kind']:<6} {row['task']:<8} {row['float32_ms']:>9.2f} {row['bfloat16_ms']:>9.2f} {row['smla_ms']:>9.2f}  "
                f"{row['ratio']:>6.2f} {row['target']:>6.1f}  {row['ratio_bfloat16']:>7.2f} {row['target_bfloat16'] or '':>6}",
                flush=True,
            )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
