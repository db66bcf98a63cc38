#pragma once

#include "device/halves.cuh"
#include "ops/indexer/indexer_call.cuh"

namespace smla::indexer {

constexpr int kTensorDim = 128;
constexpr int kSteps = kTensorDim / 16;   ///< products of 16 dims in a dot product
constexpr int kGroups = kTensorDim / 32;  ///< scales of an e2m1 row

/// How rows of an element type become fp16 fragments of mma.sync. A word of codes fills the two registers of one or two
/// products. The order of dims within a dot product is free; queries and keys both have the order in which shifts
/// unpack a word.
template <Element kElement>
struct Codes;

/// Converts four e4m3 codes to the fp16 pairs (b0, b1), (b2, b3).
template <>
struct Codes<Element::kE4M3> {
  static constexpr int kWords = kTensorDim / 4;
  static constexpr int kPairs = 2;

  /// A thread's words of a key are 16 bytes of each half of the row.
  __device__ static int step_of(int word) { return word / 16 * 4 + word % 4; }
  __device__ static int quarter_of(int word) { return word % 16 / 4; }
  /// Offset of word w of four from the first of them.
  __device__ static constexpr int step_after(int w) { return w; }
  __device__ static constexpr int quarter_after(int) { return 0; }
  /// The factor of a product of two codes.
  __device__ static float unit() { return device::kCodeShift == 0 ? 1.0F : 0x1p16F; }

  __device__ static void add_nans(std::uint32_t w, std::uint32_t* out) {
    const std::uint32_t n = device::misread_nans(w);
    const auto pair = [](std::uint32_t two) { return ((two >> 7 & 1U) | (two >> 15 & 1U) << 16) * 0x7E00U; };
    out[0] |= pair(n), out[1] |= pair(n >> 16);
  }
  __device__ static void widen(std::uint32_t w, std::uint32_t* out) {
    device::widen_codes(w, out[0], out[1]);
    if constexpr (device::kCodeShift != 0) add_nans(w, out);
  }

  /// A thread's share of a key: as stored, and as fragments [step][register].
  struct Raw {
    uint4 four[2];
  };
  template <bool kWide>
  __device__ static Raw fetch(const std::uint8_t* row, int quarter) {
    return {{load_four<kWide>(row + 16 * quarter), load_four<kWide>(row + 64 + 16 * quarter)}};
  }
  __device__ static void widen(const Raw& raw, std::uint32_t (&out)[2 * kSteps]) {
    std::uint32_t found = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t w[4] = {raw.four[half].x, raw.four[half].y, raw.four[half].z, raw.four[half].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        device::widen_codes(w[i], out[8 * half + 2 * i], out[8 * half + 2 * i + 1]);
        found |= device::misread_nans(w[i]);
      }
    }
    if constexpr (device::kCodeShift == 0) return;
    if (found == 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t w[4] = {raw.four[half].x, raw.four[half].y, raw.four[half].z, raw.four[half].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) add_nans(w[i], out + 8 * half + 2 * i);
    }
  }
};

/// Converts eight e2m1 codes to the fp16 pairs (n0, n4), (n1, n5), (n2, n6), (n3, n7).
template <>
struct Codes<Element::kE2M1> {
  static constexpr int kWords = kTensorDim / 8;
  static constexpr int kPairs = 4;

  /// Two products are one group of 32 dims, 16 bytes; a thread has a word of each group.
  __device__ static int step_of(int word) { return word / 4 * 2; }
  __device__ static int quarter_of(int word) { return word % 4; }
  __device__ static constexpr int step_after(int) { return 0; }
  __device__ static constexpr int quarter_after(int w) { return w; }

  __device__ static void widen(std::uint32_t w, std::uint32_t* out) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t top = w << (12 - 4 * i);  // the pair's nibbles at the top of both halves
      const std::uint32_t bits = ((top >> 3) & 0x0E00'0E00U) | (top & 0x8000'8000U);
      asm("mul.f16x2 %0, %1, %2;"
          : "=r"(out[i])
          : "r"(bits), "r"(0x7400'7400U));  // the bits are 2^-14 of the value: times 2^14
    }
  }
  __device__ static float unit() { return 1.0F; }

  struct Raw {
    std::uint32_t word[kGroups];
  };
  template <bool kWide>
  __device__ static Raw fetch(const std::uint8_t* row, int quarter) {
    Raw raw;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) raw.word[g] = load_word(row + 16 * g + 4 * quarter);
    return raw;
  }
  __device__ static void widen(const Raw& raw, std::uint32_t (&out)[2 * kSteps]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) widen(raw.word[g], out + 4 * g);
  }
};

}  // namespace smla::indexer
