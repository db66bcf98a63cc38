"""The CuTe DSL kernels of a vLLM wheel without vLLM: its files are loaded beside stand-ins for what they import.

The stand-ins are of vLLM's way to compile a kernel once for each key and launch it; the kernels are vLLM's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..fault import Fault

OPS = "vllm.models.deepseek_v4.nvidia.ops"
FILES = ("sparse_attn_compress_cutedsl", "fused_indexer_q_cutedsl", "dequant_gather_k_cutedsl")
PACKAGES = "python"
"""The kit's folder of packages that the machine lacks."""
WITHIN = ("", "nvidia_cutlass_dsl/dsl_packages")
"""What of a folder of packages belongs on the path; the second is what its .pth file would add."""
OPTIONS = "--enable-tvm-ffi"
"""Of every compilation: calls take torch tensors and run on torch's current stream."""


class Launched:
    """Base of the kernels' classes: `kernel(key)` is compiled over `warmup_inputs(key)` at the first call of a key."""

    kernel: Callable[[Any], Any]
    warmup_inputs: Callable[[Any], tuple[Any, ...]]

    def __class_getitem__(cls, key: Any) -> type:
        return cls

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}

    def compile(self, key: Any) -> Any:
        """The compiled kernel of a key."""
        if key not in self._compiled:
            from cutlass import cute  # type: ignore[import-not-found, unused-ignore]

            stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
            made = cute.compile(self.kernel(key), *self.warmup_inputs(key), stream, options=OPTIONS)
            self._compiled[key] = made
        return self._compiled[key]


def launcher(call: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a method that returns a key, the arguments of a launch and perhaps its result: launches."""

    def launch(self: Launched, **members: Any) -> Any:
        key, arguments, *result = call(self, **members)
        self.compile(key)(*arguments)
        return result[0] if result else None

    return launch


def symbolic_tensor(dtype: Any, shape: tuple[Any, ...], divisibility: int = 1) -> Any:
    """A tensor to compile for: its last dimension is dense, strides and address are multiples of `divisibility`."""
    from cutlass import cute

    strides = [cute.sym_int64(divisibility=divisibility) for _ in shape[1:]]
    align = max(1, divisibility * dtype.width // 8)
    return cute.runtime.make_fake_tensor(dtype, shape, stride=(*strides, 1), assumed_align=align)


def _stand_ins() -> dict[str, dict[str, Any]]:
    warmup = "vllm.model_executor.warmup.jit_warmup"
    return {
        warmup: {"kernel_launcher": launcher, "zip_inputs": None},
        f"{warmup}_cutedsl_helper": {"VllmCuTeDSLJitKernel": Launched, "CuTeDSLLaunchSpec": dict},
        "vllm.transformers_utils.deepseek_v4_utils": {"get_compress_ratios": None},
        "vllm.utils.math_utils": {"round_up": lambda number, to: -(-number // to) * to},
        "quack.compile_utils": {"make_fake_tensor": symbolic_tensor},
    }


def _add_package(name: str, folder: Path | None) -> None:
    """A package whose own __init__ is not run; its modules come from `folder`."""
    if name not in sys.modules:
        module = ModuleType(name)
        module.__path__ = [str(folder)] if folder else []
        sys.modules[name] = module


def _packages_of(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


@dataclass(frozen=True)
class Kernels:
    """vLLM's kernels, and the versions of what compiles them."""

    compress: Any
    """C4A and C128A: pool, norm, rotate, quantise, store."""
    index_queries: Any
    gather: Any
    compiler: str


def load_kernels(folder: Path) -> Kernels:
    """The kernels of `folder`, which has `vllm/` and may have packages. @raises Fault: something is missing"""
    source = folder / Path(*OPS.split("."))
    lacking = [name for name in FILES if not (source / f"{name}.py").is_file()]
    if lacking:
        raise Fault(f"--peer: {folder} has no {(source / lacking[0]).relative_to(folder)}.py")
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    os.environ.setdefault("CUTE_DSL_ARCH", f"sm_{major}{minor}a")
    for place in reversed(WITHIN):
        if (folder / PACKAGES / place).is_dir():
            sys.path.insert(0, str((folder / PACKAGES / place).resolve()))
    for name in (*_packages_of(OPS), "vllm.vllm_flash_attn", "vllm.vllm_flash_attn.cute"):
        _add_package(name, folder.resolve() / Path(*name.split(".")))
    for name, members in _stand_ins().items():
        for package in _packages_of(name)[:-1]:
            _add_package(package, None)
        module = ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    try:
        compress, index_queries, gather = (import_module(f"{OPS}.{name}") for name in FILES)
        return Kernels(
            compress._SPARSE_ATTN_COMPRESSOR_CUTEDSL_KERNEL,
            index_queries._INDEXER_Q_FP8_KERNEL,
            gather._DEQUANT_GATHER_K_CACHE_CUTEDSL_KERNEL,
            str(import_module("cutlass").__version__),
        )
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise Fault(f"--peer: {folder}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
