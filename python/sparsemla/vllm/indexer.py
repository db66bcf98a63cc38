"""The indexer's scores and exact choice, straight from vLLM's paged index cache.

vLLM's metadata says which rows there are: decodes first, one row a token, then prefills in chunks whose score matrices
fit a budget. The slots of what is chosen are written in the same launch as the choice, so that attention needs no
translation of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import torch

from sparsemla.vllm.attention import Entries
from sparsemla.vllm.kernels import Kernels, capturing, leading_rows, paged_cache

INDEX_FORMAT = "index_fp8"


@dataclass(frozen=True)
class ScoreRows:
    """Rows that are scored at once: their tokens, entries that each sees, and where their keys lie."""

    first: int
    count: int
    lens: torch.Tensor  # [count] int32
    row_to_req: torch.Tensor  # [count] int32, rows of block_table
    block_table: torch.Tensor  # [requests, columns] int32 of the index cache
    width: int  # no row sees more entries


class IndexScorer:
    """Scores and choice of one layer.

    @param k: entries that are chosen
    @param heads: index heads
    @param ratio: tokens of an entry
    @param most_entries: entries of the longest sequence
    @param max_tokens: tokens of the largest step
    @param device: where everything lies
    """

    def __init__(
        self, kernels: Kernels, k: int, heads: int, ratio: int, most_entries: int, max_tokens: int, device: torch.device
    ) -> None:
        self.kernels = kernels
        self.k = k
        self.heads = heads
        self.ratio = ratio
        self.most_entries = most_entries
        self._tokens = torch.arange(max_tokens, dtype=torch.int32, device=device)
        self._row_to_req = {1: self._tokens}
        # One buffer of slots serves all layers: a layer's attention reads it before the next layer's indexer runs.
        self.chosen = kernels.shared(
            ("chosen", max_tokens, k, device),
            lambda: Entries(
                torch.empty((max_tokens, k), dtype=torch.int32, device=device),
                torch.empty(max_tokens, dtype=torch.int32, device=device),
            ),
        )

    def expect_drafts(self, tokens: int) -> None:
        """Makes what decodes of up to `tokens` tokens a request need, before anything is recorded."""
        for per in range(1, tokens + 1):
            self._rows_of(per)

    def score(
        self,
        q: torch.Tensor,
        weights: torch.Tensor,
        index_cache: torch.Tensor,
        step: Any,
        swa: Any,
        compressed: Any,
        choice: torch.Tensor,
    ) -> Entries:
        """Chooses for all tokens of the step; returns where the chosen entries lie.

        @param q: [T, heads, 128] e4m3, its scales in `weights`
        @param weights: [T, heads] fp32
        @param index_cache: uint8 [blocks, rows, 132], any block stride
        @param step: vLLM's DeepseekV32IndexerMetadata
        @param swa: the step's window metadata
        @param compressed: the metadata of the layer's compressed cache
        @param choice: [>= T, >= k] int32, written: entry numbers, then -1
        """
        tokens = step.num_decode_tokens + step.num_prefill_tokens
        covered = 0
        for rows in [*self._decode_rows(step, swa), *self._prefill_rows(step, swa)]:
            self._choose_none(covered, rows.first, choice)
            self._choose(rows, q, weights, index_cache, swa, compressed, choice)
            covered = rows.first + rows.count
        self._choose_none(covered, tokens, choice)
        return self.chosen.part(0, tokens)

    def _choose_none(self, first: int, last: int, choice: torch.Tensor) -> None:
        """Tokens of requests that have no entry yet, which vLLM leaves out of its chunks."""
        if first < last:
            choice[first:last, : self.k] = -1
            self.chosen.lens[first:last] = 0

    def _choose(
        self,
        rows: ScoreRows,
        q: torch.Tensor,
        weights: torch.Tensor,
        index_cache: torch.Tensor,
        swa: Any,
        compressed: Any,
        choice: torch.Tensor,
    ) -> None:
        first, last = rows.first, rows.first + rows.count
        logits = torch.empty((rows.count, rows.width), dtype=torch.float32, device=q.device)
        self.kernels.run(
            "indexer_logits",
            {
                "rows": rows.count,
                "heads": self.heads,
                "dim": q.shape[2],
                "width": rows.width,
                "format": INDEX_FORMAT,
            },
            {
                "q": q[first:last],
                "weights": weights[first:last],
                "row_to_req": rows.row_to_req,
                "lens": rows.lens,
                "block_table": rows.block_table,
                "cache": paged_cache(index_cache, INDEX_FORMAT),
                "logits": logits,
            },
            q.device,
        )
        chosen = self.chosen.part(first, rows.count)
        self.kernels.run(
            "topk",
            {
                "rows": rows.count,
                "width": rows.width,
                "k": self.k,
                "slots.storage_block": compressed.block_size // self.ratio,
            },
            {
                "logits": logits,
                "lens": rows.lens,
                "indices": choice[first:last, : self.k],
                "slots.token_to_req": leading_rows(swa.token_to_req_indices, last)[first:],
                "slots.block_table": compressed.block_table,
                "slots.valid": leading_rows(swa.is_valid_token, last)[first:],
                "slots.slots": chosen.slots,
                "slots.lens": chosen.lens,
            },
            q.device,
        )

    def _width(self, entries: int, captured: bool) -> int:
        """Columns for rows of up to `entries` entries: few different numbers, so that plans are used again."""
        if captured:
            return self.most_entries
        return min(self.most_entries, max((entries + 1023) // 1024 * 1024, 1024))

    def _decode_rows(self, step: Any, swa: Any) -> list[ScoreRows]:
        count = step.num_decode_tokens
        if count == 0:
            return []
        decode = step.decode
        if decode.requires_padding:
            lens = self._lens_from_window(swa, count)
            row_to_req = leading_rows(swa.token_to_req_indices, count)
        else:
            # [requests, tokens of each], or one row a token with a block table row of its own
            lens = leading_rows(decode.seq_lens.reshape(-1), count)
            listed = getattr(decode, "indices", None)
            row_to_req = self._rows_of(decode.seq_lens.shape[1])[:count] if listed is None else listed[:count]
        width = self._width(step.max_seq_len // self.ratio, capturing(lens))
        return [ScoreRows(0, count, lens, row_to_req, decode.block_table, width)]

    def _prefill_rows(self, step: Any, swa: Any) -> list[ScoreRows]:
        if step.num_prefill_tokens == 0:
            return []
        return [self._chunk_rows(chunk, step, swa) for chunk in step.prefill.chunks]

    def _chunk_rows(self, chunk: Any, step: Any, swa: Any) -> ScoreRows:
        """A chunk's rows, made once a step for all layers."""
        kept: ScoreRows | None = getattr(chunk, "_sparsemla_rows", None)
        captured = capturing(chunk.cu_seqlen_ke)
        if kept is not None and not captured:
            return kept
        first, last = chunk.token_start, chunk.token_end
        request = bisect_right(swa.query_start_loc_cpu.tolist(), first) - 1
        rows = ScoreRows(
            first,
            last - first,
            chunk.cu_seqlen_ke - chunk.cu_seqlen_ks,
            leading_rows(swa.token_to_req_indices, last)[first:] - request,
            chunk.block_table,
            self._width(min(chunk.total_seq_lens, step.max_seq_len // self.ratio), captured),
        )
        if not captured:
            chunk._sparsemla_rows = rows
        return rows

    def _lens_from_window(self, swa: Any, count: int) -> torch.Tensor:
        """Entries that each decode token sees, where requests have different numbers of tokens."""
        request = leading_rows(swa.token_to_req_indices, count).long()
        after = self._tokens[:count] - swa.query_start_loc[request + 1]
        seen: torch.Tensor = (swa.seq_lens[request] + after + 1).clamp(min=0) // self.ratio
        return seen.to(torch.int32)

    def _rows_of(self, per: int) -> torch.Tensor:
        """The request of each token when every request has `per` tokens."""
        made = self._row_to_req.get(per)
        if made is None:
            made = self._tokens // per
            self._row_to_req[per] = made
        return made
