"""Pages of a batch of sequences of equal length, and the step metadata over them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from sparsemla import Unsupported

from . import _core
from ._core import Group

_LEAST_CAPACITY = 1024
_LENGTH_STEP = 512


def _reference(thing: Any) -> Any:
    """What gives the thing back as long as it is there; None is always there."""
    return (lambda: None) if thing is None else weakref.ref(thing)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass
class Step:
    """A built step and what it was built for."""

    metadata: Any
    key: tuple[int, int, int] = (-1, -1, -1)


class Pages:
    """What the layers of one cache share: the batch, the room in it, block tables and steps.

    `batch` sequences of equal length; `chunk` tokens of each are computed at once. Block 0 of every cache is nobody's;
    sequence b has blocks 1 + b * n to (b + 1) * n of a group, as a ring where the group keeps a window only.
    """

    def __init__(self, batch: int, chunk: int, device: torch.device) -> None:
        self.batch = batch
        self.chunk = chunk
        self.device = device
        self.capacity = 0
        self.generation = 0
        self._tables: dict[tuple[Group, int], torch.Tensor] = {}
        self._batches: dict[tuple[int, int], _core.Batch] = {}
        self._steps: dict[int, list[Step]] = {}
        self._checked: tuple[Any, ...] | None = None

    def reserve(self, tokens: int) -> None:
        """Makes room for sequences of `tokens` tokens."""
        if tokens > self.capacity:
            self.capacity = max(_LEAST_CAPACITY, 1 << (tokens - 1).bit_length())
            self._forget()

    def resize(self, batch: int) -> None:
        """Takes another number of sequences; each layer's memory follows by itself."""
        if batch != self.batch:
            self.batch = batch
            self._forget()

    def _forget(self) -> None:
        self.generation += 1
        self._tables.clear()
        self._batches.clear()

    def table(self, group: Group) -> torch.Tensor:
        """The block table of a group, [batch, columns] int32."""
        blocks = group.blocks(self.capacity, self.chunk)
        key = (group, blocks)
        table = self._tables.get(key)
        if table is None:
            column = torch.arange(group.columns(self.capacity), dtype=torch.int32) % blocks
            first = 1 + blocks * torch.arange(self.batch, dtype=torch.int32)
            table = (first[:, None] + column[None, :]).to(self.device)
            self._tables[key] = table
        return table

    def max_length(self, tokens: int) -> int:
        """An upper bound of the lengths that changes seldom, so that plans are kept."""
        return min(self.capacity, _ceil_div(tokens, _LENGTH_STEP) * _LENGTH_STEP)

    def batch_of(self, before: int, tokens: int) -> _core.Batch:
        """`tokens` more tokens of every sequence, `before` tokens in."""
        batch = self._batches.get((before, tokens))
        if batch is None:
            if len(self._batches) > 64:
                self._batches.clear()
            batch = _core.Batch(self.batch, before, tokens, self.device)
            self._batches[before, tokens] = batch
        return batch

    def step(self, layer: _core.Layer, kind: int, place: int, before: int, tokens: int) -> Any:
        """The step metadata of `tokens` more tokens for layers of one kind: built once, read by all of them.

        `place` counts the chunks of one forward, so that each of them keeps its own metadata for the next layer.
        """
        steps = self._steps.setdefault(kind, [])
        while len(steps) <= place:
            steps.append(Step(layer.make_step()))
        step = steps[place]
        key = (self.generation, before, tokens)
        if step.key != key:
            step.key = (-1, -1, -1)
            tables = [self.table(group) for group in layer.groups]
            layer.build_step(step.metadata, self.batch_of(before, tokens), tables, self.max_length(before + tokens))
            step.key = key
        return step.metadata

    def check(
        self, mask: Any, positions: torch.Tensor | None, before: int, tokens: int, window: int, offset: int
    ) -> None:
        """Once a forward: that all sequences are `before` tokens long and nothing of them is masked out.

        Raises Unsupported for padding, a mask of the caller's own, or other positions.
        """
        done = self._checked
        numbers = (before, tokens, self.generation)
        if done is not None and done[0]() is mask and done[1]() is positions and done[2] == numbers:
            return
        if positions is not None:
            expected = torch.arange(before, before + tokens, device=positions.device)
            if positions.shape[-1] != tokens or not bool((positions == expected).all()):
                raise Unsupported(
                    f"position_ids: expected {before} to {before + tokens - 1} for every sequence, the tokens that "
                    "follow those in the cache: sequences of a batch have equal lengths and no padding"
                )
        if isinstance(mask, torch.Tensor):
            if mask.dim() != 4 or mask.shape[2] != tokens:
                raise Unsupported(
                    f"attention_mask: got shape {tuple(mask.shape)}, expected [batch, 1, {tokens}, keys] as "
                    "the model makes it"
                )
            query = torch.arange(before, before + tokens, device=mask.device)[:, None]
            key_at = torch.arange(offset, offset + mask.shape[3], device=mask.device)[None, :]
            expected = (key_at <= query) & (key_at > query - window)
            seen = mask if mask.dtype == torch.bool else mask == 0
            if not bool((seen == expected).all()):
                raise Unsupported(
                    "attention_mask: got one that hides tokens (padding, or a mask of your own), expected none or the "
                    "plain causal one: sequences of a batch have equal lengths"
                )
        elif mask is not None:
            raise Unsupported(f"attention_mask: got {type(mask).__name__}, expected a tensor or None")
        self._checked = (_reference(mask), _reference(positions), numbers)


class LayerMemory:
    """The caches of one layer: for each role uint8 pages [1 + batch * n, page bytes]."""

    def __init__(self) -> None:
        self._pages: dict[str, torch.Tensor] = {}
        self._shape: dict[str, tuple[int, int]] = {}
        self._caches: dict[str, Any] = {}

    def caches(self, layer: _core.Layer, pages: Pages) -> dict[str, Any]:
        """The caches by role, with room for the capacity of `pages`; what was there keeps its contents."""
        for role, need in layer.needs.items():
            blocks = layer.groups[need.group].blocks(pages.capacity, pages.chunk)
            if self._shape.get(role) == (pages.batch, blocks):
                continue
            fresh = torch.zeros(1 + pages.batch * blocks, need.page_bytes, dtype=torch.uint8, device=pages.device)
            if role in self._pages:
                self._move(role, fresh, pages.batch, blocks)
            self._pages[role], self._shape[role] = fresh, (pages.batch, blocks)
            self._caches.pop(role, None)
        for role in layer.needs.keys() - self._caches.keys():
            self._caches[role] = layer.cache(role, self._pages[role])
        return self._caches

    def _move(self, role: str, fresh: torch.Tensor, batch: int, blocks: int) -> None:
        old_batch, old_blocks = self._shape[role]
        if old_batch != batch:
            raise Unsupported(f"batch: got {batch} sequences, expected {old_batch} as in the cache")
        # A ring has its full size from the first wrap on: until then block i holds column i.
        kept = min(old_blocks, blocks)
        page_bytes = fresh.shape[1]
        old = self._pages[role][1:].view(batch, old_blocks, page_bytes)
        fresh[1:].view(batch, blocks, page_bytes)[:, :kept] = old[:, :kept]

    def select(self, indices: torch.Tensor) -> int:
        """Sequences `indices` of those that are there, in that order. Returns how many there are now."""
        for role, (batch, blocks) in self._shape.items():
            old = self._pages[role]
            picked = old[1:].view(batch, blocks, -1).index_select(0, indices.to(old.device))
            fresh = torch.empty(1 + picked.shape[0] * blocks, old.shape[1], dtype=torch.uint8, device=old.device)
            fresh[0].zero_()
            fresh[1:].view(picked.shape)[:] = picked
            self._pages[role], self._shape[role] = fresh, (picked.shape[0], blocks)
        self._caches.clear()
        return int(indices.numel())
