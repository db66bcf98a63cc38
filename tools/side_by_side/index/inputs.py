"""Index rows, queries and block tables of a cell as torch tensors, and what float64 makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..attention.inputs import CHUNK_BYTES
from ..fault import Fault
from .cells import HEADS, INDEX_DIM, INDEX_ROW_BYTES, PAGE, IndexCell

CODE_BYTES = PAGE * INDEX_DIM
BLOCK_BYTES = PAGE * INDEX_ROW_BYTES
STRIDE = -(-BLOCK_BYTES // 576) * 576
"""Bytes between blocks, as in the caches of a layer."""
SLACK = 1e-3
"""Of a row's largest score: what FP8 tensor cores lose in their sums."""


@dataclass
class IndexCache:
    """Random index_fp8 rows: a block is PAGE rows of INDEX_DIM e4m3 codes, then an fp32 scale for each row."""

    memory: torch.Tensor
    format: str = "index_fp8"
    page: int = PAGE
    stride: int = STRIDE
    kv_scale: float = 1.0

    @property
    def blocks(self) -> int:
        return int(self.memory.shape[0])

    @staticmethod
    def make(blocks: int, device: str, random: torch.Generator) -> IndexCache:
        memory = torch.zeros(blocks, STRIDE, dtype=torch.uint8, device=device)
        step = max(1, CHUNK_BYTES // (4 * CODE_BYTES))
        for first in range(0, blocks, step):
            part = memory[first : first + step]
            numbers = torch.randn(part.shape[0], CODE_BYTES, device=device, generator=random)
            part[:, :CODE_BYTES] = (numbers * 16).to(torch.float8_e4m3fn).view(torch.uint8)
            exponents = torch.randint(-5, -3, (part.shape[0], PAGE), device=device, generator=random)
            part[:, CODE_BYTES:BLOCK_BYTES] = torch.exp2(exponents.float()).view(torch.uint8)
        return IndexCache(memory)

    def gather(self, blocks: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes [count, 128] in e4m3 and scales [count] of the first rows of these blocks."""
        found = self.memory[blocks.long()]
        codes = found[:, :CODE_BYTES].contiguous().view(torch.float8_e4m3fn).view(-1, INDEX_DIM)
        scales = found[:, CODE_BYTES:BLOCK_BYTES].contiguous().view(torch.float32).view(-1)
        return codes[:count], scales[:count]


@dataclass
class IndexCall:
    """One set of inputs: `q` [T, 64, 128] e4m3, `weights` [T, 64]; `table` [requests, columns] names blocks.

    Row t is a query of request `row_to_req[t]` and sees its first `lens[t]` entries.
    """

    cell: IndexCell
    cache: IndexCache
    q: torch.Tensor
    weights: torch.Tensor
    table: torch.Tensor
    row_to_req: torch.Tensor
    lens: torch.Tensor

    def expected(self, row: int) -> torch.Tensor:
        """The scores of a row's visible entries, in float64."""
        blocks = self.table[int(self.row_to_req[row])]
        codes, scales = self.cache.gather(blocks, int(self.lens[row]))
        products = torch.relu(codes.double() @ self.q[row].double().T)
        return products @ self.weights[row].double() * scales.double()


@dataclass(frozen=True)
class Judged:
    """What became of a row's choice.

    `wrong`: entries that do not belong there, and what is no entry or named twice. `other`: entries that are not in
    the exact set, near ties among them. `passed_over`: how much better than the worst entry chosen the best one left
    is, as a share of the largest score.
    """

    wrong: int
    other: int
    passed_over: float


def judge(chosen: torch.Tensor, scores: torch.Tensor) -> Judged:
    """A row's choice [k], -1 behind the entries, beside the exact scores [n] of what the row sees."""
    n, count = scores.numel(), min(chosen.numel(), scores.numel())
    named = chosen[chosen != -1].long()
    inside = torch.unique(named[(named >= 0) & (named < n)])
    wrong = abs(named.numel() - count) + named.numel() - inside.numel()
    if count == 0 or inside.numel() == 0:
        return Judged(wrong, count, 0.0)
    # Of equal scores the lower entries come first.
    order = torch.sort(scores, descending=True, stable=True).indices
    best = torch.zeros(n, dtype=torch.bool, device=scores.device).index_fill_(0, order[:count], True)
    taken = torch.zeros_like(best).index_fill_(0, inside, True)
    largest = float(scores.abs().max())
    last, slack = float(scores[order[count - 1]]), SLACK * largest
    under, over = taken & (scores < last - slack), ~taken & (scores > last + slack)
    wrong += max(int(under.sum()), int(over.sum()))
    left = float(scores[~taken].max()) if n > inside.numel() else float("-inf")
    passed_over = max(0.0, left - float(scores[taken].min())) / largest if largest else 0.0
    return Judged(wrong, count - int((taken & best).sum()), passed_over)


class IndexInputs:
    """Makes the calls of all cells over one cache, in which no two requests or sets of a cell share a row."""

    def __init__(self, cells: Iterable[IndexCell], sets: int, device: str, seed: int, limit_bytes: int) -> None:
        self.device, self.sets = device, sets
        self.random = torch.Generator(device).manual_seed(seed)
        most = limit_bytes // STRIDE
        self._blocks = max(min(sets, most // self._needs(c)) * self._needs(c) for c in cells)
        self._cache: IndexCache | None = None

    @staticmethod
    def _needs(cell: IndexCell) -> int:
        return cell.requests * cell.columns

    def drop(self, formats: Iterable[str]) -> None:
        """Gives the cache's memory back where its format is one of these."""
        if IndexCell.rows in formats:
            self._cache = None

    def calls(self, cell: IndexCell, sets: int) -> list[IndexCall]:
        """Sets of inputs of a cell, at least one. @raises Fault: a set does not fit in the cache"""
        needs = self._needs(cell)
        if needs > self._blocks:
            raise Fault(f"a set has {needs} blocks of {PAGE} rows, the cache {self._blocks}")
        if self._cache is None:
            self._cache = IndexCache.make(self._blocks, self.device, self.random)
        fit = min(sets, self._blocks // needs)
        order = torch.randperm(self._blocks, device=self.device, generator=self.random)[: fit * needs]
        tables = order.int().view(fit, cell.requests, cell.columns)
        return [self._call(cell, self._cache, table.contiguous()) for table in tables]

    def _call(self, cell: IndexCell, cache: IndexCache, table: torch.Tensor) -> IndexCall:
        shape = (cell.tokens, HEADS)
        q = torch.randn(*shape, INDEX_DIM, device=self.device, generator=self.random)
        weights = torch.randn(shape, device=self.device, generator=self.random)
        requests = torch.arange(cell.requests, dtype=torch.int32, device=self.device)
        visible = torch.tensor([cell.visible(i) for i in range(cell.queries)], dtype=torch.int32, device=self.device)
        return IndexCall(
            cell=cell,
            cache=cache,
            q=(q * 16).to(torch.float8_e4m3fn),
            weights=weights / 16,
            table=table,
            row_to_req=requests.repeat_interleave(cell.queries),
            lens=visible.repeat(cell.requests),
        )
