#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// Element types of tensors; the names are those of safetensors.
enum class DType : std::uint8_t { kF32, kF64, kBF16, kE4M3, kU8, kI32, kI64, kBool };

/// bfloat16 as its 16 bits: sign, 8 exponent bits, 7 fraction bits.
struct BF16 {
  std::uint16_t bits = 0;
  friend bool operator==(BF16, BF16) = default;
};

/// OCP E4M3FN as its byte: no infinity, NaN is 0x7F and 0xFF, largest finite value 448.
struct E4M3 {
  std::uint8_t bits = 0;
  friend bool operator==(E4M3, E4M3) = default;
};

/// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16: return 2;
    case DType::kE4M3:
    case DType::kU8:
    case DType::kBool: return 1;
  }
  return 0;
}

/// The safetensors name: "F32", "F64", "BF16", "F8_E4M3", "U8", "I32", "I64", "BOOL".
std::string_view name_of(DType dtype);

/// The type of that name. @throws InvalidArgument for another name, with the accepted ones.
DType dtype_from_name(std::string_view name);

/// DTypeOf<T>::value is the dtype of tensors whose elements are T in C++.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<E4M3> {
  static constexpr DType value = DType::kE4M3;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};

/// The dtype of tensors whose elements are T: dtype_of<float> is DType::kF32.
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

/// The same number as float; exact.
constexpr float to_float(BF16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

/// Rounds to the nearest bf16, ties to even; NaN stays a (quiet) NaN, overflow becomes infinity.
constexpr BF16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFF'FFFFU) > 0x7F80'0000U) return {static_cast<std::uint16_t>((u >> 16) | 0x0040U)};
  return {static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16)};
}

}  // namespace smla
