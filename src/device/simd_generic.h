#pragma once

// SIMD word of any machine: 4 floats in the compiler's vector extension (SSE2, NEON or plain registers, whatever the
// base target has). The three words (simd_generic.h, simd_avx2.h, simd_avx512.h) have one interface, so that a kernel
// is one text templated over the word:
//   kLanes; zero, all, load, load_first, load_bf16, load_bf16_even, load_bf16_odd, load_e4m3, load_e4m3_parts,
//   load_e2m1, look_up_e2m1; store, store_first, store_bf16; + - * /; sum, largest; and the free functions fma, min,
//   max, split, sum4, unless_below, pow2_of_biased. simd_math.h adds exp. All pointers may be unaligned.
// NOTE: everything here has internal linkage on purpose. A weak symbol emitted by a file built with -mavx512f could
// replace the portable copy at link time and crash an older CPU. Include one word per .cpp, and no code of your own
// from inline functions with linkage beside it.

#include <bit>
#include <cstdint>
#include <cstring>

namespace smla {
namespace {

struct GenericWord {
  static constexpr int kLanes = 4;
  typedef float Floats __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  typedef std::uint32_t Bits __attribute__((vector_size(16)));
  Floats v;

  static GenericWord zero() { return {Floats{}}; }
  static GenericWord all(float x) { return {Floats{x, x, x, x}}; }
  static GenericWord load(const float* p) {
    GenericWord w;
    std::memcpy(&w.v, p, sizeof w.v);
    return w;
  }
  /// The first n lanes from memory (nothing past them is read), the others 0.
  static GenericWord load_first(const float* p, int n) {
    GenericWord w = zero();
    for (int i = 0; i < kLanes && i < n; ++i) w.v[i] = p[i];
    return w;
  }
  /// kLanes bfloat16 numbers, exact.
  static GenericWord load_bf16(const void* p) {
    std::uint16_t h[4];
    std::memcpy(h, p, sizeof h);
    const Ints bits = {h[0], h[1], h[2], h[3]};
    return {reinterpret_cast<Floats>(bits << 16)};
  }
  /// Of 2 kLanes bfloat16 numbers, exact: 0, 2, 4, ... and 1, 3, 5, ...
  static GenericWord load_bf16_even(const void* p) {
    static_assert(std::endian::native == std::endian::little);
    Bits u;
    std::memcpy(&u, p, sizeof u);
    return {reinterpret_cast<Floats>(u << 16)};
  }
  static GenericWord load_bf16_odd(const void* p) {
    Bits u;
    std::memcpy(&u, p, sizeof u);
    return {reinterpret_cast<Floats>(u & 0xFFFF'0000U)};
  }
  /// 4 kLanes E4M3FN numbers times `factor` times 2^-120, one rounding: out[p] has p, p + 4, ... As the upper bits of a
  /// float a code is worth 2^-120 of its number, subnormals included. The codes of NaN give +-480.
  static void load_e4m3_parts(const void* p, GenericWord factor, GenericWord* out) {
    Bits u;
    std::memcpy(&u, p, sizeof u);
    for (int i = 0; i < 4; ++i) {
      const Ints bits = reinterpret_cast<Ints>(u << (24 - 8 * i)) >> 4;  // the sign comes down with it
      out[i] = {reinterpret_cast<Floats>(bits & static_cast<std::int32_t>(0x87F0'0000U)) * factor.v};
    }
  }
  /// kLanes E4M3FN numbers, exact; 0x7F and 0xFF give NaN.
  static GenericWord load_e4m3(const void* p) {
    std::uint8_t b[4];
    std::memcpy(b, p, sizeof b);
    const Ints x = {b[0], b[1], b[2], b[3]};
    const Ints sign = (x & 0x80) << 24;
    const Ints magnitude = x & 0x7F;
    const Ints normal = (magnitude << 20) + (120 << 23);
    const Ints subnormal = reinterpret_cast<Ints>(__builtin_convertvector(magnitude, Floats) * 0x1p-9F);
    const Ints tiny = magnitude < 8;
    const Ints nan = (magnitude == 0x7F) & 0x7FC0'0000;
    return {reinterpret_cast<Floats>(sign | (tiny & subnormal) | (~tiny & normal) | nan)};
  }
  /// kLanes E2M1 codes, two a byte, low nibble first.
  static GenericWord load_e2m1(const void* p) {
    static constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                          -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
    std::uint8_t b[2];
    std::memcpy(b, p, sizeof b);
    return {Floats{kValues[b[0] & 15], kValues[b[0] >> 4], kValues[b[1] & 15], kValues[b[1] >> 4]}};
  }
  /// Of 16 E2M1 codes, low nibble first, the 16-bit numbers that `table` has for them.
  static void look_up_e2m1(const void* p, const void* table, void* out) {
    std::uint8_t bytes[8];
    std::uint16_t numbers[16];
    std::uint16_t found[16];
    std::memcpy(bytes, p, sizeof bytes);
    std::memcpy(numbers, table, sizeof numbers);
    for (int i = 0; i < 8; ++i) {
      found[2 * i] = numbers[bytes[i] & 15];
      found[2 * i + 1] = numbers[bytes[i] >> 4];
    }
    std::memcpy(out, found, sizeof found);
  }

  void store(float* p) const { std::memcpy(p, &v, sizeof v); }
  void store_first(float* p, int n) const {
    for (int i = 0; i < kLanes && i < n; ++i) p[i] = v[i];
  }
  /// kLanes bfloat16 numbers, rounded to nearest even; NaN stays NaN.
  void store_bf16(void* p) const {
    const Bits u = reinterpret_cast<Bits>(v);
    const Bits is_nan = reinterpret_cast<Bits>((u & 0x7FFF'FFFFU) > 0x7F80'0000U);
    const Bits rounded = u + 0x7FFFU + ((u >> 16) & 1U);
    const Bits out = ((is_nan & (u | 0x0040'0000U)) | (~is_nan & rounded)) >> 16;
    std::uint16_t h[4];
    for (int i = 0; i < kLanes; ++i) h[i] = static_cast<std::uint16_t>(out[i]);
    std::memcpy(p, h, sizeof h);
  }

  /// Sum of the lanes: ((0+2) + (1+3)).
  float sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
  /// Largest lane; not defined with NaN.
  float largest() const {
    const float a = v[0] > v[2] ? v[0] : v[2];
    const float b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }

  /// out[0..3] = the sums of the lanes of a, b, c and d, each added in the same order whatever the others hold.
  friend void sum4(GenericWord a, GenericWord b, GenericWord c, GenericWord d, float* out) {
    const Floats ab = __builtin_shufflevector(a.v, b.v, 0, 4, 1, 5) + __builtin_shufflevector(a.v, b.v, 2, 6, 3, 7);
    const Floats cd = __builtin_shufflevector(c.v, d.v, 0, 4, 1, 5) + __builtin_shufflevector(c.v, d.v, 2, 6, 3, 7);
    GenericWord{__builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7)}.store(out);
  }

  /// The lanes of a, then b: 0, 2, 4, ... and 1, 3, 5, ...
  friend void split(GenericWord a, GenericWord b, GenericWord* even, GenericWord* odd) {
    *even = {__builtin_shufflevector(a.v, b.v, 0, 2, 4, 6)};
    *odd = {__builtin_shufflevector(a.v, b.v, 1, 3, 5, 7)};
  }

  friend GenericWord operator+(GenericWord a, GenericWord b) { return {a.v + b.v}; }
  friend GenericWord operator-(GenericWord a, GenericWord b) { return {a.v - b.v}; }
  friend GenericWord operator*(GenericWord a, GenericWord b) { return {a.v * b.v}; }
  friend GenericWord operator/(GenericWord a, GenericWord b) { return {a.v / b.v}; }
  /// a * b + c; two roundings here, one in the words that have FMA.
  friend GenericWord fma(GenericWord a, GenericWord b, GenericWord c) { return {a.v * b.v + c.v}; }
  /// b where either is NaN.
  friend GenericWord max(GenericWord a, GenericWord b) { return {a.v > b.v ? a.v : b.v}; }
  friend GenericWord min(GenericWord a, GenericWord b) { return {a.v < b.v ? a.v : b.v}; }
  /// value, but +0 in the lanes where x < limit.
  friend GenericWord unless_below(GenericWord x, GenericWord limit, GenericWord value) {
    const Ints below = x.v < limit.v;
    return {reinterpret_cast<Floats>(~below & reinterpret_cast<Ints>(value.v))};
  }
  /// 2^n where the argument is n + 1.5 * 2^23, n an integer in [-126, 127].
  friend GenericWord pow2_of_biased(GenericWord x) {
    return {reinterpret_cast<Floats>((reinterpret_cast<Bits>(x.v) << 23) + 0x3F80'0000U)};
  }
};

}  // namespace
}  // namespace smla
