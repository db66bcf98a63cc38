#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace smla {

namespace members_detail {

/// Stands for a value of any type where only the number of members is asked.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): the conversion is the point; never defined
};

template <class T, std::size_t... kIndex>
constexpr bool takes(std::index_sequence<kIndex...> /*indices*/) {
  return requires { T{(static_cast<void>(kIndex), Anything{})...}; };
}

inline constexpr std::size_t kMaxMembers = 21;  // more than for_each_member() takes, so that it can say so

template <class T, std::size_t kCount = kMaxMembers>
constexpr std::size_t count() {
  if constexpr (takes<T>(std::make_index_sequence<kCount>{})) {
    return kCount;
  } else {
    return count<T, kCount - 1>();
  }
}

}  // namespace members_detail

/// How many members an aggregate has.
template <class T>
inline constexpr std::size_t kMemberCount = members_detail::count<T>();

/// Calls f(member) for every member of an aggregate without base classes, in order. The members are found by the
/// language (structured bindings), so that one added later is never forgotten.
template <class T>
constexpr void for_each_member(const T& t, auto&& f) {
  static_assert(std::is_aggregate_v<T>);
  constexpr std::size_t kCount = kMemberCount<T>;
  const auto each = [&](const auto&... member) { (f(member), ...); };
  // clang-format off
  if constexpr (kCount == 0) { each(); }
  else if constexpr (kCount == 1) { const auto& [a] = t; each(a); }
  else if constexpr (kCount == 2) { const auto& [a, b] = t; each(a, b); }
  else if constexpr (kCount == 3) { const auto& [a, b, c] = t; each(a, b, c); }
  else if constexpr (kCount == 4) { const auto& [a, b, c, d] = t; each(a, b, c, d); }
  else if constexpr (kCount == 5) { const auto& [a, b, c, d, e] = t; each(a, b, c, d, e); }
  else if constexpr (kCount == 6) { const auto& [a, b, c, d, e, g] = t; each(a, b, c, d, e, g); }
  else if constexpr (kCount == 7) { const auto& [a, b, c, d, e, g, h] = t; each(a, b, c, d, e, g, h); }
  else if constexpr (kCount == 8) { const auto& [a, b, c, d, e, g, h, i] = t; each(a, b, c, d, e, g, h, i); }
  else if constexpr (kCount == 9) { const auto& [a, b, c, d, e, g, h, i, j] = t; each(a, b, c, d, e, g, h, i, j); }
  else if constexpr (kCount == 10) { const auto& [a, b, c, d, e, g, h, i, j, k] = t;
    each(a, b, c, d, e, g, h, i, j, k); }
  else if constexpr (kCount == 11) { const auto& [a, b, c, d, e, g, h, i, j, k, l] = t;
    each(a, b, c, d, e, g, h, i, j, k, l); }
  else if constexpr (kCount == 12) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m); }
  else if constexpr (kCount == 13) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n); }
  else if constexpr (kCount == 14) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o); }
  else if constexpr (kCount == 15) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o, p] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p); }
  else if constexpr (kCount == 16) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q); }
  else if constexpr (kCount == 17) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r); }
  else if constexpr (kCount == 18) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s); }
  else if constexpr (kCount == 19) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, u] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, u); }
  else if constexpr (kCount == 20) { const auto& [a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, u, v] = t;
    each(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r, s, u, v); }
  else { static_assert(kCount < members_detail::kMaxMembers, "an aggregate of more than 20 members"); }
  // clang-format on
}

}  // namespace smla
