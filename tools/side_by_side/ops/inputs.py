"""Inputs of the ops around attention as torch tensors, where they write, and what float64 makes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..attention.cells import DIM
from ..attention.inputs import RowCache
from .cells import HEADS, INDEX_DIM, POSITIONS, ROPE_DIM, OpCell

EPS = 1e-6
ROPE_BASE = 10000.0
STATE_ALIGNMENT = 576
ENTRY_PAGES = {4: 64, 128: 2}
STATE_PAGES = {4: 4, 128: 8}
GATHER_PAGE = 64
SPOILT = 0xFF
"""A byte of outputs before a checked call: NaN in bf16, fp32 and e4m3."""
SCALE = (INDEX_DIM * HEADS) ** -0.5
"""Of the weights of index queries."""
MOST_CHECKED = 3


def rotations(device: str) -> torch.Tensor:
    """[POSITIONS, 64] fp32: cosines, then sines of each pair."""
    frequencies = ROPE_BASE ** (-torch.arange(0, ROPE_DIM, 2, dtype=torch.float64) / ROPE_DIM)
    angles = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], 1).float().to(device)


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """`x` [..., n] with its last 64 numbers rotated in pairs by `turn` [..., 64]."""
    cos, sin = turn.double().chunk(2, -1)
    fixed, pairs = x[..., :-ROPE_DIM], x[..., -ROPE_DIM:].unflatten(-1, (-1, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return torch.cat([fixed, turned.flatten(-2)], -1)


@dataclass
class StateCache:
    """Random state rows of a compressor in `memory` [blocks, stride / 4] fp32: numbers, then logits of each token."""

    format: str
    page: int
    width: int
    memory: torch.Tensor
    kv_scale: float = 1.0

    @staticmethod
    def make(ratio: int, halves: int, blocks: int, device: str, random: torch.Generator) -> StateCache:
        page, width = STATE_PAGES[ratio], 2 * halves * DIM
        stride = -(-page * width * 4 // STATE_ALIGNMENT) * STATE_ALIGNMENT
        memory = torch.randn(blocks, stride // 4, device=device, generator=random)
        return StateCache(f"state_c{ratio}", page, width, memory)

    @property
    def blocks(self) -> int:
        return int(self.memory.shape[0])

    @property
    def stride(self) -> int:
        return int(self.memory.shape[1]) * 4

    def pages(self) -> torch.Tensor:
        """[blocks, page, width]."""
        shape, steps = (self.blocks, self.page, self.width), (self.memory.shape[1], self.width, 1)
        return torch.as_strided(self.memory, shape, steps)


@dataclass
class Output:
    """Where one side of a call writes: tensors by their names in the library's op, or its cache of entries."""

    tensors: dict[str, torch.Tensor]
    entries: RowCache | None = None

    def spoil(self) -> None:
        """Makes the contents worthless."""
        written = list(self.tensors.values())
        if self.entries is not None:
            written.append(self.entries.memory)
        for tensor in written:
            tensor.view(torch.uint8).fill_(SPOILT)


class OpCall(ABC):
    """One set of inputs of a cell."""

    cell: OpCell

    @abstractmethod
    def output(self) -> Output:
        """A new place for results."""

    @abstractmethod
    def scalars(self) -> dict[str, Any]:
        """The problem as the library's op takes it."""

    @abstractmethod
    def members(self, output: Output) -> dict[str, Any]:
        """The tensors as the library's op takes them."""

    @abstractmethod
    def read(self, output: Output) -> torch.Tensor:
        """What was written, dequantised: a row each for all results."""

    @abstractmethod
    def expected(self, row: int) -> torch.Tensor:
        """A row in float64, not quantised."""


@dataclass
class CompressCall(OpCall):
    """Entries of 512 pooled from state rows.

    Token t is at `positions[t]` of request `requests[t]` and stores its entry in slot `entry_slots[t]`, -1 none.
    """

    cell: OpCell
    state: StateCache
    positions: torch.Tensor
    requests: torch.Tensor
    state_slots: torch.Tensor
    entry_slots: torch.Tensor
    table: torch.Tensor
    norm: torch.Tensor
    turns: torch.Tensor
    random: torch.Generator

    def output(self) -> Output:
        page = ENTRY_PAGES[self.cell.kind.ratio]
        blocks = -(-self.cell.entries // page)
        return Output({}, RowCache.make("fp8_ds_mla", page, blocks, self.norm.device.type, self.random))

    def scalars(self) -> dict[str, Any]:
        sizes = {"tokens": self.cell.tokens, "ratio": self.cell.kind.ratio, "rope_dim": ROPE_DIM, "eps": EPS}
        return sizes | {"compressors": 1, "compressors[0].dim": DIM, "compressors[0].format": self.cell.rows}

    def members(self, output: Output) -> dict[str, Any]:
        return {
            "positions": self.positions,
            "token_to_req": self.requests,
            "entry_slots": self.entry_slots,
            "cos_sin": self.turns,
            "compressors[0].state_slots": self.state_slots,
            "compressors[0].block_table": self.table,
            "compressors[0].norm_weight": self.norm,
            "compressors[0].state": self.state,
            "compressors[0].entries": output.entries,
        }

    def _closing(self) -> torch.Tensor:
        """Tokens that make an entry."""
        return torch.nonzero(self.entry_slots >= 0).flatten()

    def read(self, output: Output) -> torch.Tensor:
        assert output.entries is not None
        return output.entries.decode(self.entry_slots[self._closing()])

    def expected(self, row: int) -> torch.Tensor:
        kind, token = self.cell.kind, int(self._closing()[row])
        last = int(self.positions[token])
        window = torch.arange(last - kind.window + 1, last + 1, device=self.table.device)
        blocks = self.table[int(self.requests[token])][window // self.state.page]
        numbers, logits = self.state.pages()[blocks.long(), window % self.state.page].double().chunk(2, -1)
        if kind.halves == 2:
            older, newer = slice(None, kind.ratio), slice(kind.ratio, None)
            numbers = torch.cat([numbers[older, :DIM], numbers[newer, DIM:]])
            logits = torch.cat([logits[older, :DIM], logits[newer, DIM:]])
        pooled = (torch.softmax(logits, 0) * numbers).sum(0)
        normed = pooled * torch.rsqrt(pooled.square().mean() + EPS) * self.norm.double()
        return rotated(normed, self.turns[last + 1 - kind.ratio])


@dataclass
class IndexQueryCall(OpCall):
    """Index queries `q` [T, 64, 128] and their weights [T, 64] in bf16."""

    cell: OpCell
    q: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor
    turns: torch.Tensor

    def output(self) -> Output:
        codes = torch.empty(self.q.shape, dtype=torch.float8_e4m3fn, device=self.q.device)
        return Output({"q_out": codes, "weights_out": torch.empty(self.weights.shape, device=self.q.device)})

    def scalars(self) -> dict[str, Any]:
        sizes = {"tokens": self.cell.tokens, "heads": HEADS, "dim": INDEX_DIM, "rope_dim": ROPE_DIM}
        return sizes | {"in": self.q.dtype, "format": self.cell.rows}

    def members(self, output: Output) -> dict[str, Any]:
        read = {"q": self.q, "weights": self.weights, "positions": self.positions, "cos_sin": self.turns}
        return read | output.tensors

    def read(self, output: Output) -> torch.Tensor:
        """Queries times their weights: a score is made of these products, and a scale is in either."""
        codes, weights = output.tensors["q_out"], output.tensors["weights_out"]
        return (codes.float() * weights[..., None]).flatten(1)

    def expected(self, row: int) -> torch.Tensor:
        x = rotated(self.q[row].double(), self.turns[self.positions[row]])
        return (x * self.weights[row].double()[:, None] * SCALE).flatten()


@dataclass
class GatherCall(OpCall):
    """All rows of one request as bf16; `table` [1, columns] names its blocks."""

    cell: OpCell
    cache: RowCache
    lengths: torch.Tensor
    table: torch.Tensor

    def output(self) -> Output:
        shape = (1, self.cell.tokens, DIM)
        return Output({"out": torch.empty(shape, dtype=torch.bfloat16, device=self.table.device)})

    def scalars(self) -> dict[str, Any]:
        return {"requests": 1, "rows": self.cell.tokens, "format": self.cell.rows}

    def members(self, output: Output) -> dict[str, Any]:
        read = {"cache": self.cache, "seq_lens": self.lengths, "block_table": self.table}
        return read | output.tensors

    def read(self, output: Output) -> torch.Tensor:
        return output.tensors["out"][0].float()

    def expected(self, row: int) -> torch.Tensor:
        slot = self.table[0, row // GATHER_PAGE] * GATHER_PAGE + row % GATHER_PAGE
        return self.cache.decode(slot)


class OpInputs:
    """Makes the calls of cells, each with tensors of its own."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self.random = torch.Generator(device).manual_seed(seed)
        self._turns = rotations(device)

    def drop(self, formats: Iterable[str]) -> None:
        """Nothing is kept between cells."""

    def calls(self, cell: OpCell, sets: int) -> list[OpCall]:
        """Sets of inputs of a cell."""
        make = {"compress_store": self._compress, "indexer_q": self._queries, "gather_rows": self._gather}
        return [make[cell.kind.op](cell) for _ in range(sets)]

    def _numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, generator=self.random).bfloat16()

    def _order(self, count: int) -> torch.Tensor:
        return torch.randperm(count, device=self.device, generator=self.random)

    def _compress(self, cell: OpCell) -> OpCall:
        kind, tokens = cell.kind, torch.arange(cell.tokens, device=self.device)
        positions = torch.full_like(tokens, cell.end - 1) if kind.decode else cell.end - cell.tokens + tokens
        closes = (positions + 1) % kind.ratio == 0
        entry_slots = torch.full_like(tokens, -1)
        entry_slots[closes] = self._order(cell.entries)
        columns = -(-cell.end // STATE_PAGES[kind.ratio])
        blocks = cell.requests * columns
        return CompressCall(
            cell=cell,
            state=StateCache.make(kind.ratio, kind.halves, blocks, self.device, self.random),
            positions=positions,
            requests=(tokens if kind.decode else torch.zeros_like(tokens)).int(),
            state_slots=tokens,
            entry_slots=entry_slots,
            table=self._order(blocks).int().view(cell.requests, columns),
            norm=self._numbers(DIM),
            turns=self._turns,
            random=self.random,
        )

    def _queries(self, cell: OpCell) -> OpCall:
        first = POSITIONS - (1 if cell.requests == cell.tokens else cell.tokens)
        steps = torch.arange(cell.tokens, device=self.device) * (0 if cell.requests == cell.tokens else 1)
        q, weights = self._numbers(cell.tokens, HEADS, INDEX_DIM), self._numbers(cell.tokens, HEADS)
        return IndexQueryCall(cell, q, weights, first + steps, self._turns)

    def _gather(self, cell: OpCell) -> OpCall:
        blocks = -(-cell.tokens // GATHER_PAGE)
        cache = RowCache.make("fp8_ds_mla", GATHER_PAGE, blocks, self.device, self.random)
        lengths = torch.tensor([cell.tokens], dtype=torch.int32, device=self.device)
        return GatherCall(cell, cache, lengths, self._order(blocks).int().view(1, blocks))


def checked_rows(count: int) -> list[int]:
    """The first, the middle and the last."""
    return sorted({0, count // 2, count - 1})[:MOST_CHECKED]


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative l2 error; NaN where a number is."""
    return float(torch.linalg.norm(found.double() - exact.double()) / torch.linalg.norm(exact.double()))
