#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "sparsemla/ops/topk.h"

namespace smla {
namespace {

/// `a` goes before `b`: written once more, by cases, and used by counting instead of sorting.
bool better(const std::vector<float>& x, std::size_t a, std::size_t b) {
  if (std::isnan(x[a])) return std::isnan(x[b]) && a < b;
  if (std::isnan(x[b]) || x[a] > x[b]) return true;
  return x[a] == x[b] && a < b;
}

std::vector<std::int32_t> brute_force(const std::vector<float>& x, std::size_t k) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::size_t ahead = 0;
    for (std::size_t j = 0; j < x.size(); ++j) ahead += better(x, j, i) ? 1 : 0;
    if (ahead < k) out.push_back(static_cast<std::int32_t>(i));
  }
  out.resize(k, -1);
  return out;
}

std::vector<std::int32_t> select(const std::vector<float>& x, std::int64_t k, const char* implementation) {
  const auto n = static_cast<std::int64_t>(x.size());
  const std::vector<std::int32_t> lens{static_cast<std::int32_t>(n)};
  std::vector<std::int32_t> out(static_cast<std::size_t>(k), 77);
  Plan<TopK>({.rows = 1, .width = n, .k = k}, {.implementation = implementation, .threads = 1})
      .run({.logits = view_of(x.data(), {1, n}),
            .lens = view_of(lens.data(), {1}),
            .indices = view_of(out.data(), {1, k})});
  return out;
}

rc::Gen<float> any_float() {
  const float infinity = std::numeric_limits<float>::infinity();
  return rc::gen::weightedOneOf<float>(
      {{4, rc::gen::map(rc::gen::inRange(-6, 7), [](int i) { return static_cast<float>(i) * 0.5F; })},  // many ties
       {2, rc::gen::map(rc::gen::arbitrary<std::uint32_t>(), [](std::uint32_t u) { return std::bit_cast<float>(u); })},
       {1, rc::gen::element(0.0F, -0.0F, infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0x1p-149F,
                            -0x1p-149F)}});
}

RC_GTEST_PROP(TopkProperty, EqualsBruteForce, ()) {
  const auto x = *rc::gen::container<std::vector<float>>(any_float());
  const auto k = *rc::gen::inRange<std::int64_t>(0, static_cast<std::int64_t>(x.size()) + 4);
  const std::vector<std::int32_t> expected = brute_force(x, static_cast<std::size_t>(k));
  for (const char* implementation : {"ref", "cpu"}) RC_ASSERT(select(x, k, implementation) == expected);
}

RC_GTEST_PROP(TopkProperty, LargerKKeepsTheSmallerSet, ()) {
  const auto x = *rc::gen::container<std::vector<float>>(any_float());
  const auto k = *rc::gen::inRange<std::int64_t>(0, static_cast<std::int64_t>(x.size()) + 1);
  const std::vector<std::int32_t> small = select(x, k, "cpu");
  const std::vector<std::int32_t> large = select(x, k + 1, "cpu");
  for (const std::int32_t i : small) RC_ASSERT(std::find(large.begin(), large.end(), i) != large.end());
}

}  // namespace
}  // namespace smla
