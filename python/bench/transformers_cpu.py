#!/usr/bin/env python3
"""Times whole DeepSeek-V4 models of transformers on the CPU, eager and with this library's attention, turn by turn.

    pip install torch transformers sparsemla
    python python/bench/transformers_cpu.py --json build/transformers_model.json

Random models with V4-Flash's attention (hidden size 4096, 64 heads) and narrow experts, so that they fit a desktop.
Tasks: prefill of 2048 tokens by a model of one layer of each kind; decode of one token with 8192 tokens in the cache by
a model of C4A layers. In a round each of four has its turn: eager and ours, in float32 and in bfloat16 (ours with
fp8_ds_mla rows). Times are medians over rounds, ratios are eager's to ours of the same dtype. Processor time is that of
all threads over their number: it holds on a machine that is not quiet, where waiting time does not. Caches of eager
attention that a decode starts from hold random rows.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

# Waiting threads sleep. To be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import sparsemla
import sparsemla.transformers
import torch
import transformers
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

# transformers before 5.24 calls a cache past_key_values.
CACHE = "cache" if "cache" in inspect.signature(DeepseekV4ForCausalLM.forward).parameters else "past_key_values"
KINDS = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TARGET = 3.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--tasks", default="prefill,decode", help="(default: %(default)s)")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of a prefill (default: %(default)s)")
    parser.add_argument(
        "--context", type=int, default=8192, help="tokens in the cache of a decode (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: %(default)s)")
    parser.add_argument("--decodes", type=int, default=8, help="tokens a turn of decode (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all)")
    parser.add_argument("--json", help="write the results to this file as well")
    return parser.parse_args()


def model_of(layer_types: list[str], dtype: torch.dtype) -> DeepseekV4ForCausalLM:
    """A random model in evaluation mode."""
    config = DeepseekV4Config(
        vocab_size=1024,
        num_hidden_layers=len(layer_types),
        layer_types=layer_types,
        mlp_layer_types=["moe"] * len(layer_types),
        moe_intermediate_size=256,
        n_routed_experts=8,
        num_experts_per_tok=2,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    model = DeepseekV4ForCausalLM(config).eval().to(dtype)
    torch.set_default_dtype(torch.float32)
    return model


class Clock:
    """Waiting and processor time of a call, and the share of attention layers in the first."""

    def __init__(self, model: torch.nn.Module, threads: int) -> None:
        self.threads = threads
        self.attention = 0.0
        self._begin = 0.0
        for module in model.modules():
            if type(module).__name__ == "DeepseekV4Attention":
                module.register_forward_pre_hook(self._enter)
                module.register_forward_hook(self._leave)

    def _enter(self, *_: Any) -> None:
        self._begin = time.perf_counter()

    def _leave(self, *_: Any) -> None:
        self.attention += time.perf_counter() - self._begin

    def time(self, call: Callable[[], Any]) -> dict[str, float]:
        """Milliseconds of a call."""
        self.attention = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        spent = time.perf_counter() - wall
        return {
            "wall_ms": spent * 1e3,
            "cpu_ms": (time.process_time() - cpu) * 1e3 / self.threads,
            "attention_ms": self.attention * 1e3,
        }


def random_cache(config: DeepseekV4Config, context: int, dtype: torch.dtype) -> DynamicCache:
    """transformers' cache of a C4A model as `context` tokens would leave it, with random rows."""
    cache = DynamicCache(config=config)
    for layer in cache.layers:
        rows = torch.randn(1, 1, config.sliding_window - 1, config.head_dim).to(dtype)
        layer.lazy_initialization(rows, rows)
        layer.keys = layer.values = rows
        layer.cumulative_length = context
        for name, dim in (("compressor", config.head_dim), ("indexer", config.index_head_dim)):
            layer.compressed_kv[name] = torch.randn(1, context // 4, dim).to(dtype)
            layer.entry_count[name] = context // 4
            layer.buffer_kv[name] = layer.buffer_gate[name] = torch.randn(1, context % 4, 2 * dim).to(dtype)
            layer.overlap_kv[name] = layer.overlap_gate[name] = torch.randn(1, 4, dim).to(dtype)
    return cache


class Subject:
    """One of the four that are timed."""

    def __init__(self, ours: bool, dtype: torch.dtype, task: str, args: argparse.Namespace) -> None:
        self.args = args
        kinds = KINDS if task == "prefill" else [KINDS[1]] * 3
        self.model = model_of(kinds, dtype)
        if ours:
            sparsemla.transformers.enable(self.model, threads=args.threads)
        self.clock = Clock(self.model, args.threads)
        self.ids = torch.randint(0, 1024, (1, max(args.prefill, args.context)))
        self.cache: DynamicCache | None = None
        if task == "decode" and ours:
            self.cache = DynamicCache(config=self.model.config)
            for part in self.ids[:, : args.context].split(512, dim=1):
                self.model(part, logits_to_keep=1, **{CACHE: self.cache})
        elif task == "decode":
            self.cache = random_cache(self.model.config, args.context, dtype)
        self.one = self.ids[:, :1]

    def decode(self) -> list[dict[str, float]]:
        """Times of single tokens, after one that is not counted."""
        step = lambda: self.model(self.one, **{CACHE: self.cache})  # noqa: E731
        return [self.clock.time(step) for _ in range(self.args.decodes + 1)][1:]

    def prefill(self) -> list[dict[str, float]]:
        """The time of a prompt from an empty cache."""
        cache = DynamicCache(config=self.model.config)
        ids = self.ids[:, : self.args.prefill]
        return [self.clock.time(lambda: self.model(ids, logits_to_keep=1, **{CACHE: cache}))]


def compare(task: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Medians of one task, for each dtype."""
    subjects = {(ours, name): Subject(ours, DTYPES[name], task, args) for name in DTYPES for ours in (False, True)}
    times: dict[tuple[bool, str], list[dict[str, float]]] = {key: [] for key in subjects}
    for _ in range(args.rounds):
        for key, subject in subjects.items():
            times[key] += getattr(subject, task)()
    medians = {key: {k: statistics.median(t[k] for t in taken) for k in taken[0]} for key, taken in times.items()}
    return [
        {
            "task": task,
            "dtype": name,
            "eager": medians[False, name],
            "ours": medians[True, name],
            "ratio": {k: medians[False, name][k] / medians[True, name][k] for k in medians[True, name]},
        }
        for name in DTYPES
    ]


def processor() -> str:
    """The processor's name."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, sparsemla {sparsemla.__version__}"
    print(f"{processor()}, {args.threads} threads; {versions}; medians in ms over {args.rounds} rounds")
    print("eager and ours in wall and processor time, of all and of attention layers (wall)")
    report: dict[str, Any] = {"processor": processor(), "versions": versions, **vars(args), "rows": []}
    with torch.inference_mode():
        for task in args.tasks.split(","):
            for row in compare(task, args):
                report["rows"].append(row)
                eager, ours, ratio = row["eager"], row["ours"], row["ratio"]
                print(f"{task} {row['dtype']}:", flush=True)
                for key, what in (("wall_ms", "wall"), ("cpu_ms", "processor"), ("attention_ms", "attention")):
                    target = f" (target {TARGET:.0f}x)" if key != "attention_ms" else ""
                    print(
                        f"  {what:<10} {eager[key]:>10.1f} {ours[key]:>10.1f}  {ratio[key]:>6.2f}x{target}", flush=True
                    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
