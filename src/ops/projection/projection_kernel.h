#pragma once

// The projection kernel, a template over the SIMD word (simd_generic.h). Included by projection_{cpu,avx2,avx512}.cpp
// only, after the word and after
//   constexpr int kBlockRows              x rows of a register block
//   constexpr std::int64_t kFewRows       up to so many x rows the weights are read in memory order, see few_rows()
//   constexpr bool kWidenPanel            whether a panel of weights is made floats first, see many_rows()
// Internal linkage throughout: see simd_generic.h.
//
// A result is built the same way on every path: lane l of an accumulator takes k = l, l + lanes, ... of a block of
// kProjectionKBlock inputs, sum4 adds the lanes in its one order, the blocks' sums are added in order. Short last words
// are filled with zeros.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/projection/implementations.h"

namespace smla {
namespace {

constexpr int kWRows = 4;  // weight rows of a register block

inline std::int64_t round_up_to(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

inline Word load_weights(const float* p) { return Word::load(p); }
inline Word load_weights(const BF16* p) { return Word::load_bf16(p); }

/// The first n < kLanes numbers, zeros behind them.
inline Word load_weights_first(const float* p, int n) { return Word::load_first(p, n); }
inline Word load_weights_first(const BF16* p, int n) {
  BF16 padded[Word::kLanes] = {};
  std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(BF16));
  return Word::load_bf16(padded);
}

/// Row of k numbers to floats, zeros up to a whole word.
template <class T>
inline void widen_row(const T* from, std::int64_t k, float* to) {
  std::int64_t i = 0;
  for (; i + Word::kLanes <= k; i += Word::kLanes) load_weights(from + i).store(to + i);
  if (i < k) load_weights_first(from + i, static_cast<int>(k - i)).store(to + i);
}

/// out[i * out_stride + j] (= or +=) sum over one block of x[i][.] * w[j][.], for kRows x rows and kWRows weight rows.
/// kPrefetch: the weights `ahead` elements further on are wanted next.
template <int kRows, bool kPrefetch, class W>
inline void block_sums(const float* x, std::int64_t x_stride, const W* const* w, std::int64_t k, std::int64_t ahead,
                       bool first, float* out, std::int64_t out_stride) {
  Word sums[kRows][kWRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kWRows; ++j) sums[i][j] = Word::zero();
  }
  const W* w0 = w[0];
  const W* w1 = w[1];
  const W* w2 = w[2];
  const W* w3 = w[3];
  std::int64_t at = 0;
  for (; at + Word::kLanes <= k; at += Word::kLanes) {
    if constexpr (kPrefetch) {
      __builtin_prefetch(w0 + at + ahead);
      __builtin_prefetch(w1 + at + ahead);
      __builtin_prefetch(w2 + at + ahead);
      __builtin_prefetch(w3 + at + ahead);
    }
    const Word a = load_weights(w0 + at);
    const Word b = load_weights(w1 + at);
    const Word c = load_weights(w2 + at);
    const Word d = load_weights(w3 + at);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Word v = Word::load(x + i * x_stride + at);
      sums[i][0] = fma(a, v, sums[i][0]);
      sums[i][1] = fma(b, v, sums[i][1]);
      sums[i][2] = fma(c, v, sums[i][2]);
      sums[i][3] = fma(d, v, sums[i][3]);
    }
  }
  if (at < k) {
    const int n = static_cast<int>(k - at);
    const Word a = load_weights_first(w0 + at, n);
    const Word b = load_weights_first(w1 + at, n);
    const Word c = load_weights_first(w2 + at, n);
    const Word d = load_weights_first(w3 + at, n);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Word v = Word::load(x + i * x_stride + at);
      sums[i][0] = fma(a, v, sums[i][0]);
      sums[i][1] = fma(b, v, sums[i][1]);
      sums[i][2] = fma(c, v, sums[i][2]);
      sums[i][3] = fma(d, v, sums[i][3]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    float four[kWRows];
    sum4(sums[i][0], sums[i][1], sums[i][2], sums[i][3], four);
    float* row = out + i * out_stride;
    for (int j = 0; j < kWRows; ++j) row[j] = first ? four[j] : row[j] + four[j];
  }
}

template <bool kPrefetch, class W>
inline void block_sums(int rows, const float* x, std::int64_t x_stride, const W* const* w, std::int64_t k,
                       std::int64_t ahead, bool first, float* out, std::int64_t out_stride) {
  switch (rows) {
    case 1: block_sums<1, kPrefetch>(x, x_stride, w, k, ahead, first, out, out_stride); break;
    case 2: block_sums<2, kPrefetch>(x, x_stride, w, k, ahead, first, out, out_stride); break;
    case 3:
      if constexpr (kBlockRows >= 3) block_sums<3, kPrefetch>(x, x_stride, w, k, ahead, first, out, out_stride);
      break;
    case 4:
      if constexpr (kBlockRows >= 4) block_sums<4, kPrefetch>(x, x_stride, w, k, ahead, first, out, out_stride);
      break;
    case 5:
      if constexpr (kBlockRows >= 5) block_sums<5, kPrefetch>(x, x_stride, w, k, ahead, first, out, out_stride);
      break;
    default:
      if constexpr (kBlockRows >= 6) block_sums<6, kPrefetch>(x, x_stride, w, k, ahead, first, out, out_stride);
  }
}

/// Four weight rows from `j` on; past the last row the last one again (its sums are dropped).
template <class W>
inline void weight_rows(const W* w, std::int64_t row_stride, std::int64_t j, std::int64_t n, std::int64_t at,
                        const W** rows) {
  for (int r = 0; r < kWRows; ++r) rows[r] = w + (j + r < n ? j + r : n - 1) * row_stride + at;
}

inline int block_rows(std::int64_t m) {
  const std::int64_t blocks = (m + kBlockRows - 1) / kBlockRows;
  return static_cast<int>((m + blocks - 1) / blocks);
}

inline void widen_x(const ProjectionTile& t, std::int64_t row, std::int64_t at, std::int64_t k, float* to) {
  if (t.x_bf16) {
    widen_row(static_cast<const BF16*>(t.x) + row * t.x_stride + at, k, to);
  } else {
    widen_row(static_cast<const float*>(t.x) + row * t.x_stride + at, k, to);
  }
}

/// Few rows: weights are read once, in order, straight from memory.
template <class W>
void few_rows(const ProjectionTile& t, float* sums, std::int64_t sums_stride, float* x) {
  const std::int64_t x_stride = round_up_to(t.k, Word::kLanes);
  for (std::int64_t i = 0; i < t.m; ++i) widen_x(t, i, 0, t.k, x + i * x_stride);
  const int step = block_rows(t.m);
  const W* w = static_cast<const W*>(t.w);
  const W* rows[kWRows];
  for (std::int64_t j = 0; j < t.n; j += kWRows) {
    for (std::int64_t at = 0; at < t.k; at += kProjectionKBlock) {
      const std::int64_t k = t.k - at < kProjectionKBlock ? t.k - at : kProjectionKBlock;
      weight_rows(w, t.k, j, t.n, at, rows);
      const bool more = at + kProjectionKBlock < t.k;
      const std::int64_t ahead = more ? kProjectionKBlock : j + 2 * kWRows <= t.n ? kWRows * t.k - at : 0;
      for (std::int64_t i = 0; i < t.m; i += step) {
        const int count = static_cast<int>(t.m - i < step ? t.m - i : step);
        block_sums<true>(count, x + i * x_stride + at, x_stride, rows, k, ahead, at == 0, sums + i * sums_stride + j,
                         sums_stride);
      }
    }
  }
}

/// Many rows: a block of the panel's weights serves all of them, as floats where kWidenPanel, else from the
/// second-level cache as it is.
template <class W>
void many_rows(const ProjectionTile& t, float* sums, std::int64_t sums_stride, float* x, float* panel) {
  using Operand = std::conditional_t<kWidenPanel, float, W>;
  const int step = block_rows(t.m);
  const W* w = static_cast<const W*>(t.w);
  const Operand* rows[kWRows];
  for (std::int64_t at = 0; at < t.k; at += kProjectionKBlock) {
    const std::int64_t k = t.k - at < kProjectionKBlock ? t.k - at : kProjectionKBlock;
    if constexpr (kWidenPanel) {
      for (std::int64_t j = 0; j < t.n; ++j) widen_row(w + j * t.k + at, k, panel + j * kProjectionKBlock);
    }
    for (std::int64_t i = 0; i < t.m; i += step) {
      const int count = static_cast<int>(t.m - i < step ? t.m - i : step);
      for (int r = 0; r < count; ++r) widen_x(t, i + r, at, k, x + r * kProjectionKBlock);
      for (std::int64_t j = 0; j < t.n; j += kWRows) {
        if constexpr (kWidenPanel) {
          weight_rows<float>(panel, kProjectionKBlock, j, t.n, 0, rows);
        } else {
          weight_rows(w, t.k, j, t.n, at, rows);
        }
        block_sums<false>(count, x, kProjectionKBlock, rows, k, 0, at == 0, sums + i * sums_stride + j, sums_stride);
      }
    }
  }
}

void write_row(const float* sums, std::int64_t n, bool bf16, void* y, std::int64_t offset) {
  std::int64_t j = 0;
  if (bf16) {
    BF16* to = static_cast<BF16*>(y) + offset;
    for (; j + Word::kLanes <= n; j += Word::kLanes) Word::load(sums + j).store_bf16(to + j);
    if (j < n) {
      BF16 last[Word::kLanes];
      Word::load_first(sums + j, static_cast<int>(n - j)).store_bf16(last);
      std::memcpy(to + j, last, static_cast<std::size_t>(n - j) * sizeof(BF16));
    }
  } else {
    std::memcpy(static_cast<float*>(y) + offset, sums, static_cast<std::size_t>(n) * sizeof(float));
  }
}

void run_tile(const ProjectionTile& t) {
  const std::int64_t sums_stride = kProjectionPanel;
  float* sums = t.scratch;
  float* x = sums + kProjectionTileRows * kProjectionPanel;
  static_assert(kFewRows <= kProjectionMaxFewRows && kBlockRows <= kProjectionMaxBlockRows);
  if (t.m <= kFewRows) {
    t.w_bf16 ? few_rows<BF16>(t, sums, sums_stride, x) : few_rows<float>(t, sums, sums_stride, x);
  } else {
    float* panel = x + kProjectionMaxBlockRows * kProjectionKBlock;
    t.w_bf16 ? many_rows<BF16>(t, sums, sums_stride, x, panel) : many_rows<float>(t, sums, sums_stride, x, panel);
  }
  for (std::int64_t i = 0; i < t.m; ++i) write_row(sums + i * sums_stride, t.n, t.y_bf16, t.y, i * t.y_stride);
}

}  // namespace
}  // namespace smla
