#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "sparsemla/engine.h"

namespace smla::test {

/// Keeps input, output and top-k of the rows that `wanted` names, by (layer, request, position).
struct RowsSeen : EngineObserver {
  using Wanted = std::function<bool(std::int64_t, const StepRow&)>;
  explicit RowsSeen(Wanted which) : wanted(std::move(which)) {}

  bool wants(std::int64_t layer, const StepRow& row) const override { return !row.rejected && wanted(layer, row); }
  void on_layer(std::int64_t layer, std::span<const StepRow> batch, const ConstTensorView& input,
                const ConstTensorView& output, const ConstTensorView& topk) override {
    ++calls;
    for (std::size_t t = 0; t < batch.size(); ++t) {
      std::vector<char>& bytes = rows[{layer, batch[t].request, batch[t].position}];
      bytes.clear();
      for (const ConstTensorView* v : {&input, &output, &topk}) {
        if (v->absent()) continue;
        ASSERT_EQ(v->size(0), std::ssize(batch));
        const ConstTensorView row = v->slice(0, static_cast<std::int64_t>(t), static_cast<std::int64_t>(t) + 1);
        const auto* first = static_cast<const char*>(row.data);
        bytes.insert(bytes.end(), first, first + row.size(1) * size_of(row.dtype));
      }
    }
  }

  Wanted wanted;
  int calls = 0;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::vector<char>> rows;
};

/// That `some` saw of the rows of `all` those that `wanted` names, and the same of them.
inline void expect_the_wanted_of(const RowsSeen& all, const RowsSeen& some, const RowsSeen::Wanted& wanted) {
  std::size_t expected = 0;
  for (const auto& [place, bytes] : all.rows) {
    const auto& [layer, request, position] = place;
    const auto found = some.rows.find(place);
    const bool is_wanted = wanted(layer, {.request = request, .position = position});
    ASSERT_EQ(found != some.rows.end(), is_wanted) << "layer " << layer << " " << request << " at " << position;
    if (!is_wanted) continue;
    ++expected;
    EXPECT_EQ(found->second, bytes) << "layer " << layer << " request " << request << " position " << position;
  }
  EXPECT_GT(expected, 0U);
  EXPECT_EQ(some.rows.size(), expected);
}

}  // namespace smla::test
