"""Caches, queries and lists of a cell as torch tensors, and what float64 makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..fault import Fault
from .cells import DIM, ROW_BYTES, WINDOW, WINDOW_PAGE, Cell

CODES = 448
"""Numbers of an fp8_ds_mla row that are e4m3, in groups of GROUP with a scale each; the rest is bf16."""
GROUP = 64
DATA_BYTES = {"fp8_ds_mla": 576, "bf16": 1024, "fp8_per_tensor": 512}
PAGE_ALIGNMENT = {"fp8_ds_mla": 576, "bf16": 512, "fp8_per_tensor": 512}
KV_SCALE = 0.0625
Q_SCALE = 0.125
CHUNK_BYTES = 1 << 28


@dataclass
class RowCache:
    """Random rows of one format in `blocks` blocks of `page` rows, `stride` bytes apart."""

    format: str
    page: int
    blocks: int
    stride: int
    memory: torch.Tensor
    kv_scale: float

    @staticmethod
    def make(format: str, page: int, blocks: int, device: str, random: torch.Generator) -> RowCache:
        align = PAGE_ALIGNMENT[format]
        stride = -(-page * ROW_BYTES[format] // align) * align
        memory = torch.empty(blocks, stride, dtype=torch.uint8, device=device)
        cache = RowCache(format, page, blocks, stride, memory, KV_SCALE if format == "fp8_per_tensor" else 1.0)
        step = max(1, CHUNK_BYTES // (4 * page * DIM))
        for first in range(0, blocks, step):
            cache._fill(memory[first : first + step], random)
        return cache

    def _fill(self, blocks: torch.Tensor, random: torch.Generator) -> None:
        count, device = blocks.shape[0], blocks.device
        numbers = torch.randn(count, self.page, DIM, device=device, generator=random)
        data = blocks[:, : self.page * DATA_BYTES[self.format]].view(count, self.page, -1)
        if self.format == "bf16":
            data.copy_(numbers.bfloat16().view(torch.uint8))
        elif self.format == "fp8_per_tensor":
            data.copy_((numbers / KV_SCALE).to(torch.float8_e4m3fn).view(torch.uint8))
        else:
            data[..., :CODES] = (numbers[..., :CODES] * 16).to(torch.float8_e4m3fn).view(torch.uint8)
            data[..., CODES:] = numbers[..., CODES:].bfloat16().view(torch.uint8)
            end = self.page * ROW_BYTES[self.format]
            scales = blocks[:, self.page * DATA_BYTES[self.format] : end].view(count, self.page, -1)
            # 2^-5 to 2^-3: numbers of about 1.
            scales[..., :7] = torch.randint(
                122, 125, (count, self.page, 7), dtype=torch.uint8, device=device, generator=random
            )
            scales[..., 7] = 0

    def decode(self, slots: torch.Tensor) -> torch.Tensor:
        """The rows of these slots as float64, [..., 512]."""
        places = slots.long()
        block, row = places // self.page, places % self.page
        flat, size = self.memory.view(-1), DATA_BYTES[self.format]

        def read(start: torch.Tensor, count: int) -> torch.Tensor:
            return flat[start[..., None] + torch.arange(count, device=flat.device)]

        data = read(block * self.stride + row * size, size)
        if self.format == "bf16":
            return data.view(torch.bfloat16).double()
        if self.format == "fp8_per_tensor":
            return data.view(torch.float8_e4m3fn).double() * self.kv_scale
        scales = read(block * self.stride + self.page * size + row * 8, CODES // GROUP)
        codes = data[..., :CODES].contiguous().view(torch.float8_e4m3fn).double()
        rotated = data[..., CODES:].contiguous().view(torch.bfloat16).double()
        return torch.cat([codes * torch.exp2(scales.double() - 127).repeat_interleave(GROUP, dim=-1), rotated], -1)


@dataclass
class Scope:
    """A cache and the slots each query attends to: `indices` [T, W] int32, -1 past `lens` [T] int32."""

    cache: RowCache
    indices: torch.Tensor
    lens: torch.Tensor

    def shared(self, queries: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of `queries` consecutive ones as one row [T / queries, W'], and each query's first column in it [T].

        They name the same slots, or each those of the one before but for the first and one more.
        """
        rows = self.indices.view(-1, queries, self.indices.shape[1])
        first = torch.zeros(self.indices.shape[0], dtype=torch.int32, device=self.indices.device)
        if bool((rows == rows[:, :1]).all()):
            return rows[:, 0].contiguous(), first
        assert bool((rows[:, 1:, :-1] == rows[:, :-1, 1:]).all())
        first += torch.arange(queries, dtype=torch.int32, device=first.device).repeat(rows.shape[0])
        return torch.cat([rows[:, 0], rows[:, 1:, -1]], 1).contiguous(), first


@dataclass
class Call:
    """One set of inputs: `q` [T, H, 512] in bf16, beside per-tensor rows in e4m3 times `q_scale`; `sink` [H]."""

    cell: Cell
    q: torch.Tensor
    q_scale: float
    sink: torch.Tensor
    scopes: list[Scope]
    scale: float = DIM**-0.5

    def expected(self, token: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [H, 512] and lse [H] of a token, in float64 over decoded rows."""
        rows = torch.cat([s.cache.decode(s.indices[token, : int(s.lens[token])]) for s in self.scopes])
        scores = self.q[token].double() * self.q_scale @ rows.T * self.scale
        lse = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - lse[:, None]) / (1 + torch.exp(self.sink.double() - lse))[:, None]
        return weights @ rows, lse


class Inputs:
    """Makes the calls of all cells over one window cache and one entry cache for each format and size of page.

    Requests and sets share no row as long as a cache holds that many: `limit_bytes` a cache.
    """

    def __init__(self, cells: Iterable[Cell], sets: int, device: str, seed: int, limit_bytes: int) -> None:
        self.device = device
        self.random = torch.Generator(device).manual_seed(seed)
        self._blocks: dict[tuple[str, int, str], int] = {}
        self._caches: dict[tuple[str, int, str], RowCache] = {}
        for cell in cells:
            for kind, page, blocks in self._needs(cell):
                most = limit_bytes // (page * ROW_BYTES[cell.rows])
                key = (cell.rows, page, kind)
                self._blocks[key] = max(self._blocks.get(key, 0), min(most, blocks * sets * cell.lists))

    @staticmethod
    def _needs(cell: Cell) -> list[tuple[str, int, int]]:
        """(kind, page, blocks of a list of rows) of a cell's caches."""
        span = WINDOW_PAGE - 1 + WINDOW + (cell.queries - 1 if cell.shared else 0)
        needs = [("window", WINDOW_PAGE, -(-span // WINDOW_PAGE))]
        if cell.named:
            needs.append(("entries", cell.page, -(-cell.entries // cell.page)))
        return needs

    def _cache(self, cell: Cell, kind: str, page: int) -> RowCache:
        key = (cell.rows, page, kind)
        if key not in self._caches:
            self._caches[key] = RowCache.make(cell.rows, page, self._blocks[key], self.device, self.random)
        return self._caches[key]

    def drop(self, formats: Iterable[str]) -> None:
        """Gives the memory of these formats' caches back."""
        self._caches = {key: cache for key, cache in self._caches.items() if key[0] not in set(formats)}

    def calls(self, cell: Cell, sets: int) -> list[Call]:
        """Sets of inputs of a cell. @raises Fault: a request does not fit in a cache"""
        tables = {}
        for kind, page, blocks in self._needs(cell):
            cache = self._cache(cell, kind, page)
            if cache.blocks < blocks:
                raise Fault(f"a request has {blocks} blocks of {page} rows, the cache {cache.blocks}")
            tables[kind] = (cache, self._tables(cache.blocks, blocks, sets, cell.lists))
        return [self._call(cell, i, tables) for i in range(sets)]

    def _tables(self, total: int, blocks: int, sets: int, lists: int) -> torch.Tensor:
        """Blocks of each list of each set, [sets, lists, blocks]: all different where there are enough."""
        wanted = sets * lists
        rounds = []
        while wanted > 0:
            fit = min(wanted, total // blocks)
            order = torch.randperm(total, device=self.device, generator=self.random)
            rounds.append(order[: fit * blocks].view(fit, blocks))
            wanted -= fit
        return torch.cat(rounds).view(sets, lists, blocks)

    def _call(self, cell: Cell, index: int, tables: dict[str, tuple[RowCache, torch.Tensor]]) -> Call:
        q = torch.randn(cell.tokens, cell.heads, DIM, device=self.device, generator=self.random)
        narrow = cell.rows == "fp8_per_tensor"
        q = (q / Q_SCALE).to(torch.float8_e4m3fn) if narrow else q.bfloat16()
        sink = torch.randn(cell.heads, device=self.device, generator=self.random)
        cache, blocks = tables["window"]
        scopes = [self._scope(cache, blocks[index], self._window(cell), WINDOW)]
        if cell.named:
            cache, blocks = tables["entries"]
            scope = self._scope(cache, blocks[index], self._entries(cell), cell.named)
            if any(cell.named_of(r) != cell.named for r in range(cell.requests)):
                lens = [cell.named_of(r) for r in range(cell.requests) for _ in range(cell.queries)]
                scope.lens = torch.tensor(lens, dtype=torch.int32, device=self.device)
                outside = torch.arange(cell.named, device=self.device) >= scope.lens[:, None]
                scope.indices.masked_fill_(outside, -1)
            scopes.append(scope)
        return Call(cell, q, Q_SCALE if narrow else 1.0, sink, scopes)

    def _scope(self, cache: RowCache, blocks: torch.Tensor, positions: torch.Tensor, width: int) -> Scope:
        """`blocks` [lists, n], `positions` [lists, queries, width] in a list's rows."""
        lists = positions.shape[0]
        block = torch.gather(blocks, 1, (positions // cache.page).view(lists, -1)).view(positions.shape)
        slots = (block * cache.page + positions % cache.page).int().view(-1, width)
        return Scope(cache, slots, torch.full((slots.shape[0],), width, dtype=torch.int32, device=self.device))

    def _window(self, cell: Cell) -> torch.Tensor:
        """Each query's last 128 positions, which begin anywhere in a page: [lists, queries of a list, 128]."""
        queries = cell.tokens // cell.lists
        first = torch.randint(0, WINDOW_PAGE, (cell.lists, 1, 1), device=self.device, generator=self.random)
        steps = torch.arange(queries, device=self.device)[:, None] + torch.arange(WINDOW, device=self.device)
        return first + steps

    def _entries(self, cell: Cell) -> torch.Tensor:
        """All entries in order, or distinct ones at random for each query: [lists, queries of a list, named]."""
        queries = cell.tokens // cell.lists
        if cell.named == cell.entries:
            return torch.arange(cell.named, device=self.device).expand(cell.lists, queries, cell.named)
        rows, step = [], max(1, CHUNK_BYTES // (8 * cell.entries))
        for first in range(0, cell.tokens, step):
            count = min(step, cell.tokens - first)
            order = torch.rand(count, cell.entries, device=self.device, generator=self.random)
            rows.append(order.argsort(-1)[:, : cell.named])
        return torch.cat(rows).view(cell.lists, queries, cell.named)
