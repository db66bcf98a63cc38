#include "engine/block_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "engine/device_step.h"

namespace smla {
namespace {

KvLayout three_kinds() {
  const ModelConfig tiny = model_preset("tiny");
  return make_kv_layout(std::vector<LayerConfig>{tiny.layer(0), tiny.layer(1), tiny.layer(2)}, {});
}

/// Requests over one pool, and tables that follow them.
struct Followed {
  explicit Followed(std::int64_t rows, std::int64_t max_len = 4000)
      : pool(three_kinds(), 6000), tables(pool.layout(), DeviceKind::kCpu, rows, max_len) {}
  Request& add(std::int64_t id) {
    requests.push_back(
        std::make_unique<Request>(RequestSpec{.id = id, .prompt_tokens = 4000, .output_tokens = 1}, pool.layout()));
    return *requests.back();
  }
  /// A step that computes `tokens` more of each, the last `rejected` of the first request's for nothing; every column
  /// that it reads is right.
  bool step(const std::vector<std::pair<Request*, std::int64_t>>& parts, std::int64_t rejected = 0) {
    std::vector<Scheduled> batch;
    std::int64_t longest = 0;
    for (const auto& [request, tokens] : parts) {
      EXPECT_TRUE(request->blocks.reserve(pool, request->computed, request->computed + tokens));
      batch.push_back({.request = request, .tokens = tokens});
      longest = std::max(longest, request->computed + tokens);
    }
    const bool moved = tables.update(batch, {});
    const auto views = tables.views(static_cast<std::int64_t>(batch.size()), longest);
    for (std::size_t g = 0; g < views.size(); ++g) {
      const CacheGroup& group = pool.layout().groups[g];
      for (std::size_t r = 0; r < batch.size(); ++r) {
        const Request& request = *batch[r].request;
        const auto table = request.blocks.table(static_cast<int>(g));
        const std::int64_t end = request.computed + batch[r].tokens;
        for (std::int64_t c = group.first_kept(request.computed) / group.block_tokens; c * group.block_tokens < end;
             ++c) {
          EXPECT_EQ(views[g].as<std::int32_t>()[static_cast<std::int64_t>(r) * views[g].stride[0] + c],
                    table[static_cast<std::size_t>(c)])
              << group.name << " row " << r << " column " << c;
        }
      }
    }
    for (const Scheduled& part : batch) {
      part.request->computed += part.tokens - (&part == batch.data() ? rejected : 0);
      part.request->blocks.slide(pool, part.request->computed);
    }
    return moved;
  }
  std::vector<std::unique_ptr<Request>> requests;
  KvPool pool;
  BlockTables tables;
};

TEST(BlockTables, AStepMovesNewBlocksAlone) {
  Followed f(4);
  Request& a = f.add(7);
  Request& b = f.add(8);
  f.step({{&a, 255}, {&b, 255}});
  EXPECT_GT(f.tables.moved(), 500);
  std::int64_t moved = 0;
  for (int i = 0; i < 256; ++i) {
    f.step({{&a, 1}, {&b, 1}});
    moved += f.tables.moved();
  }
  // Positions 255 to 510: full blocks begin at 256, window blocks at 256, 320, ..., state blocks at multiples of 4, 8.
  std::int64_t begun = 0;
  for (const CacheGroup& group : f.pool.layout().groups) begun += 256 / group.block_tokens;
  EXPECT_EQ(moved, 2 * 4 * begun);
  f.step({});
  EXPECT_EQ(f.tables.moved(), 0);
}

TEST(BlockTables, RowsOfOtherRequestsAreWrittenAnew) {
  Followed f(4);
  Request& a = f.add(1);
  Request& b = f.add(2);
  f.step({{&a, 700}, {&b, 300}});
  f.step({{&b, 1}, {&a, 1}});
  f.step({{&b, 1}});
  f.step({{&a, 5}, {&b, 1}});  // both rows held these requests before, with fewer columns
  a.blocks.clear(f.pool);      // preempted: computed again, in other blocks
  a.computed = 0;
  Request& c = f.add(3);
  f.step({{&c, 100}, {&b, 1}});
  f.step({{&a, 800}, {&b, 1}, {&c, 1}});
}

TEST(BlockTables, AnIdThatComesAgainIsAnotherRequest) {
  Followed f(4);
  Request& first = f.add(1);
  Request& second = f.add(1);
  f.step({{&first, 700}});
  f.step({{&second, 700}});  // in other blocks
  ASSERT_EQ(second.blocks.changes(), first.blocks.changes());
  std::vector<Scheduled> decodes{{.request = &f.add(1), .tokens = 1}, {.request = &second, .tokens = 1}};
  f.tables.keep_rows(decodes);
  EXPECT_EQ(decodes[0].request, &second);
}

TEST(BlockTables, DecodesStayInTheirRows) {
  Followed f(8);
  std::vector<std::pair<Request*, std::int64_t>> parts;
  for (int i = 0; i < 5; ++i) parts.emplace_back(&f.add(i), 10);
  f.step(parts);
  // Request 1 is done: the last takes its row, all others stay.
  std::vector<Scheduled> decodes;
  for (const int i : {0, 2, 3, 4})
    decodes.push_back({.request = f.requests[static_cast<std::size_t>(i)].get(), .tokens = 1});
  f.tables.keep_rows(decodes);
  std::vector<std::int64_t> ids;
  for (const Scheduled& part : decodes) ids.push_back(part.request->result.spec.id);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{0, 4, 2, 3}));
}

TEST(BlockTables, LongerRequestsMoveTheTables) {
  Followed f(2);
  Request& a = f.add(1);
  EXPECT_FALSE(f.step({{&a, 1024}}));
  EXPECT_TRUE(f.step({{&a, 1}}));
  EXPECT_FALSE(f.step({{&a, 1023}}));
  const void* before = f.tables.views(1, 2048)[0].data;
  EXPECT_EQ(f.tables.views(2, 1)[0].data, before) << "the same table for every size of a batch";
  EXPECT_TRUE(f.step({{&a, 1}}));
  EXPECT_FALSE(f.step({{&a, 1000}}));
}

TEST(BlockTables, RandomStepsReadWhatTheirRequestsHold) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Followed f(6);
    for (int i = 0; i < 9; ++i) f.add(100 + i);
    for (int i = 0; i < 60; ++i) {
      std::vector<Request*> order;
      for (const auto& r : f.requests) order.push_back(r.get());
      std::ranges::shuffle(order, random);
      if (random() % 8 == 0) {
        order[0]->blocks.clear(f.pool);
        order[0]->computed = 0;
      }
      std::vector<std::pair<Request*, std::int64_t>> parts;
      for (std::size_t r = 0; r < 1 + random() % 6; ++r)
        parts.emplace_back(order[r], 1 + random() % (random() % 4 == 0 ? 60 : 3));
      // Drafts that are thrown away: their positions come again.
      const std::int64_t drafts = parts[0].second <= 3 ? parts[0].second - 1 : 0;
      f.step(parts, random() % 2 == 0 ? drafts : 0);
    }
  }
}

TEST(DeviceStep, PadsToAFewSizes) {
  StepTensors batch;
  batch.positions = HostTensor(DType::kI64, {17});
  batch.seq_lens = HostTensor(DType::kI32, {5});
  batch.max_seq_len = 1025;
  EXPECT_EQ(padded_sizes(batch, 1500), (StepSizes{.tokens = 32, .requests = 8, .max_seq_len = 1500}));
  EXPECT_EQ(padded_sizes(batch, 1 << 20), (StepSizes{.tokens = 32, .requests = 8, .max_seq_len = 2048}));
  EXPECT_EQ(exact_sizes(batch), (StepSizes{.tokens = 17, .requests = 5, .max_seq_len = 1025}));
}

}  // namespace
}  // namespace smla
