#!/usr/bin/env python3
"""Writes the first seeds of the text targets: make_corpus.py FOLDER -> FOLDER/<target>/seed_*.

The seeds of the binary targets, and those that a run found to reach new code, stand in corpus/ beside this file.
"""

import json
import pathlib
import sys

POOL = bytes((i * 37 + 11) % 256 for i in range(251))


def tensor(name, dtype, *shape):
    return " ".join([name, dtype, *map(str, shape)])


def cases():
    """(op, params, tensors) with sizes as small as the op allows."""
    t = tensor
    loc, seq, req = t("in.query_start_loc", "I32", 3), t("in.seq_lens", "I32", 2), t("in.token_to_req", "I32", 4)
    pos, slots, table = t("in.positions", "I64", 4), t("in.slot_mapping", "I64", 4), t("in.block_table", "I32", 2, 3)
    cos = t("in.cos_sin", "F32", 30, 64)
    two = {"requests": 2, "tokens": 4}
    rows = t("out.indices", "I32", 4, 8), t("out.lens", "I32", 4)
    yield "token_to_req", two, [loc, t("out.token_to_req", "I32", 4)]
    yield "slot_mapping", {**two, "block_size": 4}, [loc, pos, req, table, t("out.slots", "I64", 4)]
    yield (
        "compressed_slot_mapping",
        {**two, "ratio": 4, "storage_block": 2},
        [loc, seq, table, t("out.slots", "I64", 4)],
    )
    yield "window_indices", {**two, "window": 8, "block_size": 4}, [loc, seq, req, slots, table, *rows]
    yield (
        "dense_compressed_indices",
        {**two, "ratio": 4, "storage_block": 2, "width": 8, "global": True},
        [pos, req, slots, table, *rows],
    )
    yield (
        "global_topk",
        {**two, "k": 8, "storage_block": 4, "compact": True},
        [t("in.topk", "I32", 4, 8), req, table, t("in.valid", "BOOL", 4), *rows],
    )
    yield "short_context_topk", {"tokens": 4, "ratio": 4, "k": 8}, [pos, rows[0]]
    yield (
        "combine_topk_window",
        {**two, "window": 4, "ratio": 4, "top_k": 4, "m": 20, "n": 8},
        [t("in.topk", "I32", 4, 4), loc, seq, t("in.gather_lens", "I32", 2), *rows],
    )
    yield (
        "mixed_sparse_indices",
        {
            **two,
            "decode_tokens": 2,
            "window": 4,
            "window_width": 4,
            "ratio": 4,
            "top_k": 4,
            "compressed_width": 4,
            "window_block": 4,
            "compressed_block": 2,
            "local": True,
        },
        [
            t("in.decode_window", "I32", 2, 4),
            t("in.decode_compressed", "I32", 2, 4),
            t("in.decode_valid", "BOOL", 2),
            t("in.prefill_topk", "I32", 2, 4),
            loc,
            seq,
            req,
            t("in.window_table", "I32", 2, 3),
            t("in.compressed_table", "I32", 2, 3),
            *rows,
        ],
    )
    yield (
        "topk",
        {"rows": 2, "width": 20, "k": 8},
        [t("in.logits", "F32", 2, 20), t("in.lens", "I32", 2), t("out.indices", "I32", 2, 8)],
    )
    yield (
        "rms_norm",
        {"rows": 2, "dim": 16},
        [t("in.x", "BF16", 2, 16), t("in.weight", "BF16", 16), t("out.y", "BF16", 2, 16)],
    )
    yield (
        "projection",
        {"m": 2, "n": 3, "k": 16},
        [t("in.x", "BF16", 2, 1, 16), t("in.w", "BF16", 1, 3, 16), t("out.y", "BF16", 2, 1, 3)],
    )
    cache = {"cache_format": "bf16", "cache_block_size": 2}
    yield (
        "qnorm_rope_insert",
        {"tokens": 2, "heads": 2, "out_heads": 3, "format": "bf16", **cache},
        [
            t("in.q", "BF16", 2, 2, 512),
            t("in.kv", "BF16", 2, 512),
            t("in.positions", "I64", 2),
            cos,
            t("in.slot_mapping", "I64", 2),
            t("in.cache_before", "U8", 2, 2048),
            t("out.q_out", "BF16", 2, 3, 512),
            t("out.cache", "U8", 2, 2048),
        ],
    )
    yield (
        "insert_rows",
        {"tokens": 2, "format": "index_fp8", "cache_format": "index_fp8", "cache_block_size": 2},
        [
            t("in.rows", "BF16", 2, 128),
            t("in.slot_mapping", "I64", 2),
            t("in.cache_before", "U8", 2, 264),
            t("out.cache", "U8", 2, 264),
        ],
    )
    state = {"state_format": "state_index", "state_block_size": 4}
    yield (
        "save_state",
        {"tokens": 4, "ratio": 4, "dim": 128, **state},
        [
            t("in.kv_score", "F32", 4, 512),
            t("in.ape", "F32", 4, 256),
            pos,
            t("in.state_slots", "I64", 4),
            t("in.state_before", "U8", 3, 8192),
            t("out.state", "U8", 3, 8192),
        ],
    )
    own = "compressors[0]."
    yield (
        "compress_store",
        {
            "tokens": 4,
            "ratio": 4,
            own + "dim": 128,
            own + "format": "index_mxfp4",
            own + "state_format": "state_index",
            own + "state_block_size": 4,
            own + "entries_format": "index_mxfp4",
            own + "entries_block_size": 2,
        },
        [
            pos,
            req,
            t(f"in.{own}state_slots", "I64", 4),
            t("in.entry_slots", "I64", 4),
            t(f"in.{own}block_table", "I32", 2, 3),
            t(f"in.{own}norm_weight", "BF16", 128),
            cos,
            t(f"in.{own}state", "U8", 3, 8192),
            t(f"in.{own}entries_before", "U8", 2, 136),
            t(f"out.{own}entries", "U8", 2, 136),
        ],
    )
    yield (
        "indexer_q",
        {"tokens": 2, "heads": 2, "format": "index_mxfp4", "hadamard": True},
        [
            t("in.q", "BF16", 2, 2, 128),
            t("in.weights", "BF16", 2, 2),
            t("in.positions", "I64", 2),
            cos,
            t("out.q_out", "U8", 2, 2, 64),
            t("out.q_scale", "U8", 2, 2, 4),
            t("out.weights_out", "F32", 2, 2),
        ],
    )
    index_cache = {"cache_format": "index_fp8", "cache_block_size": 4}
    yield (
        "indexer_logits",
        {"rows": 2, "heads": 2, "width": 10, "format": "index_fp8", **index_cache},
        [
            t("in.q", "F8_E4M3", 2, 2, 128),
            t("in.weights", "F32", 2, 2),
            t("in.row_to_req", "I32", 2),
            t("in.lens", "I32", 2),
            table,
            t("in.cache", "U8", 4, 528),
            t("out.logits", "F32", 2, 10),
        ],
    )
    yield (
        "gather_index_rows",
        {"requests": 2, "rows": 6, "format": "index_fp8", **index_cache},
        [
            t("in.cache", "U8", 4, 528),
            t("in.cu_seq_lens", "I32", 3),
            table,
            t("out.values", "U8", 6, 128),
            t("out.scales", "U8", 6, 4),
        ],
    )
    yield (
        "ragged_indexer_logits",
        {"rows": 2, "keys": 5, "heads": 2, "format": "index_fp8"},
        [
            t("in.q", "F8_E4M3", 2, 2, 128),
            t("in.weights", "F32", 2, 2),
            t("in.values", "U8", 5, 128),
            t("in.scales", "U8", 5, 4),
            t("in.starts", "I32", 2),
            t("in.ends", "I32", 2),
            t("out.logits", "F32", 2, 5),
        ],
    )
    yield (
        "gather_rows",
        {"requests": 2, "rows": 6, "offset": 1, "format": "bf16", **cache},
        [t("in.cache", "U8", 3, 2048), seq, t("in.gather_lens", "I32", 2), table, t("out.out", "BF16", 2, 6, 512)],
    )
    yield (
        "merge_partials",
        {"slices": 2, "tokens": 1, "heads": 2, "dim": 8},
        [
            t("in.partial_o", "F32", 2, 1, 2, 8),
            t("in.partial_lse", "F32", 2, 1, 2),
            t("in.sink", "F32", 2),
            t("out.o", "BF16", 1, 2, 8),
            t("out.lse", "F32", 1, 2),
        ],
    )
    yield (
        "inverse_rope",
        {"tokens": 2, "heads": 2},
        [t("in.x", "BF16", 2, 2, 512), t("in.positions", "I64", 2), cos, t("out.y", "BF16", 2, 2, 512)],
    )
    yield (
        "inverse_rope_quant",
        {"tokens": 2, "heads": 2, "groups": 1, "scale": "ue8m0x4"},
        [
            t("in.x", "BF16", 2, 2, 512),
            t("in.positions", "I64", 2),
            cos,
            t("out.values", "F8_E4M3", 1, 2, 1024),
            t("out.scales", "I32", 1, 2, 4),
        ],
    )
    yield (
        "sparse_attention",
        {
            "format0": "fp8_ds_mla",
            "block_size0": 2,
            "format1": "bf16",
            "block_size1": 1,
            "tolerance": {"o": {"l2": 0.1}},
        },
        [
            t("in.q", "BF16", 2, 2, 512),
            t("in.cache0", "U8", 3, 1168),
            t("in.indices0", "I32", 2, 4),
            t("in.lens0", "I32", 2),
            t("in.cache1", "U8", 3, 1024),
            t("in.indices1", "I32", 2, 3),
            t("in.sink", "F32", 2),
            t("out.o", "BF16", 2, 2, 512),
            t("out.lse", "F32", 2, 2),
        ],
    )
    yield from upstream_cases()
    for ratio in (0, 4, 128):
        yield layer_case(ratio)
    yield (
        "latent_norms",
        {
            "rows": 4,
            "qr_dim": 16,
            "kv_dim": 512,
            "insert.format": "bf16",
            "insert.cache_format": "bf16",
            "insert.cache_block_size": 2,
        },
        [
            t("in.qr", "BF16", 4, 16),
            t("in.qr_weight", "BF16", 16),
            t("in.kv", "BF16", 4, 512),
            t("in.kv_weight", "BF16", 512),
            t("in.insert.positions", "I64", 4),
            t("in.insert.cos_sin", "F32", 30, 64),
            t("in.insert.slot_mapping", "I64", 4),
            t("in.insert.cache_before", "U8", 3, 2048),
            t("out.qr_out", "BF16", 4, 16),
            t("out.insert.cache", "U8", 3, 2048),
        ],
    )
    yield (
        "topk",
        {"rows": 2, "width": 20, "k": 8, "slots.storage_block": 4},
        [
            t("in.logits", "F32", 2, 20),
            t("in.lens", "I32", 2),
            t("out.indices", "I32", 2, 8),
            t("in.slots.token_to_req", "I32", 2),
            t("in.slots.block_table", "I32", 2, 5),
            t("in.slots.valid", "BOOL", 2),
            t("out.slots.slots", "I32", 2, 8),
            t("out.slots.lens", "I32", 2),
        ],
    )


def upstream_cases():
    t = tensor
    cos, pos, slots = t("in.cos_sin", "F32", 30, 64), t("in.position", "I64", 2), t("in.slot_mapping", "I64", 2)
    loc, seq, table = t("in.query_start_loc", "I32", 3), t("in.seq_lens", "I32", 2), t("in.block_table", "I32", 2, 3)
    up = "upstream:"
    yield (
        up + "fused_q_kv_rmsnorm",
        {"eps": 1e-6},
        [
            t("in.qr_kv", "BF16", 2, 48),
            t("in.q_weight", "BF16", 16),
            t("in.kv_weight", "BF16", 32),
            t("out.qr_out", "BF16", 2, 16),
            t("out.kv_out", "BF16", 2, 32),
        ],
    )
    name = up + "fused_deepseek_v4_qnorm_rope_kv_rope_"
    q = [t("in.q", "BF16", 2, 2, 512), t("in.kv", "BF16", 2, 512), pos, slots, cos]
    yield (
        name + "quant_insert",
        {"eps": 1e-6, "block_size": 2, "padded_heads": 3},
        [*q, t("in.cache_before", "U8", 2, 1168), t("out.cache", "U8", 2, 1168)],
    )
    yield (
        name + "full_cache_bf16_insert",
        {"eps": 1e-6},
        [*q, t("in.cache_before", "BF16", 2, 2, 512), t("out.cache", "BF16", 2, 2, 512)],
    )
    yield (
        name + "full_cache_fp8_insert",
        {"eps": 1e-6},
        [
            *q,
            t("in.kv_scale", "F32", 1),
            t("in.q_scale_inv", "F32", 1),
            t("in.cache_before", "F8_E4M3", 2, 2, 512),
            t("out.cache", "F8_E4M3", 2, 2, 512),
        ],
    )
    yield (
        up + "save_partial_states + compress_norm_rope_store",
        {"compress_ratio": 4, "head_dim": 128, "quant": "fp8", "kv_block": 2, "eps": 1e-6},
        [
            t("in.kv_score", "F32", 2, 512),
            t("in.ape", "F32", 4, 256),
            t("in.norm_weight", "BF16", 128),
            pos,
            t("in.token_to_req", "I32", 2),
            t("in.state_slot", "I64", 2),
            table,
            t("in.kv_slot", "I64", 2),
            t("in.state_before", "F32", 3, 4, 512),
            t("in.cache_before", "U8", 2, 264),
            cos,
            t("out.cache", "U8", 2, 264),
            t("out.state_rows", "F32", 2, 512),
        ],
    )
    yield (
        up + "vllm cooperative_topk",
        {"k": 4},
        [t("in.logits", "F32", 2, 20), t("in.lens", "I32", 2), t("out.indices_sorted", "I32", 2, 4)],
    )
    yield (
        up + "cp_gather_indexer_k_quant_cache",
        {"block_size": 2, "fill": 165},
        [
            t("in.cache", "U8", 3, 264),
            t("in.cu_seq_lens", "I32", 3),
            table,
            t("out.dst_k", "U8", 6, 128),
            t("out.dst_scale", "U8", 6, 4),
        ],
    )
    yield (
        up + "dequantize_and_gather_k_cache",
        {"block_size": 2, "offset": 1, "fill": 7.0},
        [t("in.cache", "U8", 3, 1168), seq, t("in.gather_lens", "I32", 2), table, t("out.out", "BF16", 2, 6, 512)],
    )
    yield (
        up + "combine_topk_swa_indices",
        {"window": 4, "compress_ratio": 4, "topk": 4, "M": 20, "N": 8},
        [
            t("in.topk_indices", "I32", 4, 4),
            loc,
            seq,
            t("in.gather_lens", "I32", 2),
            t("out.combined_indices", "I32", 4, 8),
            t("out.combined_lens", "I32", 4),
        ],
    )
    yield (
        up + "compute_global_topk_indices_and_lens",
        {"block_size": 2},
        [
            t("in.topk_indices", "I32", 4, 4),
            t("in.token_to_req", "I32", 4),
            table,
            t("in.is_valid_token", "BOOL", 4),
            t("out.global_topk_indices", "I32", 4, 4),
            t("out.topk_lens", "I32", 4),
        ],
    )
    yield (
        up + "get_compressed_slot_mapping",
        {"block_size": 2, "compress_ratio": 4},
        [loc, seq, table, t("out.slot_mapping", "I64", 4)],
    )
    yield (
        up + "fused_indexer_q_rope_quant",
        {"mode": "fp8"},
        [
            t("in.q", "BF16", 2, 2, 128),
            t("in.weights", "BF16", 2, 2),
            pos,
            cos,
            t("out.q_fp8", "F8_E4M3", 2, 2, 128),
            t("out.weights_out", "F32", 2, 2),
        ],
    )
    yield (
        up + "fused_inv_rope_fp8_quant",
        {"groups": 1, "scale": "f32"},
        [
            t("in.o", "BF16", 2, 2, 512),
            pos,
            cos,
            t("out.o_fp8", "F8_E4M3", 2, 1, 1024),
            t("out.o_scale", "F32", 2, 1, 8),
        ],
    )
    yield (
        up + "DeepGEMM fp8_mqa_logits (sm90)",
        {},
        [
            t("in.q", "F8_E4M3", 2, 2, 128),
            t("in.k", "F8_E4M3", 5, 128),
            t("in.k_scale", "F32", 5),
            t("in.weights", "F32", 2, 2),
            t("in.ks", "I32", 2),
            t("in.ke", "I32", 2),
            t("out.logits", "F32", 2, 5),
        ],
    )
    yield (
        up + "DeepGEMM fp8_paged_mqa_logits (sm90)",
        {"block_size": 2},
        [
            t("in.q", "F8_E4M3", 2, 1, 2, 128),
            t("in.cache", "U8", 3, 264),
            t("in.weights", "F32", 2, 2),
            t("in.context_lens", "I32", 2, 1),
            table,
            t("out.logits", "F32", 2, 6),
        ],
    )
    yield (
        up + "build_flashinfer_mixed_sparse_indices",
        {"swa_block": 4, "compressed_block": 2, "window": 4, "compress_ratio": 4, "topk": 4, "local": True},
        [
            t("in.decode_swa_indices", "I32", 2, 4),
            t("in.decode_compressed_indices", "I32", 2, 4),
            t("in.prefill_topk_indices", "I32", 2, 4),
            loc,
            seq,
            t("in.token_to_req", "I32", 4),
            t("in.swa_block_table", "I32", 2, 3),
            t("in.compressed_block_table", "I32", 2, 3),
            t("in.is_valid_token", "BOOL", 2),
            t("out.sparse_indices", "I32", 4, 8),
            t("out.sparse_topk_lens", "I32", 4),
        ],
    )


def layer_weights(ratio, hidden=16, heads=1, q_lora=16, o_lora=16, index_heads=1):
    w = {
        "attn_sink": [heads],
        "wq_a.weight": [q_lora, hidden],
        "q_norm.weight": [q_lora],
        "wq_b.weight": [heads * 512, q_lora],
        "wkv.weight": [512, hidden],
        "kv_norm.weight": [512],
        "wo_a.weight": [o_lora, heads * 512],
        "wo_b.weight": [hidden, o_lora],
    }
    coff = 2 if ratio == 4 else 1
    parts = [("compressor.", 512)] if ratio else []
    if ratio == 4:
        parts.append(("indexer.compressor.", 128))
        w["indexer.wq_b.weight"] = [index_heads * 128, q_lora]
        w["indexer.weights_proj.weight"] = [index_heads, hidden]
    for prefix, dim in parts:
        w[prefix + "wkv.weight"] = [coff * dim, hidden]
        w[prefix + "wgate.weight"] = [coff * dim, hidden]
        w[prefix + "ape"] = [ratio, coff * dim]
        w[prefix + "norm.weight"] = [dim]
    return w


def layer_case(ratio):
    params = {
        "hidden_size": 16,
        "num_heads": 1,
        "head_dim": 512,
        "rope_head_dim": 64,
        "q_lora_rank": 16,
        "o_lora_rank": 16,
        "o_groups": 1,
        "window": 128,
        "compress_ratio": ratio,
        "index_n_heads": 1,
        "index_head_dim": 128,
        "index_topk": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "yarn": None,
        "hadamard": False,
        "precision": "bf16",
        "steps": [5, 1],
    }
    tensors = [
        tensor("weights." + n, "F32" if n in ("attn_sink",) or n.endswith("ape") else "BF16", *s)
        for n, s in layer_weights(ratio).items()
    ]
    return (
        "attention_layer",
        params,
        [tensor("in.hidden", "BF16", 6, 16), *tensors, tensor("out.output", "BF16", 6, 16)],
    )


SIZES = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def header(tensors):
    """The JSON header of tensors {name: (dtype, shape)}."""
    out, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for n in shape:
            size *= n
        out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return json.dumps(out, separators=(",", ":"))


def checkpoints():
    """Input of the checkpoint target for each kind of layer and encoding."""
    for ratio, digit in ((0, 0), (4, 1), (128, 2)):
        for encoding in ("bf16", "fp8", "nvfp4"):
            tensors = {}
            for name, shape in layer_weights(ratio).items():
                full = "layers.0.attn." + name
                if len(shape) == 2 and not name.endswith("ape") and encoding == "fp8":
                    tensors[full] = ("F8_E4M3", shape)
                    tensors[full.removesuffix("weight") + "scale"] = ("F8_E8M0", [-(-n // 128) for n in shape])
                elif len(shape) == 2 and not name.endswith("ape") and encoding == "nvfp4":
                    tensors[full] = ("U8", [shape[0], shape[1] // 2])
                    tensors[full + "_scale"] = ("F8_E4M3", [shape[0], shape[1] // 16])
                    tensors[full + "_scale_2"] = ("F32", [])
                else:
                    tensors[full] = ("F32" if name.endswith(("ape", "sink")) else "BF16", shape)
            names = list(tensors)
            a = {n: tensors[n] for n in names[::2]}
            b = {n: tensors[n] for n in names[1::2]}
            index = json.dumps(
                {"weight_map": {n: "a.safetensors" if n in a else "b.safetensors" for n in names}},
                separators=(",", ":"),
            )
            # mode 1; rank 0 of 1; hidden 16, 1 head, q_lora 16, o_lora 16, 1 group, ratio, 1 index head
            numbers = bytes([1, 0, 0, 0, 0, 0, 0, 0, digit, 0])
            yield (
                f"{ratio}_{encoding}",
                b"\n%%\n".join([numbers, index.encode(), header(a).encode(), header(b).encode(), bytes(range(40, 60))]),
            )


def configs():
    flat = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 64,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "sliding_window": 128,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1048576,
        "compress_ratios": [0, 4, 128, 4, 0],
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    }
    yield "flat", flat
    nested = {k: v for k, v in flat.items() if k not in ("rope_theta", "compress_rope_theta", "rope_scaling")}
    nested["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000},
        "compress": {
            "rope_type": "yarn",
            "rope_theta": 160000,
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    }
    yield "nested", nested
    types = {k: v for k, v in flat.items() if k != "compress_ratios"}
    types["layer_types"] = [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ]
    yield "types", types


def main():
    folder = pathlib.Path(sys.argv[1])

    def put(target, name, data):
        path = folder / target / f"seed_{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    for i, (op, params, tensors) in enumerate(cases()):
        label = op.split(":")[-1].split(" ")[-2 if op.endswith(")") else -1]
        text = "\n".join([op, json.dumps(params), *tensors, "", ""])
        put("case", f"{i:02}_{label}", b"\0" + text.encode() + POOL)
    for name, data in checkpoints():
        put("checkpoint", name, data)
    for name, config in configs():
        put("config", name, json.dumps(config).encode())
    small = {"a": ("BF16", [2, 3]), "b": ("F32", [2]), "c": ("U8", [0, 4]), "d": ("F32", [])}
    put("safetensors", "small", b"\0" + header(small).encode() + b"\0" + POOL[:16])
    put("safetensors", "shrinks", b"\x20" + header(small).encode() + b"\0" + POOL[:16])
    text = header({"t": ("BF16", [2, 2])}).replace("{", '{"__metadata__":{"format":"x"},', 1).encode()
    put("safetensors", "raw", b"R" + len(text).to_bytes(8, "little") + text + POOL[:8])
    line = '{"timestamp": 27, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]}'
    put("trace", "two", (line + "\n\n" + line.replace("27", "1.5e3") + "\r\n").encode())
    for kind in range(4):
        for length in range(4):
            put("snapshot", f"good_{kind}{length}", bytes([16, kind, length, 0]))
    put("snapshot", "raw", b"R\0" + bytes(80))
    for target in ("index", "topk", "gather", "indexer", "attention", "snapshot"):
        for i in range(6):
            put(target, str(i), bytes((j * (17 + 2 * i) + i * 41) % 251 for j in range(120 + 40 * i)))


main()
