// What each PTX instruction does to the lanes that run it.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "machine.h"

namespace emulator {

namespace {

using Name = std::vector<std::string>;
__extension__ typedef __int128 Wide;
__extension__ typedef unsigned __int128 UnsignedWide;

bool has(const Name& name, std::string_view part) { return std::find(name.begin(), name.end(), part) != name.end(); }

Type type_of(std::string_view s) {
  constexpr std::pair<std::string_view, Type> kTypes[] = {
      {"pred", Type::kPred}, {"b8", Type::kB8},   {"b16", Type::kB16},       {"b32", Type::kB32},
      {"b64", Type::kB64},   {"u8", Type::kU8},   {"u16", Type::kU16},       {"u32", Type::kU32},
      {"u64", Type::kU64},   {"s8", Type::kS8},   {"s16", Type::kS16},       {"s32", Type::kS32},
      {"s64", Type::kS64},   {"f16", Type::kF16}, {"bf16", Type::kBF16},     {"f16x2", Type::kF16x2},
      {"f32", Type::kF32},   {"f64", Type::kF64}, {"bf16x2", Type::kBF16x2}, {"e4m3x2", Type::kE4M3x2}};
  for (const auto& [text, type] : kTypes)
    if (text == s) return type;
  return Type::kNone;
}

[[noreturn]] void unknown() { throw Error("an instruction that the emulator does not know"); }

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

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }

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

// 16-bit floating point.
std::uint16_t to_half(float x) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)); }
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t to_bf16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float from_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  float x = 0;
  if (exponent == 15 && mantissa == 7) {
    x = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    x = std::ldexp(static_cast<float>(mantissa), -9);
  } else {
    x = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  }
  return (bits & 0x80) != 0 ? -x : x;
}
/// To nearest, ties to even; what is too large becomes 448.
std::uint8_t to_e4m3(float x) {
  if (std::isnan(x)) return 0x7F;
  const auto sign = static_cast<std::uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float size = std::min(std::fabs(x), 448.0F);
  int exponent = 0;
  (void)std::frexp(size, &exponent);  // size = [0.5, 1) * 2^exponent
  const int unit = std::max(exponent - 4, -9);
  const float scaled = std::nearbyint(std::ldexp(size, -unit));  // at most 16 units
  const float value = std::min(std::ldexp(scaled, unit), 448.0F);
  if (value < 0x1p-6F) return sign | static_cast<std::uint8_t>(std::ldexp(value, 9));
  (void)std::frexp(value, &exponent);
  return sign |
         static_cast<std::uint8_t>((exponent + 6) << 3 | (static_cast<int>(std::ldexp(value, 4 - exponent)) & 7));
}

template <class T>
constexpr bool kFloat = std::is_floating_point_v<T>;
template <class T>
using Unsigned = std::make_unsigned_t<T>;

// --- arithmetic

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

/// add, sub, mul, min, max, div, rem of one type. Directed rounding: see directed().
Run binary(const std::string& base, const Name& name, Type type) {
  if (base == "mul" && has(name, "hi")) {
    return by_type(type, [](auto zero) -> Run {
      using T = decltype(zero);
      if constexpr (!std::is_integral_v<T>) {
        unknown();
      } else {
        return [](Warp& w, const Instruction& i, std::uint32_t lanes) {
          map2<T>(w, i, lanes, [](T a, T b) {
            using W = std::conditional_t<std::is_signed_v<T>, Wide, UnsignedWide>;
            return static_cast<T>(static_cast<W>(a) * static_cast<W>(b) >> 8 * sizeof(T));
          });
        };
      }
    });
  }
  return by_type(type, [&](auto zero) -> Run {
    using T = decltype(zero);
    if (base == "add")
      return [](Warp& w, const Instruction& i, std::uint32_t n) {
        map2<T>(w, i, n, [](T a, T b) { return wrapped_add(a, b); });
      };
    if (base == "sub") {
      return [](Warp& w, const Instruction& i, std::uint32_t n) {
        map2<T>(w, i, n, [](T a, T b) {
          if constexpr (kFloat<T>) {
            return a - b;
          } else {
            return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
          }
        });
      };
    }
    if (base == "mul")
      return [](Warp& w, const Instruction& i, std::uint32_t n) {
        map2<T>(w, i, n, [](T a, T b) { return wrapped_multiply(a, b); });
      };
    if (base == "min")
      return [](Warp& w, const Instruction& i, std::uint32_t n) {
        map2<T>(w, i, n, [](T a, T b) { return less_of(a, b); });
      };
    if (base == "max")
      return [](Warp& w, const Instruction& i, std::uint32_t n) {
        map2<T>(w, i, n, [](T a, T b) { return greater_of(a, b); });
      };
    if (base == "div") {
      return [](Warp& w, const Instruction& i, std::uint32_t n) {
        map2<T>(w, i, n, [](T a, T b) {
          if constexpr (!kFloat<T>) {
            if (b == 0) return static_cast<T>(-1);
            if constexpr (std::is_signed_v<T>) {
              if (b == -1) return static_cast<T>(0 - static_cast<Unsigned<T>>(a));
            }
          }
          return static_cast<T>(a / b);
        });
      };
    }
    if (base == "rem") {
      if constexpr (!kFloat<T>) {
        return [](Warp& w, const Instruction& i, std::uint32_t n) {
          map2<T>(w, i, n, [](T a, T b) {
            if (b == 0) return a;
            if constexpr (std::is_signed_v<T>) {
              if (b == -1) return T{0};
            }
            return static_cast<T>(a % b);
          });
        };
      }
    }
    unknown();
  });
}

/// fma of floats; of mode 1 and 2 rounded down and up.
template <class T>
void run_fma(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (i.mode == 0) return map3<T>(w, i, lanes, [](T a, T b, T c) { return std::fma(a, b, c); });
  const int before = std::fegetround();
  std::fesetround(i.mode == 1 ? FE_DOWNWARD : i.mode == 2 ? FE_UPWARD : FE_TOWARDZERO);
  map3<T>(w, i, lanes, [](T a, T b, T c) {
    volatile T x = a;
    volatile T result = std::fma(x, b, c);
    return static_cast<T>(result);
  });
  std::fesetround(before);
}
template <class T>
void run_mad(Warp& w, const Instruction& i, std::uint32_t lanes) {
  map3<T>(w, i, lanes, [](T a, T b, T c) { return wrapped_add(wrapped_multiply(a, b), c); });
}
/// Products of twice the width, and in mode 1 a sum.
template <class T>
void run_wide(Warp& w, const Instruction& i, std::uint32_t lanes) {
  using D = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>,
                               std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;
  auto* d = place<D>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<T>(w, i.s[1]);
  const auto* c = i.mode == 1 ? place<D>(w, i.s[2]) : nullptr;
  each_lane(lanes, [&](int l) {
    const auto product = static_cast<D>(static_cast<D>(unpacked<T>(a[l])) * static_cast<D>(unpacked<T>(b[l])));
    d[l] = packed<D>(c == nullptr ? product : wrapped_add(product, unpacked<D>(c[l])));
  });
}

// --- bits

void run_prmt(Warp& w, const Instruction& i, std::uint32_t lanes) {
  map3<std::uint32_t>(w, i, lanes, [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
    std::uint32_t out = 0;
    for (int n = 0; n < 4; ++n) {
      const std::uint32_t pick = c >> 4 * n & 15;
      std::uint32_t byte = static_cast<std::uint32_t>(both >> 8 * (pick & 7)) & 0xFF;
      if ((pick & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
      out |= byte << 8 * n;
    }
    return out;
  });
}
void run_lop3(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto table = static_cast<std::uint32_t>(number(w, i.s[3], 0));
  map3<std::uint32_t>(w, i, lanes, [&](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    std::uint32_t out = 0;
    for (std::uint32_t n = 0; n < 8; ++n)
      if ((table >> n & 1) != 0) out |= ((n & 4) != 0 ? a : ~a) & ((n & 2) != 0 ? b : ~b) & ((n & 1) != 0 ? c : ~c);
    return out;
  });
}
template <bool kLeft>
void run_shf(Warp& w, const Instruction& i, std::uint32_t lanes) {
  map3<std::uint32_t>(w, i, lanes, [&](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t n = i.mode == 0 ? c & 31 : std::min(c, 32U);
    const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
    return static_cast<std::uint32_t>(kLeft ? both << n >> 32 : both >> n);
  });
}
template <class T>
void run_shl(Warp& w, const Instruction& i, std::uint32_t lanes) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<std::uint32_t>(w, i.s[1]);
  each_lane(lanes, [&](int l) {
    d[l] =
        packed<T>(b[l] >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(unpacked<T>(a[l])) << b[l]));
  });
}
template <class T>
void run_shr(Warp& w, const Instruction& i, std::uint32_t lanes) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<std::uint32_t>(w, i.s[1]);
  each_lane(lanes, [&](int l) {
    const T x = unpacked<T>(a[l]);
    const std::uint32_t n = std::min<std::uint32_t>(b[l], 8 * sizeof(T));
    d[l] =
        packed<T>(n == 8 * sizeof(T) ? static_cast<T>(std::is_signed_v<T> && x < 0 ? -1 : 0) : static_cast<T>(x >> n));
  });
}
template <class T>
void run_bfe(Warp& w, const Instruction& i, std::uint32_t lanes) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  each_lane(lanes, [&](int l) {
    const auto begin = static_cast<int>(number(w, i.s[1], l) & 0xFF);
    const auto count = static_cast<int>(number(w, i.s[2], l) & 0xFF);
    constexpr int kBits = 8 * sizeof(T);
    const auto x = static_cast<Unsigned<T>>(unpacked<T>(a[l]));
    const int top = std::min(begin + count - 1, kBits - 1);
    const bool sign = std::is_signed_v<T> && count > 0 && (x >> top & 1) != 0;
    Unsigned<T> out = 0;
    for (int n = 0; n < kBits; ++n) {
      const bool bit = n < count && begin + n < kBits ? (x >> (begin + n) & 1) != 0 : sign;
      out |= static_cast<Unsigned<T>>(static_cast<Unsigned<T>>(bit ? 1 : 0) << n);
    }
    d[l] = packed<T>(static_cast<T>(out));
  });
}
template <class T>
void run_bfi(Warp& w, const Instruction& i, std::uint32_t lanes) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<T>(w, i.s[1]);
  each_lane(lanes, [&](int l) {
    const auto begin = number(w, i.s[2], l) & 0xFF;
    const auto count = number(w, i.s[3], l) & 0xFF;
    T out = unpacked<T>(b[l]);
    for (std::uint64_t n = 0; n < count && begin + n < 8 * sizeof(T); ++n) {
      const T bit = static_cast<T>(T{1} << (begin + n));
      out = (unpacked<T>(a[l]) >> n & 1) != 0 ? out | bit : out & ~bit;
    }
    d[l] = packed<T>(out);
  });
}
/// popc, clz, brev, bfind: mode 0, 1, 2, 3, and with shiftamt 4. The result has 32 bits, but for brev.
template <class T>
void run_count(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto* a = place<T>(w, i.s[0]);
  each_lane(lanes, [&](int l) {
    auto x = static_cast<Unsigned<T>>(unpacked<T>(a[l]));
    constexpr int kBits = 8 * sizeof(T);
    std::uint64_t out = 0;
    if (i.mode == 0) {
      out = static_cast<std::uint64_t>(std::popcount(x));
    } else if (i.mode == 1) {
      out = static_cast<std::uint64_t>(std::countl_zero(x));
    } else if (i.mode == 2) {
      for (int n = 0; n < kBits; ++n) out |= static_cast<std::uint64_t>(x >> n & 1) << (kBits - 1 - n);
    } else {
      if (std::is_signed_v<T> && static_cast<std::make_signed_t<T>>(x) < 0) x = ~x;
      out = x == 0 ? 0xFFFF'FFFFU
                   : static_cast<std::uint64_t>(i.mode == 3 ? kBits - 1 - std::countl_zero(x) : std::countl_zero(x));
    }
    set_number(w, i.d[0], l, out);
  });
}

// --- comparisons

enum Comparison : std::uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
Comparison comparison_of(const std::string& s, bool is_float) {
  constexpr std::pair<std::string_view, Comparison> kNames[] = {
      {"eq", kEq},   {"ne", kNe},   {"lt", kLt},   {"le", kLe},   {"gt", kGt},   {"ge", kGe},   {"equ", kEqu},
      {"neu", kNeu}, {"ltu", kLtu}, {"leu", kLeu}, {"gtu", kGtu}, {"geu", kGeu}, {"num", kNum}, {"nan", kNan}};
  if (!is_float) {  // of unsigned numbers
    if (s == "lo") return kLt;
    if (s == "ls") return kLe;
    if (s == "hi") return kGt;
    if (s == "hs") return kGe;
  }
  for (const auto& [text, c] : kNames)
    if (text == s) return c;
  unknown();
}
template <class T>
bool compare(T a, T b, int how) {
  bool unordered = false;
  if constexpr (kFloat<T>) unordered = std::isnan(a) || std::isnan(b);
  switch (how) {
    case kEq: return a == b;
    case kNe: return !unordered && a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    case kGe: return a >= b;
    case kNum: return !unordered;
    case kNan: return unordered;
    default: return unordered || compare(a, b, how - kEqu);
  }
}
template <class T>
void run_setp(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<T>(w, i.s[1]);
  std::uint32_t out = 0;
  each_lane(lanes, [&](int l) {
    T x = unpacked<T>(a[l]);
    T y = unpacked<T>(b[l]);
    if constexpr (std::is_same_v<T, float>) {
      if (i.flushes) x = flushed(x), y = flushed(y);
    }
    out |= static_cast<std::uint32_t>(compare(x, y, i.mode)) << l;
  });
  std::uint32_t other = ~out;
  if (i.s.size() > 2) {
    const std::uint32_t with = predicate(w, i.s[2]);
    const auto join = [&](std::uint32_t x) { return i.mode2 == 0 ? x & with : i.mode2 == 1 ? x | with : x ^ with; };
    out = join(out), other = join(other);
  }
  set_predicate(w, i.d[0], lanes, out);
  if (i.d.size() > 1) set_predicate(w, i.d[1], lanes, other);
}
template <class T>
void run_selp(Warp& w, const Instruction& i, std::uint32_t lanes) {
  auto* d = place<T>(w, i.d[0]);
  const auto* a = place<T>(w, i.s[0]);
  const auto* b = place<T>(w, i.s[1]);
  const std::uint32_t p = predicate(w, i.s[2]);
  each_lane(lanes, [&](int l) { d[l] = (p >> l & 1) != 0 ? a[l] : b[l]; });
}

/// and, or, xor, not, mov of predicates.
Run of_predicates(const std::string& base) {
  if (base == "and")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      set_predicate(w, i.d[0], n, predicate(w, i.s[0]) & predicate(w, i.s[1]));
    };
  if (base == "or")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      set_predicate(w, i.d[0], n, predicate(w, i.s[0]) | predicate(w, i.s[1]));
    };
  if (base == "xor")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      set_predicate(w, i.d[0], n, predicate(w, i.s[0]) ^ predicate(w, i.s[1]));
    };
  if (base == "not")
    return [](Warp& w, const Instruction& i, std::uint32_t n) { set_predicate(w, i.d[0], n, ~predicate(w, i.s[0])); };
  if (base == "mov")
    return [](Warp& w, const Instruction& i, std::uint32_t n) { set_predicate(w, i.d[0], n, predicate(w, i.s[0])); };
  unknown();
}
template <class T>
Run bitwise(const std::string& base) {
  if (base == "and")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      map2<T>(w, i, n, [](T a, T b) { return static_cast<T>(a & b); });
    };
  if (base == "or")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      map2<T>(w, i, n, [](T a, T b) { return static_cast<T>(a | b); });
    };
  if (base == "xor")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      map2<T>(w, i, n, [](T a, T b) { return static_cast<T>(a ^ b); });
    };
  if (base == "not")
    return [](Warp& w, const Instruction& i, std::uint32_t n) {
      map1<T>(w, i, n, [](T a) { return static_cast<T>(~a); });
    };
  unknown();
}

// --- moves and conversions

void run_mov(Warp& w, const Instruction& i, std::uint32_t lanes) {
  if (i.d.size() == 1 && i.s.size() == 1) {
    const Operand& a = i.s[0];
    if (lanes == kAll && a.wide == i.d[0].wide && a.offset == 0) {
      const auto* from = place<std::uint32_t>(w, a);
      std::memmove(place<std::uint32_t>(w, i.d[0]), from, a.wide ? 8 * kLanes : 4 * kLanes);
      return;
    }
    each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, number(w, a, l) + static_cast<std::uint64_t>(a.offset)); });
    return;
  }
  // Pieces of a register, or a register of pieces.
  const int bits = 8 * size_of(i.type);
  each_lane(lanes, [&](int l) {
    std::uint64_t whole = 0;
    const int in = bits / static_cast<int>(i.s.size());
    for (std::size_t n = 0; n < i.s.size(); ++n) {
      const std::uint64_t mask = in == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << in) - 1;
      whole |= (number(w, i.s[n], l) & mask) << in * static_cast<int>(n);
    }
    const int out = bits / static_cast<int>(i.d.size());
    for (std::size_t n = 0; n < i.d.size(); ++n) {
      const std::uint64_t mask = out == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << out) - 1;
      if (!i.d[n].absent) set_number(w, i.d[n], l, whole >> out * static_cast<int>(n) & mask);
    }
  });
}

/// One number of any type, as a float or an integer.
struct Value {
  bool is_float = false;
  double f = 0;
  Wide n = 0;
};
bool float_type(Type t) { return t == Type::kF16 || t == Type::kBF16 || t == Type::kF32 || t == Type::kF64; }
bool signed_type(Type t) { return t == Type::kS8 || t == Type::kS16 || t == Type::kS32 || t == Type::kS64; }
Value value_of(std::uint64_t bits, Type t) {
  Value v;
  v.is_float = float_type(t);
  switch (t) {
    case Type::kF16: v.f = from_half(static_cast<std::uint16_t>(bits)); break;
    case Type::kBF16: v.f = from_bf16(static_cast<std::uint16_t>(bits)); break;
    case Type::kF32: v.f = std::bit_cast<float>(static_cast<std::uint32_t>(bits)); break;
    case Type::kF64: v.f = std::bit_cast<double>(bits); break;
    default: {
      const int unused = 64 - 8 * size_of(t);
      if (signed_type(t)) {
        v.n = static_cast<std::int64_t>(bits << unused) >> unused;
      } else {
        v.n = static_cast<Wide>(bits << unused >> unused);
      }
    }
  }
  return v;
}
enum Rounding : std::uint8_t { kNearest, kDown, kUp, kZero, kNearestInteger, kDownInteger, kUpInteger, kZeroInteger };
double rounded(double x, int how) {
  switch (how & 3) {
    case kNearest: return std::nearbyint(x);
    case kDown: return std::floor(x);
    case kUp: return std::ceil(x);
    default: return std::trunc(x);
  }
}
std::uint64_t converted(Value v, const Instruction& i) {
  const Type to = i.type;
  if (float_type(to)) {
    double x = v.is_float ? v.f : 0;
    if (v.is_float && i.mode >= kNearestInteger) x = rounded(x, i.mode);
    if (i.saturates) x = std::isnan(x) ? 0 : std::clamp(x, 0.0, 1.0);
    float f = 0;
    if (i.mode < kNearestInteger && i.mode != kNearest) {
      const int before = std::fegetround();
      std::fesetround(i.mode == kDown ? FE_DOWNWARD : i.mode == kUp ? FE_UPWARD : FE_TOWARDZERO);
      volatile float out = v.is_float ? static_cast<float>(x) : static_cast<float>(static_cast<std::int64_t>(v.n));
      std::fesetround(before);
      f = out;
    } else if (v.is_float) {
      f = static_cast<float>(x);
    } else {
      f = v.n < 0 ? static_cast<float>(static_cast<std::int64_t>(v.n))
                  : static_cast<float>(static_cast<std::uint64_t>(v.n));
    }
    if (i.flushes) f = flushed(f);
    switch (to) {
      case Type::kF16: return to_half(f);
      case Type::kBF16: return to_bf16(f);
      case Type::kF32: return std::bit_cast<std::uint32_t>(f);
      default:
        return std::bit_cast<std::uint64_t>(v.is_float ? x
                                            : v.n < 0  ? static_cast<double>(static_cast<std::int64_t>(v.n))
                                                       : static_cast<double>(static_cast<std::uint64_t>(v.n)));
    }
  }
  const int bits = 8 * size_of(to);
  const Wide least = signed_type(to) ? -(static_cast<Wide>(1) << (bits - 1)) : 0;
  const Wide most = (static_cast<Wide>(1) << (signed_type(to) ? bits - 1 : bits)) - 1;
  if (v.is_float) {  // floats saturate
    if (std::isnan(v.f)) return 0;
    const double x = rounded(v.f, i.mode);
    v.n = x <= static_cast<double>(least) ? least : x >= static_cast<double>(most) ? most : static_cast<Wide>(x);
  } else if (i.saturates) {
    v.n = std::clamp(v.n, least, most);
  }
  return static_cast<std::uint64_t>(v.n) & (bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1);
}
void run_cvt(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    std::uint64_t bits = number(w, i.s[0], l);
    if (i.flushes && i.from == Type::kF32)
      bits = std::bit_cast<std::uint32_t>(flushed(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
    std::uint64_t out = converted(value_of(bits, i.from), i);
    // A wider register takes a signed number with its sign.
    if (signed_type(i.type)) {
      const int unused = 64 - 8 * size_of(i.type);
      out = static_cast<std::uint64_t>(static_cast<std::int64_t>(out << unused) >> unused);
    }
    set_number(w, i.d[0], l, i.type == Type::kU16 || i.type == Type::kS16 ? out & 0xFFFF : out);
  });
}
/// Two numbers in one register: f16x2, bf16x2 and e4m3x2 of two floats, f16x2 of e4m3x2.
void run_cvt_pair(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    std::uint32_t out = 0;
    if (i.from == Type::kE4M3x2) {
      const auto codes = static_cast<std::uint32_t>(number(w, i.s[0], l));
      out = static_cast<std::uint32_t>(to_half(from_e4m3(static_cast<std::uint8_t>(codes >> 8)))) << 16 |
            to_half(from_e4m3(static_cast<std::uint8_t>(codes)));
    } else {
      const float high = std::bit_cast<float>(static_cast<std::uint32_t>(number(w, i.s[0], l)));
      const float low = std::bit_cast<float>(static_cast<std::uint32_t>(number(w, i.s[1], l)));
      if (i.type == Type::kE4M3x2) {
        out = static_cast<std::uint32_t>(to_e4m3(high) << 8 | to_e4m3(low));
      } else if (i.type == Type::kF16x2) {
        out = static_cast<std::uint32_t>(to_half(high)) << 16 | to_half(low);
      } else {
        out = static_cast<std::uint32_t>(to_bf16(high)) << 16 | to_bf16(low);
      }
    }
    set_number(w, i.d[0], l, out);
  });
}
/// add, sub, mul, max, min of two halves; fma with three operands. mode: see decode_halves().
void run_halves(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const bool bf16 = i.type == Type::kBF16x2 || i.type == Type::kBF16;
  const int count = i.type == Type::kF16x2 || i.type == Type::kBF16x2 ? 2 : 1;
  each_lane(lanes, [&](int l) {
    std::uint32_t out = 0;
    for (int n = 0; n < count; ++n) {
      const auto half = [&](std::size_t s) {
        const auto bits = static_cast<std::uint16_t>(number(w, i.s[s], l) >> 16 * n);
        return static_cast<double>(bf16 ? from_bf16(bits) : from_half(bits));
      };
      double x = 0;
      switch (i.mode) {
        case 0: x = half(0) + half(1); break;
        case 1: x = half(0) - half(1); break;
        case 2: x = half(0) * half(1); break;
        case 3: x = greater_of(half(0), half(1)); break;
        case 4: x = less_of(half(0), half(1)); break;
        default: x = half(0) * half(1) + half(2);
      }
      const std::uint16_t bits =
          bf16 ? to_bf16(static_cast<float>(x)) : std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
      out |= static_cast<std::uint32_t>(bits) << 16 * n;
    }
    set_number(w, i.d[0], l, out);
  });
}

/// rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh of floats, by mode.
template <class T>
void run_function(Warp& w, const Instruction& i, std::uint32_t lanes) {
  map1<T>(w, i, lanes, [&](T x) {
    if constexpr (std::is_same_v<T, float>) {
      if (i.flushes) x = flushed(x);
    }
    T y = 0;
    switch (i.mode) {
      case 0: y = T{1} / x; break;
      case 1: y = std::sqrt(x); break;
      case 2: y = static_cast<T>(1.0 / std::sqrt(static_cast<double>(x))); break;
      case 3: y = std::exp2(x); break;
      case 4: y = std::log2(x); break;
      case 5: y = std::sin(x); break;
      case 6: y = std::cos(x); break;
      default: y = std::tanh(x);
    }
    if constexpr (std::is_same_v<T, float>) {
      if (i.flushes) y = flushed(y);
    }
    return y;
  });
}
template <class T>
void run_sign(Warp& w, const Instruction& i, std::uint32_t lanes) {
  map1<T>(w, i, lanes, [&](T x) {
    if constexpr (kFloat<T>) {
      return i.mode == 0 ? -x : std::fabs(x);
    } else {
      return static_cast<T>(i.mode == 0 || x < 0 ? 0 - static_cast<Unsigned<T>>(x) : static_cast<Unsigned<T>>(x));
    }
  });
}

// --- memory

template <class T>
void run_load(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const int all = static_cast<int>(sizeof(T) * i.d.size());
  each_lane(lanes, [&](int l) {
    const std::byte* from = host_address(w, i, i.s[0], l, all);
    for (std::size_t n = 0; n < i.d.size(); ++n) {
      T value;
      std::memcpy(&value, from + n * sizeof(T), sizeof(T));
      if (i.d[n].absent) continue;
      if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
        set_number(w, i.d[n], l, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
      } else {
        set_number(w, i.d[n], l, packed<T>(value));
      }
    }
  });
}
template <class T>
void run_store(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::size_t count = i.s.size() - 1;
  each_lane(lanes, [&](int l) {
    std::byte* to = host_address(w, i, i.s[0], l, static_cast<int>(sizeof(T) * count));
    for (std::size_t n = 0; n < count; ++n) {
      const std::uint64_t bits = number(w, i.s[n + 1], l);
      std::memcpy(to + n * sizeof(T), &bits, sizeof(T));
    }
  });
  ++w.block->cluster->progress;
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
template <class T>
void run_atomic(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    auto* at = reinterpret_cast<T*>(host_address(w, i, i.s[0], l, sizeof(T)));
    const T b = unpacked<T>(static_cast<Word<T>>(number(w, i.s[1], l)));
    const T c = i.s.size() > 2 ? unpacked<T>(static_cast<Word<T>>(number(w, i.s[2], l))) : T{};
    std::atomic_ref<T> cell(*at);
    T before = cell.load();
    for (;;) {
      T after = before;
      if (i.mode == kAtomAdd) after = wrapped_add(before, b);
      if (i.mode == kAtomMin) after = less_of(before, b);
      if (i.mode == kAtomMax) after = greater_of(before, b);
      if (i.mode == kAtomExch) after = b;
      if (i.mode == kAtomCas) after = before == b ? c : before;
      if constexpr (!kFloat<T>) {
        if (i.mode == kAtomAnd) after = static_cast<T>(before & b);
        if (i.mode == kAtomOr) after = static_cast<T>(before | b);
        if (i.mode == kAtomXor) after = static_cast<T>(before ^ b);
        if (i.mode == kAtomInc) after = before >= b ? T{0} : static_cast<T>(before + 1);
        if (i.mode == kAtomDec) after = before == 0 || before > b ? b : static_cast<T>(before - 1);
      }
      if (cell.compare_exchange_weak(before, after)) break;
    }
    if (!i.d.empty() && !i.d[0].absent) set_number(w, i.d[0], l, packed<T>(before));
  });
  ++w.block->cluster->progress;
}

void run_copy(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const auto size = static_cast<int>(number(w, i.s[2], l));
    const int source =
        i.s.size() > 3
            ? static_cast<int>(std::min<std::uint64_t>(number(w, i.s[3], l), static_cast<std::uint64_t>(size)))
            : size;
    Instruction part = i;
    part.space = Space::kGlobal;
    const std::byte* from = source > 0 ? host_address(w, part, i.s[1], l, source) : nullptr;
    std::byte* to = shared_address(w, number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset), size);
    w.copies.push_back({l, w.committed_copies[l], to, from, size, source});
  });
}
void run_copy_commit(Warp& w, const Instruction&, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) { ++w.committed_copies[l]; });
}
void run_copy_wait(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const std::uint32_t running = i.mode == 1 ? 0 : static_cast<std::uint32_t>(number(w, i.s[0], l));
    const std::uint32_t done = w.committed_copies[l];
    w.copy_now(1U << l, i.mode == 1 ? done + 1 : done > running ? done - running : 0);
  });
}
void run_copy_arrive(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    w.arrivals.push_back(
        {l, static_cast<std::uint32_t>(number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset))});
  });
}

// --- barriers in shared memory: 20 bits of arrivals to come, 20 of arrivals a phase, the phase in the upper bit

constexpr std::uint64_t kArrivals = (1U << 20) - 1;

void run_mbarrier_init(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const std::uint64_t count = number(w, i.s[1], l) & kArrivals;
    const std::uint64_t state = count | count << 20;
    std::memcpy(host_address(w, i, i.s[0], l, 8), &state, 8);
  });
}
void run_mbarrier_arrive(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) { arrive(w, host_address(w, i, i.s[0], l, 8)); });
}
void run_try_wait(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint32_t out = 0;
  each_lane(lanes, [&](int l) {
    std::uint64_t state = 0;
    std::memcpy(&state, host_address(w, i, i.s[0], l, 8), 8);
    const bool over = (state >> 63) != (number(w, i.s[1], l) & 1);
    out |= static_cast<std::uint32_t>(over) << l;
  });
  set_predicate(w, i.d[0], lanes, out);
  w.try_failed = (out & lanes) != lanes;
}

// --- between lanes

void run_shfl(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint32_t values[kLanes];
  for (int l = 0; l < kLanes; ++l) values[l] = place<std::uint32_t>(w, i.s[0])[l];
  std::uint32_t inside = 0;
  each_lane(lanes, [&](int l) {
    const auto b = static_cast<int>(number(w, i.s[1], l) & 31);
    const auto c = static_cast<int>(number(w, i.s[2], l));
    const int clamp = c & 31;
    const int segment = c >> 8 & 31;
    const int most = (l & segment) | (clamp & ~segment);
    const int least = l & segment;
    int from = l;
    bool in = true;
    if (i.mode == 0) from = l - b, in = from >= most;
    if (i.mode == 1) from = l + b, in = from <= most;
    if (i.mode == 2) from = l ^ b, in = from <= most;
    if (i.mode == 3) from = least | (b & ~segment), in = from <= most;
    if (!in) from = l;
    if ((lanes >> from & 1) == 0) throw Error("shfl from a lane that does not take part");
    if (!i.d[0].absent) place<std::uint32_t>(w, i.d[0])[l] = values[from];
    inside |= static_cast<std::uint32_t>(in) << l;
  });
  if (i.d.size() > 1) set_predicate(w, i.d[1], lanes, inside);
}
void run_vote(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const std::uint32_t votes = predicate(w, i.s[0]) & lanes;
  if (i.mode == 0) {
    each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, votes); });
    return;
  }
  const bool out = i.mode == 1 ? votes != 0 : i.mode == 2 ? votes == lanes : votes == lanes || votes == 0;
  set_predicate(w, i.d[0], lanes, out ? kAll : 0);
}
template <class T>
void run_redux(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto* a = place<T>(w, i.s[0]);
  T out = unpacked<T>(a[std::countr_zero(lanes)]);
  each_lane(lanes & (lanes - 1), [&](int l) {
    const T x = unpacked<T>(a[l]);
    switch (i.mode) {
      case kAtomAdd: out = wrapped_add(out, x); break;
      case kAtomMin: out = std::min(out, x); break;
      case kAtomMax: out = std::max(out, x); break;
      case kAtomAnd: out = static_cast<T>(out & x); break;
      case kAtomOr: out = static_cast<T>(out | x); break;
      default: out = static_cast<T>(out ^ x);
    }
  });
  each_lane(lanes, [&](int l) { set_number(w, i.d[0], l, packed<T>(out)); });
}
void run_match(Warp& w, const Instruction& i, std::uint32_t lanes) {
  std::uint64_t values[kLanes];
  each_lane(lanes, [&](int l) { values[l] = number(w, i.s[0], l); });
  each_lane(lanes, [&](int l) {
    std::uint32_t same = 0;
    each_lane(lanes, [&](int other) { same |= static_cast<std::uint32_t>(values[other] == values[l]) << other; });
    set_number(w, i.d[0], l, same);
  });
}
void run_mapa(Warp& w, const Instruction& i, std::uint32_t lanes) {
  each_lane(lanes, [&](int l) {
    const std::uint64_t at = number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset);
    set_number(w, i.d[0], l, (at & 0xFF'FFFF) | (number(w, i.s[1], l) + 1) << 24);
  });
}
/// A pointer of one space as one of another: 0 to and 1 from generic shared ones.
void run_cvta(Warp& w, const Instruction& i, std::uint32_t lanes) {
  const auto base = reinterpret_cast<std::uint64_t>(w.block->shared);
  each_lane(lanes, [&](int l) {
    const std::uint64_t at = number(w, i.s[0], l) + static_cast<std::uint64_t>(i.s[0].offset);
    set_number(w, i.d[0], l, i.space != Space::kShared ? at : i.mode == 0 ? at - base : at + base);
  });
}

void nothing(Warp&, const Instruction&, std::uint32_t) {}

Space space_of(const Name& name) {
  if (has(name, "shared::cluster")) return Space::kSharedCluster;
  if (has(name, "shared") || has(name, "shared::cta")) return Space::kShared;
  if (has(name, "global") || has(name, "const")) return Space::kGlobal;
  if (has(name, "local")) return Space::kLocal;
  if (has(name, "param") || has(name, "param::entry")) return Space::kParam;
  return Space::kGeneric;
}

std::uint8_t rounding_of(const Name& name) {
  constexpr std::pair<std::string_view, Rounding> kNames[] = {
      {"rn", kNearest},         {"rm", kDown},         {"rp", kUp},         {"rz", kZero},
      {"rni", kNearestInteger}, {"rmi", kDownInteger}, {"rpi", kUpInteger}, {"rzi", kZeroInteger}};
  for (const auto& [text, r] : kNames)
    if (has(name, text)) return r;
  return kNearest;
}

void decode_cvt(Instruction& i, const Name& name) {
  i.from = type_of(name.back());
  i.type = type_of(name[name.size() - 2]);
  i.mode = rounding_of(name);
  i.saturates = has(name, "sat") || has(name, "satfinite");
  i.run = run_cvt;
  if (i.type == Type::kE4M3x2 || i.type == Type::kF16x2 || i.type == Type::kBF16x2) {
    if (!(i.from == Type::kF32 && i.s.size() == 2) && !(i.from == Type::kE4M3x2 && i.type == Type::kF16x2)) unknown();
    i.run = run_cvt_pair;
  } else if (i.type == Type::kNone || i.from == Type::kNone) {
    unknown();
  }
}

void decode_cp(Instruction& i, const Name& name) {
  if (name.at(1) != "async" || has(name, "bulk")) unknown();
  if (has(name, "mbarrier")) {
    if (!has(name, "noinc")) unknown();
    i.run = run_copy_arrive;
  } else if (has(name, "commit_group")) {
    i.run = run_copy_commit;
  } else if (has(name, "wait_group") || has(name, "wait_all")) {
    i.mode = has(name, "wait_all") ? 1 : 0;
    i.run = run_copy_wait;
  } else {
    i.run = run_copy;
  }
}

/// Barriers of the block (16 of them) and of the cluster.
void decode_barrier(Instruction& i, const Name& name) {
  if (name.size() > 1 && name[1] == "warp") {
    i.flow = Flow::kWarpBarrier;
    i.members = i.s.at(0);
    i.run = nothing;
    return;
  }
  if (name.size() > 1 && name[1] == "cluster") {
    i.converges = true;
    if (name.at(2) == "wait") {
      i.flow = Flow::kClusterWait;
      i.run = nothing;
    } else {
      i.run = [](Warp& w, const Instruction&, std::uint32_t lanes) {
        Cluster& c = *w.block->cluster;
        w.cluster_generation = c.generation;
        c.arrived += static_cast<std::uint32_t>(std::popcount(lanes));
        if (c.arrived >= c.live_threads) c.arrived = 0, ++c.generation;
        ++c.progress;
      };
    }
    return;
  }
  i.converges = true;
  i.run = nothing;
  if (has(name, "arrive")) unknown();
  i.flow = Flow::kBarrier;
  if (has(name, "red")) {
    i.mode = has(name, "or") ? 1 : has(name, "and") ? 2 : 0;
    if (i.mode == 0) unknown();
    std::swap(i.mode2, i.mode);
    i.run = [](Warp& w, const Instruction& in, std::uint32_t lanes) {
      const Barrier& b = w.block->barriers[number(w, in.s[0], std::countr_zero(lanes)) & 15];
      set_predicate(w, in.d[0], lanes, (in.mode2 == 1 ? b.result_any : b.result_all) ? kAll : 0);
    };
  }
}

std::uint8_t atomic_of(const Name& name) {
  constexpr std::pair<std::string_view, Atomic> kNames[] = {
      {"add", kAtomAdd}, {"min", kAtomMin},   {"max", kAtomMax}, {"and", kAtomAnd}, {"or", kAtomOr},
      {"xor", kAtomXor}, {"exch", kAtomExch}, {"cas", kAtomCas}, {"inc", kAtomInc}, {"dec", kAtomDec}};
  for (const auto& [text, a] : kNames)
    if (has(name, text)) return a;
  unknown();
}

Run memory_run(const std::string& base, Type type) {
  if (type == Type::kF16 || type == Type::kBF16) type = Type::kB16;
  if (type == Type::kF16x2 || type == Type::kBF16x2) type = Type::kB32;
  return by_type(type, [&](auto zero) -> Run {
    using T = decltype(zero);
    if (base == "ld") return run_load<T>;
    if (base == "st") return run_store<T>;
    if constexpr (sizeof(T) >= 4) return run_atomic<T>;
    unknown();
  });
}

bool decode_arithmetic(Instruction& i, const Name& name) {
  const std::string& base = name.front();
  const bool halves =
      i.type == Type::kF16x2 || i.type == Type::kBF16x2 || i.type == Type::kF16 || i.type == Type::kBF16;
  if (base == "add" || base == "sub" || base == "mul" || base == "min" || base == "max" || base == "div" ||
      base == "rem") {
    if (i.type == Type::kF32 && rounding_of(name) != kNearest) unknown();
    if (has(name, "wide")) {
      i.run = by_type(i.type, [](auto zero) -> Run {
        using T = decltype(zero);
        if constexpr (std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 2)) return run_wide<T>;
        unknown();
      });
    } else if (halves) {
      constexpr std::string_view kNames[] = {"add", "sub", "mul", "max", "min"};
      const auto* found = std::find(std::begin(kNames), std::end(kNames), base);
      if (found == std::end(kNames)) unknown();
      i.mode = static_cast<std::uint8_t>(found - std::begin(kNames));
      i.run = run_halves;
    } else {
      i.run = binary(base, name, i.type);
    }
    return true;
  }
  if (base == "fma" || base == "mad") {
    if (halves) {
      i.mode = 5;
      i.run = run_halves;
    } else if (i.type == Type::kF32 || i.type == Type::kF64) {
      i.mode = rounding_of(name);
      i.run = i.type == Type::kF32 ? run_fma<float> : run_fma<double>;
    } else if (has(name, "wide")) {
      i.mode = 1;
      i.run = i.type == Type::kS32 ? run_wide<std::int32_t> : i.type == Type::kU32 ? run_wide<std::uint32_t> : nullptr;
      if (i.run == nullptr) unknown();
    } else if (has(name, "lo")) {
      i.run = by_type(i.type, [](auto zero) -> Run { return run_mad<decltype(zero)>; });
    } else {
      unknown();
    }
    return true;
  }
  if (base == "neg" || base == "abs") {
    i.mode = base == "abs" ? 1 : 0;
    i.run = by_type(i.type, [](auto zero) -> Run { return run_sign<decltype(zero)>; });
    return true;
  }
  constexpr std::string_view kFunctions[] = {"rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"};
  if (const auto* f = std::find(std::begin(kFunctions), std::end(kFunctions), base); f != std::end(kFunctions)) {
    i.mode = static_cast<std::uint8_t>(f - std::begin(kFunctions));
    if (i.type != Type::kF32 && i.type != Type::kF64) unknown();
    i.run = i.type == Type::kF32 ? run_function<float> : run_function<double>;
    return true;
  }
  return false;
}

bool decode_bits(Instruction& i, const Name& name) {
  const std::string& base = name.front();
  if (base == "and" || base == "or" || base == "xor" || base == "not") {
    i.run = i.type == Type::kPred  ? of_predicates(base)
            : size_of(i.type) == 8 ? bitwise<std::uint64_t>(base)
            : size_of(i.type) == 4 ? bitwise<std::uint32_t>(base)
                                   : bitwise<std::uint16_t>(base);
  } else if (base == "shl" || base == "shr") {
    i.run = by_type(i.type, [&](auto zero) -> Run {
      using T = decltype(zero);
      if constexpr (kFloat<T>) {
        unknown();
      } else {
        return base == "shl" ? run_shl<T> : run_shr<T>;
      }
    });
  } else if (base == "prmt") {
    if (name.size() != 2) unknown();
    i.run = run_prmt;
  } else if (base == "lop3") {
    i.run = run_lop3;
  } else if (base == "shf") {
    i.mode = has(name, "clamp") ? 1 : 0;
    i.run = has(name, "l") ? run_shf<true> : run_shf<false>;
  } else if (base == "bfe" || base == "bfi") {
    i.run = by_type(i.type, [&](auto zero) -> Run {
      using T = decltype(zero);
      if constexpr (kFloat<T> || sizeof(T) < 4) {
        unknown();
      } else if constexpr (std::is_signed_v<T>) {
        return run_bfe<T>;
      } else {
        return base == "bfe" ? run_bfe<T> : run_bfi<T>;
      }
    });
  } else if (base == "popc" || base == "clz" || base == "brev" || base == "bfind") {
    i.mode = base == "popc" ? 0 : base == "clz" ? 1 : base == "brev" ? 2 : has(name, "shiftamt") ? 4 : 3;
    i.run = by_type(i.type, [&](auto zero) -> Run {
      using T = decltype(zero);
      if constexpr (kFloat<T> || sizeof(T) < 4) {
        unknown();
      } else {
        return run_count<T>;
      }
    });
  } else {
    return false;
  }
  return true;
}

bool decode_memory(Instruction& i, const Name& name) {
  const std::string& base = name.front();
  if (base == "ld" || base == "st" || base == "atom" || base == "red") {
    if (base == "atom" || base == "red") i.mode = atomic_of(name);
    i.run = memory_run(base, i.type);
  } else if (base == "cp") {
    decode_cp(i, name);
  } else if (base == "mbarrier") {
    const std::string& what = name.at(1);
    if (what == "init") {
      i.run = run_mbarrier_init;
    } else if (what == "arrive" && !has(name, "expect_tx")) {
      i.run = run_mbarrier_arrive;
    } else if ((what == "try_wait" || what == "test_wait") && has(name, "parity")) {
      i.run = run_try_wait;
      i.flow = Flow::kTryWait;
    } else {
      unknown();
    }
  } else if (base == "cvta") {
    i.mode = has(name, "to") ? 0 : 1;
    i.run = run_cvta;
  } else if (base == "mapa") {
    i.run = run_mapa;
  } else if (base == "prefetch" || base == "prefetchu" || base == "fence" || base == "membar" ||
             base == "griddepcontrol" || base == "setmaxnreg") {
    i.run = nothing;
  } else if (base == "nanosleep") {
    i.run = nothing;
    i.flow = Flow::kYield;
  } else {
    return false;
  }
  return true;
}

bool decode_lanes(Instruction& i, const Name& name) {
  const std::string& base = name.front();
  i.converges = true;
  if (base == "shfl" || base == "vote" || base == "redux" || base == "match") {
    i.has_members = true;
    i.members = i.s.back();
    if (base == "shfl") {
      i.mode = has(name, "up") ? 0 : has(name, "down") ? 1 : has(name, "bfly") ? 2 : 3;
      i.run = run_shfl;
    } else if (base == "vote") {
      i.mode = has(name, "ballot") ? 0 : has(name, "any") ? 1 : has(name, "all") ? 2 : 3;
      i.run = run_vote;
    } else if (base == "redux") {
      i.mode = atomic_of(name);
      i.run = i.type == Type::kS32 ? run_redux<std::int32_t> : run_redux<std::uint32_t>;
    } else {
      if (!has(name, "any")) unknown();
      i.run = run_match;
    }
  } else if (base == "bar" || base == "barrier") {
    decode_barrier(i, name);
    if (i.flow == Flow::kWarpBarrier) i.converges = false;
  } else if (base == "ldmatrix") {
    i.run = run_ldmatrix;
    i.mode = has(name, "trans") ? 1 : 0;
  } else if (base == "stmatrix") {
    i.run = run_stmatrix;
    i.mode = has(name, "trans") ? 1 : 0;
  } else if (base == "mma") {
    const bool bf16 = has(name, "bf16");
    if (!has(name, "m16n8k16") || type_of(name[name.size() - 4]) != Type::kF32 || type_of(name.back()) != Type::kF32)
      unknown();
    i.from = bf16 ? Type::kBF16 : Type::kF16;
    i.run = run_mma;
  } else if (base == "wgmma") {
    const std::string& what = name.at(1);
    if (what == "fence") {
      i.run = nothing;
    } else if (what == "commit_group") {
      i.run = run_wgmma_commit;
    } else if (what == "wait_group") {
      i.run = run_wgmma_wait;
    } else {
      if (type_of(name.back()) != Type::kF16 && type_of(name.back()) != Type::kBF16) unknown();
      i.from = type_of(name.back());
      i.keeps = true;
      i.run = run_wgmma;
    }
  } else {
    i.converges = false;
    return false;
  }
  return true;
}

}  // namespace

float from_half(std::uint16_t bits) {
  static const std::vector<float> all = [] {
    std::vector<float> v(1 << 16);
    for (std::uint32_t n = 0; n < v.size(); ++n)
      v[n] = static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(n)));
    return v;
  }();
  return all[bits];
}

void arrive(Warp& w, std::byte* barrier) {
  std::uint64_t state = 0;
  std::memcpy(&state, barrier, 8);
  std::uint64_t pending = state & kArrivals;
  const std::uint64_t count = state >> 20 & kArrivals;
  if (count == 0) throw Error("arrival at an mbarrier that was not initialised");
  std::uint64_t phase = state >> 63;
  if (--pending == 0) pending = count, phase ^= 1;
  state = pending | count << 20 | phase << 63;
  std::memcpy(barrier, &state, 8);
  ++w.block->cluster->progress;
}

void decode(Instruction& i, const std::vector<std::string>& name) {
  const std::string& base = name.front();
  i.flushes = has(name, "ftz");
  i.space = space_of(name);
  i.type = type_of(name.back());
  if (base == "bra") {
    i.flow = Flow::kBranch;
    i.run = nothing;
  } else if (base == "ret" || base == "exit") {
    i.flow = Flow::kExit;
    i.run = nothing;
  } else if (base == "trap") {
    i.run = [](Warp&, const Instruction&, std::uint32_t) { throw Error("trap"); };
  } else if (base == "cvt") {
    decode_cvt(i, name);
  } else if (base == "mov") {
    i.run = i.type == Type::kPred ? of_predicates(base) : run_mov;
  } else if (base == "setp") {
    const bool is_float = i.type == Type::kF32 || i.type == Type::kF64;
    i.mode = comparison_of(name.at(1), is_float);
    i.mode2 = has(name, "and") ? 0 : has(name, "or") ? 1 : 2;
    i.run = by_type(i.type, [](auto zero) -> Run { return run_setp<decltype(zero)>; });
  } else if (base == "selp") {
    i.run = size_of(i.type) == 8 ? run_selp<std::uint64_t> : run_selp<std::uint32_t>;
  } else if (base == "activemask") {
    i.run = [](Warp& w, const Instruction& in, std::uint32_t lanes) {
      each_lane(lanes, [&](int l) { set_number(w, in.d[0], l, lanes); });
    };
  } else if (!decode_arithmetic(i, name) && !decode_bits(i, name) && !decode_memory(i, name) &&
             !decode_lanes(i, name)) {
    unknown();
  }
}

}  // namespace emulator
