#pragma once

// How the words of the projection kernel (projection_kernel.h) hold weights and inputs. A register of weights is kParts
// words of numbers: part p holds inputs p, p + kParts, ... of the register's. x is laid out alike. Short last registers
// are filled with zeros. Internal linkage throughout: see simd_generic.h.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/projection/implementations.h"

namespace smla {
namespace {

constexpr float kE4m3Factor = 0x1p120F;  // see load_e4m3_parts

/// Stands for NVFP4 weights, which become bf16 a block of inputs at a time.
struct Nvfp4;

/// What is multiplied in place of stored weights.
template <class W>
struct MultipliedAs {
  using Type = W;
};
template <>
struct MultipliedAs<Nvfp4> {
  using Type = BF16;
};
template <class W>
using Multiplied = typename MultipliedAs<W>::Type;

inline std::int64_t round_up_to(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

/// Weights of one dtype: kParts words in a register.
template <class W>
struct Weights;
template <>
struct Weights<float> {
  static constexpr int kParts = 1;
  static constexpr int kMaxRows = kBlockRows;
  static Word part(const float* p, int /*part*/) { return Word::load(p); }
};
template <>
struct Weights<BF16> {
  static constexpr int kParts = 2;
  static constexpr int kMaxRows = kBlockRows;
  static Word part(const BF16* p, int part) { return part == 0 ? Word::load_bf16_even(p) : Word::load_bf16_odd(p); }
};
template <>
struct Weights<E4M3> {
  static constexpr int kParts = 4;
  static constexpr int kMaxRows = kE4m3BlockRows;
};

/// Inputs of a register of weights.
template <class W>
constexpr int kRegister = Weights<W>::kParts* Word::kLanes;

/// What E4M3 codes of a block with this scale are multiplied by. Larger scales than this allows go through
/// widen_codes().
inline bool is_moderate(float scale) { return std::fabs(scale) < 0x1p7F; }

inline Word load_word(const float* p) { return Word::load(p); }
inline Word load_word(const BF16* p) { return Word::load_bf16(p); }

/// kParts words of x in order to the parts of a register.
template <int kParts>
inline void split_parts(Word* words) {
  if constexpr (kParts > 1) {
    Word even[kParts / 2];
    Word odd[kParts / 2];
#pragma GCC unroll 2
    for (int i = 0; i < kParts / 2; ++i) split(words[2 * i], words[2 * i + 1], &even[i], &odd[i]);
    split_parts<kParts / 2>(even);
    split_parts<kParts / 2>(odd);
#pragma GCC unroll 2
    for (int i = 0; i < kParts / 2; ++i) words[2 * i] = even[i], words[2 * i + 1] = odd[i];
  }
}

/// Row of k numbers to floats in the order of weights of type W, zeros up to a whole register.
template <class W, class T>
inline void widen_row(const T* from, std::int64_t k, float* to) {
  const auto one = [](const T* p, float* out) {
    constexpr int kParts = Weights<W>::kParts;
    Word words[kParts];
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) words[i] = load_word(p + i * Word::kLanes);
    split_parts<kParts>(words);
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) words[i].store(out + i * Word::kLanes);
  };
  std::int64_t i = 0;
  for (; i + kRegister<W> <= k; i += kRegister<W>) one(from + i, to + i);
  if (i < k) {
    T last[kRegister<W>] = {};
    std::memcpy(last, from + i, static_cast<std::size_t>(k - i) * sizeof(T));
    one(last, to + i);
  }
}

/// Whether a NaN is among n codes: load_e4m3_parts takes them for numbers.
inline bool has_nan(const E4M3* codes, std::int64_t n) {
  std::uint8_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto code = static_cast<std::uint8_t>(codes[i].bits | 0x80U);
    most = code > most ? code : most;
  }
  return most == 0xFFU;
}

/// Weights of a panel row to floats in the order of widen_row: inputs [at, at + k), `at` a multiple of the scales'
/// blocks.
template <class W>
inline void widen_weights(const W* from, const float* /*scale*/, std::int64_t k, float* to) {
  widen_row<W>(from, k, to);
}
template <>
inline void widen_weights(const E4M3* from, const float* scale, std::int64_t k, float* to) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  const auto one = [](const E4M3* p, float s, float* out) {
    Word parts[4];
    Word::load_e4m3_parts(p, Word::all(is_moderate(s) ? s * kE4m3Factor : kE4m3Factor), parts);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) (is_moderate(s) ? parts[i] : parts[i] * Word::all(s)).store(out + i * Word::kLanes);
  };
  std::int64_t i = 0;
  for (; i + kRegister<E4M3> <= k; i += kRegister<E4M3>) one(from + i, scale[i / kBlock], to + i);
  if (i < k) {
    E4M3 last[kRegister<E4M3>] = {};
    std::memcpy(last, from + i, static_cast<std::size_t>(k - i) * sizeof(E4M3));
    one(last, scale[i / kBlock], to + i);
  }
  if (has_nan(from, k)) to[0] = std::numeric_limits<float>::quiet_NaN();
}

/// Row j of a tile of NVFP4 weights as bf16: inputs [at, at + k), `at` a multiple of kProjectionKBlock.
inline void widen_nvfp4(const ProjectionTile& t, std::int64_t j, std::int64_t at, std::int64_t k, BF16* to) {
  constexpr std::int64_t kGroup = Projection::kNvfp4Group;
  const BF16* const tables = nvfp4_tables();
  const std::uint8_t* const codes = static_cast<const std::uint8_t*>(t.w) + (j * t.k + at) / 2;
  const E4M3* const scales = t.nvfp4_scale + (j * t.k + at) / kGroup;
  for (std::int64_t i = 0; i < k; i += kGroup)
    Word::look_up_e2m1(codes + i / 2, tables + 16 * scales[i / kGroup].bits, to + i);
}

template <class W>
inline void widen_x(const ProjectionTile& t, std::int64_t row, std::int64_t at, std::int64_t k, float* to) {
  if (t.x_bf16) {
    widen_row<W>(static_cast<const BF16*>(t.x) + row * t.x_stride + at, k, to);
  } else {
    widen_row<W>(static_cast<const float*>(t.x) + row * t.x_stride + at, k, to);
  }
}

/// The scales of row j of a tile of E4M3 weights from input `at` on; past the last row those of the last one.
inline const float* scales_of(const ProjectionTile& t, std::int64_t j, std::int64_t at) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  return t.w_scale + (t.w_row + (j < t.n ? j : t.n - 1)) / kBlock * t.w_scale_stride + at / kBlock;
}

/// Row of k bf16 numbers in the order of E4M3 weights: of each register first its parts 0 and 1 in pairs, then 2 and 3;
/// zeros up to a whole register.
inline void pair_row(const BF16* from, std::int64_t k, BF16* to) {
  const auto one = [](const void* p, BF16* out) {
    Word even;
    Word odd;
    split(Word::load(static_cast<const float*>(p)), Word::load(static_cast<const float*>(p) + Word::kLanes), &even,
          &odd);
    even.store(reinterpret_cast<float*>(out));
    odd.store(reinterpret_cast<float*>(out) + Word::kLanes);
  };
  std::int64_t i = 0;
  for (; i + kRegister<E4M3> <= k; i += kRegister<E4M3>) one(from + i, to + i);
  if (i < k) {
    BF16 last[kRegister<E4M3>] = {};
    std::memcpy(last, from + i, static_cast<std::size_t>(k - i) * sizeof(BF16));
    one(last, to + i);
  }
}

}  // namespace
}  // namespace smla
