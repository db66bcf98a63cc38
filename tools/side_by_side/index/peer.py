"""Peers of the index chain: what this tool must know of them, and the adapter of what vLLM runs on SM90.

An adapter file of your own (`--adapter FILE`) has a function `load(path) -> IndexPeer`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..attention.peer import load_adapter
from ..fault import Fault
from .cells import INDEX_ROW_BYTES, TOP_K
from .inputs import IndexCache, IndexCall


@dataclass
class PreparedIndex:
    """A call in its parts, each ready to be recorded: they queue their work on torch's current stream.

    `clear` readies `indices` [T, 512] for the choice, `score` returns scores [T, at least the visible entries] and
    `choose` writes the choice of scores into `indices`. `calls` names the kernels.
    """

    clear: Callable[[], Any]
    score: Callable[[], torch.Tensor]
    choose: Callable[[torch.Tensor], Any]
    indices: torch.Tensor
    calls: str

    def chain(self) -> None:
        """All of it."""
        self.clear()
        self.bare_chain()

    def bare_chain(self) -> None:
        """Without `clear`."""
        self.choose(self.score())


class IndexPeer(ABC):
    """Somebody else's index scores and top-k."""

    name: str
    """What the tables call it, with its version."""
    uncounted: str = ""
    """Work of a call that is done before and not timed; the tables say so."""

    @abstractmethod
    def prepare(self, call: IndexCall) -> PreparedIndex | None:
        """The call of these inputs, everything done that a step does once; None: the peer does not take it."""


def load_index_peer(path: str, adapter: str | None) -> IndexPeer:
    """@raises Fault: a file is missing or cannot be loaded"""
    if not Path(path).exists():
        raise Fault(f"--peer: {path} does not exist")
    peer = VllmIndexer.load(path) if adapter is None else load_adapter(adapter).load(path)
    assert isinstance(peer, IndexPeer)
    return peer


class VllmIndexer(IndexPeer):
    """`_C_stable_libtorch.abi3.so` and `deep_gemm/` of a vLLM wheel, in one folder.

    `gemm` is the module deep_gemm, `ops` the calls that the other file registers. A layer of vLLM fills its list of
    choices with -1, scores and chooses. Decode has DeepGEMM's plan made before, once a step; prefill rows that were
    gathered before. Both are told the longest row of the cell as the bound of any row.
    """

    COOPERATIVE_ROWS = 64
    """Up to so many rows vLLM's automatic choice is cooperative_topk, from then on persistent_topk."""
    WORKSPACE_BYTES = 1 << 20

    def __init__(self, gemm: Any, ops: Any, multiprocessors: int, version: str) -> None:
        self._gemm, self._ops, self._multiprocessors = gemm, ops, multiprocessors
        self._workspace: torch.Tensor | None = None
        self.name = f"DeepGEMM {version} and vLLM's top-k"
        self.uncounted = "DeepGEMM's plan of a decode step; a prefill's gathering of rows and its rows' bounds"

    @staticmethod
    def load(path: str) -> VllmIndexer:
        folder = Path(path)
        files = sorted(folder.glob("_C*.so"))
        if len(files) != 1 or not (folder / "deep_gemm" / "__init__.py").is_file():
            raise Fault(f"--peer: {path} has {len(files)} files _C*.so, expected one, and beside it deep_gemm/")
        # Kernels are compiled at the first call, into a folder of this run alone.
        kept = tempfile.mkdtemp(prefix="deep_gemm_")
        os.environ.setdefault("HOME", kept)
        os.environ.setdefault("DG_JIT_CACHE_DIR", kept)
        try:
            torch.ops.load_library(str(files[0].resolve()))
            sys.path.insert(0, str(folder.resolve()))
            import deep_gemm  # type: ignore[import-not-found, unused-ignore]

            deep_gemm.set_pdl(True)  # as vLLM from SM90 on
        except (OSError, RuntimeError, AttributeError, ImportError) as error:
            text = " ".join(str(error).split())[:300]
            raise Fault(f"--peer: {path} with torch {torch.__version__}: {text}") from error
        count = torch.cuda.get_device_properties(0).multi_processor_count
        return VllmIndexer(deep_gemm, torch.ops._C, count, deep_gemm.__version__)

    def prepare(self, call: IndexCall) -> PreparedIndex:
        if self._workspace is None:
            self._workspace = torch.zeros(self.WORKSPACE_BYTES, dtype=torch.uint8, device=call.q.device)
        indices = torch.empty(call.cell.tokens, TOP_K, dtype=torch.int32, device=call.q.device)
        parts = self._prefill(call, indices) if call.cell.prefill else self._decode(call, indices)
        return PreparedIndex(lambda: indices.fill_(-1), *parts[:2], indices, parts[2])

    @staticmethod
    def _pages(cache: IndexCache) -> torch.Tensor:
        """[blocks, rows, 1, 132]: a record is all of its bytes, wherever in the block they lie."""
        size = INDEX_ROW_BYTES
        return torch.as_strided(cache.memory, (cache.blocks, cache.page, 1, size), (cache.stride, size, size, 1))

    def _decode(self, call: IndexCall, indices: torch.Tensor) -> tuple[Any, Any, str]:
        cell, pages = call.cell, self._pages(call.cache)
        q = call.q.view(cell.requests, cell.queries, *call.q.shape[1:])
        lens = call.lens.view(cell.requests, cell.queries)
        plan = self._gemm.get_paged_mqa_logits_metadata(lens, call.cache.page, self._multiprocessors)

        def score() -> Any:
            return self._gemm.fp8_fp4_paged_mqa_logits(
                (q, None), pages, call.weights, lens, call.table, plan, cell.entries
            )

        name = "cooperative_topk" if cell.tokens <= self.COOPERATIVE_ROWS else "persistent_topk"

        def choose(scores: torch.Tensor) -> None:
            getattr(self._ops, name)(scores, lens, indices, self._workspace, TOP_K, cell.entries)

        return score, choose, f"fp8_fp4_paged_mqa_logits, {name}"

    def _prefill(self, call: IndexCall, indices: torch.Tensor) -> tuple[Any, Any, str]:
        cell = call.cell
        keys = call.cache.gather(call.table[0], cell.entries)
        starts = torch.zeros_like(call.lens)

        def score() -> Any:
            return self._gemm.fp8_fp4_mqa_logits((call.q, None), keys, call.weights, starts, call.lens, cell.entries)

        def choose(scores: torch.Tensor) -> None:
            strides = (scores.stride(0), scores.stride(1))
            self._ops.top_k_per_row_prefill(scores, starts, call.lens, indices, cell.tokens, *strides, TOP_K)

        return score, choose, "fp8_fp4_mqa_logits, top_k_per_row_prefill"
