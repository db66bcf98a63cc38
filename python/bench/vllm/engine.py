"""vLLM's engine of the small model, in this process."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Any

from options import PREFERRED, settings_of

PLUGINS = "vllm.general_plugins"
SPARSEMLA = "sparsemla.vllm:register"
CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of decode steps that graphs are recorded for, as far as requests of a step go."""


def prepare_environment(args: argparse.Namespace, folder: Path) -> None:
    """To be called before torch and vLLM are imported.

    @param folder: takes an entry point of sparsemla where none is installed, as with the package on PYTHONPATH alone
    """
    os.environ.update(settings_of(args))
    for name, value in PREFERRED.items():
        os.environ.setdefault(name, value)
    if os.path.isdir("/usr/local/cuda"):
        os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
    if not any(entry.value == SPARSEMLA for entry in importlib.metadata.entry_points(group=PLUGINS)):
        expose_plugin(folder, "sparsemla", SPARSEMLA)


def expose_plugin(folder: Path, name: str, target: str) -> None:
    """Makes `target` ("module:function") a plugin of vLLM in this process and in those that it starts."""
    distribution = folder / f"{name}_entry-0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-entry\nVersion: 0\n")
    (distribution / "entry_points.txt").write_text(f"[{PLUGINS}]\n{name} = {target}\n")
    extend_path(folder)


def extend_path(folder: Path) -> None:
    """Puts a folder in front of the modules of this process and of those that it starts."""
    sys.path.insert(0, str(folder))
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [before])])
    importlib.invalidate_caches()


def build_engine(args: argparse.Namespace, folder: Path, **more: Any) -> Any:
    """The engine, a vllm.LLM.

    @param folder: takes the model's config
    @param more: further arguments of vllm.LLM, which overrule those that are given here
    """
    from small_model import replace_dummy_weights, small_config, write_model
    from vllm import LLM

    replace_dummy_weights()
    given: dict[str, Any] = {
        "model": write_model(folder / "model", small_config(args.layers, args.heads, args.experts)),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "max_model_len": args.max_len,
        "max_num_seqs": args.seqs,
        "max_num_batched_tokens": args.budget,
        "kv_cache_dtype": "fp8",
        "block_size": 256,
        "enforce_eager": not args.graphs,
        "enable_prefix_caching": bool(args.prefix),
        "async_scheduling": bool(args.async_sched),
        "kv_cache_memory_bytes": args.kv_gib << 30,
        "gpu_memory_utilization": 0.5,
        "seed": 0,
        "moe_backend": args.moe,
    }
    if args.graphs:
        sizes = [size for size in CAPTURE_SIZES if size <= args.seqs]
        given["compilation_config"] = {"cudagraph_capture_sizes": sizes}
    begin = time.time()
    llm = LLM(**(given | more))
    print(f"engine built in {time.time() - begin:.1f} s", flush=True)
    return llm


def core_of(llm: Any) -> Any:
    """The engine's core: scheduler, configuration, workers."""
    return llm.llm_engine.engine_core.engine_core


def runner_of(llm: Any) -> Any:
    """The model runner of an engine without worker processes."""
    return core_of(llm).model_executor.driver_worker.worker.model_runner


def layers_of(llm: Any) -> list[Any]:
    """The attention layers of an engine without worker processes."""
    return [layer.attn for layer in runner_of(llm).get_model().model.layers]


def describe(llm: Any) -> None:
    """Prints what vLLM chose: graphs, caches and their layout, layers."""
    config, runner = core_of(llm).vllm_config, runner_of(llm)
    compilation = config.compilation_config
    print(
        f"runner {type(runner).__module__}, graphs {compilation.cudagraph_mode} of "
        f"{compilation.cudagraph_capture_sizes} tokens, cache dtype {config.cache_config.cache_dtype}, "
        f"{config.cache_config.num_gpu_blocks} blocks"
    )
    for group in (group for groups in runner.attn_groups for group in groups):
        cache = compilation.static_forward_context[group.layer_names[0]].kv_cache
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        print(
            f"  {group.backend.get_name():22s} {len(group.layer_names)} layers as {group.layer_names[0]}: blocks of "
            f"{group.kv_cache_spec.block_size} tokens, cache {tuple(cache.shape)} {cache.dtype}, "
            f"strides {tuple(cache.stride())}"
        )
    for index, layer in enumerate(layers_of(llm)):
        print(f"  layer {index}: {type(layer).__name__}, ratio {layer.compress_ratio}, {layer.kv_cache_dtype}")
    sys.stdout.flush()
