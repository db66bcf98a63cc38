#pragma once

#include <cstdint>
#include <string_view>

#include "sparsemla/kv_format.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// RMSNorm of rows: y_i = x_i * rsqrt(sum(x^2)/n + eps) * w_i in fp32, products left to right, one rounding at the end (spec 2).
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t dim = 0;
    DType in = DType::kBF16;   ///< BF16 or F32
    DType out = DType::kBF16;  ///< BF16 or F32
    bool has_weight = true;
    float eps = 1e-6F;
  };
  struct Args {
    ConstTensorView x;       ///< [rows, dim] `in`; rows may be strided (a column slice of a wider matrix)
    ConstTensorView weight;  ///< [dim] BF16 or F32; absent without weight
    TensorView y;            ///< [rows, dim] `out`; may be x itself
  };
};

/// Head norm + RoPE of q and RoPE + quantise + insert of kv, one op as upstream fuses it (spec 2 step 4, 5.3).
///
/// q: each head is divided by its root mean square over all dims (no weight), its last `rope_dim` dims are rotated at the token's position,
/// one rounding at the end.
/// kv (already normed): the last dims are rotated, the row is encoded in the cache's format at its slot. kv itself is not changed.
/// Rotation of pair i (interleaved): e' = e*c_i - o*s_i, o' = o*c_i + e*s_i, without contraction to FMA.
/// A token whose position is not a row of `cos_sin` is skipped: neither its q_out row nor its cache row is written. Slots outside the cache write
/// nothing. The slots of a call are distinct (of two tokens with one slot, either may win).
struct QNormRopeInsert {
  static constexpr std::string_view kName = "qnorm_rope_insert";
  struct Problem {
    std::int64_t tokens = 0;     ///< N
    std::int64_t heads = 0;      ///< H, 0 when there is no q
    std::int64_t out_heads = 0;  ///< Hp >= H: heads H..Hp-1 of q_out are written as +0
    int dim = 512;
    int rope_dim = 64;
    DType in = DType::kBF16;            ///< of q and kv: BF16 or F32
    DType q_out = DType::kBF16;         ///< BF16, F32 or E4M3
    const RowFormat* format = nullptr;  ///< rows of the cache; null when nothing is inserted
    float eps = 1e-6F;
    float q_scale_inv = 1.0F;  ///< E4M3 q_out: e4m3(clamp(x * q_scale_inv, +-448))
    ClampRule clamp = ClampRule::kAmax;
  };
  struct Args {
    ConstTensorView q;             ///< [N, H, dim] `in`
    ConstTensorView kv;            ///< [N, dim] `in`, rows may be strided
    ConstTensorView positions;     ///< [N] I64
    ConstTensorView cos_sin;       ///< [L, rope_dim] F32, row p = cos || sin
    ConstTensorView slot_mapping;  ///< [M] I64, M <= N: only the first M rows of kv are inserted, and only where slot >= 0
    TensorView q_out;              ///< [N, Hp, dim]; may be q itself when Hp = H and the dtypes agree
    PagedCache cache;
  };
};

/// Inverse RoPE of the attention output at the query's position: e' = e*c + o*s, o' = o*c - e*s; one rounding (spec 2 step 7).
/// A token whose position is not a row of `cos_sin` is skipped: its rows of y are not written.
struct InverseRope {
  static constexpr std::string_view kName = "inverse_rope";
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t heads = 0;
    int dim = 512;
    int rope_dim = 64;
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

}  // namespace smla
