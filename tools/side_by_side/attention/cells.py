"""The grids: which calls are timed, how many rows they read and what the card allows at best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

DIM = 512
WINDOW = 128
WINDOW_PAGE = 64
FEW_HEADS = (8, 16, 32)
FORMATS = ("fp8_ds_mla", "bf16", "fp8_per_tensor")

PRODUCT_TFLOPS = 799.0
GATHER_TBS = 3.55
"""Rates of an H200 that floors are made of: bf16 product, rows gathered from memory."""

PREFILL_SETS, PREFILL_RUNS = 2, 12
"""Sets of inputs of a prefill, and samples at most: one is long."""

ROW_BYTES = {"fp8_ds_mla": 584, "bf16": 1024, "fp8_per_tensor": 512}


@dataclass(frozen=True)
class Layer:
    """What a query names beside its window: `named` of a request's `entries` rows, in pages of `page`."""

    title: str
    entries: int = 0
    page: int = 64
    top_k: bool = False

    def named(self, heads: int) -> int:
        """Entries a query names; a top-k is 512, with more than 64 heads 1,024."""
        if not self.top_k:
            return self.entries
        return 1024 if heads > 64 else 512


LAYERS = {
    "swa": Layer("window only, 128 keys"),
    "c4a_32k": Layer("C4A, 32k tokens", 8192, top_k=True),
    "c128_8k": Layer("C128A, 8k tokens", 64, 2),
    "c128_32k": Layer("C128A, 32k tokens", 256, 2),
    "c128_128k": Layer("C128A, 128k tokens", 1024, 2),
    "c128_1M": Layer("C128A, 1M tokens", 8192, 2),
}
DECODE_LAYERS = ("swa", "c4a_32k", "c128_8k", "c128_128k", "c128_1M")
MIXED = "c128_1M_among_8k"
"""The layer of the grid `unequal`: the first request as in c128_1M, all others as in c128_8k."""


@dataclass(frozen=True)
class Cell:
    """One call: `requests` times `queries` tokens of `heads` heads.

    A request's queries share its rows where `shared`; else each query has rows of its own.
    """

    grid: str
    heads: int
    layer: str
    requests: int
    queries: int = 1
    shared: bool = True
    rows: str = "fp8_ds_mla"
    named: int = 0
    entries: int = 0
    page: int = 64

    @property
    def tokens(self) -> int:
        return self.requests * self.queries

    @property
    def keys(self) -> int:
        """Keys of a query, of the longest request."""
        return WINDOW + self.named

    @property
    def prefill(self) -> bool:
        return self.layer == "prefill"

    @property
    def name(self) -> str:
        """The cell's name, unique among all grids; those of decode and prefill are also data/peers'."""
        if self.prefill:
            return f"{self.grid}/{self.heads}/{self.entries}/{self.keys}/{self.tokens}"
        parts = [self.grid, str(self.heads), self.layer, str(self.requests)]
        if self.grid == "rows":
            parts.append(self.rows)
        if self.grid == "queries":
            parts += [str(self.queries), "shared" if self.shared else "separate"]
        return "/".join(parts)

    def named_of(self, request: int) -> int:
        """Entries that each query of a request names."""
        if self.layer == MIXED:
            return self.named if request == 0 else LAYERS["c128_8k"].entries
        return self.named

    @property
    def shares_lists(self) -> bool:
        """Whether a request's queries attend to columns of one list of slots."""
        return self.shared and self.queries > 1 and self.layer in LAYERS and not LAYERS[self.layer].top_k

    @property
    def lists(self) -> int:
        """How many requests have rows of their own."""
        return self.requests if self.shared else self.tokens

    def _total_keys(self) -> int:
        """Keys of all queries together."""
        return sum(WINDOW + self.named_of(r) for r in range(self.requests)) * self.queries

    def _distinct_rows(self) -> int:
        """Rows that have to come from memory at least once."""
        if not self.shared:
            return self._total_keys()
        total = 0
        for request in range(self.requests):
            named = self.named_of(request)
            window = min(self.queries * WINDOW, WINDOW + self.queries - 1)
            own_choice = self.prefill or LAYERS.get(self.layer, Layer("")).top_k
            total += window + (min(self.entries, self.queries * named) if own_choice else named)
        return total

    @property
    def flops(self) -> int:
        return 4 * self.heads * DIM * self._total_keys()

    @property
    def bytes(self) -> int:
        """Rows once, queries (one byte a number beside per-tensor rows, else two) and outputs."""
        query = 1 if self.rows == "fp8_per_tensor" else 2
        return self._distinct_rows() * ROW_BYTES[self.rows] + self.tokens * self.heads * DIM * (query + 2)

    @property
    def byte_floor_us(self) -> float:
        return self.bytes / GATHER_TBS * 1e-6

    @property
    def floor_us(self) -> float:
        return max(self.byte_floor_us, self.flops / PRODUCT_TFLOPS * 1e-6)

    def describe(self) -> dict[str, Any]:
        """What a file of results says about the cell."""
        numbers = {name: getattr(self, name) for name in ("name", "tokens", "keys", "flops", "bytes")}
        floors = {name: round(getattr(self, name), 3) for name in ("floor_us", "byte_floor_us")}
        return asdict(self) | numbers | floors


@dataclass(frozen=True)
class Choice:
    """What of the grids is wanted; an empty tuple is a grid's own default."""

    heads: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()
    pools: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    queries: tuple[int, ...] = ()
    rows: tuple[str, ...] = ()


def _decode_cell(grid: str, heads: int, layer: str, batch: int) -> Cell:
    kind = LAYERS[layer]
    return Cell(
        grid, heads, layer, batch, named=kind.named(heads), entries=kind.entries, page=kind.page if kind.entries else 64
    )


def _decodes(
    grid: str, heads: tuple[int, ...], layers: tuple[str, ...], batches: tuple[int, ...]
) -> Callable[[Choice], Iterator[Cell]]:
    def cells(choice: Choice) -> Iterator[Cell]:
        for count in choice.heads or heads:
            for layer in choice.layers or layers:
                for batch in choice.batches or batches:
                    yield _decode_cell(grid, count, layer, batch)

    return cells


def _prefills(
    grid: str, heads: tuple[int, ...], keys: tuple[int, ...], pools: tuple[int, ...], tokens: tuple[int, ...]
) -> Callable[[Choice], Iterator[Cell]]:
    def cells(choice: Choice) -> Iterator[Cell]:
        for count in choice.heads or heads:
            for pool in choice.pools or pools:
                for width in choice.keys or keys:
                    for queries in choice.tokens or tokens:
                        yield Cell(grid, count, "prefill", 1, queries, named=width - WINDOW, entries=pool)

    return cells


def _unequal(choice: Choice) -> Iterator[Cell]:
    long = LAYERS["c128_1M"]
    for heads in choice.heads or (64, 128):
        for batch in choice.batches or (64,):
            yield Cell("unequal", heads, MIXED, batch, named=long.entries, entries=long.entries, page=long.page)


def _rows(choice: Choice) -> Iterator[Cell]:
    for cell in _decodes("rows", (64, 128), DECODE_LAYERS, (1, 16, 64, 128))(choice):
        for rows in choice.rows or FORMATS:
            yield replace(cell, rows=rows)


def _queries(choice: Choice) -> Iterator[Cell]:
    for cell in _decodes("queries", (*FEW_HEADS, 64), ("swa", "c128_8k", "c128_128k"), (16, 64))(choice):
        for queries in choice.queries or (2, 4, 8):
            for shared in (False, True):
                yield replace(cell, queries=queries, shared=shared)


GRIDS: dict[str, Callable[[Choice], Iterator[Cell]]] = {
    "decode": _decodes("decode", (64, 128), DECODE_LAYERS, (1, 4, 16, 64, 128)),
    "small": _decodes("small", (64,), ("c4a_32k",), (1,)),
    "few": _decodes("few", (*FEW_HEADS, 64), DECODE_LAYERS, (64, 128)),
    "unequal": _unequal,
    "prefill": _prefills("prefill", (64, 128), (640, 1152, 2048), (8192, 32768), (2048, 4096, 8192)),
    "prefill_few": _prefills("prefill_few", FEW_HEADS, (640, 1152), (8192,), (4096,)),
    "rows": _rows,
    "queries": _queries,
}


def cells_of(grids: tuple[str, ...], choice: Choice) -> list[Cell]:
    """The cells of the named grids in their order."""
    return [cell for grid in grids for cell in GRIDS[grid](choice)]


def find_fault(cell: Cell) -> str:
    """Why a cell cannot be measured; empty when it can."""
    if not 1 <= cell.heads <= 128:
        return f"heads: got {cell.heads}, expected 1 to 128"
    if cell.prefill and not 0 <= cell.named <= cell.entries:
        return f"keys: got {cell.keys} of a pool of {cell.entries}, expected {WINDOW} to {WINDOW + cell.entries}"
    return ""
