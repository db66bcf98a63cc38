"""What surrounds attention in a layer: inserted rows, compressed entries, index queries and the output projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsemla.vllm.attention import ROW_FORMAT
from sparsemla.vllm.indexer import INDEX_FORMAT
from sparsemla.vllm.kernels import Kernels, as_bytes, leading_rows, paged_cache

SCALE_GROUP = 128  # numbers of a scale of FP8 activations, and of either side of a scale of FP8 weights
STATE_FORMATS = {(512, 4): "state_c4", (512, 128): "state_c128", (128, 4): "state_index"}
"""(numbers of an entry, ratio) -> format of the rows in the compressor's state cache."""


def insert_window_rows(
    kernels: Kernels,
    kv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    """Rotates and encodes rows of keys at their slots.

    @param kv: [T, 512] bf16, normed
    @param positions: [T] int64
    @param cos_sin: [L, 64] fp32
    @param slots: [M] int64, M <= T; -1 none
    @param cache: uint8 [blocks, rows, 584]
    """
    kernels.run(
        "qnorm_rope_insert",
        {"tokens": kv.shape[0], "heads": 0, "dim": kv.shape[1], "rope_dim": cos_sin.shape[1], "format": ROW_FORMAT},
        {
            "kv": kv,
            "positions": positions,
            "cos_sin": cos_sin,
            "slot_mapping": slots,
            "cache": paged_cache(cache, ROW_FORMAT),
        },
        kv.device,
    )


def compress(
    kernels: Kernels,
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    ratio: int,
    state: Any,
    state_cache: torch.Tensor,
    entry_slots: torch.Tensor,
    entry_cache: torch.Tensor,
) -> None:
    """Saves the step's state rows and stores the entries of groups that it completes, in one launch.

    @param kv_score: [T, 2 * halves * d] fp32
    @param ape: [ratio, halves * d] fp32
    @param norm_weight: [d]
    @param state: vLLM's CompressorMetadata
    @param state_cache: fp32 [blocks, rows, 2 * halves * d]
    @param entry_slots: [>= M] int64, -1 none
    @param entry_cache: uint8 [blocks, rows, bytes of an entry]
    """
    tokens, d = kv_score.shape[0], norm_weight.shape[0]
    rows = min(state.slot_mapping.shape[0], entry_slots.shape[0], tokens)
    main = d == 512
    entries = ROW_FORMAT if main else INDEX_FORMAT
    kernels.run(
        "compress_store",
        {
            "tokens": tokens,
            "ratio": ratio,
            "rope_dim": cos_sin.shape[1],
            "eps": eps,
            "clamp": "scale" if main else "amax",  # as vLLM's kernels of either width do
            "compressors": 1,
            "compressors[0].dim": d,
            "compressors[0].format": entries,
        },
        {
            "positions": positions,
            "token_to_req": leading_rows(state.token_to_req_indices, tokens),
            "entry_slots": entry_slots[:rows],
            "cos_sin": cos_sin,
            "compressors[0].state_slots": state.slot_mapping[:rows],
            "compressors[0].block_table": state.block_table,
            "compressors[0].norm_weight": norm_weight,
            "compressors[0].kv_score": kv_score,
            "compressors[0].ape": ape,
            "compressors[0].state": paged_cache(as_bytes(state_cache), STATE_FORMATS[d, ratio]),
            "compressors[0].entries": paged_cache(entry_cache, entries),
        },
        kv_score.device,
    )


def index_queries(
    kernels: Kernels, q: torch.Tensor, weights: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated index queries in e4m3, [T, heads, 128], and head weights with their scales folded in, fp32 [T, heads].

    @param q: [T, heads, 128] bf16
    @param weights: [T, heads] bf16
    """
    tokens, heads, dim = q.shape
    values = torch.empty(q.shape, dtype=torch.float8_e4m3fn, device=q.device)
    folded = torch.empty(weights.shape, dtype=torch.float32, device=q.device)
    kernels.run(
        "indexer_q",
        {"tokens": tokens, "heads": heads, "dim": dim, "rope_dim": cos_sin.shape[1], "format": INDEX_FORMAT},
        {
            "q": q,
            "weights": weights.contiguous(),
            "positions": positions,
            "cos_sin": cos_sin,
            "q_out": values,
            "weights_out": folded,
        },
        q.device,
    )
    return values, folded


def ready_queries(
    kernels: Kernels, q: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, eps: float
) -> torch.Tensor:
    """The queries of kernels that neither norm nor rotate, a new tensor like `q`, [T, heads, 512] bf16."""
    tokens, heads, dim = q.shape
    made = torch.empty_like(q)
    kernels.run(
        "qnorm_rope_insert",
        {"tokens": tokens, "heads": heads, "out_heads": heads, "dim": dim, "rope_dim": cos_sin.shape[1], "eps": eps},
        {"q": q, "positions": positions, "cos_sin": cos_sin, "q_out": made},
        q.device,
    )
    return made


def float_scales(scale: torch.Tensor) -> torch.Tensor:
    """Block scales of a weight as fp32: UE8M0 bytes are powers of two."""
    if scale.dtype == torch.uint8 or str(scale.dtype) == "torch.float8_e8m0fnu":
        return torch.exp2(scale.view(torch.uint8).float() - 127)
    return scale


Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


class OutputProjection:
    """Inverse RoPE and the grouped projection wo_a of one layer.

    @param heads: query heads of this rank
    @param groups: groups of heads of this rank
    @param rank: numbers that a group is projected to
    @param fp8_product: what multiplies e4m3 numbers instead of this library: (values [T, groups, inputs], scales
        [T, groups, inputs / 128] with tokens side by side, z [T, groups, rank])
    """

    def __init__(
        self, kernels: Kernels, heads: int, groups: int, rank: int, fp8_product: Product | None = None
    ) -> None:
        self.fp8_product = fp8_product
        self.kernels = kernels
        self.heads = heads
        self.groups = groups
        self.rank = rank

    def refusal(self, weight: torch.Tensor, scale: torch.Tensor | None) -> str:
        """Why this weight stays vLLM's; empty when it does not."""
        if weight.dtype == torch.bfloat16:
            return ""
        if weight.dtype != torch.float8_e4m3fn:
            return f"wo_a is {weight.dtype}, and bf16 or float8_e4m3fn are expected"
        if scale is None or scale.dtype != torch.float32:
            return f"wo_a's scales are {None if scale is None else scale.dtype}, and float32 is expected"
        inputs = weight.shape[-1]
        if self.rank % SCALE_GROUP or inputs % SCALE_GROUP:
            return f"wo_a is {self.rank} x {inputs} a group, and multiples of {SCALE_GROUP} are expected"
        expected = self.groups * (self.rank // SCALE_GROUP) * (inputs // SCALE_GROUP)
        if scale.numel() != expected:
            return f"wo_a has {scale.numel()} scales, and {expected} are expected"
        return ""

    def forward(
        self,
        o: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        weight: torch.Tensor,
        scale: torch.Tensor | None,
    ) -> torch.Tensor:
        """[T, groups, rank] bf16.

        @param o: [T, heads, 512] bf16
        @param weight: wo_a: [groups * rank, heads / groups * 512], or the same with a leading dimension for groups
        @param scale: fp32, one number for each 128 x 128 of an e4m3 weight
        """
        tokens, _, dim = o.shape
        inputs = self.heads // self.groups * dim
        z = torch.empty((tokens, self.groups, self.rank), dtype=torch.bfloat16, device=o.device)
        scalars: dict[str, Any] = {"m": tokens, "n": self.rank, "k": inputs, "groups": self.groups}
        tensors: dict[str, Any] = {"y": z}
        if weight.dtype == torch.bfloat16:
            turned = torch.empty((tokens, self.heads, dim), dtype=o.dtype, device=o.device)
            self.kernels.run(
                "inverse_rope",
                {"tokens": tokens, "heads": self.heads, "dim": dim, "rope_dim": cos_sin.shape[1]},
                {"x": o[:, : self.heads], "positions": positions, "cos_sin": cos_sin, "y": turned},
                o.device,
            )
            tensors["x"] = turned.view(tokens, self.groups, inputs)
            tensors["w"] = weight.view(self.groups, self.rank, inputs)
        else:
            assert scale is not None
            values = torch.empty((self.groups, tokens, inputs), dtype=torch.float8_e4m3fn, device=o.device)
            padded = (tokens + 3) // 4 * 4
            scales = torch.empty((self.groups, inputs // SCALE_GROUP, padded), dtype=torch.float32, device=o.device)
            self.kernels.run(
                "inverse_rope_quant",
                {
                    "tokens": tokens,
                    "heads": self.heads,
                    "groups": self.groups,
                    "dim": dim,
                    "rope_dim": cos_sin.shape[1],
                },
                {"x": o, "positions": positions, "cos_sin": cos_sin, "values": values, "scales": scales},
                o.device,
            )
            if self.fp8_product is not None:
                self.fp8_product(values.transpose(0, 1), scales.permute(2, 0, 1)[:tokens], z)
                return z
            scalars |= {"x": "F8_E4M3", "w": "F8_E4M3"}
            tensors["x"] = values.transpose(0, 1)
            tensors["w"] = weight.view(self.groups, self.rank, inputs)
            tensors["x_scale"] = scales
            tensors["w_scale"] = scale.reshape(self.groups, self.rank // SCALE_GROUP, inputs // SCALE_GROUP)
        self.kernels.run("projection", scalars, tensors, o.device)
        return z
