"""The library's layer as the forward needs it: names of roles, tensors of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparsemla import AttentionLayer, Cache, Step


@dataclass(frozen=True)
class Group:
    """Caches that share a block table: tokens that a block covers, and tokens that are kept (0: all)."""

    block_tokens: int
    window: int

    def columns(self, capacity: int) -> int:
        """Columns of a block table for `capacity` tokens."""
        return -(-capacity // self.block_tokens)

    def blocks(self, capacity: int, chunk: int) -> int:
        """Blocks that one sequence has: all of `capacity` tokens, or a ring that holds `chunk` new tokens and the
        window before them."""
        columns = self.columns(capacity)
        if self.window == 0:
            return columns
        return min(columns, -(-(self.window - 1 + chunk) // self.block_tokens) + 1)


@dataclass(frozen=True)
class CacheNeed:
    """What a layer asks of one of its caches."""

    format: str
    block_size: int
    page_bytes: int
    group: int


class Batch:
    """`tokens` more tokens of each of `batch` sequences, `before` tokens in: as tensors, and as the host knows it."""

    def __init__(self, batch: int, before: int, tokens: int, device: torch.device) -> None:
        self.host_query_start_loc = [i * tokens for i in range(batch + 1)]
        self.host_seq_lens = [before + tokens] * batch
        self.query_start_loc = torch.tensor(self.host_query_start_loc, dtype=torch.int32, device=device)
        self.seq_lens = torch.tensor(self.host_seq_lens, dtype=torch.int32, device=device)
        self.positions = torch.arange(before, before + tokens, device=device).repeat(batch)


class Layer:
    """One attention layer over weights of torch."""

    def __init__(
        self,
        config: dict[str, Any],
        weights: dict[str, torch.Tensor],
        cos_sin: torch.Tensor,
        options: dict[str, Any],
    ) -> None:
        self._layer = AttentionLayer(config, weights, cos_sin, **options)
        self.needs = {role: CacheNeed(**need) for role, need in self._layer.caches.items()}
        self.groups = [Group(group["block_tokens"], group["window"]) for group in self._layer.groups]

    def make_step(self) -> Step:
        """Empty metadata for layers of this kind."""
        return Step(self._layer)

    def build_step(self, step: Step, batch: Batch, tables: list[torch.Tensor], max_length: int) -> None:
        """Slots and rows of a batch, with a block table for each group."""
        step.build(
            batch.query_start_loc,
            batch.seq_lens,
            batch.positions,
            tables,
            max_length,
            batch.host_query_start_loc,
            batch.host_seq_lens,
        )

    def cache(self, role: str, pages: torch.Tensor) -> Cache:
        """A cache over pages [blocks, page bytes]."""
        need = self.needs[role]
        return Cache(pages, need.format, need.block_size)

    def forward(self, step: Step, caches: dict[str, Cache], hidden: torch.Tensor, output: torch.Tensor) -> None:
        """output = attention(hidden), both [tokens, hidden]; rows of the step are written into the caches."""
        self._layer.forward(step, caches, hidden, output)
