#pragma once

// The cases of MergePartials: parameters, and seeded inputs made from them.

#include <limits>
#include <optional>
#include <ostream>
#include <random>
#include <vector>

#include "parity/attention_cases.h"

namespace smla::attention_cases {

struct MergeCase {
  std::int64_t slices, tokens, heads;
  int dim = 512;
  DType o = DType::kBF16;
  double empty = 0.2;  ///< share of slices without a key; what they hold is NaN
  std::optional<float> sink = std::nullopt;
  std::uint64_t seed = 0;

  MergePartials::Problem problem() const {
    return {.slices = slices, .tokens = tokens, .heads = heads, .dim = dim, .o = o};
  }
  /// The attention call whose output this one's has the shape of.
  SparseAttention::Problem shape() const { return {.tokens = tokens, .heads = heads, .dim = dim, .o = o}; }
  friend std::ostream& operator<<(std::ostream& out, const MergeCase& c) {
    out << "merge " << c.slices << " slices, " << c.tokens << " tokens, " << c.heads << " heads of " << c.dim << " to "
        << name_of(c.o) << ", empty " << c.empty;
    return c.sink ? out << ", sink " << *c.sink : out << ", no sink";
  }
};

inline std::vector<MergeCase> merge_cases() {
  std::vector<MergeCase> cases;
  for (const std::int64_t slices : {0, 1, 2, 7, 64}) {
    for (const DType o : {DType::kBF16, DType::kF32}) {
      for (const float sink : {-kInf, -20.0F, 0.0F, 20.0F, kInf}) cases.push_back({slices, 3, 5, 512, o, 0.3, sink});
      cases.push_back({slices, 2, 7, 130, o, 0.0, std::nullopt});
      cases.push_back({slices, 2, 3, 1, o, 1.0, 0.0F});
    }
  }
  cases.push_back({3, 0, 4});
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = i;
  return cases;
}

struct MergeInputs {
  MergeCase shape;
  std::vector<float> partial_o, partial_lse, sink;

  explicit MergeInputs(const MergeCase& c) : shape(c), sink(static_cast<std::size_t>(c.heads), c.sink.value_or(0)) {
    std::mt19937_64 random(c.seed);
    std::normal_distribution<float> normal;
    const std::int64_t rows = c.slices * c.tokens * c.heads;
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool empty = static_cast<double>(random() % 1000) < 1000 * c.empty;
      partial_lse.push_back(empty ? -kInf : 3 * normal(random));
      for (int d = 0; d < c.dim; ++d)
        partial_o.push_back(empty ? std::numeric_limits<float>::quiet_NaN() : normal(random));
    }
  }
  MergePartials::Args args(AttentionOutputs& out) const {
    SparseAttention::Args views;
    out.attach(views);
    MergePartials::Args a{.partial_o = view_of(partial_o.data(), {shape.slices, shape.tokens, shape.heads, shape.dim}),
                          .partial_lse = view_of(partial_lse.data(), {shape.slices, shape.tokens, shape.heads}),
                          .sink = {},
                          .o = views.o,
                          .lse = views.lse};
    if (shape.sink) a.sink = view_of(sink.data(), {shape.heads});
    return a;
  }
};

}  // namespace smla::attention_cases
