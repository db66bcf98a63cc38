"""DeepGEMM's and vLLM's calls of the index chain over torch on a CPU, strict about what they are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from side_by_side.index.cells import INDEX_DIM, PAGE
from side_by_side.index.inputs import CODE_BYTES, IndexCache
from side_by_side.index.peer import IndexPeer, VllmIndexer


def scores_of(q: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """[K] of one query [64, 128]."""
    return (torch.relu(codes.float() @ q.float().T) @ weights) * scales


class FakeGemm:
    """The module deep_gemm; what lies past a row's entries is NaN."""

    def __init__(self) -> None:
        self.plans = 0

    def get_paged_mqa_logits_metadata(self, lens: torch.Tensor, page: int, multiprocessors: int) -> str:
        assert lens.dim() == 2 and lens.dtype == torch.int32 and page == 64 and multiprocessors == 7
        self.plans += 1
        return "plan"

    def fp8_fp4_paged_mqa_logits(
        self, q: Any, pages: Any, weights: Any, lens: Any, table: Any, plan: Any, longest: int
    ) -> torch.Tensor:
        (values, scale), stride = q, pages.stride(0)
        assert scale is None and plan == "plan" and values.dtype == torch.float8_e4m3fn
        assert pages.dtype == torch.uint8 and pages.shape[1:] == (PAGE, 1, INDEX_DIM + 4)
        assert pages.stride(1) == INDEX_DIM + 4 and stride % 16 == 0 and stride >= CODE_BYTES + 4 * PAGE
        assert table.dtype == torch.int32 and table.stride(1) == 1 and lens.is_contiguous()
        requests, queries = values.shape[:2]
        assert lens.shape == (requests, queries) and weights.shape == (requests * queries, 64)
        cache = IndexCache(torch.as_strided(pages, (pages.shape[0], stride), (stride, 1)), stride=stride)
        out = torch.full((requests * queries, -(-longest // 256) * 256), float("nan"))
        for r in range(requests):
            for i in range(queries):
                keys = cache.gather(table[r], int(lens[r, i]))
                out[r * queries + i, : lens[r, i]] = scores_of(values[r, i], *keys, weights[r * queries + i])
        return out[:, :longest]

    def fp8_fp4_mqa_logits(self, q: Any, keys: Any, weights: Any, starts: Any, ends: Any, longest: int) -> torch.Tensor:
        (values, scale), (codes, scales) = q, keys
        assert scale is None and codes.shape == (longest, INDEX_DIM) and scales.shape == (longest,)
        assert codes.dtype == values.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
        assert not bool(starts.any()) and starts.dtype == ends.dtype == torch.int32
        out = torch.full((values.shape[0], longest), float("nan"))
        for i, end in enumerate(ends.tolist()):
            out[i, :end] = scores_of(values[i], codes[:end], scales[:end], weights[i])
        return out


class FakeOps:
    """`torch.ops._C` of a wheel; `shift` moves every choice."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift
        self.called: set[str] = set()

    def _choose(self, name: str, scores: torch.Tensor, lens: torch.Tensor, out: torch.Tensor, k: int) -> None:
        self.called.add(name)
        for row, count in enumerate(lens.reshape(-1).tolist()):
            best = torch.topk(scores[row, :count], min(k, count)).indices.int() + self.shift
            out[row, : best.numel()] = best

    def cooperative_topk(self, scores: Any, lens: Any, out: Any, workspace: Any, k: int, longest: int) -> None:
        assert scores.shape[0] <= 64 and scores.stride(0) % 4 == 0 and workspace.numel() == 1 << 20
        assert longest == scores.shape[1]
        self._choose("cooperative_topk", scores, lens, out, k)

    def persistent_topk(self, scores: Any, lens: Any, out: Any, workspace: Any, k: int, longest: int) -> None:
        assert scores.shape[0] > 64 and workspace.numel() == 1 << 20 and longest == scores.shape[1]
        self._choose("persistent_topk", scores, lens, out, k)

    def top_k_per_row_prefill(
        self, scores: Any, starts: Any, ends: Any, out: Any, rows: int, stride0: int, stride1: int, k: int
    ) -> None:
        assert not bool(starts.any()) and rows == scores.shape[0] and (stride0, stride1) == scores.stride()
        self._choose("top_k_per_row_prefill", scores, ends, out, k)


class Broken(IndexPeer):
    """Takes no call."""

    name = "broken"

    def prepare(self, call: Any) -> Any:
        raise RuntimeError("no kernel\nfor this card")


def peer(shift: int = 0) -> tuple[VllmIndexer, SimpleNamespace]:
    """The adapter over the fakes, and these."""
    fakes = SimpleNamespace(gemm=FakeGemm(), ops=FakeOps(shift))
    return VllmIndexer(fakes.gemm, fakes.ops, 7, "2.8.1"), fakes


def load(path: str) -> IndexPeer:
    return Broken() if path.endswith("broken") else peer()[0]
