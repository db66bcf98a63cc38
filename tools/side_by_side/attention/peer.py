"""Peers: what this tool must know of somebody else's kernels, and the adapter of FlashMLA.

An adapter file of your own (`--adapter FILE`) has a function `load(path) -> Peer`.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..fault import Fault
from .cells import DIM
from .inputs import Call, RowCache, Scope


@dataclass
class Prepared:
    """A call, ready to be recorded: `run` queues it on torch's current stream.

    It writes `output` [T, H, 512] and, where there is one, `lse` [T, H], natural and without the sink.
    """

    run: Callable[[], Any]
    output: torch.Tensor
    lse: torch.Tensor | None = None


class Peer(ABC):
    """Somebody else's sparse attention."""

    name: str
    """What the tables call it, with its version."""
    uncounted: str = ""
    """Work of a call that is done before and not timed; the tables say so."""

    @abstractmethod
    def prepare(self, call: Call) -> Prepared | None:
        """The call of these inputs, everything done that a step does once; None: the peer does not take it."""


def load_peer(path: str, adapter: str | None) -> Peer:
    """@raises Fault: a file is missing or cannot be loaded"""
    if not Path(path).is_file():
        raise Fault(f"--peer: {path} is no file")
    peer = FlashMla.load(path) if adapter is None else load_adapter(adapter).load(path)
    assert isinstance(peer, Peer)
    return peer


def load_adapter(adapter: str) -> Any:
    """The module of an adapter file. @raises Fault: it is missing or has no load(path)"""
    if not Path(adapter).is_file():
        raise Fault(f"--adapter: {adapter} is no file")
    spec = importlib.util.spec_from_file_location("side_by_side_adapter", adapter)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "load"):
        raise Fault(f"--adapter: {adapter} has no function load(path)")
    return module


def _padded(indices: torch.Tensor, multiple: int) -> torch.Tensor:
    """Index rows as wide as a multiple, filled with -1."""
    more = -indices.shape[-1] % multiple
    return torch.nn.functional.pad(indices, (0, more), value=-1).contiguous()


class FlashMla(Peer):
    """`vllm/_flashmla_C.abi3.so` of a vLLM wheel; `ops` are the calls that it registers with torch.

    Decode reads fp8_ds_mla caches as they are, for 64 or 128 heads: fewer are padded to 64 before. Its schedule is made
    once a step and not timed. Prefill reads bf16 rows, which are gathered before and not timed either.
    """

    DECODE_HEADS = (64, 128)
    DECODE_WIDTH, PREFILL_WIDTH = 64, 128

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        names = [argument.name for argument in ops.sparse_decode_fwd.default._schema.arguments]
        self._flags = [False] if "enable_batch_invariant" in names else []
        # The wheel whose decode knows that flag also has a prefill kernel for few heads.
        self._prefill_heads = (8, 16, 32, 64, 128) if self._flags else (64, 128)
        self.name = "FlashMLA"
        self.uncounted = "its schedule of a decode step, and gathering a prefill's rows as bf16"

    @staticmethod
    def load(path: str) -> FlashMla:
        try:
            torch.ops.load_library(path)
            return FlashMla(torch.ops._flashmla_C)
        except (OSError, RuntimeError, AttributeError) as error:
            raise Fault(f"--peer: {path} with torch {torch.__version__}: {error}") from error

    def prepare(self, call: Call) -> Prepared | None:
        if call.cell.rows != "fp8_ds_mla":
            return None
        return self._prefill(call) if call.cell.prefill else self._decode(call)

    @staticmethod
    def _with_heads(call: Call, taken: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and sinks with as many heads as the kernels take, the further ones 0."""
        heads = next(h for h in taken if h >= call.cell.heads)
        more = heads - call.cell.heads
        return torch.nn.functional.pad(call.q, (0, 0, 0, more)), torch.nn.functional.pad(call.sink, (0, more))

    @staticmethod
    def _pages(cache: RowCache) -> torch.Tensor:
        """[blocks, rows, 1, 584]: a record is all of its bytes, wherever in the block they lie."""
        numbers = cache.memory.view(-1).view(torch.float8_e4m3fn)
        return torch.as_strided(numbers, (cache.blocks, cache.page, 1, 584), (cache.stride, 584, 584, 1))

    def _lists(self, scope: Scope) -> tuple[torch.Tensor, torch.Tensor]:
        return _padded(scope.indices, self.DECODE_WIDTH).unsqueeze(1), scope.lens

    def _decode(self, call: Call) -> Prepared:
        q, sink = self._with_heads(call, self.DECODE_HEADS)
        out = torch.empty(q.shape[0], 1, q.shape[1], DIM, dtype=torch.bfloat16, device=q.device)
        first, second = call.scopes[0], call.scopes[1] if len(call.scopes) > 1 else None
        indices, lens = self._lists(first)
        more: tuple[Any, Any, Any] = (None, None, None)
        if second is not None:
            more = (self._pages(second.cache), *self._lists(second))

        def launch(schedule: tuple[Any, Any]) -> Any:
            return self._ops.sparse_decode_fwd(
                q.unsqueeze(1),
                self._pages(first.cache),
                indices,
                lens,
                sink,
                *schedule,
                *more,
                DIM,
                call.scale,
                out,
                *self._flags,
            )

        made = launch((None, None))
        schedule = (made[2], made[3])
        return Prepared(lambda: launch(schedule), out[:, 0, : call.cell.heads])

    def _prefill(self, call: Call) -> Prepared:
        q, sink = self._with_heads(call, self._prefill_heads)
        rows, lists, base = [], [], 0
        for scope in call.scopes:
            if int(scope.lens.min()) != scope.indices.shape[1]:
                raise Fault("FlashMLA's prefill is given whole lists alone")
            named, places = torch.unique(scope.indices, return_inverse=True)
            rows.append(scope.cache.decode(named).bfloat16())
            lists.append(places + base)
            base += named.numel()
        gathered = torch.cat(rows).unsqueeze(1).contiguous()
        combined = torch.cat(lists, 1).int()
        lens = torch.full((q.shape[0],), combined.shape[1], dtype=torch.int32, device=q.device)
        indices = _padded(combined, self.PREFILL_WIDTH).unsqueeze(1)
        out = torch.empty(q.shape[0], q.shape[1], DIM, dtype=torch.bfloat16, device=q.device)

        def launch() -> Any:
            return self._ops.sparse_prefill_fwd(q, gathered, indices, call.scale, DIM, sink, lens, out)

        return Prepared(launch, out[:, : call.cell.heads])
