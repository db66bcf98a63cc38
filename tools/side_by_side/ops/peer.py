"""Peers of the ops around attention: what this tool must know of them, and the adapter of vLLM's CuTe DSL kernels.

An adapter file of your own (`--adapter FILE`) has a function `load(path) -> OpPeer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ..attention.cells import DIM
from ..attention.inputs import RowCache
from ..attention.peer import load_adapter
from ..fault import Fault
from .cells import HEADS, INDEX_DIM, ROPE_DIM
from .inputs import EPS, GATHER_PAGE, CompressCall, GatherCall, IndexQueryCall, OpCall, Output
from .vllm import Kernels, load_kernels

RECORD_BYTES = 584
"""Of an fp8_ds_mla row with its scales."""


class OpPeer(ABC):
    """Somebody else's ops around attention."""

    name: str
    """What the tables call it, with its version."""
    uncounted: str = ""
    """Work of a call that is done before and not timed; the tables say so."""

    @abstractmethod
    def prepare(self, call: OpCall, output: Output) -> tuple[Callable[[], Any], str] | None:
        """What queues the call on torch's current stream, writing `output`, and the names of its kernels.

        None: the peer does not take it.
        """


def load_op_peer(path: str, adapter: str | None) -> OpPeer:
    """@raises Fault: a file is missing or cannot be loaded"""
    if not Path(path).exists():
        raise Fault(f"--peer: {path} does not exist")
    peer = VllmOps(load_kernels(Path(path))) if adapter is None else load_adapter(adapter).load(path)
    assert isinstance(peer, OpPeer)
    return peer


def pages(cache: RowCache) -> torch.Tensor:
    """[blocks, rows, 584]: a record is all of its bytes, wherever in the block they lie."""
    shape, steps = (cache.blocks, cache.page, RECORD_BYTES), (cache.stride, RECORD_BYTES, 1)
    return torch.as_strided(cache.memory, shape, steps)


class VllmOps(OpPeer):
    """What a layer of vLLM runs on SM90, by the very objects that it calls; they compile at the first call."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.name = f"vLLM's CuTe DSL kernels, compiled by {kernels.compiler}"

    def prepare(self, call: OpCall, output: Output) -> tuple[Callable[[], Any], str] | None:
        if isinstance(call, CompressCall):
            return self._compress(call, output)
        if isinstance(call, IndexQueryCall):
            return self._queries(call, output)
        if isinstance(call, GatherCall):
            return self._gather(call, output)
        return None

    def _compress(self, call: CompressCall, output: Output) -> tuple[Callable[[], Any], str]:
        kind, entries = call.cell.kind, output.entries
        assert entries is not None
        members = {
            "state_cache": call.state.pages(),
            "num_actual": call.cell.tokens,
            "token_to_req_indices": call.requests,
            "positions": call.positions,
            "slot_mapping": call.state_slots,
            "block_table": call.table,
            "block_size": call.state.page,
            "state_width": kind.halves * DIM,
            "cos_sin_cache": call.turns,
            "kv_cache": pages(entries),
            "k_cache_metadata": SimpleNamespace(slot_mapping=call.entry_slots),
            "pdl_kwargs": {},
            "head_dim": DIM,
            "rope_head_dim": ROPE_DIM,
            "compress_ratio": kind.ratio,
            "overlap": kind.halves == 2,
            "use_fp4_cache": False,
            "rms_norm_weight": call.norm,
            "rms_norm_eps": EPS,
            "quant_block": 64,
            "token_stride": 576,
            "scale_dim": 8,
        }
        name = "fused C4 kernel" if kind.ratio == 4 else "C128 kernel, then norm and store"
        return lambda: self._kernels.compress(**members), name

    def _queries(self, call: IndexQueryCall, output: Output) -> tuple[Callable[[], Any], str]:
        def run() -> Any:
            return self._kernels.index_queries(
                positions=call.positions,
                q=call.q,
                cos_sin_cache=call.turns,
                weights=call.weights,
                weights_softmax_scale=INDEX_DIM**-0.5,
                weights_head_scale=HEADS**-0.5,
                q_fp8=output.tensors["q_out"],
                weights_out=output.tensors["weights_out"],
            )

        return run, "fused index query kernel"

    def _gather(self, call: GatherCall, output: Output) -> tuple[Callable[[], Any], str]:
        def run() -> Any:
            return self._kernels.gather(
                out=output.tensors["out"],
                k_cache=pages(call.cache),
                seq_lens=call.lengths,
                gather_lens=None,
                block_table=call.table,
                block_size=GATHER_PAGE,
                offset=0,
            )

        return run, "gather kernel"
