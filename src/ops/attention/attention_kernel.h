#pragma once

// The CPU kernel of sparse attention, a template over the SIMD word. Include after one word (simd_*.h); internal
// linkage (see simd_generic.h). A tile of keys is decoded once to fp32 and serves all heads of the task: scores = q K^T
// by register blocks of heads x 4 keys, an online softmax a head, then o = o * rescale + p K by register blocks of
// heads x 4 words. A head's result does not depend on the other heads.

#include <cstdint>
#include <cstring>

#include "device/simd_math.h"
#include "ops/attention/attention_task.h"

namespace smla {
namespace {

/// Heads in a register block: x4 accumulators must fit into 32 registers (AVX-512) or 16 (AVX2; the generic word also
/// needs some for products, having no FMA).
template <class Word>
constexpr int kHeadBlock = Word::kLanes == 16  ? 6
                           : Word::kLanes == 8 ? 3
                                               : 2;

constexpr float kNegativeInfinity = -__builtin_inff();

template <class Word>
inline Word load_as(Element element, const std::uint8_t* bytes, int i) {
  switch (element) {
    case Element::kBF16: return Word::load_bf16(bytes + 2 * i);
    case Element::kE4M3: return Word::load_e4m3(bytes + i);
    case Element::kE2M1: return Word::load_e2m1(bytes + i / 2);
    case Element::kF32: break;
  }
  return Word::load(reinterpret_cast<const float*>(bytes) + i);
}

/// Multiplies n numbers by a factor; n is a multiple of the word's lanes.
template <class Word, Element element>
inline void decode_run(const std::uint8_t* bytes, int n, float factor, float* out) {
  const Word f = Word::all(factor);
  for (int i = 0; i < n; i += Word::kLanes) (load_as<Word>(element, bytes, i) * f).store(out + i);
}

template <class Word>
inline void decode_part(Element element, const std::uint8_t* bytes, int n, float factor, float* out) {
  switch (element) {
    case Element::kF32: return decode_run<Word, Element::kF32>(bytes, n, factor, out);
    case Element::kBF16: return decode_run<Word, Element::kBF16>(bytes, n, factor, out);
    case Element::kE4M3: return decode_run<Word, Element::kE4M3>(bytes, n, factor, out);
    case Element::kE2M1: return decode_run<Word, Element::kE2M1>(bytes, n, factor, out);
  }
}

inline float group_factor(const KeyScope& scope, const std::uint8_t* scales, int group) {
  std::uint32_t bits = 0;
  if (scope.scale_kind == ScaleKind::kUe8m0) {
    const std::uint32_t byte = scales[group];
    bits = byte == 255 ? 0x7FC0'0000U : byte == 0 ? 0x0040'0000U : byte << 23;
  } else {
    std::memcpy(&bits, scales + 4 * group, sizeof bits);
  }
  float factor = 0;
  std::memcpy(&factor, &bits, sizeof factor);
  return factor;
}

/// The key in `slot`, which is known to lie in the cache.
template <class Word>
inline void decode_key(const AttentionTask& task, const KeyScope& scope, std::int64_t slot, float* out) {
  if (!scope.whole_words) {
    task.decode_any(scope.cache, slot, out);
    return;
  }
  const std::uint8_t* block = scope.base + slot / scope.block_size * scope.block_stride;
  const std::int64_t offset = slot % scope.block_size;
  const std::uint8_t* data = block + offset * scope.data_bytes;
  if (scope.group > 0) {
    const std::uint8_t* scales = block + scope.scale_byte + offset * scope.scale_stride;
    const std::int64_t group_bytes = scope.nope_bytes * scope.group / scope.nope_dim;
    for (int g = 0; g * scope.group < scope.nope_dim; ++g) {
      decode_part<Word>(scope.nope, data + g * group_bytes, scope.group, group_factor(scope, scales, g),
                        out + g * scope.group);
    }
  } else {
    decode_part<Word>(scope.nope, data, scope.nope_dim, scope.scale_kind == ScaleKind::kPerTensor ? scope.scale : 1.0F,
                      out);
  }
  decode_part<Word>(scope.rope, data + scope.rope_byte, scope.rope_dim, 1.0F, out + scope.nope_dim);
}

inline void clear(float* p, std::int64_t n) { std::memset(p, 0, static_cast<std::size_t>(n) * sizeof(float)); }

/// The position of the walk over a row's index lists.
struct Cursor {
  int scope = 0;
  std::int64_t entry = 0;
};

/// Decodes the next valid keys of the lists and returns how many; 0 at the lists' end. Fills up with rows of zeros to a
/// multiple of 4.
template <class Word>
inline int next_tile(const AttentionTask& task, Cursor& at) {
  std::int32_t slots[kAttentionTile];
  std::uint8_t scopes[kAttentionTile];
  int n = 0;
  for (; at.scope < task.num_scopes; ++at.scope, at.entry = 0) {
    const KeyScope& scope = task.scopes[at.scope];
    for (; at.entry < scope.entries && n < kAttentionTile; ++at.entry) {
      const std::int32_t slot = scope.indices[at.entry];
      if (slot < 0 || slot >= scope.num_slots) continue;
      slots[n] = slot;
      scopes[n++] = static_cast<std::uint8_t>(at.scope);
    }
    if (n == kAttentionTile) break;
  }
  const std::int64_t stride = task.row_stride;
  const std::int64_t padded = task.padded_dim;
  for (int i = 0; i < n; ++i) {
    decode_key<Word>(task, task.scopes[scopes[i]], slots[i], task.keys + i * stride);
    clear(task.keys + i * stride + task.dim, padded - task.dim);
  }
  for (int i = n; i % 4 != 0; ++i) clear(task.keys + i * stride, padded);
  return n;
}

/// Converts the queries of the task's heads to fp32, padded with zeros.
template <class Word>
inline void load_queries(const AttentionTask& task) {
  const std::int64_t stride = task.row_stride;
  const Element element = task.q_type == DType::kBF16   ? Element::kBF16
                          : task.q_type == DType::kE4M3 ? Element::kE4M3
                                                        : Element::kF32;
  const int size = task.q_type == DType::kBF16 ? 2 : task.q_type == DType::kE4M3 ? 1 : 4;
  const float factor = task.q_type == DType::kE4M3 ? task.q_scale : 1.0F;
  const int whole = task.dim / Word::kLanes * Word::kLanes;
  for (int h = 0; h < task.heads; ++h) {
    const std::uint8_t* bytes = static_cast<const std::uint8_t*>(task.q) + h * task.q_stride * size;
    float* row = task.q_rows + h * stride;
    clear(row + whole, task.padded_dim - whole);
    decode_part<Word>(element, bytes, whole, factor, row);
    if (whole < task.dim) {
      std::uint8_t last[64] = {};
      float values[16];
      std::memcpy(last, bytes + static_cast<std::int64_t>(whole) * size,
                  static_cast<std::size_t>((task.dim - whole) * size));
      decode_part<Word>(element, last, Word::kLanes, factor, values);
      std::memcpy(row + whole, values, static_cast<std::size_t>(task.dim - whole) * sizeof(float));
    }
  }
}

/// scores[h][k] = <q_h, key_k> for `kHeads` heads and keys [0, n) by fours.
template <class Word, int kHeads>
inline void score_block(const float* q, const float* keys, std::int64_t stride, std::int64_t padded, int n,
                        float* scores) {
  for (int k = 0; k < n; k += 4) {
    const float* key = keys + k * stride;
    Word sums[kHeads][4];
    for (int h = 0; h < kHeads; ++h) {
      for (int j = 0; j < 4; ++j) sums[h][j] = Word::zero();
    }
    for (std::int64_t d = 0; d < padded; d += Word::kLanes) {
      Word x[kHeads];
      for (int h = 0; h < kHeads; ++h) x[h] = Word::load(q + h * stride + d);
      for (int j = 0; j < 4; ++j) {
        const Word y = Word::load(key + j * stride + d);
        for (int h = 0; h < kHeads; ++h) sums[h][j] = fma(x[h], y, sums[h][j]);
      }
    }
    for (int h = 0; h < kHeads; ++h)
      sum4(sums[h][0], sums[h][1], sums[h][2], sums[h][3], scores + h * kAttentionTile + k);
  }
}

/// o[h] = o[h] * rescale[h] + sum_k p[h][k] key_k for `kHeads` heads and the four words at one place of the rows.
/// A tile is summed by itself first, so the rounding error grows with the length of a tile plus the number of tiles,
/// not with the length of the list.
template <class Word, int kHeads>
inline void value_block(const float* p, const float* rescale, const float* keys, std::int64_t stride, int n, float* o) {
  Word sums[kHeads][4];
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < 4; ++j) sums[h][j] = Word::zero();
  }
  for (int k = 0; k < n; ++k) {
    Word x[4];
    for (int j = 0; j < 4; ++j) x[j] = Word::load(keys + k * stride + j * Word::kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const Word weight = Word::all(p[h * kAttentionTile + k]);
      for (int j = 0; j < 4; ++j) sums[h][j] = fma(weight, x[j], sums[h][j]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const Word f = Word::all(rescale[h]);
    for (int j = 0; j < 4; ++j) {
      float* place = o + h * stride + j * Word::kLanes;
      fma(Word::load(place), f, sums[h][j]).store(place);
    }
  }
}

template <int n>
struct Count {
  static constexpr int value = n;
};

/// Calls block(h, Count<n>) for blocks of n heads from head h on: full blocks, then one of the remaining heads.
template <int kMaxHeads, class Block>
inline void for_head_blocks(int heads, const Block& block) {
  int h = 0;
  for (; h + kMaxHeads <= heads; h += kMaxHeads) block(h, Count<kMaxHeads>{});
  if constexpr (kMaxHeads > 1) {
    if (h < heads) for_head_blocks<kMaxHeads - 1>(heads - h, [&](int rest, auto count) { block(h + rest, count); });
  }
}

/// Online softmax of a head over n more keys: replaces their scores by exp(score - maximum) and updates the running
/// maximum and sum.
template <class Word>
inline void online_softmax(const AttentionTask& task, int h, int n) {
  float* p = task.scores + h * kAttentionTile;
  // Behind the last key: -inf once it is scaled.
  const float masked = task.scale < 0 ? -kNegativeInfinity : kNegativeInfinity;
  for (int k = n; k % Word::kLanes != 0; ++k) p[k] = masked;
  const Word scale = Word::all(task.scale);
  Word top = Word::all(task.largest[h]);
  for (int k = 0; k < n; k += Word::kLanes) {
    Word s = Word::load(p + k);
    s = s * scale;
    s.store(p + k);
    top = max(s, top);
  }
  const float largest = top.largest();
  const Word shift = Word::all(largest);
  Word sum = Word::zero();
  for (int k = 0; k < n; k += Word::kLanes) {
    const Word e = exp(Word::load(p + k) - shift);
    e.store(p + k);
    sum = sum + e;
  }
  const float before = task.largest[h];
  const float rescale =
      before == largest ? 1.0F
                        : static_cast<float>(__builtin_exp(static_cast<double>(before) - static_cast<double>(largest)));
  task.rescale[h] = rescale;
  task.sum[h] = task.sum[h] * rescale + sum.sum();
  task.largest[h] = largest;
}

/// Divides a head's sums by the softmax denominator, which includes the sink, rounds, and writes o and lse.
template <class Word>
inline void finish_head(const AttentionTask& task, int h, bool empty) {
  const double sum = task.sum[h];
  const double largest = task.largest[h];
  if (task.lse != nullptr) {
    task.lse[h * task.lse_stride] = empty ? (task.partial ? kNegativeInfinity : -kNegativeInfinity)
                                          : static_cast<float>(largest + __builtin_log(sum));
  }
  double denominator = sum;
  if (task.sink != nullptr)
    denominator += __builtin_exp(static_cast<double>(task.sink[h * task.sink_stride]) - largest);
  const std::int64_t size = task.o_type == DType::kBF16 ? 2 : 4;
  std::uint8_t* out = static_cast<std::uint8_t*>(task.o) + h * task.o_stride * size;
  if (empty || denominator == __builtin_inf()) {
    std::memset(out, 0, static_cast<std::size_t>(task.value_dim * size));
    return;
  }
  const Word factor = Word::all(static_cast<float>(1.0 / denominator));
  const float* row = task.o_rows + h * task.row_stride;
  for (int d = 0; d < task.value_dim; d += Word::kLanes) {
    std::uint8_t last[64];
    const bool whole = d + Word::kLanes <= task.value_dim;
    std::uint8_t* place = whole ? out + d * size : last;
    const Word value = Word::load(row + d) * factor;
    if (task.o_type == DType::kBF16) {
      value.store_bf16(place);
    } else {
      value.store(reinterpret_cast<float*>(place));
    }
    if (!whole) std::memcpy(out + d * size, last, static_cast<std::size_t>((task.value_dim - d) * size));
  }
}

/// Attention of one row of q, for all heads of the task, over all its keys.
template <class Word>
inline void attend_row(const AttentionTask& task) {
  constexpr int kBlock = kHeadBlock<Word>;
  const std::int64_t stride = task.row_stride;
  const std::int64_t padded = task.padded_dim;
  load_queries<Word>(task);
  clear(task.o_rows, task.heads * stride);
  clear(task.sum, task.heads);
  for (int h = 0; h < task.heads; ++h) task.largest[h] = kNegativeInfinity;
  Cursor at;
  bool empty = true;
  for (int n = next_tile<Word>(task, at); n > 0; n = next_tile<Word>(task, at)) {
    empty = false;
    for_head_blocks<kBlock>(task.heads, [&](int h, auto count) {
      score_block<Word, decltype(count)::value>(task.q_rows + h * stride, task.keys, stride, padded, n,
                                                task.scores + h * kAttentionTile);
    });
    for (int h = 0; h < task.heads; ++h) online_softmax<Word>(task, h, n);
    for (std::int64_t d = 0; d < task.padded_value; d += 4 * Word::kLanes) {
      for_head_blocks<kBlock>(task.heads, [&](int h, auto count) {
        value_block<Word, decltype(count)::value>(task.scores + h * kAttentionTile, task.rescale + h, task.keys + d,
                                                  stride, n, task.o_rows + h * stride + d);
      });
    }
  }
  for (int h = 0; h < task.heads; ++h) finish_head<Word>(task, h, empty);
}

}  // namespace
}  // namespace smla
