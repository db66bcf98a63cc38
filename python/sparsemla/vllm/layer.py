"""The attention layer that vLLM builds instead of its own. Imports vLLM's model: only where a model is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import vllm.envs as envs
from vllm.forward_context import get_forward_context
from vllm.models.deepseek_v4 import attention as vllms
from vllm.models.deepseek_v4.compressor import DeepseekCompressor
from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention
from vllm.utils.deep_gemm import fp8_einsum, is_deep_gemm_supported
from vllm.v1.attention.ops.flashmla import is_flashmla_sparse_supported

from sparsemla.vllm.attention import Entries, PagedAttention, Rotation
from sparsemla.vllm.full import OutputProjection, Product, compress, float_scales, insert_window_rows, ready_queries
from sparsemla.vllm.indexer import IndexScorer
from sparsemla.vllm.kernels import Kernels, capturing
from sparsemla.vllm.report import warn
from sparsemla.vllm.settings import Mode, Settings

LARGE_PREFILL = 256
"""Prompt tokens of a step from which on FlashMLA's prefill, with its gather, is faster than this library's."""

INSERTED_HEADS = (8, 16, 32, 64, 128)
"""Head counts that vLLM's insert op writes."""


class SparseMlaIndexer(torch.nn.Module):
    """Takes the place of vLLM's SparseAttnIndexer in layers of :class:`SparseMlaAttention`; has no parameters."""

    def __init__(self, kernels: Kernels, most_entries: int, k_cache: Any, k: int, choice: torch.Tensor) -> None:
        super().__init__()
        self.kernels = kernels
        self.k_cache = k_cache
        self.topk_tokens = k
        self.topk_indices_buffer = choice
        self.most_entries = most_entries
        self.scorer: IndexScorer | None = None
        self._main = self._window = ""
        self._chosen: Entries | None = None

    def serve(self, heads: int, ratio: int, main: str, window: str, drafts: int) -> None:
        """Tells which layer this is for, by the names under which metadata comes."""
        choice = self.topk_indices_buffer
        self.scorer = IndexScorer(
            self.kernels, self.topk_tokens, heads, ratio, self.most_entries, choice.shape[0], choice.device
        )
        self.scorer.expect_drafts(1 + drafts)
        self._main, self._window = main, window

    def forward(self, hidden_states: torch.Tensor, q_quant: Any, k: Any, weights: torch.Tensor) -> torch.Tensor:
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            torch.empty(envs.VLLM_SPARSE_INDEXER_MAX_LOGITS_MB << 20, dtype=torch.uint8, device=hidden_states.device)
            return self.topk_indices_buffer
        assert self.scorer is not None
        self._chosen = self.scorer.score(
            q_quant,
            weights,
            self.k_cache.kv_cache,
            metadata[self.k_cache.prefix],
            metadata[self._window],
            metadata[self._main],
            self.topk_indices_buffer,
        )
        return self.topk_indices_buffer

    def take(self) -> Entries | None:
        """The slots of the choice that was just made; None when none was, as for short contexts."""
        chosen, self._chosen = self._chosen, None
        return chosen


class SparseMlaCompressor(DeepseekCompressor):
    """vLLM's compressor, whose state rows and entries this library writes."""

    sparsemla_kernels: Kernels

    def forward(self, kv_score: torch.Tensor, positions: torch.Tensor, rotary_emb: Any) -> None:
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            return
        compress(
            self.sparsemla_kernels,
            kv_score,
            self.ape.data,
            self.norm.weight.data,
            self.rms_norm_eps,
            positions,
            rotary_emb.cos_sin_cache,
            self.compress_ratio,
            metadata[self.state_cache.prefix],
            self.state_cache.kv_cache,
            metadata[self.k_cache_prefix].slot_mapping,
            self._static_forward_context[self.k_cache_prefix].kv_cache,
        )


class SparseMlaAttention(DeepseekV4FlashMLAAttention):
    """vLLM's FlashMLA layer with this library's kernels: everything that is not overridden stays vLLM's."""

    kernels: ClassVar[Kernels] = Kernels()
    settings: ClassVar[Settings] = Settings()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = args[0] if args else kwargs["vllm_config"]
        with self._own_indexer(self.settings.mode.takes_indexer()):
            super().__init__(*args, **kwargs)
        full = self.settings.mode is Mode.FULL
        self.paged = PagedAttention(self.kernels, self.n_local_heads, self.scale, self.compress_ratio)
        self.projection: OutputProjection | None = None
        self._scale: torch.Tensor | None = None
        self._asked_projection = not full
        self._may_leave_prefill = (
            self.settings.leaves_prefill() and self.n_local_heads in (64, 128) and is_flashmla_sparse_supported()[0]
        )
        if self.indexer is not None and isinstance(self.indexer.indexer_op, SparseMlaIndexer):
            drafts = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
            self.indexer.indexer_op.serve(
                self.indexer.n_head, self.compress_ratio, self.prefix, self.swa_cache_layer.prefix, drafts
            )
        if full:
            self._take_compressor(self.compressor)
            self._take_compressor(None if self.indexer is None else self.indexer.compressor)
            if not is_deep_gemm_supported():
                # Without DeepGEMM vLLM would lay these weights out for kernels that know no groups.
                self.wo_a.quant_method.process_weights_after_loading = lambda layer: None

    @contextlib.contextmanager
    def _own_indexer(self, wanted: bool) -> Iterator[None]:
        """While a layer is built, vLLM's indexer asks for this library's scores and choice."""
        own = vllms.SparseAttnIndexer

        def make(
            k_cache: Any,
            quant_block_size: int,
            scale_fmt: str,
            topk_tokens: int,
            head_dim: int,
            max_model_len: int,
            max_total_seq_len: int,
            topk_indices_buffer: torch.Tensor,
            skip_k_cache_insert: bool = False,
            use_fp4_cache: bool = False,
            **more: Any,
        ) -> torch.nn.Module:
            if use_fp4_cache or head_dim != 128 or not skip_k_cache_insert:
                warn("the index cache is not one of FP8 rows that the compressor writes; scores and top-k stay vLLM's.")
                made: torch.nn.Module = own(
                    k_cache,
                    quant_block_size,
                    scale_fmt,
                    topk_tokens,
                    head_dim,
                    max_model_len,
                    max_total_seq_len,
                    topk_indices_buffer,
                    skip_k_cache_insert=skip_k_cache_insert,
                    use_fp4_cache=use_fp4_cache,
                    **more,
                )
                return made
            return SparseMlaIndexer(self.kernels, max_model_len, k_cache, topk_tokens, topk_indices_buffer)

        if not wanted:
            yield
            return
        vllms.SparseAttnIndexer = make
        try:
            yield
        finally:
            vllms.SparseAttnIndexer = own

    def _take_compressor(self, compressor: Any) -> None:
        if compressor is None:
            return
        if type(compressor) is not DeepseekCompressor or compressor.use_fp4_cache:
            warn("a compressor writes no FP8 rows; it stays vLLM's.")
            return
        compressor.__class__ = SparseMlaCompressor
        compressor.sparsemla_kernels = self.kernels

    @classmethod
    def get_padded_num_q_heads(cls, num_heads: int) -> int:
        """The real count where this library makes the queries, else the next that vLLM's insert op knows.

        @raises ValueError: more than 128 heads
        """
        for count in range(1, 129) if cls.settings.mode is Mode.FULL else INSERTED_HEADS:
            if num_heads <= count:
                return count
        raise ValueError(f"heads: got {num_heads}, expected at most {INSERTED_HEADS[-1]}")

    def forward_mqa(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor) -> None:
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict):
            # A profile run: it measures memory and computes nothing.
            if self._may_leave_prefill:
                super().forward_mqa(q, kv, positions, output)  # the workspace of its gathered rows
            topk = 0 if self.topk_indices_buffer is None else self.topk_indices_buffer.shape[-1]
            self.paged.reserve(q.shape[0], topk, self.window_size, q)
            output.zero_()
            return
        self.attend(q, positions, output, metadata)

    def attend(self, q: torch.Tensor, positions: torch.Tensor, output: torch.Tensor, metadata: dict[str, Any]) -> None:
        """Attention of a step with metadata; `output` is written in place."""
        swa = metadata[self.swa_cache_layer.prefix]
        left = self._may_leave_prefill and swa.num_prefill_tokens >= LARGE_PREFILL and not capturing(q)
        scores = None if self.indexer is None else self.indexer.indexer_op
        self.paged.forward(
            q,
            positions,
            output,
            window_cache=self.swa_cache_layer.kv_cache,
            compressed_cache=self.kv_cache if self.compress_ratio > 1 else None,
            sink=self.attn_sink.data,
            swa=swa,
            compressed=metadata.get(self.prefix),
            choice=self.topk_indices_buffer if self.compress_ratio == 4 else None,
            chosen=scores.take() if isinstance(scores, SparseMlaIndexer) else None,
            rotation=self._rotation(),
            prefill=not left,
        )
        if left:
            self._leave_prefill(q, positions, output, swa, metadata.get(self.prefix))

    def _leave_prefill(
        self, q: torch.Tensor, positions: torch.Tensor, output: torch.Tensor, swa: Any, compressed: Any
    ) -> None:
        """The rows of prompts by vLLM's own path: gathered as bf16, then FlashMLA."""
        first, last = swa.num_decode_tokens, swa.num_decode_tokens + swa.num_prefill_tokens
        queries = q[first:last]
        if self.settings.mode is Mode.FULL:
            table = self.rotary_emb.cos_sin_cache
            queries = ready_queries(self.kernels, queries, positions[first:last], table, self.eps)
        self._forward_prefill(
            q=queries,
            positions=positions[first:last],
            compressed_k_cache=self.kv_cache if self.compress_ratio > 1 else None,
            swa_k_cache=self.swa_cache_layer.kv_cache,
            output=output[first:last],
            attn_metadata=compressed if self.compress_ratio > 1 else None,
            swa_metadata=swa,
        )

    def _rotation(self) -> Rotation | None:
        """What the queries still need: in mode full they come as they were projected."""
        if self.settings.mode is not Mode.FULL:
            return None
        return Rotation(self.rotary_emb.cos_sin_cache, self.eps)

    def _fused_qnorm_rope_kv_insert(
        self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, attn_metadata: Any
    ) -> torch.Tensor:
        if self.settings.mode is not Mode.FULL:
            made: torch.Tensor = super()._fused_qnorm_rope_kv_insert(q, kv, positions, attn_metadata)
            return made
        if isinstance(attn_metadata, dict):
            insert_window_rows(
                self.kernels,
                kv,
                positions,
                self.rotary_emb.cos_sin_cache,
                attn_metadata[self.swa_cache_layer.prefix].slot_mapping,
                self.swa_cache_layer.kv_cache,
            )
        return q  # attention norms and rotates its queries itself

    def _o_proj(self, o: Any, positions: torch.Tensor) -> torch.Tensor:
        if not self._asked_projection:
            self._asked_projection = True
            self._take_projection()
        if self.projection is None:
            kept: torch.Tensor = super()._o_proj(o, positions)
            return kept
        z = self.projection.forward(o, positions, self.rotary_emb.cos_sin_cache, self.wo_a.weight.data, self._scale)
        made: torch.Tensor = self.wo_b(z.flatten(1))
        return made

    def _product_of_deep_gemm(self, scale: Any) -> Product:
        weight, recipe = self.wo_a.weight, self._einsum_recipe

        def product(values: torch.Tensor, scales: torch.Tensor, z: torch.Tensor) -> None:
            fp8_einsum("bhr,hdr->bhd", (values, scales), (weight, scale), z, recipe=recipe)

        return product

    def _take_projection(self) -> None:
        """Asked at the first run, when vLLM has given the weights their last shape."""
        scale = getattr(self.wo_a, "weight_scale_inv", None)
        if scale is None:
            scale = getattr(self.wo_a, "weight_scale", None)
        self._scale = None if scale is None else float_scales(scale.data)
        product = None
        if self.settings.leaves_products() and is_deep_gemm_supported() and self._scale is not None:
            if self._tma_aligned_scales:
                return  # scales of another kind, which vLLM's own path writes
            product = self._product_of_deep_gemm(scale)
        mine = OutputProjection(self.kernels, self.n_local_heads, self.n_local_groups, self.o_lora_rank, product)
        reason = mine.refusal(self.wo_a.weight.data, self._scale)
        if reason:
            warn(f"the output projection stays vLLM's: {reason}.")
        else:
            self.projection = mine
