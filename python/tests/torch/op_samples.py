"""A small valid call of every op in torch's form."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

BF16, F32, I32, I64, E4M3 = torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.float8_e4m3fn


class Sample(NamedTuple):
    """Keyword arguments of what is read (and of written caches), and of the outputs, by the names of the schema."""

    read: dict[str, Any]
    written: dict[str, Any]


def _normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _ints(values: Any, dtype: torch.dtype = I32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def _zeros(*shape: int, dtype: torch.dtype = I32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def cos_sin(positions: int) -> torch.Tensor:
    """A rope table [positions, 64]."""
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32.0)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def blocks(count: int, rows: int, row_bytes: int) -> torch.Tensor:
    """A cache [count, rows, row_bytes] of zeros whose blocks lie further apart than they are long."""
    wide = torch.zeros(count, rows * row_bytes + 192, dtype=torch.uint8)
    return wide[:, : rows * row_bytes].unflatten(1, (rows, row_bytes))


def bf16_cache(count: int = 4, rows: int = 64) -> torch.Tensor:
    """A cache [count, rows, 1024 bytes] of random bf16 rows of 512 numbers."""
    cache = blocks(count, rows, 1024)
    cache.copy_(torch.randn(count, rows, 512).bfloat16().view(torch.uint8))
    return cache


def index_cache() -> torch.Tensor:
    """Four blocks of 64 index_fp8 rows: the E4M3 numbers of all rows, then all scales, which are 1."""
    cache = torch.zeros(4, 64 * 132 + 64, dtype=torch.uint8)[:, : 64 * 132]
    cache[:, : 64 * 128] = torch.randn(4, 64 * 128).to(E4M3).view(torch.uint8)
    cache[:, 64 * 128 :] = torch.ones(4, 64).view(torch.uint8)
    return cache.unflatten(1, (64, 132))


def _batch(*names: str) -> dict[str, torch.Tensor]:
    """Of three requests with 1, 2 and 5 new tokens, which are then 9, 4 and 300 tokens long."""
    batch = {
        "query_start_loc": _ints([0, 1, 3, 8]),
        "seq_lens": _ints([9, 4, 300]),
        "token_to_req": _ints([0, 1, 1, 2, 2, 2, 2, 2]),
        "positions": _ints([8, 2, 3, 295, 296, 297, 298, 299], I64),
        "slot_mapping": _ints([72, 130, 131, 231, 232, 233, 234, 235], I64),
        "block_table": _ints([[1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [4, 5, 6, 7, 3]]),
    }
    return {name: batch[name] for name in names}


def _layer_samples() -> dict[str, Sample]:
    rope = {"positions": torch.arange(5), "cos_sin": cos_sin(16)}
    insert = {"slot_mapping": _ints([3, 4, -1, 70, 6], I64), "cache": blocks(2, 64, 584), "cache_format": "fp8_ds_mla"}
    return {
        "projection": Sample({"x": _normal(5, 2, 64), "w": _normal(2, 16, 64)}, {"y": _zeros(5, 2, 16, dtype=BF16)}),
        "joint_projection": Sample(
            {"x": _normal(5, 1, 64), "parts_0_w": _normal(1, 16, 64), "parts_1_w": _normal(1, 7, 64)},
            {"parts_0_y": _zeros(5, 1, 16, dtype=BF16), "parts_1_y": _zeros(5, 1, 7, dtype=F32)},
        ),
        "output_projection": Sample(
            {"x": _normal(5, 2, 64), "wo_a": _normal(2, 16, 64), "wo_b": _normal(1, 24, 32)},
            {"z": _zeros(5, 2, 16, dtype=BF16), "y": _zeros(5, 1, 24, dtype=BF16)},
        ),
        "rms_norm": Sample({"x": _normal(5, 64), "weight": _normal(64)}, {"y": _zeros(5, 64, dtype=BF16)}),
        "latent_norms": Sample(
            {"qr": _normal(5, 64), "qr_weight": _normal(64), "kv": _normal(5, 512), "kv_weight": _normal(512)},
            {"qr_out": _zeros(5, 64, dtype=BF16), "kv_out": _zeros(5, 512, dtype=BF16)},
        ),
        "add_rows": Sample({"y": _normal(5, 64)}, {"x": _normal(5, 64)}),
        "quantize_rows": Sample(
            {"x": _normal(5, 256)}, {"values": torch.zeros(5, 256).to(E4M3), "scales": torch.zeros(1, 2, 8)}
        ),
        "qnorm_rope_insert": Sample(
            {"q": _normal(5, 2, 512), "kv": _normal(5, 512)} | rope | insert, {"q_out": _zeros(5, 2, 512, dtype=BF16)}
        ),
        "insert_rows": Sample({"rows": _normal(5, 512)} | insert, {}),
        "inverse_rope": Sample({"x": _normal(5, 4, 512)} | rope, {"y": _zeros(5, 4, 512, dtype=BF16)}),
        "inverse_rope_quant": Sample(
            {"x": _normal(5, 4, 512), "groups": 2} | rope,
            {"values": torch.zeros(2, 5, 1024).to(E4M3), "scales": torch.zeros(2, 8, 8)},
        ),
        "save_state": Sample(
            {
                "kv_score": _normal(5, 2048, dtype=F32),
                "ape": _normal(4, 1024, dtype=F32),
                "positions": torch.arange(5),
                "state_slots": torch.arange(4, 9),
                "state": blocks(3, 4, 8192),
                "state_format": "state_c4",
            },
            {},
        ),
        "compress_store": Sample(
            {
                "positions": torch.arange(8),
                "token_to_req": _zeros(8),
                "entry_slots": _ints([-1, -1, -1, 64, -1, -1, -1, 65], I64),
                "cos_sin": cos_sin(16),
                "compressors_0_state_slots": torch.arange(4, 12),
                "compressors_0_block_table": _ints([[1, 2]]),
                "compressors_0_norm_weight": _normal(512),
                "compressors_0_kv_score": _normal(8, 2048, dtype=F32),
                "compressors_0_ape": _normal(4, 1024, dtype=F32),
                "compressors_0_state": blocks(3, 4, 8192),
                "compressors_0_state_format": "state_c4",
                "compressors_0_entries": blocks(2, 64, 584),
                "compressors_0_entries_format": "fp8_ds_mla",
            },
            {},
        ),
    }


def _indexer_samples() -> dict[str, Sample]:
    keys = {"block_table": _ints([[1, 2], [3, 0]]), "cache": index_cache(), "cache_format": "index_fp8"}
    query = {"q": _normal(3, 4, 128).to(E4M3), "weights": _normal(3, 4, dtype=F32)}
    return {
        "indexer_q": Sample(
            {
                "q": _normal(5, 4, 128),
                "weights": _normal(5, 4),
                "positions": torch.arange(5),
                "cos_sin": cos_sin(16),
                "format": "index_fp8",
            },
            {"q_out": torch.zeros(5, 4, 128).to(E4M3), "weights_out": torch.zeros(5, 4)},
        ),
        "indexer_logits": Sample(
            query | {"row_to_req": _ints([0, 0, 1]), "lens": _ints([70, 10, 64]), "width": 128} | keys,
            {"logits": torch.zeros(3, 128)},
        ),
        "indexer_topk": Sample(
            query | {"row_to_req": _ints([0, 0, 1]), "lens": _ints([70, 10, 64]), "width": 128, "k": 8} | keys,
            {"indices": _zeros(3, 8)},
        ),
        "gather_index_rows": Sample(
            keys | {"cu_seq_lens": _ints([0, 70, 75])},
            {"values": _zeros(75, 128, dtype=torch.uint8), "scales": _zeros(75, 4, dtype=torch.uint8)},
        ),
        "ragged_indexer_logits": Sample(
            query
            | {
                "values": _normal(20, 128).to(E4M3).view(torch.uint8),
                "scales": torch.ones(20, 1).view(torch.uint8),
                "starts": _ints([0, 0, 10]),
                "ends": _ints([10, 5, 20]),
                "format": "index_fp8",
            },
            {"logits": torch.zeros(3, 20)},
        ),
        "topk": Sample(
            {"logits": _normal(4, 50, dtype=F32), "lens": _ints([50, 20, 5, 0]), "k": 8}, {"indices": _zeros(4, 8)}
        ),
    }


def _index_samples() -> dict[str, Sample]:
    topk = torch.randint(-1, 60, (8, 16), dtype=I32)
    return {
        "token_to_req": Sample(_batch("query_start_loc") | {"tokens": 8}, {"token_to_req": _zeros(8)}),
        "slot_mapping": Sample(
            _batch("query_start_loc", "positions", "token_to_req", "block_table") | {"block_size": 64},
            {"slots": _zeros(8, dtype=I64)},
        ),
        "compressed_slot_mapping": Sample(
            _batch("query_start_loc", "seq_lens", "block_table") | {"tokens": 8}, {"slots": _zeros(8, dtype=I64)}
        ),
        "window_indices": Sample(
            _batch("query_start_loc", "seq_lens", "token_to_req", "slot_mapping", "block_table"),
            {"indices": _zeros(8, 128), "lens": _zeros(8)},
        ),
        "dense_compressed_indices": Sample(
            _batch("positions", "token_to_req", "slot_mapping", "block_table") | {"width": 128},
            {"indices": _zeros(8, 128), "lens": _zeros(8)},
        ),
        "global_topk": Sample(
            {"topk": topk, "valid": _zeros(8, dtype=torch.bool) == 0} | _batch("token_to_req", "block_table"),
            {"indices": _zeros(8, 16), "lens": _zeros(8)},
        ),
        "short_context_topk": Sample(_batch("positions") | {"k": 16}, {"indices": _zeros(8, 16)}),
        "visible_entries": Sample(
            _batch("positions", "slot_mapping") | {"top_k": 16},
            {"valid": _zeros(8, dtype=torch.bool), "lens": _zeros(8), "topk_lens": _zeros(8)},
        ),
        "prefill_lens": Sample(
            _batch("query_start_loc", "seq_lens") | {"decodes": 1},
            {"gather_lens": _zeros(2), "entry_counts": _zeros(2)},
        ),
        "draft_positions": Sample(
            _batch("seq_lens") | {"longer": 1}, {"positions": _zeros(3, dtype=I64), "next_lens": _zeros(3)}
        ),
        "combine_topk_window": Sample(
            {"topk": topk, "gather_lens": _ints([9, 4, 132]), "top_k": 16, "m": 300, "n": 75}
            | _batch("query_start_loc", "seq_lens"),
            {"indices": _zeros(8, 144), "lens": _zeros(8)},
        ),
        "mixed_sparse_indices": Sample(
            {
                "decode_window": torch.randint(0, 64, (1, 128), dtype=I32),
                "decode_compressed": torch.randint(0, 16, (1, 16), dtype=I32),
                "decode_lens": _ints([2]),
                "decode_valid": _zeros(1, dtype=torch.bool) == 0,
                "prefill_topk": torch.randint(-1, 60, (7, 16), dtype=I32),
                "window_table": _batch("block_table")["block_table"],
                "compressed_table": _batch("block_table")["block_table"],
                "top_k": 16,
                "compressed_width": 16,
                "window_span": 8192,
                "compressed_span": 8192,
            }
            | _batch("query_start_loc", "seq_lens", "token_to_req"),
            {"indices": _zeros(8, 144), "lens": _zeros(8)},
        ),
        "pack_sequences": Sample(
            {"rows": _normal(8, 32), "query_start_loc": _ints([0, 1, 3, 8]), "max_len": 5},
            {"packed": _zeros(3, 5, 32, dtype=BF16)},
        ),
        "unpack_sequences": Sample(
            {"packed": _normal(3, 5, 32), "query_start_loc": _ints([0, 1, 3, 8]), "tokens": 8},
            {"rows": _zeros(8, 32, dtype=BF16)},
        ),
    }


def _attention_samples() -> dict[str, Sample]:
    slots = torch.randint(-1, 256, (5, 24), dtype=I32)
    return {
        "gather_rows": Sample(
            {
                "cache": bf16_cache(8),
                "seq_lens": _ints([9, 300]),
                "gather_lens": _ints([9, 130]),
                "block_table": _ints([[1, 0, 0, 0, 0], [4, 5, 6, 7, 3]]),
                "cache_format": "bf16",
                "rows": 132,
            },
            {"out": _zeros(2, 132, 512, dtype=BF16)},
        ),
        "sparse_attention": Sample(
            {
                "q": _normal(5, 4, 512),
                "sink": _normal(4, dtype=F32),
                "scopes_0_cache": bf16_cache(),
                "scopes_0_indices": slots,
                "scopes_0_lens": _ints([24, 12, 0, 24, 1]),
                "scopes_0_cache_format": "bf16",
                "scopes_1_cache": bf16_cache(),
                "scopes_1_indices": slots.flip(0).contiguous(),
                "scopes_1_cache_format": "bf16",
                "scopes": 2,
            },
            {"o": _zeros(5, 4, 512, dtype=BF16), "lse": torch.zeros(5, 4)},
        ),
        "merge_topk": Sample(
            {
                "scores": _normal(2, 5, 8, dtype=F32),
                "indices": torch.arange(8, dtype=I32).expand(2, 5, 8).contiguous(),
                "share_rank": 1,
                "share_ranks": 2,
                "share_interleave": 4,
            },
            {"chosen": _zeros(5, 8), "own": _zeros(5, 8)},
        ),
        "merge_partials": Sample(
            {
                "partial_o": _normal(3, 5, 4, 512, dtype=F32),
                "partial_lse": _normal(3, 5, 4, dtype=F32),
                "sink": _normal(4, dtype=F32),
            },
            {"o": _zeros(5, 4, 512, dtype=BF16), "lse": torch.zeros(5, 4)},
        ),
    }


def samples() -> dict[str, Sample]:
    """By op."""
    torch.manual_seed(0)
    return _layer_samples() | _indexer_samples() | _index_samples() | _attention_samples()
