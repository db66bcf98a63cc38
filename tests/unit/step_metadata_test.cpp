#include "sparsemla/step_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <utility>

#include "core/host_tensor.h"

namespace smla {
namespace {

/// Two window-only layers; every request owns the blocks that its number says.
struct Draft {
  std::vector<LayerConfig> layers{model_preset("tiny").layer(0)};
  KvLayout layout = make_kv_layout(layers, {});
  HostTensor table{DType::kI32, {3, 8}};

  Draft() { std::iota(table.as<std::int32_t>(), table.as<std::int32_t>() + table.numel(), 10); }

  StepBatch batch(std::vector<std::int32_t> loc, std::vector<std::int32_t> seq, std::vector<std::int64_t> positions) {
    Kept& k = kept.emplace_back(Kept{.loc = std::move(loc), .seq = std::move(seq), .positions = std::move(positions)});
    return {.query_start_loc = view_of(std::as_const(k.loc).data(), {static_cast<std::int64_t>(k.loc.size())}),
            .seq_lens = view_of(std::as_const(k.seq).data(), {static_cast<std::int64_t>(k.seq.size())}),
            .positions = view_of(std::as_const(k.positions).data(), {static_cast<std::int64_t>(k.positions.size())}),
            .block_tables = {table.view()},
            .max_seq_len = 400};
  }

  struct Kept {
    std::vector<std::int32_t> loc;
    std::vector<std::int32_t> seq;
    std::vector<std::int64_t> positions;
  };
  std::deque<Kept> kept;  ///< what the batches view
};

std::vector<std::int32_t> row(const ConstTensorView& m, std::int64_t t) {
  const auto* p = m.as<std::int32_t>() + t * m.stride[0];
  return {p, p + m.size(1)};
}

/// Where everything stands that a layer reads of a step.
std::vector<const void*> places(const LayerStep& s) {
  std::vector<const void*> out;
  for (const ConstTensorView& v :
       {s.query_start_loc, s.seq_lens, s.positions, s.token_to_req, s.valid, s.window_slots, s.window_indices,
        s.window_lens, s.entry_slots, s.entry_lens, s.entry_counts, s.state_slots, s.index_state_slots, s.dense_indices,
        s.dense_lens, s.mixed_indices, s.topk_lens, ConstTensorView(s.topk)})
    out.push_back(v.data);
  return out;
}

// Recorded steps share one StepMetadata, built for the largest step first.
TEST(StepMetadata, DecodesNoLargerThanAnEarlierStepKeepEveryAddress) {
  const ModelConfig tiny = model_preset("tiny");
  const std::vector<LayerConfig> layers{tiny.layer(0), tiny.layer(1), tiny.layer(2)};
  const KvLayout layout = make_kv_layout(layers, {});
  for (const FrontEnd front_end : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer}) {
    StepMetadata metadata(layout, layers, front_end);
    const auto build = [&](std::int64_t tokens, std::int64_t requests, std::int64_t used, std::int64_t max_seq_len) {
      HostTensor loc(DType::kI32, {requests + 1});
      HostTensor lens(DType::kI32, {requests});
      HostTensor positions(DType::kI64, {tokens});
      HostTensor table(DType::kI32, {requests, (max_seq_len + 3) / 4});
      for (std::int64_t r = 0; r < requests; ++r) {
        loc.as<std::int32_t>()[r + 1] = static_cast<std::int32_t>(std::min(r + 1, used));
        lens.as<std::int32_t>()[r] = r < used ? static_cast<std::int32_t>(max_seq_len) : 0;
      }
      for (std::int64_t t = 0; t < used; ++t) positions.as<std::int64_t>()[t] = max_seq_len - 1;
      const std::vector<ConstTensorView> tables(layout.groups.size(), table.view());
      metadata.build({.query_start_loc = loc.view(),
                      .seq_lens = lens.view(),
                      .positions = positions.view(),
                      .block_tables = tables,
                      .max_seq_len = max_seq_len});
      std::vector<std::vector<const void*>> out;
      for (std::int64_t i = 0; i < 3; ++i) out.push_back(places(metadata.layer(i)));
      return out;
    };
    const auto first = build(24, 12, 0, 4096);
    for (const auto& [tokens, requests, used, length] :
         std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1024}, {24, 12, 12, 4096}, {8, 8, 5, 2048}, {2, 2, 2, 130}})
      EXPECT_EQ(build(tokens, requests, used, length), first) << tokens << " tokens, " << length;
  }
}

TEST(StepMetadata, AdvanceIsAFreshBuildInPlace) {
  Draft d;
  const std::vector<std::int32_t> loc{0, 1, 2, 3};
  const std::vector<std::int32_t> seq{5, 128, 0};
  const std::vector<std::int64_t> positions{4, 127, 0};
  for (const FrontEnd f : {FrontEnd::kFlashMla, FrontEnd::kFlashInfer}) {
    StepMetadata stepped(d.layout, d.layers, f);
    stepped.build(d.batch(loc, seq, positions));
    const LayerStep before = stepped.layer(0);
    const std::vector<std::int32_t> next{6, 129, 0};
    stepped.advance(view_of(next.data(), {3}), *std::ranges::max_element(next));
    const LayerStep after = stepped.layer(0);
    EXPECT_EQ(after.window_indices.data, before.window_indices.data);
    EXPECT_EQ(after.window_slots.data, before.window_slots.data);

    StepMetadata fresh(d.layout, d.layers, f);
    fresh.build(d.batch(loc, next, {5, 128, -1}));
    const LayerStep want = fresh.layer(0);
    for (std::int64_t t = 0; t < 3; ++t) {
      EXPECT_EQ(row(after.window_indices, t), row(want.window_indices, t));
      EXPECT_EQ(after.window_lens.as<std::int32_t>()[t], want.window_lens.as<std::int32_t>()[t]);
      EXPECT_EQ(after.window_slots.as<std::int64_t>()[t], want.window_slots.as<std::int64_t>()[t]);
      EXPECT_EQ(after.positions.as<std::int64_t>()[t], want.positions.as<std::int64_t>()[t]);
      if (f == FrontEnd::kFlashInfer) {
        EXPECT_EQ(row(after.mixed_indices, t), row(want.mixed_indices, t));
      }
    }
    EXPECT_EQ(after.window_lens.as<std::int32_t>()[1], 128);
    EXPECT_EQ(after.window_lens.as<std::int32_t>()[2], 0) << "a request that sits out";
  }
}

TEST(StepMetadata, AdvanceWithoutLengthsIsOneTokenMore) {
  Draft d;
  const std::vector<std::int32_t> first{64, 128, 0}, last{66, 130, 0};
  StepMetadata stepped(d.layout, d.layers);
  StepBatch batch = d.batch({0, 1, 2, 3}, first, {63, 127, 0});
  batch.max_seq_len = 129;
  stepped.build(batch);
  const void* before = stepped.layer(0).window_indices.data;
  stepped.advance();
  EXPECT_THAT(
      [&] {
        try {
          stepped.advance();
        } catch (const InvalidArgument& e) {
          return std::string(e.what());
        }
        return std::string("no error");
      }(),
      testing::HasSubstr("max_seq_len of the loop: got 129, expected at least 130"));
  EXPECT_THROW(stepped.advance(view_of(last.data(), {3}), 129), InvalidArgument) << "130 is longer";
  stepped.advance(view_of(last.data(), {3}), 130);
  StepMetadata again(d.layout, d.layers);
  batch.max_seq_len = 131;
  again.build(batch);
  again.advance();
  again.advance();
  StepMetadata fresh(d.layout, d.layers);
  fresh.build(d.batch({0, 1, 2, 3}, last, {65, 129, -1}));
  for (const StepMetadata* m : {&stepped, &again}) {
    for (std::int64_t t = 0; t < 3; ++t) {
      EXPECT_EQ(row(m->layer(0).window_indices, t), row(fresh.layer(0).window_indices, t)) << t;
      EXPECT_EQ(m->layer(0).positions.as<std::int64_t>()[t], fresh.layer(0).positions.as<std::int64_t>()[t]) << t;
      EXPECT_EQ(m->layer(0).window_slots.as<std::int64_t>()[t], fresh.layer(0).window_slots.as<std::int64_t>()[t]) << t;
      EXPECT_EQ(m->layer(0).seq_lens.as<std::int32_t>()[t], last[static_cast<std::size_t>(t)]) << t;
    }
  }
  EXPECT_EQ(stepped.layer(0).window_indices.data, before);
}

TEST(StepMetadata, AdvanceNeedsOneTokenARequest) {
  Draft d;
  StepMetadata metadata(d.layout, d.layers);
  metadata.build(d.batch({0, 2, 3, 3}, {6, 9, 0}, {4, 5, 8}));
  const std::vector<std::int32_t> next{7, 10, 0};
  EXPECT_THROW(metadata.advance(view_of(next.data(), {2}), 9), InvalidArgument);
  StepMetadata single(d.layout, d.layers);
  single.build(d.batch({0, 1, 2, 3}, {6, 9, 1}, {5, 8, 0}));
  EXPECT_THROW(single.advance(view_of(next.data(), {2}), 9), InvalidArgument) << "another number of requests";
}

TEST(StepMetadata, TensorsDefineRowsWhateverTheHostExpected) {
  // Adaptive draft lengths: the device dealt 6 tokens out as 1 + 4 + 1 where the host had planned 2 + 2 + 2
  // (spec 6.10).
  Draft d;
  const std::vector<std::int32_t> device_loc{0, 1, 5, 6};
  const std::vector<std::int32_t> device_seq{100, 204, 64};
  const std::vector<std::int64_t> positions{99, 200, 201, 202, 203, 63};
  const std::vector<std::int32_t> host_loc{0, 2, 4, 6};
  const std::vector<std::int32_t> host_seq{101, 202, 65};
  StepMetadata plain(d.layout, d.layers);
  StepBatch batch = d.batch(device_loc, device_seq, positions);
  batch.decode_threshold = 4;
  plain.build(batch);
  StepMetadata adaptive(d.layout, d.layers);
  batch.host_query_start_loc = host_loc;
  batch.host_seq_lens = host_seq;
  adaptive.build(batch);
  EXPECT_EQ(adaptive.shape().split, plain.shape().split);
  for (std::int64_t t = 0; t < 6; ++t) {
    EXPECT_EQ(row(adaptive.layer(0).window_indices, t), row(plain.layer(0).window_indices, t));
    EXPECT_EQ(adaptive.layer(0).token_to_req.as<std::int32_t>()[t], plain.layer(0).token_to_req.as<std::int32_t>()[t]);
  }
  EXPECT_EQ(adaptive.layer(0).token_to_req.as<std::int32_t>()[4], 1);
  batch.host_seq_lens = std::span(host_seq).first(2);
  EXPECT_THROW(adaptive.build(batch), InvalidArgument);
}

TEST(StepMetadata, DraftBlocksSeeThemselvesWhole) {
  Draft d;
  StepMetadata metadata(d.layout, d.layers);
  // Block of 6 after 200 tokens: positions 72..205 for each of its tokens (spec 6.3: start = prefix - 128); a block
  // after 3 tokens: 0..8.
  StepBatch batch = d.batch({0, 6, 12, 12}, {206, 9, 0}, {200, 201, 202, 203, 204, 205, 3, 4, 5, 6, 7, 8});
  batch.decode_threshold = 11;
  batch.causal = false;
  batch.dspark_tokens = 5;
  metadata.build(batch);
  const LayerStep step = metadata.layer(0);
  EXPECT_EQ(step.window_indices.size(1), 192);
  for (std::int64_t t = 0; t < 12; ++t) {
    const std::int64_t start = t < 6 ? 72 : 0;
    const std::int64_t n = t < 6 ? 134 : 9;
    EXPECT_EQ(step.window_lens.as<std::int32_t>()[t], n);
    const std::vector<std::int32_t> got = row(step.window_indices, t);
    for (std::int64_t i = 0; i < 192; ++i) {
      const std::int64_t position = start + i;
      const std::int64_t block = 10 + (t < 6 ? 0 : 8) + position / 64;
      ASSERT_EQ(got[static_cast<std::size_t>(i)], i < n ? block * 64 + position % 64 : -1)
          << "token " << t << " column " << i;
    }
  }
}

TEST(StepMetadata, NonCausalNeedsDSpark) {
  Draft d;
  StepMetadata metadata(d.layout, d.layers);
  const std::vector<std::int32_t> loc{0, 1, 1, 1};
  const std::vector<std::int32_t> seq{5, 0, 0};
  const std::vector<std::int64_t> positions{4};
  StepBatch batch = d.batch(loc, seq, positions);
  batch.causal = false;
  try {
    metadata.build(batch);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(),
                 "Non-causal DeepseekV4 SWA is only supported for the DSpark speculation mode, but causal=False was "
                 "set without DSpark.");
  }
  batch.dspark_tokens = 5;
  metadata.build(batch);
  // A block longer than the columns beside the window cannot be held.
  std::vector<std::int64_t> many(70);
  std::iota(many.begin(), many.end(), 0);
  const std::vector<std::int32_t> long_loc{0, 70, 70, 70};
  const std::vector<std::int32_t> long_seq{70, 0, 0};
  StepBatch block = d.batch(long_loc, long_seq, many);
  block.decode_threshold = 100;
  block.causal = false;
  block.dspark_tokens = 5;
  EXPECT_THROW(metadata.build(block), InvalidArgument);
}

TEST(StepMetadata, SplitFollowsTheThreshold) {
  Draft d;
  StepMetadata metadata(d.layout, d.layers);
  StepBatch batch = d.batch({0, 1, 4, 9}, {5, 30, 9}, {4, 27, 28, 29, 4, 5, 6, 7, 8});
  metadata.build(batch);
  EXPECT_EQ(metadata.shape().split, (BatchSplit{.decodes = 1, .prefills = 2, .decode_tokens = 1, .prefill_tokens = 8}));
  EXPECT_EQ(metadata.shape().prefill_query_lens, (std::vector<std::int32_t>{3, 5}));
  batch.decode_threshold = 3;
  metadata.build(batch);
  EXPECT_EQ(metadata.shape().split, (BatchSplit{.decodes = 2, .prefills = 1, .decode_tokens = 4, .prefill_tokens = 5}));
  EXPECT_EQ(metadata.shape().prefill_seq_lens, (std::vector<std::int32_t>{9}));
  EXPECT_EQ(metadata.layer(0).gather_lens.as<std::int32_t>()[0], 9);
}

}  // namespace
}  // namespace smla
