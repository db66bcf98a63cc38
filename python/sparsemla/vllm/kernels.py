"""Calls of the library's ops on torch tensors: plans are made once and kept.

Nothing here knows vLLM. All memory comes from torch's allocator and every launch goes to torch's current stream, so a
call may be recorded into a CUDA graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch

import sparsemla

Scalar = int | float | bool | str
Scalars = Mapping[str, Scalar]

Made = TypeVar("Made")

_PORTABLE_GPU = "cuda"  # the family of kernels for any GPU from sm_80 on


class Kernels:
    """The ops of one process, with what vLLM's settings ask of them.

    @param portable: on a GPU, only kernels that run on any GPU from sm_80 on
    @param deterministic: a row's bits do not depend on its neighbours
    @param kept_plans: plans that are kept, those used last
    """

    def __init__(self, portable: bool = False, deterministic: bool = False, kept_plans: int = 2048) -> None:
        self.portable = portable
        self.deterministic = deterministic
        self._kept_plans = kept_plans
        self._plans: OrderedDict[tuple[Any, ...], sparsemla.Plan] = OrderedDict()
        self._shared: dict[Hashable, Any] = {}
        self.used: dict[str, str] = {}
        """Op -> name of the implementation that its last new plan chose."""

    def plan(self, op: str, scalars: Scalars, device: str) -> sparsemla.Plan:
        """The plan of `op` for these scalars on "cuda:0" or "cpu". @raises sparsemla.Unsupported: none accepts."""
        key = (op, device, *scalars.items())
        found = self._plans.get(key)
        if found is not None:
            self._plans.move_to_end(key)
            return found
        implementation = _PORTABLE_GPU if self.portable and device.startswith("cuda") else None
        made = sparsemla.Plan(
            op, dict(scalars), device=device, implementation=implementation, deterministic=self.deterministic
        )
        self._plans[key] = made
        if len(self._plans) > self._kept_plans:
            self._plans.popitem(last=False)
        self.used[op] = made.implementation
        return made

    def run(self, op: str, scalars: Scalars, tensors: Mapping[str, Any], device: torch.device) -> None:
        """Plans `op` where it is not yet planned and queues it on the current stream; outputs are written in place."""
        self.plan(op, scalars, str(device)).run({k: v for k, v in tensors.items() if v is not None})

    def shared(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` made for this key, once for all layers."""
        if key not in self._shared:
            self._shared[key] = make()
        made: Made = self._shared[key]
        return made


def paged_cache(blocks: torch.Tensor, format: str) -> sparsemla.Cache:
    """A paged cache over `blocks`, [blocks, rows of a block, ...], of any block stride. It is made for one call and not
    kept, because vLLM gives caches back."""
    return sparsemla.Cache(
        blocks,
        format=format,
        block_size=blocks.shape[1],
        block_stride_bytes=blocks.stride(0) * blocks.element_size(),
    )


def leading_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` rows. vLLM slices some of its buffers by the real tokens of a step and reads on behind the
    slice for the padding of a graph; so does this, up to the buffer's end. @raises ValueError: the buffer is shorter.
    """
    if tensor.shape[0] >= count:
        return tensor[:count]
    first = tensor.storage_offset()
    last = (
        first + (count - 1) * tensor.stride(0) + sum((n - 1) * s for n, s in zip(tensor.shape[1:], tensor.stride()[1:]))
    )
    if last >= tensor.untyped_storage().nbytes() // tensor.element_size():
        raise ValueError(f"got {tensor.shape[0]} rows and no more behind them, expected {count}")
    return tensor.as_strided((count, *tensor.shape[1:]), tensor.stride(), first)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8, for dtypes that other frameworks do not exchange; the last dimension must be dense."""
    return tensor.view(torch.uint8)


def capturing(tensor: torch.Tensor) -> bool:
    """Whether the current stream is being recorded into a CUDA graph."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())
