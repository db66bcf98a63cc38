"""The grids of the index chain: scores of the lightning indexer over paged rows, then their exact top-k."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ..attention.cells import GATHER_TBS, PRODUCT_TFLOPS, Choice

HEADS = 64
INDEX_DIM = 128
TOP_K = 512
PAGE = 64
RATIO = 4
"""Tokens of an entry."""
INDEX_ROW_BYTES = INDEX_DIM + 4
FP8_TFLOPS = 2 * PRODUCT_TFLOPS
DECODE_GRID, PREFILL_GRID = "index", "index_prefill"


@dataclass(frozen=True)
class IndexCell:
    """One call: `queries` of each of `requests` requests, each of which has `entries` rows of its own."""

    grid: str
    requests: int
    queries: int
    entries: int

    heads: ClassVar[int] = HEADS
    layer: ClassVar[str] = "index"
    rows: ClassVar[str] = "index_fp8"

    @property
    def prefill(self) -> bool:
        return self.grid == PREFILL_GRID

    @property
    def tokens(self) -> int:
        return self.requests * self.queries

    @property
    def columns(self) -> int:
        """Blocks of a request."""
        return -(-self.entries // PAGE)

    @property
    def name(self) -> str:
        """The cell's name, unique among all grids."""
        numbers = (self.queries, self.entries) if self.prefill else (self.requests, self.queries, self.entries)
        return "/".join([self.grid, *map(str, numbers)])

    def visible(self, query: int) -> int:
        """Entries that a query of a request sees: all, or in a prefill those whose tokens end before it."""
        if not self.prefill:
            return self.entries
        return min(max((self.entries * RATIO - self.queries + query + 1) // RATIO, 0), self.entries)

    @property
    def flops(self) -> int:
        scored = self.requests * sum(map(self.visible, range(self.queries)))
        return 2 * HEADS * INDEX_DIM * scored

    @property
    def bytes(self) -> int:
        """Rows once, queries, their weights, and the entries chosen."""
        query = HEADS * INDEX_DIM + 4 * HEADS + 4 * TOP_K
        return self.requests * self.entries * INDEX_ROW_BYTES + self.tokens * query

    @property
    def byte_floor_us(self) -> float:
        return self.bytes / GATHER_TBS * 1e-6

    @property
    def floor_us(self) -> float:
        return max(self.byte_floor_us, self.flops / FP8_TFLOPS * 1e-6)

    def describe(self) -> dict[str, Any]:
        """What a file of results says about the cell."""
        same = {name: getattr(self, name) for name in ("name", "heads", "layer", "rows", "tokens", "flops", "bytes")}
        floors = {name: round(getattr(self, name), 3) for name in ("floor_us", "byte_floor_us")}
        return asdict(self) | same | {"keys": self.entries} | floors


def _decode(choice: Choice) -> Iterator[IndexCell]:
    for requests in choice.batches or (1, 8, 32, 128):
        for queries in choice.queries or (1, 2):
            for entries in choice.pools or (2048, 8192, 32768, 262144):
                yield IndexCell(DECODE_GRID, requests, queries, entries)


def _prefill(choice: Choice) -> Iterator[IndexCell]:
    for queries in choice.tokens or (2048, 4096):
        for entries in choice.pools or (2048, 8192, 32768):
            yield IndexCell(PREFILL_GRID, 1, queries, entries)


INDEX_GRIDS: dict[str, Callable[[Choice], Iterator[IndexCell]]] = {DECODE_GRID: _decode, PREFILL_GRID: _prefill}


def index_cells_of(grids: tuple[str, ...], choice: Choice) -> list[IndexCell]:
    """The cells of the named grids in their order."""
    return [cell for grid in grids for cell in INDEX_GRIDS[grid](choice)]
