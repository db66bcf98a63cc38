#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// RMSNorm of rows: y_i = x_i * rsqrt(sum(x^2)/n + eps) * w_i in fp32, products left to right, one rounding at the end
/// (spec 2).
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t dim = 0;      ///< numbers of a row
    DType in = DType::kBF16;   ///< BF16 or F32
    DType out = DType::kBF16;  ///< BF16 or F32
    bool has_weight = true;    ///< false: no multiplication by w
    float eps = 1e-6F;         ///< RMSNorm's epsilon
  };
  struct Args {
    ConstTensorView x;       ///< [rows, dim] `in`; rows may be strided (a column slice of a wider matrix)
    ConstTensorView weight;  ///< [dim] BF16 or F32; absent without weight
    TensorView y;            ///< [rows, dim] `out`; may be x itself
  };
};

/// The norms of a layer's latent queries and keys in one launch (spec 2 step 2): qr_out and kv_out are what RmsNorm
/// makes of qr and kv. With `insert` the normed keys become rows of the window cache in the same launch (spec 2 step
/// 4, 5.3): they do not go to kv_out but are rotated and encoded at their slots, as QNormRopeInsert does it with them,
/// bit for bit. With `quantises_qr` the launch also writes what QuantizeRows makes of qr_out, the input of FP8 weights.
struct LatentNorms {
  static constexpr std::string_view kName = "latent_norms";
  /// RoPE of the normed keys and their insertion into a cache.
  struct Insert {
    const RowFormat* format = nullptr;   ///< rows of the cache
    int rope_dim = 64;                   ///< numbers of a row that are rotated, its last
    ClampRule clamp = ClampRule::kAmax;  ///< floor of the quantiser
    struct Args {
      ConstTensorView positions;  ///< [rows] I64; a row whose position has no row in cos_sin is not inserted
      ConstTensorView cos_sin;    ///< [L, rope_dim] F32
      ConstTensorView
          slot_mapping;  ///< [M] I64, M <= rows: only the first M rows are inserted, and only where slot >= 0
      PagedCache cache;
    };
  };
  struct Problem {
    std::int64_t rows = 0;           ///< rows of each matrix
    std::int64_t qr_dim = 0;         ///< numbers of a row of qr
    std::int64_t kv_dim = 0;         ///< numbers of a row of kv
    DType in = DType::kBF16;         ///< BF16 or F32
    DType out = DType::kBF16;        ///< BF16 or F32; with insert as `in`
    bool has_weight = true;          ///< false: no multiplication by weights
    float eps = 1e-6F;               ///< RMSNorm's epsilon
    bool quantises_qr = false;       ///< also qr_values and qr_scales; QuantizeRows::kGroup divides qr_dim
    std::optional<Insert> insert{};  ///< absent: the normed keys go to kv_out
  };
  struct Args {
    ConstTensorView qr;         ///< [rows, qr_dim] `in`; rows may be strided
    ConstTensorView qr_weight;  ///< [qr_dim] BF16 or F32; absent without weight
    TensorView qr_out;          ///< [rows, qr_dim] `out`; may be qr itself
    TensorView qr_values;       ///< [rows, qr_dim] E4M3; rows may be strided. Absent without quantises_qr
    TensorView qr_scales;       ///< [1, qr_dim/128, rows rounded up to 4] F32. Absent without quantises_qr
    ConstTensorView kv;         ///< [rows, kv_dim] `in`; rows may be strided
    ConstTensorView kv_weight;  ///< [kv_dim] BF16 or F32; absent without weight
    TensorView kv_out;          ///< [rows, kv_dim] `out`; may be kv itself. Absent with insert
    Insert::Args insert{};      ///< with insert
    /// The launch just ahead on the stream is CompressStore's, of at least one token, or that of a JointProjection by
    /// `sm90_stream`. A GPU may then run both at once: what is read here must have been written ahead of that launch.
    bool beside_previous = false;
  };
};

/// Adds the residual of a layer: x += y in fp32, one rounding. With `normed` x += what RmsNorm without a weight makes
/// of y, rounded to `dtype` before it is added.
struct AddRows {
  static constexpr std::string_view kName = "add_rows";
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t dim = 0;        ///< numbers of a row
    DType dtype = DType::kBF16;  ///< BF16 or F32
    bool normed = false;         ///< each row of y is divided by its root mean square first
    float eps = 1e-6F;           ///< RMSNorm's epsilon, with normed
  };
  struct Args {
    ConstTensorView y;  ///< [rows, dim]; rows may be strided
    TensorView x;       ///< [rows, dim], read and written; rows may be strided
  };
};

/// Head norm + RoPE of q and RoPE + quantise + insert of kv, one op as upstream fuses it (spec 2 step 4, 5.3).
///
/// q: each head is divided by its root mean square over all dims (no weight), its last `rope_dim` dims are rotated at
/// the token's position, one rounding at the end. kv (already normed): the last dims are rotated, the row is encoded in
/// the cache's format at its slot. kv itself is not changed. Rotation of pair i (interleaved): e' = e*c_i - o*s_i, o' =
/// o*c_i + e*s_i, without contraction to FMA. A token whose position is not a row of `cos_sin` is skipped: neither its
/// q_out row nor its cache row is written. Slots outside the cache write nothing. The slots of a call are distinct (of
/// two tokens with one slot, either may win).
struct QNormRopeInsert {
  static constexpr std::string_view kName = "qnorm_rope_insert";
  struct Problem {
    std::int64_t tokens = 0;             ///< N
    std::int64_t heads = 0;              ///< H, 0 when there is no q
    std::int64_t out_heads = 0;          ///< Hp >= H: heads H..Hp-1 of q_out are written as +0
    int dim = 512;                       ///< numbers of a row
    int rope_dim = 64;                   ///< numbers of a row that are rotated, its last
    DType in = DType::kBF16;             ///< dtype of q and kv: BF16 or F32
    DType q_out = DType::kBF16;          ///< BF16, F32 or E4M3
    const RowFormat* format = nullptr;   ///< rows of the cache; null when nothing is inserted
    float eps = 1e-6F;                   ///< RMSNorm's epsilon
    float q_scale_inv = 1.0F;            ///< E4M3 q_out: e4m3(clamp(x * q_scale_inv, +-448))
    ClampRule clamp = ClampRule::kAmax;  ///< floor of the quantiser
  };
  struct Args {
    ConstTensorView q;          ///< [N, H, dim] `in`
    ConstTensorView kv;         ///< [N, dim] `in`, rows may be strided
    ConstTensorView positions;  ///< [N] I64
    ConstTensorView cos_sin;    ///< [L, rope_dim] F32, row p = cos || sin
    ConstTensorView
        slot_mapping;  ///< [M] I64, M <= N: only the first M rows of kv are inserted, and only where slot >= 0
    TensorView q_out;  ///< [N, Hp, dim]; may be q itself when Hp = H and the dtypes agree
    PagedCache cache;
  };
};

/// Inverse RoPE of the attention output at the query's position: e' = e*c + o*s, o' = o*c - e*s; one rounding (spec 2
/// step 7). A token whose position is not a row of `cos_sin` is skipped: its rows of y are not written.
struct InverseRope {
  static constexpr std::string_view kName = "inverse_rope";
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t heads = 0;
    int dim = 512;             ///< numbers of a row
    int rope_dim = 64;         ///< numbers of a row that are rotated, its last
    DType in = DType::kBF16;   ///< BF16 or F32
    DType out = DType::kBF16;  ///< BF16 or F32
  };
  struct Args {
    ConstTensorView x;          ///< [T, H, dim] `in`; H may be strided over a wider buffer
    ConstTensorView positions;  ///< [T] I64
    ConstTensorView cos_sin;    ///< [L, rope_dim] F32
    TensorView y;               ///< [T, H, dim] `out`; may be x itself
  };
};

/// How InverseRopeQuant stores its scales.
enum class OutputScale : std::uint8_t {
  kF32,     ///< one fp32 power of two for each 128 dims: [G, D/128, Ta] (SM90 GEMM recipe)
  kUe8m0x4  ///< four UE8M0 bytes of consecutive 128-dim groups in one int32, the first in the low byte: [G, cdiv(D/128,
            ///< 4), Ta] (SM100 recipe)
};

/// Inverse RoPE and FP8 quantisation of the attention output, the input of an FP8 output projection (spec 2, "FP8
/// o-projection").
///
/// x = inverse rotation in fp32, not rounded to bf16; over each 128 consecutive dims of a head: a = max(max|x|, 1e-10),
/// scale = 2^ceil(log2(a/448)), value = e4m3(clamp(x / scale, +-448)). D = H/G * dim. Scales are T-innermost, padded to
/// Ta = T rounded up to 4 with zeros. A token whose position is not a row of `cos_sin` is skipped: neither its values
/// nor its scales are written.
struct InverseRopeQuant {
  static constexpr std::string_view kName = "inverse_rope_quant";
  static constexpr int kGroup = 128;  ///< dims of a scale; divides dim
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t heads = 0;
    std::int64_t groups = 1;                ///< G, divides H
    int dim = 512;                          ///< numbers of a row
    int rope_dim = 64;                      ///< numbers of a row that are rotated, its last
    DType in = DType::kBF16;                ///< BF16 or F32
    OutputScale scale = OutputScale::kF32;  ///< how scales are stored
  };
  struct Args {
    ConstTensorView x;          ///< [T, >= H, dim] `in`
    ConstTensorView positions;  ///< [T] I64
    ConstTensorView cos_sin;    ///< [L, rope_dim] F32
    TensorView values;          ///< [G, T, D] E4M3
    TensorView scales;          ///< kF32: [G, D/128, Ta] F32; kUe8m0x4: [G, cdiv(D/128, 4), Ta] I32
  };
};

/// FP8 quantisation of rows, the input of an FP8 linear layer: InverseRopeQuant's rule and scales without the rotation.
///
/// Over each 128 consecutive numbers of a row: a = max(max|x|, 1e-10), scale = 2^ceil(log2(a/448)), value =
/// e4m3(clamp(x / scale, +-448)). Scales are row-innermost, padded to Ta = rows rounded up to 4 with zeros: what a
/// Projection with groups = 1 takes as x_scale.
struct QuantizeRows {
  static constexpr std::string_view kName = "quantize_rows";
  static constexpr int kGroup = InverseRopeQuant::kGroup;  ///< numbers of a scale; divides dim
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t dim = 0;                   ///< D, numbers of a row
    DType in = DType::kBF16;                ///< BF16 or F32
    OutputScale scale = OutputScale::kF32;  ///< how scales are stored
  };
  struct Args {
    ConstTensorView x;  ///< [T, D] `in`; rows may be strided
    TensorView values;  ///< [T, D] E4M3; rows may be strided
    TensorView scales;  ///< kF32: [1, D/128, Ta] F32; kUe8m0x4: [1, cdiv(D/128, 4), Ta] I32
  };
};

/// Encodes rows into a cache without norm or rotation (spec 4.2, 5.1), for a host that computed its rows itself.
struct InsertRows {
  static constexpr std::string_view kName = "insert_rows";
  struct Problem {
    std::int64_t tokens = 0;
    DType in = DType::kBF16;             ///< BF16 or F32
    const RowFormat* format = nullptr;   ///< how rows are stored
    ClampRule clamp = ClampRule::kAmax;  ///< floor of the quantiser
  };
  struct Args {
    ConstTensorView rows;          ///< [T, format dim] `in`, rows may be strided
    ConstTensorView slot_mapping;  ///< [M] I64, M <= T; only rows with a slot inside the cache are written
    PagedCache cache;
  };
};

}  // namespace smla
