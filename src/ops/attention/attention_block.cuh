#pragma once

#include <cmath>

#include "device/divisor.cuh"
#include "device/numbers.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/vec4.cuh"
#include "ops/attention/attention_call.cuh"
#include "ops/attention/attention_split.h"
#include "ops/attention/key_rows.cuh"
#include "ops/attention/length_cut.h"
#include "ops/head_rows.cuh"
#include "ops/norm_rope/quantise.cuh"

namespace smla::attention {

// What all parts of the tensor-core kernel share: the call, what of it a block computes, and how a head is finished.

constexpr int kThreads = 32 * AttentionTile::kWarps;
constexpr int kDim = AttentionTile::kDim;
constexpr unsigned kAll = 0xFFFF'FFFFU;
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;

/// The arguments of the tensor-core kernel.
struct TileCall {
  AttentionCall a;
  RowLayout layout[SparseAttention::kMaxScopes];
  float score_scale[SparseAttention::kMaxScopes] = {0,
                                                    0};  ///< factor of a scope's scores, which are exponents of 2 then
  float weight_scale[SparseAttention::kMaxScopes] = {
      1, 1};                   ///< factor of a scope's weights: its cache's scale over `unit`
  float unit = 1;              ///< largest scale of the scopes' caches
  bool exact = false;          ///< the scales differ too much for fp16: every head is computed in fp32
  int word = 2;                ///< bytes to which any four neighbours of o are aligned
  bool q_aligned = false;      ///< whether heads of q are aligned to 16 bytes
  std::int64_t part_keys = 0;  ///< of lists that are cut alike, as the next
  std::uint32_t parts = 1;
  LengthCut cut;  ///< where it has room, lists are cut by their lengths
  std::uint32_t head_tiles = 1;
  device::Divisor by_parts;  ///< divides by `parts`, as the next by `head_tiles`
  device::Divisor by_head_tiles;
  std::uint32_t blocks = 0;  ///< with work, of the kernel for any GPU; those behind them fetch code
  std::int64_t tokens = 0;
  std::int64_t first_token = 0;
  std::int64_t tokens_ahead = 0;  ///< from a block's token to that of the block that follows on its multiprocessor
  float* sums = nullptr;          ///< [rows, H, 512]; a row is a token's part
  float2* states = nullptr;       ///< [rows, H]; a sum below 0: its size, of a head whose sums are fp32 in any case
  bool half_sums = false;         ///< sums are fp16 numbers at the beginning of their rows, divided by sum_unit()
  uint2* cuts = nullptr;          ///< of lists that are cut by length: [tokens] first row and number of parts; behind
                                  ///< them the parts of each list where all have as many, or 0, and the most of a list
  const std::int64_t* positions = nullptr;  ///< null: o is not rotated back
  Rope rope;                                ///< its pairs are rotated two at a time

  /// Sets into how many parts lists are cut that are cut alike, and how many tiles a token's heads are.
  void divide(std::int64_t of_list, std::int64_t of_heads) {
    parts = static_cast<std::uint32_t>(of_list), by_parts = device::Divisor(parts);
    head_tiles = static_cast<std::uint32_t>(of_heads), by_head_tiles = device::Divisor(head_tiles);
  }
  /// Whether the kernel that merges parts of lists is launched behind this one. It lets the kernel behind it start,
  /// which may have weights to bring, before it waits for this one.
  __device__ bool merge_follows() const { return cut.extra > 0 || parts > 1; }
  /// The row of cos_sin by which the o of a list's head is rotated back; null when it is not.
  __device__ const float* back_row(std::int64_t list, std::int64_t head) const {
    if (positions == nullptr) return nullptr;
    const std::int64_t position = positions[a.token_of(list, head)];
    return rope.has(position) ? rope.row(position) : nullptr;
  }
  /// The fp16 sums of a head's state.
  __device__ std::uint16_t* halves(std::int64_t state) const {
    return reinterpret_cast<std::uint16_t*>(sums + state * kDim);
  }
  /// Prefetches back_row() of a list's first head for the end of the block.
  __device__ void fetch_back_row(std::int64_t list, int thread) const {
    if (32 * thread >= 2 * rope.pairs) return;
    if (const float* row = back_row(list, 0); row != nullptr) device::prefetch(row + 32 * thread);
  }
  /// Prefetches a token's index lists, as far as its rows are wide.
  __device__ void fetch_lists(std::int64_t token, int thread) const {
    constexpr int kLine = 32;  // entries
#pragma unroll 1
    for (int s = 0; s < a.scopes; ++s) {
      const KeyList& keys = a.keys[s];
      const std::int64_t row = keys.packed ? token : static_cast<std::uint32_t>(token) / keys.sharing;
      const std::int32_t* list = keys.indices + row * keys.index_stride;
      for (std::int64_t i = kLine * thread; i < keys.width; i += kLine * kThreads) device::prefetch(list + i);
    }
  }
  /// Four neighbours of o, rounded and then rotated back by `row`, as InverseRope does it; null: not rotated.
  __device__ float4 rotated_back(const float* row, int column, float4 v) const {
    if (row == nullptr || column < rope.nope) return v;
    if (a.o_dtype != DType::kF32) v = device::rounded_to_bf16(v);
    return rope.rotated(v, column, row, -1.0F);
  }
};

/// How a head is finished. Its state is a reference score (an exponent of 2) and the sum of 2^(score - reference).
struct Finish {
  float factor;  ///< factor of the weighted sums
  float lse;
};
__device__ inline Finish finish(bool partial, float sink, float reference, float sum) {
  if (sum == 0) return {0, partial ? -INFINITY : INFINITY};
  // The sink's term may overflow to infinity; the factor is 0 then, which is right.
  return {1.0F / (sum + exp2f(fmaf(sink, kLog2E, -reference))), fmaf(reference, kLn2, logf(sum))};
}
__device__ inline Finish finish(const AttentionCall& c, std::int64_t head, float reference, float sum) {
  return finish(c.partial, sum == 0 ? 0 : c.sink_of(head), reference, sum);
}
/// The power of two in (sum, 2 sum] by which a part's sums of weighted values are divided before they become fp16
/// numbers: what is left is no larger than the largest value.
__device__ inline float sum_unit(float sum) { return __uint_as_float((__float_as_uint(sum) >> 23) + 1 << 23); }
/// 1 / sum_unit(sum), exactly, of sums up to 2^125.
__device__ inline float per_sum_unit(float sum) { return __uint_as_float(253 - (__float_as_uint(sum) >> 23) << 23); }

/// Adding 0 turns -0 into +0, because sums that went through the workspace have lost the sign of zero.
__device__ inline float finished(float sum, float factor) { return fmaf(sum, factor, 0.0F); }

/// Stores four neighbours of o.
__device__ inline void store(const TileCall& c, std::int64_t at, const float4& v) {
  if (c.a.o_dtype == DType::kBF16) {
    auto* to = static_cast<std::uint16_t*>(c.a.o) + at;
    const uint2 bits = device::computed<BF16>(v);
    if (c.word >= 8) {
      *reinterpret_cast<uint2*>(to) = bits;
    } else {
      to[0] = static_cast<std::uint16_t>(bits.x), to[1] = static_cast<std::uint16_t>(bits.x >> 16);
      to[2] = static_cast<std::uint16_t>(bits.y), to[3] = static_cast<std::uint16_t>(bits.y >> 16);
    }
  } else {
    auto* to = static_cast<float*>(c.a.o) + at;
    if (c.word == 16) {
      *reinterpret_cast<float4*>(to) = v;
    } else {
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
  }
}
__device__ inline float4 finished(const float4& v, float f) {
  return make_float4(finished(v.x, f), finished(v.y, f), finished(v.z, f), finished(v.w, f));
}

/// Where the numbers of a head go in E4M3 o.
__device__ inline std::uint8_t* quantised_head(const AttentionCall& a, std::int64_t token, std::uint32_t head) {
  const std::uint32_t group = head / a.quantised.group_heads;
  return static_cast<std::uint8_t*>(a.o) + group * a.o_stride[0] + token * a.o_stride[1] +
         (head - group * a.quantised.group_heads) * kDim;
}
/// Where the scale of 128 numbers of a head goes: a word, or its `chunk`-th byte where words have four scales.
__device__ inline std::uint8_t* scale_place(const AttentionCall& a, std::int64_t token, std::uint32_t head,
                                            std::uint32_t chunk) {
  constexpr std::uint32_t kChunks = kDim / InverseRopeQuant::kGroup;
  const QuantisedOutput& q = a.quantised;
  const std::uint32_t group = head / q.group_heads;
  const std::uint32_t of_group = head - group * q.group_heads;
  const std::uint32_t row = q.packed ? of_group : of_group * kChunks + chunk;
  return reinterpret_cast<std::uint8_t*>(q.scales + group * q.stride[0] + row * q.stride[1] + token) +
         (q.packed ? chunk : 0);
}
/// Columns of scales to write for a token: its own, and zeros behind the last one.
__device__ inline std::int64_t scale_columns(const AttentionCall& a, std::int64_t token) {
  return token + 1 == a.quantised.tokens ? a.quantised.columns - token : 1;
}
/// Writes the scale 2^exponent to a place and zeros behind it.
__device__ inline void store_scale(bool packed, std::uint8_t* place, std::int64_t columns, int exponent) {
  for (std::int64_t t = 0; t < columns; ++t) {
    if (packed) {
      place[4 * t] = t == 0 ? static_cast<std::uint8_t>(exponent + 127) : std::uint8_t{0};
    } else {
      reinterpret_cast<float*>(place)[t] = t == 0 ? exp2_int(exponent) : 0.0F;
    }
  }
}

/// Stores four neighbours of a head of o, of which a warp has 128. `rotated`: they have been rotated back, where they
/// are among the columns for that. kQuantised: o is E4M3.
template <bool kQuantised>
__device__ void store_columns(const TileCall& c, std::int64_t token, std::int64_t head, int column, bool rotated,
                              float4 v) {
  if constexpr (!kQuantised) {
    store(c, token * c.a.o_stride[0] + head * c.a.o_stride[1] + column, v);
    return;
  }
  if (!rotated || column < c.rope.nope) v = device::rounded_to_bf16(v);
  std::uint32_t codes = 0;
  const int exponent = device::quantised(v, codes);
  const auto h = static_cast<std::uint32_t>(head);
  *reinterpret_cast<std::uint32_t*>(quantised_head(c.a, token, h) + column) = codes;
  if (threadIdx.x % 32 == 0) {
    store_scale(c.a.quantised.packed, scale_place(c.a, token, h, column / InverseRopeQuant::kGroup),
                scale_columns(c.a, token), exponent);
  }
}

/// What a block computes of a token: one part of its list.
struct ListPart {
  std::uint32_t token = 0;      ///< of the launch
  std::uint32_t part = 0;       ///< of the token's list
  std::uint32_t parts = 0;      ///< of that list; 0: there is nothing to compute
  std::uint32_t row = 0;        ///< of TileCall::sums, where the list has several parts
  std::uint32_t part_keys = 0;  ///< entries of a part

  /// Of lists that are cut alike.
  __device__ static ListPart alike(const TileCall& c, std::uint32_t token, std::uint32_t part) {
    return {.token = token,
            .part = part,
            .parts = c.parts,
            .row = token * c.parts + part,
            .part_keys = static_cast<std::uint32_t>(c.part_keys)};
  }
  /// Index of a head's state in TileCall::states.
  __device__ std::int64_t state(const TileCall& c, std::uint32_t head) const {
    return std::int64_t{row} * c.a.heads + head;
  }
};

/// The entries [begin, end) of a key list that a block computes, of a token or of packed ones. Whole warps find them.
/// The list holds the entries of the first scope, filled up to whole tiles, and behind them those of the second.
template <AttentionTile kTile, Lists kLists = Lists::kAny>
struct Run {
  std::int64_t token;
  int first;   ///< entries of the first scope
  int second;  ///< first entry of the second scope
  int begin;
  int end;

  __device__ Run(const TileCall& c, const ListPart& of) : token(c.first_token + of.token) {
    int entries[SparseAttention::kMaxScopes];
    c.a.template entries_by_warp<kLists>(token, entries);
    begin_at(c, of, entries);
  }
  /// Where it is known how many entries the scopes' lists have.
  __device__ Run(const TileCall& c, const ListPart& of, const int (&entries)[SparseAttention::kMaxScopes])
      : token(c.first_token + of.token) {
    begin_at(c, of, entries);
  }
  /// A run without keys, of `tiles` tiles, 0 or 1.
  __device__ Run(const TileCall& c, int tiles)
      : token(c.first_token), first(0), second(kTile.keys), begin(0), end(tiles) {}
  /// The scope of the tile that begins at entry `base`.
  __device__ int scope(int base) const { return base < second ? 0 : 1; }
  /// The place of an entry of that tile in its scope's list.
  __device__ int in_scope(int base, int entry) const { return base < second ? entry : entry - second; }
  /// Of the tile that begins at `base` the keys {first, behind the last} that count for a token, which may lie outside
  /// of it.
  __device__ int2 counting(const TileCall& c, int base, std::int64_t of_token) const {
    const int2 columns = c.a.keys[scope(base)].range(of_token);
    const int first_key = in_scope(base, base);
    return {columns.x - first_key, columns.y - first_key};
  }
  /// Whether the tile that begins at `base` contains entry `entry`.
  __device__ bool has(int base, int entry) const { return entry < (base < second ? min(first, end) : end); }
  /// listed() loads what the list holds at an entry, slot() makes a slot of it, -1 for none. They are apart so that a
  /// thread does not wait for the load before it needs the slot.
  __device__ std::int32_t listed(const TileCall& c, int base, int row) const {
    if (!has(base, base + row)) return -1;
    return __ldg(c.a.keys[scope(base)].template first<kLists>(token) + in_scope(base, base + row));
  }
  __device__ std::int32_t slot(const TileCall& c, int base, int row, std::int32_t listed) const {
    return has(base, base + row) && static_cast<std::uint32_t>(listed) < c.layout[scope(base)].num_slots ? listed : -1;
  }

 private:
  __device__ void begin_at(const TileCall& c, const ListPart& of, const int (&entries)[SparseAttention::kMaxScopes]) {
    first = entries[0];
    second = (first + kTile.keys - 1) / kTile.keys * kTile.keys;
    const int all = c.a.scopes > 1 ? second + entries[1] : first;
    const std::int64_t part_keys = of.part_keys;
    begin = static_cast<int>(min(of.part * part_keys, static_cast<std::int64_t>(all)));
    end = static_cast<int>(min(begin + part_keys, static_cast<std::int64_t>(all)));
  }
};

}  // namespace smla::attention
