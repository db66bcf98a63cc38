// TopK: `ref` against a stable sort, every other implementation against `ref`. Scores are drawn, or the fuzzer's own
// bits; lengths are anything.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "parity/topk_cases.h"
#include "support.h"

namespace smla::fuzz {
namespace {

Guarded<std::int32_t> select(const cases::TopkCase& c, const ConstTensorView& logits,
                             const std::vector<std::int32_t>& lens, const std::string& name) {
  Guarded<std::int32_t> out(c.rows, c.k, 3);
  Plan<TopK>(c.problem(), {.implementation = name, .threads = 1})
      .run({.logits = logits, .lens = view_of(lens.data(), {c.rows}), .indices = out.view(DType::kI32)});
  out.check("topk wrote outside its rows");
  return out;
}

void run(Input in) {
  constexpr std::int64_t kCounts[] = {0, 1, 2, 5, 31, 64, 512, 513, 1024, 2048};
  cases::TopkCase c{.rows = in.range(0, 4),
                    .k = in.choice(kCounts),
                    .padding = in.range(0, 9),
                    .scores = in.choice(cases::kAllScores)};
  c.width = in.flag() ? in.range(0, 100) : std::max<std::int64_t>(c.k + in.range(-20, 60), 0) * in.range(1, 3);
  c.seed = in.raw<std::uint16_t>();
  c.lens = in.hostile_list(std::max<std::int64_t>(c.rows, 1), c.width);
  cases::TopkInputs inputs(c);
  // The fuzzer's own scores over the drawn ones; padding and columns past the length stay +inf.
  const std::int64_t own = in.range(0, 40);
  for (std::int64_t i = 0; i < own && c.rows > 0 && c.width > 0; ++i) {
    const std::int64_t row = in.range(0, c.rows - 1);
    const std::int64_t column = in.raw<std::uint16_t>() % c.width;
    const auto bits = in.raw<std::uint32_t>();
    if (column < inputs.lens[static_cast<std::size_t>(row)]) {
      inputs.logits[static_cast<std::size_t>(row * inputs.stride + column)] = std::bit_cast<float>(bits);
    }
  }
  const Guarded<std::int32_t> want = select(c, inputs.view(c), inputs.lens, "ref");
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const std::int64_t n = std::clamp<std::int64_t>(inputs.lens[static_cast<std::size_t>(row)], 0, c.width);
    const float* scores = inputs.logits.data() + row * inputs.stride;
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      if (std::isnan(scores[b])) return !std::isnan(scores[a]);
      return scores[a] > scores[b];  // false for a NaN
    });
    order.resize(static_cast<std::size_t>(std::min(n, c.k)));
    std::sort(order.begin(), order.end());
    order.resize(static_cast<std::size_t>(c.k), -1);
    require(std::equal(order.begin(), order.end(), want.row(row)), "topk: ref is not the sort");
  }
  for (const Candidate& candidate : explain<TopK>(c.problem())) {
    if (candidate.refusal.empty() && candidate.name != "ref") {
      require(select(c, inputs.view(c), inputs.lens, candidate.name) == want,
              ("topk: " + candidate.name + " is not ref").c_str());
    }
  }
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::run({data, size});
  return 0;
}
