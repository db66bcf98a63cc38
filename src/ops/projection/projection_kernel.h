#pragma once

// The projection kernel, a template over the SIMD word (simd_generic.h). Included by projection_{cpu,avx2,avx512}.cpp
// only, after the word and after
//   constexpr int kBlockRows              x rows of a register block
//   constexpr int kE4m3BlockRows          the same with E4M3 weights, whose widening needs registers too
//   constexpr bool kWidenPanel            whether a panel of bf16 weights is made floats first, see many_rows()
// Internal linkage throughout: see simd_generic.h. How words hold numbers: projection_numbers.h.
//
// A result is built the same way on every path: of each register in a block of kProjectionKBlock inputs a lane of an
// accumulator takes part 0, 1, ...; sum4 adds the lanes in its one order, the blocks' sums are added in order.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/projection/projection_numbers.h"
#include "ops/projection/tile_results.h"

namespace smla {
namespace {

constexpr int kWRows = 4;                   // weight rows of a register block
constexpr int kMostDirectRows = 4;          // of bf16 x beside bf16 weights, see few_rows()
constexpr int kMostDirectRowsE4m3 = 2;      // beside E4M3 weights
constexpr std::int64_t kAheadBytes = 1024;  // of a stream of weights

/// sums += a register of each weight row times the x rows, which are floats as widen_row() lays them out, or bf16: as
/// they lie in memory beside bf16 weights, as pair_row() lays them out beside E4M3 weights. `factors`: of the rows of
/// E4M3 weights. The order in which words are named is that of their use, so that few of them are alive at a time: no
/// sum may leave its register.
template <int kRows, class W, class X>
inline void add_register(const X* x, std::int64_t x_stride, const W* const* w, std::int64_t at, const Word* factors,
                         Word (&sums)[kRows][kWRows]) {
  constexpr int kParts = Weights<W>::kParts;
  const auto x_word = [&](int i, int p) {
    const X* const from = x + i * x_stride + at;
    if constexpr (std::is_same_v<X, float>) {
      return Word::load(from + p * Word::kLanes);
    } else {
      return Weights<X>::part(from + p / 2 * kRegister<X>, p % 2);
    }
  };
  if constexpr (std::is_same_v<W, E4M3> && !std::is_same_v<X, float>) {
    Word xs[kRows][kParts];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) xs[i][p] = x_word(i, p);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kWRows; ++j) {
      Word parts[kParts];
      Word::load_e4m3_parts(w[j] + at, factors[j], parts);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) sums[i][j] = fma(parts[p], xs[i][p], sums[i][j]);
      }
    }
  } else if constexpr (std::is_same_v<W, E4M3>) {
#pragma GCC unroll 4
    for (int j = 0; j < kWRows; ++j) {
      Word parts[kParts];
      Word::load_e4m3_parts(w[j] + at, factors[j], parts);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
        for (int p = 0; p < kParts; ++p) sums[i][j] = fma(parts[p], x_word(i, p), sums[i][j]);
      }
    }
  } else {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      if constexpr (kRows < kWRows) {
        Word xs[kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) xs[i] = x_word(i, p);
#pragma GCC unroll 4
        for (int j = 0; j < kWRows; ++j) {
          const Word v = Weights<W>::part(w[j] + at, p);
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i) sums[i][j] = fma(v, xs[i], sums[i][j]);
        }
      } else {
        Word v[kWRows];
#pragma GCC unroll 4
        for (int j = 0; j < kWRows; ++j) v[j] = Weights<W>::part(w[j] + at, p);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const Word xi = x_word(i, p);
#pragma GCC unroll 4
          for (int j = 0; j < kWRows; ++j) sums[i][j] = fma(v[j], xi, sums[i][j]);
        }
      }
    }
  }
}

/// out[i * out_stride + j * w_step] (= or +=) sum over one block of x[i][.] * w[j][.], for kRows x rows and kWRows
/// weight rows. `ahead`: the weights so many elements further on are wanted soon. `scales`: of each row of E4M3
/// weights, one a block of inputs.
template <int kRows, bool kPrefetch, class W, class X>
inline void block_sums(const X* x, std::int64_t x_stride, const W* const* w, const float* const* scales, std::int64_t k,
                       std::int64_t ahead, bool first, float* out, std::int64_t out_stride, std::int64_t w_step) {
  Word sums[kRows][kWRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kWRows; ++j) sums[i][j] = Word::zero();
  }
  Word factors[kWRows];
  const auto set_factors = [&](std::int64_t at) {
    if constexpr (std::is_same_v<W, E4M3>) {
#pragma GCC unroll 4
      for (int j = 0; j < kWRows; ++j) factors[j] = Word::all(scales[j][at / Projection::kWeightBlock] * kE4m3Factor);
    }
  };
  std::int64_t at = 0;
  for (; at + kRegister<W> <= k; at += kRegister<W>) {
    if constexpr (kPrefetch) {
#pragma GCC unroll 4
      for (int j = 0; j < kWRows; ++j) __builtin_prefetch(w[j] + at + ahead, 0, 2);
    }
    set_factors(at);
    add_register<kRows>(x, x_stride, w, at, factors, sums);
  }
  if (at < k) {
    set_factors(at);
    W last[kWRows][kRegister<W>] = {};
    const W* rows[kWRows];
    const auto bytes = static_cast<std::size_t>(k - at) * sizeof(W);
    for (int j = 0; j < kWRows; ++j) {
      std::memcpy(last[j], w[j] + at, bytes);
      rows[j] = last[j];
    }
    if constexpr (std::is_same_v<X, W>) {  // x as it lies in memory: without zeros behind its end
      X last_x[kRows][kRegister<W>] = {};
      for (int i = 0; i < kRows; ++i) std::memcpy(last_x[i], x + i * x_stride + at, bytes);
      add_register<kRows>(&last_x[0][0], kRegister<W>, rows, 0, factors, sums);
    } else {
      add_register<kRows>(x + at, x_stride, rows, 0, factors, sums);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    float four[kWRows];
    sum4(sums[i][0], sums[i][1], sums[i][2], sums[i][3], four);
    float* row = out + i * out_stride;
    for (int j = 0; j < kWRows; ++j) row[j * w_step] = first ? four[j] : row[j * w_step] + four[j];
  }
}

template <bool kPrefetch, class W, class X>
inline void block_sums(int rows, const X* x, std::int64_t x_stride, const W* const* w, const float* const* scales,
                       std::int64_t k, std::int64_t ahead, bool first, float* out, std::int64_t out_stride,
                       std::int64_t w_step) {
  const auto run = [&]<int kRows>() {
    if constexpr (kRows <= Weights<W>::kMaxRows)
      block_sums<kRows, kPrefetch>(x, x_stride, w, scales, k, ahead, first, out, out_stride, w_step);
  };
  switch (rows) {
    case 1: run.template operator()<1>(); break;
    case 2: run.template operator()<2>(); break;
    case 3: run.template operator()<3>(); break;
    case 4: run.template operator()<4>(); break;
    case 5: run.template operator()<5>(); break;
    default: run.template operator()<6>();
  }
}

/// Four weight rows, every w_step-th from `j` on; past the last row the last one again (its sums are dropped).
template <class W>
inline void weight_rows(const W* w, std::int64_t row_stride, std::int64_t j, std::int64_t w_step, std::int64_t n,
                        std::int64_t at, const W** rows) {
  for (int r = 0; r < kWRows; ++r) rows[r] = w + (j + r * w_step < n ? j + r * w_step : n - 1) * row_stride + at;
}

/// The same of NVFP4 weights: blocks of the rows as bf16 in `widened`, kProjectionKBlock apart; the codes `ahead` bytes
/// further on are wanted soon.
inline void nvfp4_rows(const ProjectionTile& t, std::int64_t j, std::int64_t w_step, std::int64_t at, std::int64_t k,
                       std::int64_t ahead, BF16* widened, const BF16** rows) {
  for (int r = 0; r < kWRows; ++r) {
    const std::int64_t row = j + r * w_step < t.n ? j + r * w_step : t.n - 1;
    BF16* const to = widened + r * kProjectionKBlock;
    const std::uint8_t* const codes = static_cast<const std::uint8_t*>(t.w) + (row * t.k + at) / 2;
    for (std::int64_t i = 0; i < k / 2; i += 64) __builtin_prefetch(codes + i + ahead, 0, 2);
    widen_nvfp4(t, row, at, k, to);
    rows[r] = to;
  }
}

/// x rows of a register block, m rows cut evenly.
template <class W>
inline int block_rows(std::int64_t m) {
  const std::int64_t blocks = (m + Weights<W>::kMaxRows - 1) / Weights<W>::kMaxRows;
  return static_cast<int>((m + blocks - 1) / blocks);
}

/// Few rows: weights are read once, straight from memory.
///
/// bf16 x of up to kMostDirectRows rows stays bf16, beside four streams of weights: each quarter of the tile's
/// rows is one, in order, and the weights kAheadBytes further on in it come into the second-level cache. As floats,
/// long rows of x would leave the first-level cache between their uses.
///
/// NVFP4 weights are read in the same order, and four blocks of them are bf16 numbers in the first-level cache.
///
/// Else x is floats, and four neighbouring rows are multiplied together. While a block of them is, the next one comes
/// into the second-level cache: a prefetch into the first would hold one of its few miss buffers for the whole way from
/// memory.
template <class W, class X>
void few_rows(const ProjectionTile& t, float* sums, std::int64_t sums_stride, const X* x, std::int64_t x_stride) {
  constexpr bool kStreams = !std::is_same_v<X, float>;
  const int step = block_rows<Multiplied<W>>(t.m);
  const std::int64_t groups = (t.n + kWRows - 1) / kWRows;
  const std::int64_t w_step = kStreams ? groups : 1;
  constexpr bool kNvfp4 = std::is_same_v<W, Nvfp4>;
  const Multiplied<W>* rows[kWRows];
  alignas(64) BF16 widened[kNvfp4 ? kWRows * kProjectionKBlock : 1];
  const float* scales[kWRows] = {};
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t j = kStreams ? g : g * kWRows;
    for (std::int64_t at = 0; at < t.k; at += kProjectionKBlock) {
      const std::int64_t k = t.k - at < kProjectionKBlock ? t.k - at : kProjectionKBlock;
      if constexpr (kNvfp4) {
        nvfp4_rows(t, j, w_step, at, k, kAheadBytes, widened, rows);
      } else {
        weight_rows(static_cast<const W*>(t.w), t.k, j, w_step, t.n, at, rows);
      }
      if constexpr (std::is_same_v<W, E4M3>) {
        for (int r = 0; r < kWRows; ++r) scales[r] = scales_of(t, j + r * w_step, at);
      }
      const bool more = at + kProjectionKBlock < t.k;
      const std::int64_t ahead = kStreams ? kAheadBytes / static_cast<std::int64_t>(sizeof(Multiplied<W>))
                                 : more   ? kProjectionKBlock
                                 : j + 2 * kWRows <= t.n ? kWRows * t.k - at
                                                         : 0;
      float* out = sums + j;
      block_sums<!kNvfp4>(step, x + at, x_stride, rows, scales, k, ahead, at == 0, out, sums_stride, w_step);
      for (std::int64_t i = step; i < t.m; i += step) {
        const int count = static_cast<int>(t.m - i < step ? t.m - i : step);
        block_sums<false>(count, x + i * x_stride + at, x_stride, rows, scales, k, 0, at == 0, out + i * sums_stride,
                          sums_stride, w_step);
      }
      if constexpr (std::is_same_v<W, E4M3>) {
        for (int r = 0; r < kWRows; ++r) {
          if (!has_nan(rows[r], k)) continue;
          for (std::int64_t i = 0; i < t.m; ++i)
            out[i * sums_stride + r * w_step] = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
  }
}

/// The beginning of four neighbouring rows comes into the second-level cache while x is made floats.
template <class W>
void prefetch_first_block(const ProjectionTile& t) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(W));
  const W* rows[kWRows];
  weight_rows(static_cast<const W*>(t.w), t.k, 0, 1, t.n, 0, rows);
  const std::int64_t k = t.k < kProjectionKBlock ? t.k : kProjectionKBlock;
  for (std::int64_t i = 0; i < k; i += kLine) {
    for (const W* row : rows) __builtin_prefetch(row + i, 0, 2);
  }
}

/// Few rows, x as few_rows() wants it.
template <class W>
void few_rows(const ProjectionTile& t, float* sums, std::int64_t sums_stride, float* x) {
  const std::int64_t x_stride = round_up_to(t.k, kRegister<Multiplied<W>>);
  if constexpr (std::is_same_v<Multiplied<W>, BF16>) {
    if (t.x_bf16 && t.m <= kMostDirectRows)
      return few_rows<W>(t, sums, sums_stride, static_cast<const BF16*>(t.x), t.x_stride);
  }
  if constexpr (std::is_same_v<W, E4M3>) {
    if (t.x_bf16 && t.m <= kMostDirectRowsE4m3) {
      BF16* pairs = reinterpret_cast<BF16*>(x);
      for (std::int64_t i = 0; i < t.m; ++i)
        pair_row(static_cast<const BF16*>(t.x) + i * t.x_stride, t.k, pairs + i * x_stride);
      return few_rows<W, BF16>(t, sums, sums_stride, pairs, x_stride);
    }
  }
  if constexpr (std::is_same_v<Multiplied<W>, W>) prefetch_first_block<W>(t);
  for (std::int64_t i = 0; i < t.m; ++i) widen_x<Multiplied<W>>(t, i, 0, t.k, x + i * x_stride);
  few_rows<W, float>(t, sums, sums_stride, x, x_stride);
}

/// A block of a panel of NVFP4 weights, in `panel` kProjectionKBlock apart: as bf16, or as widen_row<BF16>() lays it
/// out.
inline void widen_nvfp4_panel(const ProjectionTile& t, std::int64_t at, std::int64_t k, BF16* panel) {
  for (std::int64_t j = 0; j < t.n; ++j) widen_nvfp4(t, j, at, k, panel + j * kProjectionKBlock);
}
inline void widen_nvfp4_panel(const ProjectionTile& t, std::int64_t at, std::int64_t k, float* panel) {
  BF16 row[kProjectionKBlock];
  for (std::int64_t j = 0; j < t.n; ++j) {
    widen_nvfp4(t, j, at, k, row);
    widen_row<BF16>(row, k, panel + j * kProjectionKBlock);
  }
}

/// Many rows: a block of the panel's weights serves all of them, as floats where kWidenPanel or where they are E4M3,
/// NVFP4 ones else as bf16, others from the second-level cache as they are.
template <class W>
void many_rows(const ProjectionTile& t, float* sums, std::int64_t sums_stride, float* x, float* panel) {
  constexpr bool kNvfp4 = std::is_same_v<W, Nvfp4>;
  constexpr bool kWiden = kWidenPanel || std::is_same_v<W, E4M3>;
  using Stored = Multiplied<W>;
  using Operand = std::conditional_t<kWiden, float, Stored>;
  const int step = block_rows<Operand>(t.m);
  const Stored* w = static_cast<const Stored*>(t.w);
  Operand* const widened = reinterpret_cast<Operand*>(panel);
  const Operand* rows[kWRows];
  for (std::int64_t at = 0; at < t.k; at += kProjectionKBlock) {
    const std::int64_t k = t.k - at < kProjectionKBlock ? t.k - at : kProjectionKBlock;
    if constexpr (kNvfp4) {
      widen_nvfp4_panel(t, at, k, widened);
    } else if constexpr (kWiden) {
      for (std::int64_t j = 0; j < t.n; ++j)
        widen_weights(w + j * t.k + at, std::is_same_v<W, E4M3> ? scales_of(t, j, at) : nullptr, k,
                      panel + j * kProjectionKBlock);
    }
    const std::int64_t inputs = kWiden ? round_up_to(k, kRegister<Stored>) : k;  // of a row of floats: with its zeros
    for (std::int64_t i = 0; i < t.m; i += step) {
      const int count = static_cast<int>(t.m - i < step ? t.m - i : step);
      for (int r = 0; r < count; ++r) widen_x<Stored>(t, i + r, at, k, x + r * kProjectionKBlock);
      for (std::int64_t j = 0; j < t.n; j += kWRows) {
        if constexpr (kWiden || kNvfp4) {
          weight_rows<Operand>(widened, kProjectionKBlock, j, 1, t.n, 0, rows);
        } else {
          weight_rows(w, t.k, j, 1, t.n, at, rows);
        }
        block_sums<false>(count, x, kProjectionKBlock, rows, nullptr, inputs, 0, at == 0, sums + i * sums_stride + j,
                          sums_stride, 1);
      }
    }
  }
}

/// Whether few_rows() can multiply by all scales of a tile of E4M3 weights.
bool has_moderate_scales(const ProjectionTile& t) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  for (std::int64_t block = t.w_row / kBlock; block <= (t.w_row + t.n - 1) / kBlock; ++block) {
    for (std::int64_t i = 0; i < (t.k + kBlock - 1) / kBlock; ++i) {
      if (!is_moderate(t.w_scale[block * t.w_scale_stride + i])) return false;
    }
  }
  return true;
}

/// A tile from its row j on.
template <class W>
inline ProjectionTile from_row(const ProjectionTile& t, std::int64_t j) {
  ProjectionTile part = t;
  if constexpr (std::is_same_v<W, Nvfp4>) {
    part.w = static_cast<const std::uint8_t*>(t.w) + j * t.k / 2;
    part.nvfp4_scale = t.nvfp4_scale + j * t.k / Projection::kNvfp4Group;
  } else {
    part.w = static_cast<const W*>(t.w) + j * t.k;
  }
  part.w_row = t.w_row + j;
  part.y = static_cast<char*>(t.y) + j * (t.y_bf16 ? sizeof(BF16) : sizeof(float));
  return part;
}

template <class W>
void run_tile(const ProjectionTile& t) {
  float* sums = t.scratch;
  float* x = sums + kProjectionTileRows * kProjectionPanel;
  if (t.few && (!std::is_same_v<W, E4M3> || has_moderate_scales(t))) {
    const std::int64_t sums_stride = round_up_to(t.n, kWRows);
    few_rows<W>(t, sums, sums_stride, x);
    write_rows(t, sums, sums_stride);
    return;
  }
  float* panel = x + kProjectionMaxBlockRows * kProjectionKBlock;
  for (std::int64_t j = 0; j < t.n; j += kProjectionPanel) {
    ProjectionTile part = from_row<W>(t, j);
    part.n = t.n - j < kProjectionPanel ? t.n - j : kProjectionPanel;
    many_rows<W>(part, sums, kProjectionPanel, x, panel);
    write_rows(part, sums, kProjectionPanel);
  }
}

void run_tile(const ProjectionTile& t) {
  static_assert(kBlockRows <= kProjectionMaxBlockRows && kE4m3BlockRows <= kBlockRows);
  switch (t.w_dtype) {
    case DType::kBF16: return run_tile<BF16>(t);
    case DType::kE4M3: return run_tile<E4M3>(t);
    case Projection::kNvfp4: return run_tile<Nvfp4>(t);
    default: return run_tile<float>(t);
  }
}

}  // namespace
}  // namespace smla
