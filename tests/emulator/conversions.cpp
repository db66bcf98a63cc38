// Moves, and numbers of one type as another.
#include <cfenv>
#include <limits>

#include "instruction_kinds.h"

namespace emulator {

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

namespace {

__extension__ typedef __int128 Wide;

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

}  // namespace

std::uint16_t to_half(float x) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)); }
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t to_bf16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float from_half(std::uint16_t bits) {
  static const std::vector<float> all = [] {
    std::vector<float> v(1 << 16);
    for (std::uint32_t n = 0; n < v.size(); ++n)
      v[n] = static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(n)));
    return v;
  }();
  return all[bits];
}

bool decode_conversion(Instruction& i, const Name& name) {
  if (name.front() == "cvt") {
    decode_cvt(i, name);
  } else if (name.front() == "mov") {
    i.run = i.type == Type::kPred ? of_predicates(name.front()) : run_mov;
  } else {
    return false;
  }
  return true;
}

}  // namespace emulator
