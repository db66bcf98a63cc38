#pragma once

// SIMD word of AVX-512 F/BW/DQ/VL: 16 floats. Interface and linkage rule: see simd_generic.h. Only for *_avx512.cpp.

// GCC 12 takes the deliberately undefined merge operand of its own AVX-512 intrinsics for a bug.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace smla {
namespace {

struct Avx512Word {
  static constexpr int kLanes = 16;
  __m512 v;

  static Avx512Word zero() { return {_mm512_setzero_ps()}; }
  static Avx512Word all(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512Word load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Avx512Word load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
  static Avx512Word load_bf16(const void* p) {
    const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
  }
  static Avx512Word load_bf16_even(const void* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
  }
  static Avx512Word load_bf16_odd(const void* p) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xFFFF'0000U))))};
  }
  static void load_e4m3_parts(const void* p, Avx512Word factor, Avx512Word* out) {
    const __m512i u = _mm512_loadu_si512(p);
    const __m512i keep = _mm512_set1_epi32(static_cast<int>(0x87F0'0000U));
    const __m512i odd = _mm512_srai_epi16(u, 4);
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(u, 8), 4);
    const auto number = [&](__m512i bits) {
      return Avx512Word{_mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(bits, keep)), factor.v)};
    };
    out[0] = number(_mm512_slli_epi32(even, 16));
    out[1] = number(_mm512_slli_epi32(odd, 16));
    out[2] = number(even);
    out[3] = number(odd);
  }
  static Avx512Word load_e4m3(const void* p) {
    // As a half the byte is worth 2^-8 of its value, subnormals included; 480 does not exist in E4M3FN, that code is
    // NaN.
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7F));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
    const __m256i nan =
        _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7F)), _mm256_set1_epi16(0x7C00));
    const __m256i half = _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(magnitude, 7));
    return {_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0F))};
  }
  static Avx512Word load_e2m1(const void* p) {
    std::uint64_t packed = 0;
    __builtin_memcpy(&packed, p, sizeof packed);
    const __m512i halves = _mm512_inserti64x4(_mm512_set1_epi32(static_cast<int>(packed)),
                                              _mm256_set1_epi32(static_cast<int>(packed >> 32)), 1);
    const __m512i codes =
        _mm512_srlv_epi32(halves, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
    const __m512 values = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F, -0.5F, -1.0F, -1.5F,
                                         -2.0F, -3.0F, -4.0F, -6.0F);
    return {_mm512_permutexvar_ps(codes, values)};  // takes the low four bits
  }
  static void look_up_e2m1(const void* p, const void* table, void* out) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
    const __m256i codes = _mm256_or_si256(bytes, _mm256_slli_epi32(bytes, 12));  // the low four bits of each word
    _mm256_storeu_si256(static_cast<__m256i*>(out),
                        _mm256_permutexvar_epi16(codes, _mm256_loadu_si256(static_cast<const __m256i*>(table))));
  }

  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_first(float* p, int n) const { _mm512_mask_storeu_ps(p, first(n), v); }
  void store_bf16(void* p) const {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), lsb);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i bits = _mm512_mask_or_epi32(rounded, is_nan, u, _mm512_set1_epi32(0x0040'0000));
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }

  /// Sum of the lanes by halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
  float sum() const {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
  }
  float largest() const {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
  }

  friend void sum4(Avx512Word a, Avx512Word b, Avx512Word c, Avx512Word d, float* out) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
    const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }

  friend void split(Avx512Word a, Avx512Word b, Avx512Word* even, Avx512Word* odd) {
    const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = {_mm512_permutex2var_ps(a.v, first, b.v)};
    *odd = {_mm512_permutex2var_ps(a.v, _mm512_add_epi32(first, _mm512_set1_epi32(1)), b.v)};
  }

  friend Avx512Word operator+(Avx512Word a, Avx512Word b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Avx512Word operator-(Avx512Word a, Avx512Word b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Avx512Word operator*(Avx512Word a, Avx512Word b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Avx512Word operator/(Avx512Word a, Avx512Word b) { return {_mm512_div_ps(a.v, b.v)}; }
  friend Avx512Word fma(Avx512Word a, Avx512Word b, Avx512Word c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  friend Avx512Word max(Avx512Word a, Avx512Word b) { return {_mm512_max_ps(a.v, b.v)}; }
  friend Avx512Word min(Avx512Word a, Avx512Word b) { return {_mm512_min_ps(a.v, b.v)}; }
  friend Avx512Word unless_below(Avx512Word x, Avx512Word limit, Avx512Word value) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), value.v)};
  }
  friend Avx512Word pow2_of_biased(Avx512Word x) {
    return {_mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(x.v), 23), _mm512_set1_epi32(0x3F80'0000)))};
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>(n >= 16 ? 0xFFFFU : n <= 0 ? 0U : (1U << n) - 1U); }
};

}  // namespace
}  // namespace smla
