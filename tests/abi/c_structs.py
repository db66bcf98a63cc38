"""The structs of include/sparsemla/c_api.h, as ctypes has them."""

import ctypes as c


class Struct(c.Structure):
    """Zeroed, with its size in the first field."""

    def __init__(self, **fields):
        super().__init__(struct_size=c.sizeof(type(self)), **fields)


class Tensor(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("rank", c.c_int32),
        ("shape", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
    ]


class Cache(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("format", c.c_char_p),
        ("base", c.c_void_p),
        ("num_blocks", c.c_int64),
        ("block_size", c.c_int64),
        ("block_stride_bytes", c.c_int64),
        ("kv_scale", c.c_float),
        ("reserved", c.c_int32),
    ]


class Scope(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("cache", c.POINTER(Cache)),
        ("indices", c.POINTER(Tensor)),
        ("lens", c.POINTER(Tensor)),
        ("starts", c.POINTER(Tensor)),
    ]


class Attention(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("q", c.POINTER(Tensor)),
        ("scope", c.POINTER(Scope)),
        ("scope2", c.POINTER(Scope)),
        ("sink", c.POINTER(Tensor)),
        ("o", c.POINTER(Tensor)),
        ("lse", c.POINTER(Tensor)),
        ("heads", c.c_int64),
        ("scale", c.c_float),
        ("q_scale", c.c_float),
        ("partial", c.c_int32),
        ("deterministic", c.c_int32),
        ("threads", c.c_int32),
        ("reserved", c.c_int32),
        ("implementation", c.c_char_p),
    ]


class LayerConfig(Struct):
    _fields_ = (
        [("struct_size", c.c_uint64)]
        + [
            (name, c.c_int64)
            for name in (
                "hidden_size",
                "num_heads",
                "q_lora_rank",
                "o_lora_rank",
                "o_groups",
                "head_dim",
                "rope_head_dim",
                "window",
                "compress_ratio",
                "index_n_heads",
                "index_head_dim",
                "index_topk",
            )
        ]
        + [
            ("rms_norm_eps", c.c_double),
            ("rope_theta", c.c_double),
            ("yarn_factor", c.c_double),
            ("yarn_max_position", c.c_int64),
            ("yarn_beta_fast", c.c_double),
            ("yarn_beta_slow", c.c_double),
            ("hadamard", c.c_int32),
            ("reserved", c.c_int32),
        ]
    )


class LayerOptions(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("max_position", c.c_int64),
        ("cache_rows", c.c_char_p),
        ("index_rows", c.c_char_p),
        ("precision", c.c_int32),
        ("q_dtype", c.c_int32),
        ("q_scale", c.c_float),
        ("kv_scale", c.c_float),
        ("threads", c.c_int32),
        ("deterministic", c.c_int32),
        ("implementation", c.c_char_p),
        ("front_end", c.c_char_p),
        ("output_rows", c.c_char_p),
        ("padded_heads", c.c_int64),
        ("strict", c.c_int32),
        ("gather_prefill", c.c_int32),
    ]


class CacheNeed(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("present", c.c_int32),
        ("group", c.c_int32),
        ("format", c.c_char_p),
        ("block_size", c.c_int64),
        ("block_tokens", c.c_int64),
        ("window", c.c_int64),
        ("page_bytes", c.c_int64),
        ("kv_scale", c.c_float),
        ("reserved", c.c_int32),
    ]


class Batch(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("query_start_loc", c.POINTER(Tensor)),
        ("seq_lens", c.POINTER(Tensor)),
        ("positions", c.POINTER(Tensor)),
        ("block_tables", c.POINTER(c.POINTER(Tensor))),
        ("num_block_tables", c.c_int32),
        ("reserved", c.c_int32),
        ("max_seq_len", c.c_int64),
        ("decode_threshold", c.c_int64),
    ]


class LayerCaches(Struct):
    _fields_ = [("struct_size", c.c_uint64), ("cache", c.POINTER(Cache) * 5)]


class PoolInfo(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("num_blocks", c.c_int64),
        ("free_blocks", c.c_int64),
        ("idle_blocks", c.c_int64),
        ("block_bytes", c.c_int64),
        ("num_groups", c.c_int32),
        ("reserved", c.c_int32),
    ]


class PrefixStats(Struct):
    _fields_ = [("struct_size", c.c_uint64)] + [
        (name, c.c_int64)
        for name in ("unit", "lookups", "hits", "hit_tokens", "kept_tails", "evicted_tails", "tails", "blocks")
    ]


class OpMember(Struct):
    _fields_ = [("struct_size", c.c_uint64), ("name", c.c_char_p), ("kind", c.c_int32), ("reserved", c.c_int32)]


class Scalar(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("name", c.c_char_p),
        ("integer", c.c_int64),
        ("number", c.c_double),
        ("text", c.c_char_p),
    ]


class Argument(Struct):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("name", c.c_char_p),
        ("tensor", c.POINTER(Tensor)),
        ("cache", c.POINTER(Cache)),
    ]
