#pragma once

// SIMD word of AVX2 + FMA + F16C: 8 floats. Interface and linkage rule: see simd_generic.h. Only for *_avx2.cpp.

#include <immintrin.h>

#include <cstdint>

namespace smla {
namespace {

struct Avx2Word {
  static constexpr int kLanes = 8;
  __m256 v;

  static Avx2Word zero() { return {_mm256_setzero_ps()}; }
  static Avx2Word all(float x) { return {_mm256_set1_ps(x)}; }
  static Avx2Word load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Avx2Word load_first(const float* p, int n) { return {_mm256_maskload_ps(p, first(n))}; }
  static Avx2Word load_bf16(const void* p) {
    const __m128i h = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
  }
  static Avx2Word load_bf16_even(const void* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)), 16))};
  }
  static Avx2Word load_bf16_odd(const void* p) {
    // Two shifts: a mask would take one of 16 registers.
    const __m256i u = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(u, 16), 16))};
  }
  static void load_e4m3_parts(const void* p, Avx2Word factor, Avx2Word* out) {
    const __m256i u = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    const __m256i keep = _mm256_set1_epi32(static_cast<int>(0x87F0'0000U));
    const __m256i odd = _mm256_srai_epi16(u, 4);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(u, 8), 4);
    const auto number = [&](__m256i bits) {
      return Avx2Word{_mm256_mul_ps(_mm256_castsi256_ps(_mm256_and_si256(bits, keep)), factor.v)};
    };
    out[0] = number(_mm256_slli_epi32(even, 16));
    out[1] = number(_mm256_slli_epi32(odd, 16));
    out[2] = number(even);
    out[3] = number(odd);
  }
  static Avx2Word load_e4m3(const void* p) {
    // As a half the byte is worth 2^-8 of its value, subnormals included; 480 does not exist in E4M3FN, that code is
    // NaN.
    const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m128i magnitude = _mm_and_si128(x, _mm_set1_epi16(0x7F));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(x, _mm_set1_epi16(0x80)), 8);
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7C00));
    const __m128i half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7));
    return {_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0F))};
  }
  static Avx2Word load_e2m1(const void* p) {
    std::uint32_t packed = 0;
    __builtin_memcpy(&packed, p, sizeof packed);
    const __m256i codes =
        _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(packed)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256 values = _mm256_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F);
    const __m256 magnitude = _mm256_permutevar8x32_ps(values, codes);  // takes the low three bits
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(static_cast<int>(0x8000'0000U)));
    return {_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))};
  }
  static void look_up_e2m1(const void* p, const void* table, void* out) {
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i bytes = _mm_loadl_epi64(static_cast<const __m128i*>(p));
    const __m128i codes =
        _mm_unpacklo_epi8(_mm_and_si128(bytes, nibble), _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    const __m128i first = _mm_loadu_si128(static_cast<const __m128i*>(table));
    const __m128i second = _mm_loadu_si128(static_cast<const __m128i*>(table) + 1);
    const __m128i byte = _mm_set1_epi16(0xFF);
    const __m128i low = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
    const __m128i high = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
    const __m128i lows = _mm_shuffle_epi8(low, codes);
    const __m128i highs = _mm_shuffle_epi8(high, codes);
    _mm_storeu_si128(static_cast<__m128i*>(out), _mm_unpacklo_epi8(lows, highs));
    _mm_storeu_si128(static_cast<__m128i*>(out) + 1, _mm_unpackhi_epi8(lows, highs));
  }

  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store_first(float* p, int n) const { _mm256_maskstore_ps(p, first(n), v); }
  void store_bf16(void* p) const {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), lsb);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x0040'0000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i out = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  /// Sum of the lanes by halves: 4 + 4, 2 + 2, 1 + 1.
  float sum() const {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
  }
  float largest() const {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
  }

  friend void sum4(Avx2Word a, Avx2Word b, Avx2Word c, Avx2Word d, float* out) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a.v, b.v), _mm256_unpackhi_ps(a.v, b.v));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c.v, d.v), _mm256_unpackhi_ps(c.v, d.v));
    const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
  }

  friend void split(Avx2Word a, Avx2Word b, Avx2Word* even, Avx2Word* odd) {
    const auto in_order = [](__m256 x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xD8)); };
    *even = {in_order(_mm256_shuffle_ps(a.v, b.v, 0x88))};
    *odd = {in_order(_mm256_shuffle_ps(a.v, b.v, 0xDD))};
  }

  friend Avx2Word operator+(Avx2Word a, Avx2Word b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Avx2Word operator-(Avx2Word a, Avx2Word b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Avx2Word operator*(Avx2Word a, Avx2Word b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Avx2Word operator/(Avx2Word a, Avx2Word b) { return {_mm256_div_ps(a.v, b.v)}; }
  friend Avx2Word fma(Avx2Word a, Avx2Word b, Avx2Word c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  friend Avx2Word max(Avx2Word a, Avx2Word b) { return {_mm256_max_ps(a.v, b.v)}; }
  friend Avx2Word min(Avx2Word a, Avx2Word b) { return {_mm256_min_ps(a.v, b.v)}; }
  friend Avx2Word unless_below(Avx2Word x, Avx2Word limit, Avx2Word value) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ), value.v)};
  }
  friend Avx2Word pow2_of_biased(Avx2Word x) {
    return {_mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.v), 23), _mm256_set1_epi32(0x3F80'0000)))};
  }

 private:
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

}  // namespace
}  // namespace smla
