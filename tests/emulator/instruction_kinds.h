#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "machine.h"

namespace emulator {

// What the files of instructions share. Each has the functions that run its instructions, and one that chooses among
// them by an instruction's name, in pieces; it returns false for a name that is not of its kind.

using Name = std::vector<std::string>;

inline bool has(const Name& name, std::string_view part) {
  return std::find(name.begin(), name.end(), part) != name.end();
}

inline Type type_of(std::string_view s) {
  constexpr std::pair<std::string_view, Type> kTypes[] = {
      {"pred", Type::kPred}, {"b8", Type::kB8},   {"b16", Type::kB16},       {"b32", Type::kB32},
      {"b64", Type::kB64},   {"u8", Type::kU8},   {"u16", Type::kU16},       {"u32", Type::kU32},
      {"u64", Type::kU64},   {"s8", Type::kS8},   {"s16", Type::kS16},       {"s32", Type::kS32},
      {"s64", Type::kS64},   {"f16", Type::kF16}, {"bf16", Type::kBF16},     {"f16x2", Type::kF16x2},
      {"f32", Type::kF32},   {"f64", Type::kF64}, {"bf16x2", Type::kBF16x2}, {"e4m3x2", Type::kE4M3x2},
      {"e4m3", Type::kE4M3}};
  for (const auto& [text, type] : kTypes)
    if (text == s) return type;
  return Type::kNone;
}

[[noreturn]] inline void unknown() { throw Error("an instruction that the emulator does not know"); }

/// Calls f with a value of a type's C++ type: bits as unsigned numbers.
template <class F>
Run by_type(Type type, const F& f) {
  switch (type) {
    case Type::kB8:
    case Type::kU8: return f(std::uint8_t{});
    case Type::kS8: return f(std::int8_t{});
    case Type::kB16:
    case Type::kU16: return f(std::uint16_t{});
    case Type::kS16: return f(std::int16_t{});
    case Type::kB32:
    case Type::kU32: return f(std::uint32_t{});
    case Type::kS32: return f(std::int32_t{});
    case Type::kB64:
    case Type::kU64: return f(std::uint64_t{});
    case Type::kS64: return f(std::int64_t{});
    case Type::kF32: return f(float{});
    case Type::kF64: return f(double{});
    default: unknown();
  }
}

inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }

template <class T, class F>
void map1(Warp& w, const Instruction& i, std::uint32_t lanes, const F& f) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  each_lane(lanes, [&](int l) { d[l] = packed<T>(f(unpacked<T>(a[l]))); });
}
template <class T, class F>
void map2(Warp& w, const Instruction& i, std::uint32_t lanes, const F& f) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<T>(w, i.s[1]);
  each_lane(lanes, [&](int l) { d[l] = packed<T>(f(unpacked<T>(a[l]), unpacked<T>(b[l]))); });
}
template <class T, class F>
void map3(Warp& w, const Instruction& i, std::uint32_t lanes, const F& f) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<T>(w, i.s[1]);
  const auto* c = place<T>(w, i.s[2]);
  each_lane(lanes, [&](int l) { d[l] = packed<T>(f(unpacked<T>(a[l]), unpacked<T>(b[l]), unpacked<T>(c[l]))); });
}

template <class T>
constexpr bool kFloat = std::is_floating_point_v<T>;
template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
T wrapped_add(T a, T b) {
  if constexpr (kFloat<T>) {
    return a + b;
  } else {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
}
template <class T>
T wrapped_multiply(T a, T b) {
  if constexpr (kFloat<T>) {
    return a * b;
  } else {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
}
template <class T>
T less_of(T a, T b) {
  if constexpr (kFloat<T>)
    return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : std::min(a, b);
  return std::min(a, b);
}
template <class T>
T greater_of(T a, T b) {
  if constexpr (kFloat<T>)
    return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : std::max(a, b);
  return std::max(a, b);
}

enum Rounding : std::uint8_t { kNearest, kDown, kUp, kZero, kNearestInteger, kDownInteger, kUpInteger, kZeroInteger };
inline std::uint8_t rounding_of(const Name& name) {
  constexpr std::pair<std::string_view, Rounding> kNames[] = {
      {"rn", kNearest},         {"rm", kDown},         {"rp", kUp},         {"rz", kZero},
      {"rni", kNearestInteger}, {"rmi", kDownInteger}, {"rpi", kUpInteger}, {"rzi", kZeroInteger}};
  for (const auto& [text, r] : kNames)
    if (has(name, text)) return r;
  return kNearest;
}

enum Atomic : std::uint8_t {
  kAtomAdd,
  kAtomMin,
  kAtomMax,
  kAtomAnd,
  kAtomOr,
  kAtomXor,
  kAtomExch,
  kAtomCas,
  kAtomInc,
  kAtomDec
};
inline std::uint8_t atomic_of(const Name& name) {
  constexpr std::pair<std::string_view, Atomic> kNames[] = {
      {"add", kAtomAdd}, {"min", kAtomMin},   {"max", kAtomMax}, {"and", kAtomAnd}, {"or", kAtomOr},
      {"xor", kAtomXor}, {"exch", kAtomExch}, {"cas", kAtomCas}, {"inc", kAtomInc}, {"dec", kAtomDec}};
  for (const auto& [text, a] : kNames)
    if (has(name, text)) return a;
  unknown();
}

// Numbers of 16 bits (conversions.cpp; from_half is in machine.h).
std::uint16_t to_half(float x);
float from_bf16(std::uint16_t bits);
std::uint16_t to_bf16(float x);

inline void nothing(Warp&, const Instruction&, std::uint32_t) {}

/// and, or, xor, not, mov of predicates.
Run of_predicates(const std::string& base);

bool decode_arithmetic(Instruction& i, const Name& name);
bool decode_logic(Instruction& i, const Name& name);
bool decode_conversion(Instruction& i, const Name& name);
bool decode_memory(Instruction& i, const Name& name);
bool decode_lanes(Instruction& i, const Name& name);

}  // namespace emulator
