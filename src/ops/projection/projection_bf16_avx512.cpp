#include "ops/projection/implementations.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)

#include "device/simd_avx512.h"

namespace smla {
namespace {

using Word = Avx512Word;

}  // namespace
}  // namespace smla

#include "ops/projection/tile_results.h"

// Few rows of bf16 x: weights are read once, straight from memory, and multiplied by vdpbf16ps, which adds the products
// of two pairs of bf16 numbers to a fp32 sum and takes numbers below 2^-126 for zeros. A result's order of additions
// depends on k alone.
//
// Four weight rows are multiplied together. They lie far apart, each at the head of a quarter of the rows, so that a
// thread reads four streams in order; kAheadBytes further on they come into the second-level cache.

namespace smla {
namespace {

constexpr int kStreams = 4;
constexpr std::int64_t kAheadBytes = 1024;

inline __m512bh pairs(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }

inline __m512 dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, pairs(a), pairs(b)); }

/// E4M3 codes times a power of two as bf16: the low and the high byte of codes 0 to 127, the high one without a sign.
/// All values are exact, and none but zero is below 2^-126.
struct alignas(64) CodeTable {
  std::uint8_t low[128];
  std::uint8_t high[128];
};

constexpr int kLeastExponent = -117;  // 2^-9, the smallest code, becomes 2^-126
constexpr int kMostExponent = 118;    // 448 becomes 1.75 * 2^126

/// The bits of code * 2^exponent.
unsigned bf16_of(unsigned code, int exponent) {
  if (code == 0) return 0;
  if (code == 127) return 0x7FC0U;  // NaN
  int power = static_cast<int>(code >> 3);
  unsigned mantissa = code & 7U;
  if (power == 0) {  // a subnormal code: up to its leading one
    power = 1;
    for (; mantissa < 8; mantissa <<= 1) --power;
    mantissa &= 7U;
  }
  return static_cast<unsigned>(power - 7 + exponent + 127) << 7 | mantissa << 4;
}

struct CodeTables {
  CodeTable tables[kMostExponent - kLeastExponent + 1];
  CodeTables() {
    for (int e = kLeastExponent; e <= kMostExponent; ++e) {
      CodeTable& table = tables[e - kLeastExponent];
      for (unsigned code = 0; code < 128; ++code) {
        const unsigned bits = bf16_of(code, e);
        table.low[code] = static_cast<std::uint8_t>(bits);
        table.high[code] = static_cast<std::uint8_t>(bits >> 8);
      }
    }
  }
};

const CodeTable* code_tables() {
  static const CodeTables all;
  return all.tables - kLeastExponent;
}

std::uint32_t bits_of(float scale) {
  std::uint32_t bits = 0;
  __builtin_memcpy(&bits, &scale, sizeof bits);
  return bits;
}

int exponent_of(float scale) { return static_cast<int>(bits_of(scale) >> 23) - 127; }  // a sign makes it large

bool has_table(float scale) {
  const int exponent = exponent_of(scale);
  return (bits_of(scale) & 0x7F'FFFFU) == 0 && exponent >= kLeastExponent && exponent <= kMostExponent;
}

/// Stands for NVFP4 weights.
struct Nvfp4;

/// Four rows of weights from a block's first input on, and what multiplies them by kRows rows of x.
template <class W>
struct Streams;

/// x as it lies in memory, beside four registers of bf16 weights.
template <int kRows>
void add_pairs(const __m512i (&ws)[kStreams], __mmask32 take, const BF16* x, std::int64_t x_stride,
               __m512 (&sums)[kRows][kStreams]) {
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const __m512i xi = _mm512_maskz_loadu_epi16(take, x + i * x_stride);
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) sums[i][j] = dot(sums[i][j], ws[j], xi);
  }
}

inline __mmask32 first_of(std::int64_t inputs) {
  return static_cast<__mmask32>(inputs >= 32 ? ~0U : (1U << inputs) - 1U);
}

template <>
struct Streams<BF16> {
  static constexpr int kRegister = 32;
  static constexpr int kMaxRows = 6;
  const BF16* w[kStreams];

  Streams(const ProjectionTile& t, const std::int64_t (&rows)[kStreams], std::int64_t at) {
    for (int j = 0; j < kStreams; ++j) w[j] = static_cast<const BF16*>(t.w) + rows[j] * t.k + at;
  }
  const void* address(int j, std::int64_t at) const { return w[j] + at; }

  template <int kRows>
  void add(const BF16* x, std::int64_t x_stride, std::int64_t at, std::int64_t inputs,
           __m512 (&sums)[kRows][kStreams]) const {
    const __mmask32 take = first_of(inputs);
    __m512i ws[kStreams];
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) ws[j] = _mm512_maskz_loadu_epi16(take, w[j] + at);
    add_pairs(ws, take, x + at, x_stride, sums);
  }
};

/// Each code's bf16 number comes from the table of its group's scale: a dword of a code pair and the same shifted by 12
/// has the two codes at the bottom of its words.
template <>
struct Streams<Nvfp4> {
  static constexpr int kRegister = 32;
  static constexpr int kMaxRows = 6;
  const std::uint8_t* w[kStreams];
  const E4M3* scales[kStreams];
  const BF16* tables = nvfp4_tables();

  Streams(const ProjectionTile& t, const std::int64_t (&rows)[kStreams], std::int64_t at) {
    for (int j = 0; j < kStreams; ++j) {
      w[j] = static_cast<const std::uint8_t*>(t.w) + (rows[j] * t.k + at) / 2;
      scales[j] = t.nvfp4_scale + (rows[j] * t.k + at) / Projection::kNvfp4Group;
    }
  }
  const void* address(int j, std::int64_t at) const { return w[j] + at / 2; }

  template <int kRows>
  void add(const BF16* x, std::int64_t x_stride, std::int64_t at, std::int64_t inputs,
           __m512 (&sums)[kRows][kStreams]) const {
    constexpr std::int64_t kGroup = Projection::kNvfp4Group;
    const bool whole = inputs >= kRegister;
    const auto there = static_cast<__mmask16>(whole ? 0xFFFFU : 0xFFU);
    const __m512i nibbles = _mm512_set1_epi32(0x000F'000F);
    const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);  // half of the table
    const auto table = [&](E4M3 scale) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tables + 16 * scale.bits));
    };
    __m512i ws[kStreams];
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) {
      const __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, w[j] + at / 2));
      const __m512i codes = _mm512_or_si512(
          _mm512_ternarylogic_epi32(bytes, _mm512_slli_epi32(bytes, 12), nibbles, 0xA8), second);  // (a | b) & c
      const E4M3* const of = scales[j] + at / kGroup;
      const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(table(of[0])), table(of[whole ? 1 : 0]), 1);
      ws[j] = _mm512_permutexvar_epi16(codes, both);
    }
    add_pairs(ws, first_of(inputs), x + at, x_stride, sums);
  }
};

template <>
struct Streams<E4M3> {
  static constexpr int kRegister = 64;
  static constexpr int kMaxRows = 4;
  const E4M3* w[kStreams];
  const float* scale;  ///< the rows have their scales in common
  const CodeTable* tables = code_tables();

  Streams(const ProjectionTile& t, const std::int64_t (&rows)[kStreams], std::int64_t at) {
    constexpr std::int64_t kBlock = Projection::kWeightBlock;
    for (int j = 0; j < kStreams; ++j) w[j] = static_cast<const E4M3*>(t.w) + rows[j] * t.k + at;
    scale = t.w_scale + (t.w_row + rows[0]) / kBlock * t.w_scale_stride + at / kBlock;
  }
  const void* address(int j, std::int64_t at) const { return w[j] + at; }

  /// x as interleave_row() lays it out, zeros up to a whole register.
  template <int kRows>
  void add(const BF16* x, std::int64_t x_stride, std::int64_t at, std::int64_t inputs,
           __m512 (&sums)[kRows][kStreams]) const {
    const CodeTable* const table = tables + exponent_of(scale[at / Projection::kWeightBlock]);
    const auto take = inputs >= kRegister ? ~std::uint64_t{0} : (std::uint64_t{1} << inputs) - 1U;
    const __m512i low[2] = {_mm512_load_si512(table->low), _mm512_load_si512(table->low + 64)};
    const __m512i high[2] = {_mm512_load_si512(table->high), _mm512_load_si512(table->high + 64)};
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) {
      const __m512i codes = _mm512_maskz_loadu_epi8(take, w[j] + at);
      const __m512i lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);  // takes the low seven bits of a code
      const __m512i highs = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high[0], codes, high[1]), codes, sign,
                                                      0xF8);  // a | (b & c)
      const __m512i first = _mm512_unpacklo_epi8(lows, highs);
      const __m512i second = _mm512_unpackhi_epi8(lows, highs);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const BF16* const from = x + i * x_stride + at;
        sums[i][j] = dot(sums[i][j], first, _mm512_loadu_si512(from));
        sums[i][j] = dot(sums[i][j], second, _mm512_loadu_si512(from + 32));
      }
    }
  }
};

/// Row of k numbers in the order in which 64 codes become pairs: of every 16 the first eight, then the other eight of
/// each; zeros up to a whole register.
void interleave_row(const BF16* from, std::int64_t k, BF16* to) {
  const __m512i first = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
  const __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(2));
  for (std::int64_t i = 0; i < k; i += 64) {
    const std::int64_t left = k - i;
    const auto take = [&](std::int64_t n) {
      return static_cast<__mmask32>(n >= 32 ? ~0U : n <= 0 ? 0U : (1U << n) - 1U);
    };
    const __m512i a = _mm512_maskz_loadu_epi16(take(left), from + i);
    const __m512i b = left > 32 ? _mm512_maskz_loadu_epi16(take(left - 32), from + i + 32) : _mm512_setzero_si512();
    _mm512_storeu_si512(to + i, _mm512_permutex2var_epi64(a, first, b));
    _mm512_storeu_si512(to + i + 32, _mm512_permutex2var_epi64(a, second, b));
  }
}

/// out[i * out_stride + j * w_step] (= or +=) the sums over one block of k inputs.
template <int kRows, class S>
void block_sums(const BF16* x, std::int64_t x_stride, const S& streams, std::int64_t k, bool prefetch, bool first,
                float* out, std::int64_t out_stride, std::int64_t w_step) {
  __m512 sums[kRows][kStreams];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  std::int64_t at = 0;
  for (; at + S::kRegister <= k; at += S::kRegister) {
    if (prefetch) {
#pragma GCC unroll 4
      for (int j = 0; j < kStreams; ++j)
        __builtin_prefetch(static_cast<const char*>(streams.address(j, at)) + kAheadBytes, 0, 2);
    }
    streams.template add<kRows>(x, x_stride, at, S::kRegister, sums);
  }
  if (at < k) streams.template add<kRows>(x, x_stride, at, k - at, sums);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    float four[kStreams];
    sum4(Word{sums[i][0]}, Word{sums[i][1]}, Word{sums[i][2]}, Word{sums[i][3]}, four);
    float* row = out + i * out_stride;
    for (int j = 0; j < kStreams; ++j) row[j * w_step] = first ? four[j] : row[j * w_step] + four[j];
  }
}

template <class S>
void block_sums(int rows, const BF16* x, std::int64_t x_stride, const S& streams, std::int64_t k, bool prefetch,
                bool first, float* out, std::int64_t out_stride, std::int64_t w_step) {
  const auto run = [&]<int kRows>() {
    if constexpr (kRows <= S::kMaxRows)
      block_sums<kRows>(x, x_stride, streams, k, prefetch, first, out, out_stride, w_step);
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

/// All of x times `count` rows of a tile's weights from row `begin` on, which have their scales in common.
template <class W>
void multiply_rows(const ProjectionTile& t, std::int64_t begin, std::int64_t count, const BF16* x,
                   std::int64_t x_stride, float* sums, std::int64_t sums_stride) {
  const std::int64_t passes = (t.m + Streams<W>::kMaxRows - 1) / Streams<W>::kMaxRows;
  const std::int64_t step = (t.m + passes - 1) / passes;
  const std::int64_t quarter = (count + kStreams - 1) / kStreams;
  for (std::int64_t j = 0; j < quarter; ++j) {
    for (std::int64_t at = 0; at < t.k; at += kProjectionKBlock) {
      const std::int64_t k = t.k - at < kProjectionKBlock ? t.k - at : kProjectionKBlock;
      std::int64_t rows[kStreams];
      for (int r = 0; r < kStreams; ++r) {  // past the last row the last one again: its sums are dropped
        const std::int64_t row = j + r * quarter;
        rows[r] = begin + (row < count ? row : count - 1);
      }
      const Streams<W> streams(t, rows, at);
      for (std::int64_t i = 0; i < t.m; i += step) {
        const auto now = static_cast<int>(t.m - i < step ? t.m - i : step);
        block_sums(now, x + i * x_stride + at, x_stride, streams, k, i == 0, at == 0,
                   sums + i * sums_stride + begin + j, sums_stride, quarter);
      }
    }
  }
}

bool has_tables(const ProjectionTile& t) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  for (std::int64_t block = t.w_row / kBlock; block <= (t.w_row + t.n - 1) / kBlock; ++block) {
    for (std::int64_t i = 0; i < (t.k + kBlock - 1) / kBlock; ++i) {
      if (!has_table(t.w_scale[block * t.w_scale_stride + i])) return false;
    }
  }
  return true;
}

void run_tile(const ProjectionTile& t) {
  float* sums = t.scratch;
  const std::int64_t sums_stride = (t.n + kStreams - 1) / kStreams * kStreams;
  const BF16* x = static_cast<const BF16*>(t.x);
  if (t.w_dtype == DType::kBF16) {
    multiply_rows<BF16>(t, 0, t.n, x, t.x_stride, sums, sums_stride);
  } else if (t.w_dtype == Projection::kNvfp4) {
    multiply_rows<Nvfp4>(t, 0, t.n, x, t.x_stride, sums, sums_stride);
  } else if (has_tables(t)) {
    constexpr std::int64_t kRegister = Streams<E4M3>::kRegister;
    const std::int64_t stride = (t.k + kRegister - 1) / kRegister * kRegister;
    BF16* ordered = reinterpret_cast<BF16*>(sums + kProjectionTileRows * kProjectionPanel);
    for (std::int64_t i = 0; i < t.m; ++i) interleave_row(x + i * t.x_stride, t.k, ordered + i * stride);
    for (std::int64_t j = 0; j < t.n;) {
      const std::int64_t left = Projection::kWeightBlock - (t.w_row + j) % Projection::kWeightBlock;
      const std::int64_t count = t.n - j < left ? t.n - j : left;
      multiply_rows<E4M3>(t, j, count, ordered, stride, sums, sums_stride);
      j += count;
    }
  } else {
    return projection_tiles_avx512().run(t);  // scales that are no powers of two, or extreme ones
  }
  write_rows(t, sums, sums_stride);
}

}  // namespace

ProjectionTiles projection_tiles_bf16_avx512() {
  return {.run = run_tile, .few_rows = kProjectionMaxFewRows, .few_rows_e4m3 = kProjectionMaxFewRows};
}

}  // namespace smla

#else

namespace smla {

ProjectionTiles projection_tiles_bf16_avx512() { return {}; }  // never run: needs_avx512_bf16() refuses

}  // namespace smla

#endif
