"""Sparse attention of one layer, straight from vLLM's paged caches: decode, prefill and mixed batches.

A token attends to two lists of slots: its window, which vLLM's metadata lists, and its compressed entries. Prefill
reads the same pages as decode; no rows are gathered and no heads are padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparsemla.vllm.kernels import Kernels, capturing, leading_rows, paged_cache

ROW_FORMAT = "fp8_ds_mla"


@dataclass(frozen=True)
class Entries:
    """Compressed entries that tokens attend to: slots [T, W] int32, -1 none, and how many of a row count, [T] int32."""

    slots: torch.Tensor
    lens: torch.Tensor

    def part(self, first: int, count: int) -> Entries:
        return Entries(self.slots[first : first + count], self.lens[first : first + count])

    def narrowed(self, width: int) -> Entries:
        return Entries(self.slots[:, :width], self.lens)


@dataclass(frozen=True)
class Rotation:
    """Norm and RoPE that the queries still need: cosines and sines [L, 64] fp32, and the norm's epsilon."""

    cos_sin: torch.Tensor
    eps: float


def useful_width(width: int, entries: int) -> int:
    """Columns of an index matrix that can name an entry when no token sees more than `entries`: a multiple of 64."""
    return min(width, max((entries + 63) // 64 * 64, 64))


def slots_of_choice(
    kernels: Kernels, choice: torch.Tensor, swa: Any, block_table: torch.Tensor, entries_per_block: int
) -> Entries:
    """Where the entries lie that the indexer chose.

    @param choice: [T, k] int32, entry numbers of the token's request, -1 none
    @param swa: the step's window metadata
    @param block_table: [requests, columns] int32 of the compressed cache
    """
    tokens, k = choice.shape
    slots = torch.empty_like(choice)
    lens = torch.empty(tokens, dtype=torch.int32, device=choice.device)
    kernels.run(
        "global_topk",
        {"requests": block_table.shape[0], "tokens": tokens, "k": k, "storage_block": entries_per_block},
        {
            "topk": choice,
            "token_to_req": leading_rows(swa.token_to_req_indices, tokens),
            "block_table": block_table,
            "valid": leading_rows(swa.is_valid_token, tokens),
            "indices": slots,
            "lens": lens,
        },
        choice.device,
    )
    return Entries(slots, lens)


def all_entries(
    kernels: Kernels,
    positions: torch.Tensor,
    swa: Any,
    first: int,
    block_table: torch.Tensor,
    ratio: int,
    entries_per_block: int,
    width: int,
) -> Entries:
    """Slots of every entry that tokens `first`.. of the batch see, in a layer that attends to all.

    @param positions: [T] int64, of these tokens
    """
    tokens = positions.shape[0]
    slots = torch.empty((tokens, width), dtype=torch.int32, device=positions.device)
    lens = torch.empty(tokens, dtype=torch.int32, device=positions.device)
    kernels.run(
        "dense_compressed_indices",
        {
            "requests": block_table.shape[0],
            "tokens": tokens,
            "ratio": ratio,
            "storage_block": entries_per_block,
            "width": width,
            "global": True,
        },
        {
            "positions": positions,
            "token_to_req": leading_rows(swa.token_to_req_indices, first + tokens)[first:],
            "slot_mapping": leading_rows(swa.slot_mapping, first + tokens)[first:],
            "block_table": block_table,
            "indices": slots,
            "lens": lens,
        },
        positions.device,
    )
    return Entries(slots, lens)


class PagedAttention:
    """The attention of one layer.

    @param heads: query heads of this rank
    @param scale: softmax scale
    @param ratio: tokens of a compressed entry: 1 (none), 4 or 128
    """

    def __init__(self, kernels: Kernels, heads: int, scale: float, ratio: int) -> None:
        if ratio not in (1, 4, 128):
            raise ValueError(f"compress ratio: got {ratio}, expected 1, 4 or 128")
        self.kernels = kernels
        self.heads = heads
        self.scale = scale
        self.ratio = ratio

    def forward(
        self,
        q: torch.Tensor,
        positions: torch.Tensor,
        output: torch.Tensor,
        window_cache: torch.Tensor,
        compressed_cache: torch.Tensor | None,
        sink: torch.Tensor,
        swa: Any,
        compressed: Any,
        choice: torch.Tensor | None,
        chosen: Entries | None = None,
        rotation: Rotation | None = None,
        prefill: bool = True,
    ) -> None:
        """Writes output rows of all real tokens of the step, decodes first; rows of padding may stay as they are.

        @param q: [T, Hq, 512] bf16, Hq >= heads; normed and rotated, or as projected when `rotation` is given
        @param positions: [T] int64
        @param output: [T, Hp, 512] bf16; heads past the real ones are written as 0
        @param window_cache: uint8 [blocks, rows, 584], any block stride
        @param compressed_cache: the same of the layer's entries; None where the ratio is 1
        @param sink: fp32 [>= heads]
        @param swa: vLLM's DeepseekSparseSWAMetadata
        @param compressed: vLLM's DeepseekV4FlashMLAMetadata; None where the ratio is 1
        @param choice: ratio 4: int32 [>= T, k], entries that the indexer chose
        @param chosen: ratio 4: slots of that choice where they are known already
        @param rotation: what the queries still need
        @param prefill: False leaves the rows of prompts as they are
        """
        decodes, prefills = swa.num_decode_tokens, swa.num_prefill_tokens if prefill else 0
        if decodes + prefills == 0:
            return
        if self.ratio == 4 and chosen is None:
            assert choice is not None
            chosen = slots_of_choice(
                self.kernels,
                choice[: decodes + prefills],
                swa,
                compressed.block_table,
                compressed.block_size // self.ratio,
            )
        if chosen is not None and not capturing(q):
            chosen = chosen.narrowed(useful_width(chosen.slots.shape[1], compressed.max_seq_len // self.ratio))
        if decodes > 0:
            self._attend(
                q[:decodes],
                output[:decodes],
                window_cache,
                Entries(swa.decode_swa_indices.flatten(1), swa.decode_swa_lens),
                compressed_cache,
                self._decode_entries(compressed, chosen, decodes, capturing(q)),
                sink,
                positions[:decodes],
                rotation,
            )
        if prefills > 0:
            last = decodes + prefills
            self._attend(
                q[decodes:last],
                output[decodes:last],
                window_cache,
                Entries(swa.prefill_swa_indices.flatten(1), swa.prefill_swa_lens),
                compressed_cache,
                self._prefill_entries(positions[decodes:last], swa, compressed, chosen, capturing(q)),
                sink,
                positions[decodes:last],
                rotation,
            )

    def reserve(self, tokens: int, topk: int, window: int, like: torch.Tensor) -> None:
        """Takes, for a moment, what a step of `tokens` tokens takes, so that a profile run sees it.

        @param topk: columns of the second index matrix
        """
        width = 0 if self.ratio == 1 else topk
        scalars = self._scalars(tokens, self.heads, window, 64, width, 64)
        plan = self.kernels.plan("sparse_attention", scalars, str(like.device))
        torch.empty(plan.workspace_bytes + 4 * tokens * (width + 1), dtype=torch.uint8, device=like.device)

    def _decode_entries(self, compressed: Any, chosen: Entries | None, tokens: int, captured: bool) -> Entries | None:
        if self.ratio == 1:
            return None
        if self.ratio == 4:
            assert chosen is not None
            return chosen.part(0, tokens)
        entries = Entries(compressed.c128a_global_decode_topk_indices.flatten(1), compressed.c128a_decode_topk_lens)
        if captured:
            return entries
        return entries.narrowed(useful_width(entries.slots.shape[1], compressed.max_seq_len // self.ratio))

    def _prefill_entries(
        self, positions: torch.Tensor, swa: Any, compressed: Any, chosen: Entries | None, captured: bool
    ) -> Entries | None:
        if self.ratio == 1:
            return None
        first, tokens = swa.num_decode_tokens, positions.shape[0]
        if self.ratio == 4:
            assert chosen is not None
            return chosen.part(first, tokens)
        # One matrix a step serves all layers. Inside a graph it is made again: a matrix of the run before the capture
        # would not be recorded.
        kept: Entries | None = getattr(compressed, "_sparsemla_prefill_entries", None)
        if kept is not None and not captured:
            return kept
        width = compressed.c128a_prefill_topk_indices.shape[1]
        if not captured:
            width = useful_width(width, compressed.max_seq_len // self.ratio)
        made = all_entries(
            self.kernels,
            positions,
            swa,
            first,
            compressed.block_table,
            self.ratio,
            compressed.block_size // self.ratio,
            width,
        )
        if not captured:
            compressed._sparsemla_prefill_entries = made
        return made

    def _scalars(
        self, tokens: int, out_heads: int, window: int, window_rows: int, width: int, entry_rows: int
    ) -> dict[str, int | float | str]:
        scalars: dict[str, int | float | str] = {
            "tokens": tokens,
            "heads": self.heads,
            "out_heads": out_heads,
            "scopes": 1,
            "scale": self.scale,
            "scopes[0].format": ROW_FORMAT,
            "scopes[0].block_size": window_rows,
            "scopes[0].width": window,
        }
        if width > 0:
            scalars["scopes"] = 2
            scalars["scopes[1].format"] = ROW_FORMAT
            scalars["scopes[1].block_size"] = entry_rows
            scalars["scopes[1].width"] = width
        return scalars

    def _attend(
        self,
        q: torch.Tensor,
        output: torch.Tensor,
        window_cache: torch.Tensor,
        window: Entries,
        compressed_cache: torch.Tensor | None,
        entries: Entries | None,
        sink: torch.Tensor,
        positions: torch.Tensor,
        rotation: Rotation | None,
    ) -> None:
        tensors: dict[str, Any] = {
            "q": q,
            "o": output,
            "sink": sink[: self.heads],
            "scopes[0].cache": paged_cache(window_cache, ROW_FORMAT),
            "scopes[0].indices": window.slots,
            "scopes[0].lens": window.lens,
        }
        width, entry_rows = 0, 0
        if entries is not None:
            assert compressed_cache is not None
            width, entry_rows = entries.slots.shape[1], compressed_cache.shape[1]
            tensors["scopes[1].cache"] = paged_cache(compressed_cache, ROW_FORMAT)
            tensors["scopes[1].indices"] = entries.slots
            tensors["scopes[1].lens"] = entries.lens
        scalars = self._scalars(
            q.shape[0], output.shape[1], window.slots.shape[1], window_cache.shape[1], width, entry_rows
        )
        if rotation is not None:
            scalars |= {"query_prologue.rope_dim": rotation.cos_sin.shape[1], "query_prologue.eps": rotation.eps}
            tensors["query_prologue.positions"] = positions
            tensors["query_prologue.cos_sin"] = rotation.cos_sin
        self.kernels.run("sparse_attention", scalars, tensors, q.device)
