// Bits, comparisons and predicates.
#include "instruction_kinds.h"

namespace emulator {

namespace {

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

}  // namespace

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

bool decode_logic(Instruction& i, const Name& name) {
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
  } else if (base == "setp") {
    const bool is_float = i.type == Type::kF32 || i.type == Type::kF64;
    i.mode = comparison_of(name.at(1), is_float);
    i.mode2 = has(name, "and") ? 0 : has(name, "or") ? 1 : 2;
    i.run = by_type(i.type, [](auto zero) -> Run { return run_setp<decltype(zero)>; });
  } else if (base == "selp") {
    i.run = size_of(i.type) == 8 ? run_selp<std::uint64_t> : run_selp<std::uint32_t>;
  } else {
    return false;
  }
  return true;
}

}  // namespace emulator
