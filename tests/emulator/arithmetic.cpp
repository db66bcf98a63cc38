// Sums, products and functions of numbers.
#include <cfenv>
#include <iterator>

#include "instruction_kinds.h"

namespace emulator {

namespace {

__extension__ typedef __int128 Wide;
__extension__ typedef unsigned __int128 UnsignedWide;

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

/// Of halves: add, sub, mul, max, min of two, by mode; fma (5); max where NaN stays NaN (6); abs (7).
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
        case 6: x = std::isnan(half(0)) || std::isnan(half(1)) ? NAN : greater_of(half(0), half(1)); break;
        case 7: x = std::fabs(half(0)); break;
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

}  // namespace

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
      i.mode = has(name, "NaN") ? 6 : static_cast<std::uint8_t>(found - std::begin(kNames));
      if (has(name, "NaN") && base != "max") unknown();
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
    if (halves && base == "abs") {
      i.mode = 7;
      i.run = run_halves;
      return true;
    }
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

}  // namespace emulator
