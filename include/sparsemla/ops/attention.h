#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/op.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Attention of every query over the rows that its index lists name, in one or two caches (spec 2, 8). A row is a key
/// of `dim` numbers; its first `value_dim` numbers are its value v_j (in DeepSeek-V4 all 512; in DeepSeek-V3.2 512 of
/// 576):
///   s_j = scale * <q_h, k_j>,  lse = ln sum_j exp(s_j),  o = sum_j exp(s_j - lse) v_j / (1 + exp(sink_h - lse))
/// over all valid entries of all scopes, one softmax. Entry c of a row counts when c < clamp(lens, 0, width) and its
/// index lies in [0, num_blocks * block_size); everything else is skipped, so no input can make it read outside a
/// cache. Repeated slots count repeatedly. lse is natural and without the sink; a row with no key gives o = 0 and lse =
/// +inf. sink -inf: none; +inf: o = 0. `partial`: o is F32, the sink is not applied, an empty row gives o = 0 and lse =
/// -inf; see MergePartials. The steps before and after attention may be part of the call: QueryPrologue,
/// OutputEpilogue.
///
/// With `tokens_per_list` n > 1 the tokens n i to n i + n - 1 share row i of every scope's indices, as the queries of a
/// request whose draft tokens are verified do: entry c of that row counts for a token when starts <= c < starts + lens.
/// Kernels may read a row that several of its tokens name once for all of them, so a token's bits may differ from those
/// of a call in which it has a row of its own.
struct SparseAttention {
  static constexpr std::string_view kName = "sparse_attention";
  static constexpr int kMaxScopes = 2;
  /// Implementations whose kernels write E4M3 o. The others compute BF16 o, some tokens at a time, and quantise it.
  static constexpr std::array<std::string_view, 2> kWritesE4M3 = {"sm90_widened", "sm90"};

  /// The shape of a scope.
  struct ScopeShape {
    const RowFormat* format = nullptr;  ///< format of the cache's rows
    std::int64_t block_size = 0;        ///< rows in a block
    std::int64_t width = 0;             ///< W: columns of the index matrix
  };
  /// Head norm and RoPE of the queries as they are loaded (spec 2 step 4): q is as projected, and its heads are used as
  /// QNormRopeInsert would make them in place, bit for bit; q itself is not changed. Not for E4M3 q.
  struct QueryPrologue {
    int rope_dim = 64;  ///< numbers of a head of q that are rotated, its last
    float eps = 1e-6F;  ///< epsilon of the norm
    struct Args {
      ConstTensorView positions;  ///< [T] I64; of a position without a row in cos_sin q is used as it is
      ConstTensorView cos_sin;    ///< [L, rope_dim] F32
    };
  };
  /// Inverse RoPE of the output before it is stored (spec 2 step 7): o is what InverseRope would make of it in place,
  /// bit for bit. Not for partial results.
  ///
  /// With E4M3 o also the quantisation for an FP8 output projection: o and `scales` are what InverseRopeQuant would
  /// make of BF16 o, bit for bit, group after group. What is written for a token whose position has no row in cos_sin
  /// is unspecified then.
  struct OutputEpilogue {
    int rope_dim = 64;                      ///< numbers of a head of o that are rotated back, its last
    std::int64_t groups = 0;                ///< G, divides H: E4M3 o; 0: o in BF16 or F32
    OutputScale scale = OutputScale::kF32;  ///< how scales are stored
    struct Args {
      ConstTensorView positions;  ///< [T] I64; of a position without a row in cos_sin o is stored as it is
      ConstTensorView cos_sin;    ///< [L, rope_dim] F32
      /// With groups. kF32: [G, D/128, >= T] F32; kUe8m0x4: [G, cdiv(D/128, 4), >= T] I32; D = H/G * out_dim(). The
      /// first two strides are free, the last is 1. What is behind column T becomes 0.
      TensorView scales{};
    };
  };
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t heads = 0;                      ///< H, 1..128
    std::int64_t out_heads = 0;                  ///< Hp >= H; heads H..Hp-1 of o are written as +0. 0 means H
    int dim = 512;                               ///< numbers of a row, which is a key
    int value_dim = 0;                           ///< numbers of a row that are its value, its first ones; 0 means dim
    DType q = DType::kBF16;                      ///< BF16, E4M3 or F32
    DType o = DType::kBF16;                      ///< BF16 or F32, F32 when partial; E4M3 with output_epilogue.groups
    int scopes = 1;                              ///< 1 or 2
    std::array<ScopeShape, kMaxScopes> scope{};  ///< shape of each scope
    float scale = 0.0F;                          ///< softmax scale; 0 means dim^-0.5
    float q_scale = 1.0F;                        ///< E4M3 q: value = e4m3 * q_scale
    bool partial = false;                        ///< no sink, o in F32
    std::optional<QueryPrologue> query_prologue{};    ///< absent: q is ready
    std::optional<OutputEpilogue> output_epilogue{};  ///< absent: o is stored as it is
    /// n, divides T: consecutive tokens that share a row of indices. Above 1 with H == Hp and without
    /// output_epilogue.groups; in q, o and lse all heads of all tokens are evenly spaced then.
    std::int64_t tokens_per_list = 1;

    std::int64_t lists() const { return tokens / tokens_per_list; }  ///< rows of indices

    std::int64_t padded_heads() const { return out_heads == 0 ? heads : out_heads; }  ///< Hp
    int out_dim() const { return value_dim == 0 ? dim : value_dim; }                  ///< numbers of a head of o
    float softmax_scale() const;                                                      ///< `scale`, or its default
  };
  /// A cache and the rows of it that queries attend to.
  struct Scope {
    PagedCache cache{};
    ConstTensorView indices{};  ///< [T / tokens_per_list, W] I32 slots, rows may be strided
    ConstTensorView lens{};     ///< [T] I32; absent: W
    ConstTensorView starts{};   ///< with tokens_per_list above 1: [T] I32; absent: 0
  };
  struct Args {
    ConstTensorView q{};                     ///< [T, >= H, dim]; heads past H are not read
    std::array<Scope, kMaxScopes> scopes{};  ///< as many as the problem says
    ConstTensorView sink{};                  ///< [H] F32; absent: none
    TensorView o{};                          ///< [T, Hp, out_dim()]; E4M3: [G, T, H/G * out_dim()]
    TensorView lse{};                        ///< [T, H] F32; absent: not wanted
    QueryPrologue::Args query_prologue{};    ///< with query_prologue
    OutputEpilogue::Args output_epilogue{};  ///< with output_epilogue
  };
};

/// Merges partial results over slices of the key list into the final one (spec 9, 15):
///   lse = ln sum_i exp(lse_i), o = sum_i exp(lse_i - lse) o_i / (1 + exp(sink_h - lse)).
/// A slice with lse -inf does not count and is not read. When no slice has a key, o = 0 and lse = +inf.
struct MergePartials {
  static constexpr std::string_view kName = "merge_partials";
  struct Problem {
    std::int64_t slices = 0;  ///< S
    std::int64_t tokens = 0;
    std::int64_t heads = 0;
    int dim = 512;           ///< numbers of a row
    DType o = DType::kBF16;  ///< BF16 or F32
  };
  struct Args {
    ConstTensorView partial_o{};    ///< [S, T, H, dim] F32
    ConstTensorView partial_lse{};  ///< [S, T, H] F32
    ConstTensorView sink{};         ///< [H] F32; absent: none
    TensorView o{};                 ///< [T, H, dim]
    TensorView lse{};               ///< [T, H] F32; absent: not wanted
  };
};

/// Decodes rows of requests to bf16 into one workspace, for a prefill kernel that reads plain rows (spec 7.4):
///   out[b, offset + i] = row of position seq - L + i of request b, i < L; L = gather_lens[b], or seq_lens[b] without
///   gather_lens.
/// Only the table columns of these positions are read. A position whose block lies outside the table or the cache gives
/// a row of zeros. Other rows of `out` are not touched; L is clamped to [0, seq], and rows that would lie past the end
/// of `out` are left out.
struct GatherRows {
  static constexpr std::string_view kName = "gather_rows";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t rows = 0;              ///< rows of a request in `out`
    std::int64_t offset = 0;            ///< first row written
    const RowFormat* format = nullptr;  ///< how rows are stored
  };
  struct Args {
    PagedCache cache{};
    ConstTensorView seq_lens{};     ///< [requests] I32, rows that the request has
    ConstTensorView gather_lens{};  ///< [requests] I32; absent: all
    ConstTensorView block_table{};  ///< [requests, columns] I32
    TensorView out{};               ///< [requests, rows, format dim] BF16
  };
};

}  // namespace smla
