#pragma once

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "sparsemla/engine.h"

namespace smla::test {

/// Outputs of all draft blocks, by layer, request, first position and length.
class BlockRows : public EngineObserver {
 public:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::size_t>;
  void on_layer(std::int64_t /*layer*/, std::span<const StepRow> /*rows*/, const ConstTensorView& /*input*/,
                const ConstTensorView& /*output*/, const ConstTensorView& /*topk*/) override {}
  void on_draft_block(std::int64_t layer, std::span<const StepRow> rows, const ConstTensorView& /*input*/,
                      const ConstTensorView& output) override {
    std::vector<std::uint8_t> bytes;
    for (std::int64_t t = 0; t < output.size(0); ++t) {
      const auto* row = static_cast<const std::uint8_t*>(output.data) + t * output.stride[0] * size_of(output.dtype);
      bytes.insert(bytes.end(), row, row + output.size(1) * size_of(output.dtype));
    }
    const auto [at, fresh] =
        by_block.try_emplace({layer, rows.front().request, rows.front().position, rows.size()}, bytes);
    EXPECT_TRUE(fresh || at->second == bytes) << "a block that came again after a preemption";
  }
  std::map<Key, std::vector<std::uint8_t>> by_block;
};

/// The same blocks where both runs had them. @return how many
inline std::size_t expect_same_blocks(const BlockRows& a, const BlockRows& b) {
  std::size_t common = 0;
  for (const auto& [key, rows] : a.by_block) {
    const auto other = b.by_block.find(key);
    if (other == b.by_block.end()) continue;
    ++common;
    EXPECT_EQ(rows, other->second) << "layer " << std::get<0>(key) << ", request " << std::get<1>(key) << ", block at "
                                   << std::get<2>(key);
  }
  return common;
}

}  // namespace smla::test
