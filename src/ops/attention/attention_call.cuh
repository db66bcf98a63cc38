#pragma once

#include "cache/cache_view.cuh"
#include "device/row_views.cuh"
#include "ops/head_rows.cuh"
#include "sparsemla/ops/attention.h"

namespace smla {

/// What a kernel is compiled for. Small calls are slower with code for the other cases in it, although they do not
/// execute it: a multiprocessor keeps 128 KB of instructions (docs/kernels/sparse_attention_sm90.md).
enum class Lists {
  kOwnRows,  ///< each token has a row of indices of its own
  kAlone,    ///< tokens may share rows, but are not packed
  kPacked,   ///< those that share a row are packed
  kAny,      ///< any of these, as the call says
};

/// A cache and its index matrix as a kernel reads them. A list is what a kernel takes of a row of the matrix: the part
/// of it that counts for a token, or, of packed tokens, as much of the row as they need together.
struct KeyList {
  device::CacheView cache;
  const std::int32_t* indices = nullptr;
  std::int64_t index_stride = 0;
  const std::int32_t* lens = nullptr;
  std::int64_t lens_stride = 0;
  const std::int32_t* starts = nullptr;
  std::int64_t starts_stride = 0;
  std::int64_t width = 0;
  std::uint32_t sharing = 1;  ///< tokens that share a row
  bool packed = false;        ///< a list is that of `sharing` tokens; otherwise that of one

  /// The columns {first, behind the last} of its row that count for a token, of rows of up to 2^30 columns.
  __device__ int2 range(std::int64_t token) const {
    const int wide = static_cast<int>(width);
    const int start = starts == nullptr ? 0 : starts[token * starts_stride];
    const int length = lens == nullptr ? wide : lens[token * lens_stride];
    const int begin = min(max(start, 0), wide);
    const int rest = max(length, 0) + min(start, 0);  // what a start before the row leaves of it
    return {begin, begin + min(max(rest, 0), wide - begin)};
  }
  /// How many entries a list has that is not packed, of rows as wide.
  template <Lists kLists>
  __device__ int entries(std::int64_t token) const {
    static_assert(kLists == Lists::kOwnRows || kLists == Lists::kAlone);
    if (kLists == Lists::kAlone && sharing > 1) {
      const int2 columns = range(token);
      return columns.y - columns.x;
    }
    return lens == nullptr ? static_cast<int>(width) : entries_of(lens[token * lens_stride]);
  }
  /// The entries of a row that no other token has, by its length as it is given.
  __device__ int entries_of(int length) const { return min(max(length, 0), static_cast<int>(width)); }
  /// The same of rows of any width.
  __device__ std::int64_t entries(std::int64_t token) const {
    const std::int64_t start = starts == nullptr ? 0 : std::int64_t{starts[token * starts_stride]};
    const std::int64_t length = lens == nullptr ? width : std::int64_t{lens[token * lens_stride]};
    const std::int64_t begin = min(max(start, std::int64_t{0}), width);
    return min(max(start + length, begin), width) - begin;
  }
  /// A list's first entry. Where it has none there may be none to read.
  template <Lists kLists = Lists::kAny>
  __device__ const std::int32_t* first(std::int64_t list) const {
    if (kLists == Lists::kOwnRows || kLists == Lists::kPacked || sharing == 1 || (kLists == Lists::kAny && packed))
      return indices + list * index_stride;
    const int start = starts == nullptr ? 0 : starts[list * starts_stride];
    return indices + std::int64_t{static_cast<std::uint32_t>(list) / sharing} * index_stride +
           min(std::int64_t{max(start, 0)}, width);
  }
  /// The slot of an entry, -1 if it lies outside of the cache.
  __device__ std::int32_t slot(std::int64_t list, std::int64_t entry) const {
    const std::int32_t slot = first(list)[entry];
    return slot >= 0 && slot < cache.num_slots ? slot : -1;
  }
};

/// Where E4M3 o and its scales go: InverseRopeQuant's layout.
struct QuantisedOutput {
  std::uint32_t* scales = nullptr;  ///< words: one fp32 or four UE8M0 scales; null: o is not quantised
  std::int64_t stride[2] = {0, 0};  ///< of a group, and from words of 128 (or 512) numbers to the next
  std::int64_t tokens = 0;
  std::int64_t columns = 0;  ///< tokens, and what behind them becomes 0
  std::uint32_t group_heads = 1;
  bool packed = false;
};

/// The arguments of a SparseAttention kernel.
struct AttentionCall {
  std::int64_t heads = 0;
  std::int64_t out_heads = 0;
  int dim = 0;
  int out_dim = 0;
  int scopes = 1;
  float scale = 0;
  float q_scale = 1;
  bool partial = false;
  DType q_dtype = DType::kBF16;
  DType o_dtype = DType::kBF16;
  const void* q = nullptr;
  std::int64_t q_stride[2] = {0, 0};
  void* o = nullptr;
  std::int64_t o_stride[2] = {0, 0};  ///< of a token and a head; of a group and a token where o is quantised
  QuantisedOutput quantised;
  float* lse = nullptr;
  std::int64_t lse_stride[2] = {0, 0};
  const float* sink = nullptr;
  std::int64_t sink_stride = 0;
  KeyList keys[SparseAttention::kMaxScopes];
  std::uint32_t packed = 1;     ///< tokens whose heads are those of one here; all lists have as many
  std::uint32_t own_heads = 1;  ///< heads of a token
  float per_own_heads = 1;
  const std::int64_t* q_positions = nullptr;  ///< null: q is ready
  Rope q_rope;
  float q_eps = 0;

  /// Which of the packed tokens a head is of, the last one's past the last head. AttentionSplit::kMostPacked says why
  /// that is exact.
  __device__ std::uint32_t place_of(std::int64_t head) const {
    const float place = (static_cast<float>(static_cast<std::uint32_t>(head)) + 0.5F) * per_own_heads;
    return min(__float2uint_rz(place), packed - 1);
  }
  /// The token of a head of a list.
  __device__ std::int64_t token_of(std::int64_t list, std::int64_t head) const {
    if (packed > 1) [[unlikely]]
      return list * packed + place_of(head);
    return list;
  }
  /// How many entries each scope's list has; of a packed one those up to the last that counts for one of its tokens, of
  /// which every step-th from `first` on is looked at. The lengths of both scopes are waited for together.
  template <Lists kLists>
  __device__ void entries(std::int64_t list, std::uint32_t first, std::uint32_t step,
                          int (&of)[SparseAttention::kMaxScopes]) const {
    static_assert(SparseAttention::kMaxScopes == 2);
    if (is_packed<kLists>()) {
      of[0] = of[1] = 0;
#pragma unroll 1
      for (std::uint32_t i = first; i < packed; i += step) {
        const std::int64_t token = list * packed + i;
        const int end = keys[0].range(token).y;
        const int end_of_second = scopes > 1 ? keys[1].range(token).y : 0;
        of[0] = max(of[0], end), of[1] = max(of[1], end_of_second);
      }
      return;
    }
    constexpr Lists kNotPacked = kLists == Lists::kOwnRows ? Lists::kOwnRows : Lists::kAlone;
    of[0] = keys[0].template entries<kNotPacked>(list);
    of[1] = scopes > 1 ? keys[1].template entries<kNotPacked>(list) : 0;
  }
  /// The same by whole warps, whose lanes share the tokens of a packed list.
  template <Lists kLists>
  __device__ void entries_by_warp(std::int64_t list, int (&of)[SparseAttention::kMaxScopes]) const {
    entries<kLists>(list, threadIdx.x % 32, 32, of);
    if (!is_packed<kLists>()) return;
    for (int& one : of) one = __reduce_max_sync(0xFFFF'FFFFU, one);
  }
  template <Lists kLists>
  __device__ bool is_packed() const {
    return kLists == Lists::kPacked || (kLists == Lists::kAny && packed > 1);
  }
  __device__ float sink_of(std::int64_t head) const {
    if (sink == nullptr) return -INFINITY;
    if (packed > 1) [[unlikely]]
      head -= place_of(head) * own_heads;
    return sink[head * sink_stride];
  }
  /// The row of cos_sin by which the queries of a list's head are rotated after their norm; null: they are used as they
  /// are.
  __device__ const float* q_row(std::int64_t list, std::int64_t head) const {
    if (q_positions == nullptr) return nullptr;
    const std::int64_t position = q_positions[token_of(list, head)];
    return q_rope.has(position) ? q_rope.row(position) : nullptr;
  }
  /// Loads a head's query into a warp, normed and rotated where q_row() says so: q[k] holds numbers 128 k + 4 lane and
  /// the next three. `row`: that token's q_row().
  template <int kVec4s>
  __device__ void queries(std::int64_t token, std::int64_t head, const float* row, float4 (&q)[kVec4s]) const {
    float4 v[1][kVec4s];
#pragma unroll
    for (int k = 0; k < kVec4s; ++k) {
      const int d = 128 * k + 4 * static_cast<int>(threadIdx.x % 32);
      v[0][k] = make_float4(0, 0, 0, 0);
      if (d < dim)
        v[0][k] = make_float4(query(token, head, d), query(token, head, d + 1), query(token, head, d + 2),
                              query(token, head, d + 3));
    }
    if (row != nullptr) smla::norm_and_rotate(v, dim, q_eps, q_rope, row);
#pragma unroll
    for (int k = 0; k < kVec4s; ++k)
      q[k] = row != nullptr && q_dtype == DType::kBF16 ? device::rounded_to_bf16(v[0][k]) : v[0][k];
  }

  __device__ float query(std::int64_t token, std::int64_t head, int d) const {
    const std::int64_t i = token * q_stride[0] + head * q_stride[1] + d;
    if (q_dtype == DType::kBF16) return device::from_bf16(static_cast<const std::uint16_t*>(q)[i]);
    if (q_dtype == DType::kE4M3) return device::from_e4m3(static_cast<const std::uint8_t*>(q)[i]) * q_scale;
    return static_cast<const float*>(q)[i];
  }
  __device__ void store(std::int64_t token, std::int64_t head, int d, float v) const {
    const std::int64_t at = token * o_stride[0] + head * o_stride[1] + d;
    if (o_dtype == DType::kBF16) {
      static_cast<std::uint16_t*>(o)[at] = device::to_bf16_bits(v);
    } else {
      static_cast<float*>(o)[at] = v;
    }
  }
};

inline AttentionCall attention_call(const SparseAttention::Problem& p, const SparseAttention::Args& a) {
  AttentionCall c{.heads = p.heads,
                  .out_heads = p.padded_heads(),
                  .dim = p.dim,
                  .out_dim = p.out_dim(),
                  .scopes = p.scopes,
                  .scale = p.softmax_scale(),
                  .q_scale = p.q_scale,
                  .partial = p.partial,
                  .q_dtype = p.q,
                  .o_dtype = p.o,
                  .q = a.q.data,
                  .q_stride = {a.q.stride[0], a.q.stride[1]},
                  .o = a.o.data,
                  .o_stride = {a.o.stride[0], a.o.stride[1]},
                  .lse = static_cast<float*>(a.lse.data),
                  .lse_stride = {a.lse.stride[0], a.lse.stride[1]},
                  .sink = static_cast<const float*>(a.sink.data),
                  .sink_stride = a.sink.stride[0],
                  .own_heads = static_cast<std::uint32_t>(p.heads),
                  .per_own_heads = 1.0F / static_cast<float>(p.heads)};
  if (const TensorView& scales = a.output_epilogue.scales; !scales.absent()) {
    c.quantised = {.scales = static_cast<std::uint32_t*>(scales.data),
                   .stride = {scales.stride[0], scales.stride[1]},
                   .tokens = p.tokens,
                   .columns = scales.size(2),
                   .group_heads = static_cast<std::uint32_t>(p.heads / p.output_epilogue->groups),
                   .packed = p.output_epilogue->scale == OutputScale::kUe8m0x4};
  }
  if (p.query_prologue) {
    c.q_positions = static_cast<const std::int64_t*>(a.query_prologue.positions.data);
    c.q_rope = rope_of(a.query_prologue.cos_sin, p.dim, p.query_prologue->rope_dim);
    c.q_eps = p.query_prologue->eps;
  }
  for (int s = 0; s < p.scopes; ++s) {
    const SparseAttention::Scope& from = a.scopes[static_cast<std::size_t>(s)];
    c.keys[s] = {.cache = device::view_of_cache(from.cache),
                 .indices = static_cast<const std::int32_t*>(from.indices.data),
                 .index_stride = from.indices.stride[0],
                 .lens = static_cast<const std::int32_t*>(from.lens.data),
                 .lens_stride = from.lens.stride[0],
                 .starts = static_cast<const std::int32_t*>(from.starts.data),
                 .starts_stride = from.starts.stride[0],
                 .width = p.scope[static_cast<std::size_t>(s)].width,
                 .sharing = static_cast<std::uint32_t>(p.tokens_per_list)};
  }
  return c;
}

/// Packs a call's tokens that share lists: the tokens of a list become one token with all their heads. `p`: not packed.
inline void pack(AttentionCall& c, const SparseAttention::Problem& p) {
  const auto n = static_cast<std::uint32_t>(p.tokens_per_list);
  const auto make_even = [&](std::int64_t& token, std::int64_t& head) {
    if (p.heads == 1) head = token;
    token = n * p.heads * head;
  };
  make_even(c.q_stride[0], c.q_stride[1]), make_even(c.o_stride[0], c.o_stride[1]);
  make_even(c.lse_stride[0], c.lse_stride[1]);
  c.heads *= n, c.out_heads *= n;
  c.packed = n;
  for (int s = 0; s < p.scopes; ++s) c.keys[s].packed = true;
}

}  // namespace smla
