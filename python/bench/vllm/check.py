"""The command `check`: requests of all lengths through the engine, each call of attention computed three times."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import worker_checks
from attention_check import KINDS
from workload import Run, mixed_prompts, run_requests

from engine import build_engine, describe, expose_plugin, extend_path, layers_of, runner_of

LAYER = "SparseMlaAttention"
PEERS = (
    *("deep_gemm", "vllm.third_party.deep_gemm", "vllm.third_party.flashmla", "cutlass"),
    *("vllm._flashmla_C", "vllm._flashmla_extension_C"),
)
"""Modules of DeepGEMM, FlashMLA and CuTe DSL."""

PREEMPT_AT = 12
"""The step of the second run after which all running requests are preempted."""


def more_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of vllm.LLM for several GPUs and for drafts."""
    more: dict[str, Any] = {}
    if args.tp > 1:
        more["tensor_parallel_size"] = args.tp
        more["disable_custom_all_reduce"] = True
        more["distributed_executor_backend"] = "mp"
    if args.drafts:
        more["speculative_config"] = {"method": "mtp", "num_speculative_tokens": args.drafts}
    return more


def use_torch_in_hyper_connections() -> None:
    """Their product is DeepGEMM's, else tilelang's, which compiles for minutes; neither is attention's."""
    from vllm.model_executor.kernels.mhc import tilelang

    def product(x: Any, fn: Any, out: Any, squares: Any, *sizes: Any, **tiles: Any) -> None:
        tilelang._torch_hc_prenorm_gemm(x, fn, out, squares)

    tilelang._tilelang_hc_prenorm_gemm = product


def in_other_processes(args: argparse.Namespace) -> bool:
    """Whether the layers are in processes that vLLM starts."""
    return args.tp > 1 or args.processes != "none"


def build_checked(args: argparse.Namespace, folder: Path) -> Any:
    """The engine with the checks in it, or in its worker processes. @raises RuntimeError: the layers are vLLM's."""
    import vllm  # noqa: F401  before the plugin's layer, which the checks import

    if in_other_processes(args):
        extend_path(Path(__file__).parent)
        expose_plugin(folder, "worker_checks", "worker_checks:register")
        return build_engine(args, folder, **more_arguments(args))
    worker_checks.install(args.mode, bool(args.peers))
    if not args.peers:
        use_torch_in_hyper_connections()
    llm = build_engine(args, folder, **more_arguments(args))
    describe(llm)
    names = {type(layer).__name__ for layer in layers_of(llm)}
    if names != {LAYER}:
        raise RuntimeError(f"layers: got {sorted(names)}, expected {LAYER}; the plugin's log says why")
    if args.drafts:
        modules = runner_of(llm).drafter.model.modules()
        print("layers of drafts:", sorted({type(m).__name__ for m in modules if "Attention" in type(m).__name__}))
    return llm


def collect(llm: Any, elsewhere: bool) -> list[worker_checks.Found]:
    """What each process of the model found. @param elsewhere: these are other processes than this one"""
    if elsewhere:
        found: list[worker_checks.Found] = llm.collective_rpc(worker_checks.fetch)
        return found
    torch.cuda.synchronize()
    return [worker_checks.found({layer.n_local_heads for layer in layers_of(llm)})]


def faults_of(args: argparse.Namespace, found: list[worker_checks.Found], runs: list[Run]) -> list[str]:
    """What is wrong, in words."""
    faults = []
    for rank, part in enumerate(found):
        kinds = {row["kind"] for row in part.attention}
        faults += [f"{kind} of rank {rank}" for kind in part.failed]
        faults += [f"no call of {kind} on rank {rank}" for kind in KINDS if kind not in kinds]
    if args.prefix and not sum(run.cached for run in runs):
        faults.append("no hit in the prefix cache")
    if args.preempt and not runs[-1].preempted:
        faults.append("no request was preempted")
    if not args.peers:
        faults += [f"{name} was imported" for name in PEERS if name in sys.modules]
    return faults


def print_found(found: list[worker_checks.Found]) -> None:
    print("relative l2 of rows: ours to FlashMLA, largest; ours to float32, largest and mean; FlashMLA to float32")
    for rank, part in enumerate(found):
        print(f"rank {rank}, heads {part.heads}")
        for row in part.attention:
            print(
                f"  {row['kind']:14s} {row['calls']:6d} calls, {row['rows']:7d} rows, {row['sampled']:5d} in float32: "
                f"{row['ours_flash_max']:.3e}; {row['ours_max']:.3e} {row['ours_mean']:.3e}; "
                f"{row['flash_max']:.3e} {row['flash_mean']:.3e}"
            )
        for row in part.steps:
            print(f"  {json.dumps(row)}")


def run(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Results, and what failed."""
    llm = build_checked(args, folder)
    prompts = mixed_prompts()
    runs = [
        run_requests(llm, prompts, args.tokens, "first"),
        run_requests(llm, prompts, args.tokens, "second", PREEMPT_AT if args.preempt else None),
    ]
    found = collect(llm, in_other_processes(args))
    print_found(found)
    return {
        "ranks": [asdict(part) for part in found],
        "runs": [asdict(one) for one in runs],
    }, faults_of(args, found, runs)
