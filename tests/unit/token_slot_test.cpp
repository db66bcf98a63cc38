// The walk of docs/architecture.md, "A token's slot", with its numbers: one C4A layer, one request, position 303.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cache/row_codec.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/plan.h"

namespace smla {
namespace {

using Ints = std::vector<std::int32_t>;

class TokenSlot : public testing::Test {
 protected:
  // Prompt of 310 tokens, all in this step, so that the token at position 303 has index 303.
  static constexpr std::int64_t kTokens = 310;
  static constexpr std::int64_t kToken = 303;

  Ints query_start_loc{0, kTokens};
  Ints seq_lens{kTokens};
  Ints token_to_req = Ints(kTokens, 0);
  std::vector<std::int64_t> positions = [] {
    std::vector<std::int64_t> p(kTokens);
    for (std::size_t t = 0; t < p.size(); ++t) p[t] = static_cast<std::int64_t>(t);
    return p;
  }();
  Ints window_table{7, 3, 9, 4, 12};  // blocks of 64 tokens
  Ints full_table{20, 21};            // blocks of 256 tokens: 64 entries

  std::vector<std::int64_t> window_slots() {
    std::vector<std::int64_t> slots(kTokens);
    Plan<SlotMapping>({.requests = 1, .tokens = kTokens, .block_size = 64})
        .run({.query_start_loc = view_of(query_start_loc.data(), {2}),
              .positions = view_of(positions.data(), {kTokens}),
              .token_to_req = view_of(token_to_req.data(), {kTokens}),
              .block_table = view_of(window_table.data(), {1, 5}),
              .slots = view_of(slots.data(), {kTokens})});
    return slots;
  }
};

TEST_F(TokenSlot, WindowSlotAndItsAddress) {
  EXPECT_EQ(window_slots()[kToken], 12 * 64 + 47);  // column 303 / 64 = 4 holds block 12
  LayerConfig config{.hidden_size = 256, .num_heads = 4, .q_lora_rank = 64, .o_lora_rank = 64, .compress_ratio = 4};
  KvPool pool(make_kv_layout(std::vector{config}, {}), 32);
  const PagedCache window = pool.cache(0, CacheRole::kWindow);
  EXPECT_EQ(window.block_size, 64);
  EXPECT_EQ(row_data(window, 12, 47) - window.base, 12 * pool.layout().block_stride_bytes + 47 * 576);
  EXPECT_EQ(row_scales(window, 12, 47) - window.base, 12 * pool.layout().block_stride_bytes + 64 * 576 + 47 * 8);
  // Index and compressed rows share a block of the full group; the second cache begins where the first one's page ends.
  EXPECT_EQ(pool.cache(0, CacheRole::kCompressed).block_size, 64);
  EXPECT_EQ(pool.cache(0, CacheRole::kIndex).base - pool.cache(0, CacheRole::kCompressed).base, 37440);
}

TEST_F(TokenSlot, EntrySlotOfTheTokenThatClosesItsGroup) {
  std::vector<std::int64_t> slots(kTokens);
  Plan<CompressedSlotMapping>({.requests = 1, .tokens = kTokens, .ratio = 4, .storage_block = 64})
      .run({.query_start_loc = view_of(query_start_loc.data(), {2}),
            .seq_lens = view_of(seq_lens.data(), {1}),
            .block_table = view_of(full_table.data(), {1, 2}),
            .slots = view_of(slots.data(), {kTokens})});
  EXPECT_EQ(slots[kToken], 21 * 64 + 11);  // entry 303 / 4 = 75: column 1, row 11
  EXPECT_EQ(slots[kToken - 1], -1);        // (302 + 1) % 4 != 0
  EXPECT_EQ(visible_entries(kToken, 4), 76);
}

TEST_F(TokenSlot, RowsThatAttentionReads) {
  const std::vector<std::int64_t> slots = window_slots();
  Ints indices(kTokens * 128);
  Ints lens(kTokens);
  Plan<WindowIndices>({.requests = 1, .tokens = kTokens, .window = 128, .block_size = 64})
      .run({.query_start_loc = view_of(query_start_loc.data(), {2}),
            .seq_lens = view_of(seq_lens.data(), {1}),
            .token_to_req = view_of(token_to_req.data(), {kTokens}),
            .slot_mapping = view_of(slots.data(), {kTokens}),
            .block_table = view_of(window_table.data(), {1, 5}),
            .indices = view_of(indices.data(), {kTokens, 128}),
            .lens = view_of(lens.data(), {kTokens})});
  const std::int32_t* row = indices.data() + kToken * 128;
  EXPECT_EQ(lens[kToken], 128);
  EXPECT_EQ(row[0], 9 * 64 + 48);  // position 176: column 2, block 9
  EXPECT_EQ(row[16], 4 * 64);      // position 192: column 3, block 4
  EXPECT_EQ(row[127], 12 * 64 + 47);

  // The indexer chose entries 75, 0 and 64; they become slots through the full group's table.
  const Ints topk{75, 0, 64, -1};
  const bool valid = true;
  Ints entry_slots(4);
  Ints entry_lens(1);
  Plan<GlobalTopk>({.requests = 1, .tokens = 1, .k = 4, .storage_block = 64})
      .run({.topk = view_of(topk.data(), {1, 4}),
            .token_to_req = view_of(token_to_req.data(), {1}),
            .block_table = view_of(full_table.data(), {1, 2}),
            .valid = view_of(&valid, {1}),
            .indices = view_of(entry_slots.data(), {1, 4}),
            .lens = view_of(entry_lens.data(), {1})});
  EXPECT_EQ(entry_slots, (Ints{21 * 64 + 11, 20 * 64, 21 * 64, -1}));
  EXPECT_EQ(entry_lens[0], 3);
}

}  // namespace
}  // namespace smla
