#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "sparsemla/ops/index.h"

namespace smla {
namespace {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

/// A step: requests with a computed part and a query each, then padding; every request has its own blocks, in an
/// arbitrary order.
struct Step {
  std::int64_t block_size = 1;
  std::int64_t columns = 1;
  std::int64_t tokens = 0;
  Ints start{0};
  Ints seq_lens;
  Ints requests;
  Ints table;
  Longs positions;
  Longs slots;

  std::int64_t count() const { return static_cast<std::int64_t>(seq_lens.size()); }
  ConstTensorView table_view() const { return view_of(table.data(), {count(), columns}); }
  ConstTensorView start_view() const { return view_of(start.data(), {count() + 1}); }
  ConstTensorView seq_view() const { return view_of(seq_lens.data(), {count()}); }
  ConstTensorView requests_view() const { return view_of(static_cast<const std::int32_t*>(requests.data()), {tokens}); }
  ConstTensorView positions_view() const { return view_of(positions.data(), {tokens}); }
  ConstTensorView slots_view() const { return view_of(static_cast<const std::int64_t*>(slots.data()), {tokens}); }
  /// The slot of position `pos`, straight from the definition.
  std::int64_t slot(std::int64_t request, std::int64_t pos, std::int64_t block) const {
    return table[static_cast<std::size_t>(request * columns + pos / block)] * block + pos % block;
  }
};

Step any_step() {
  Step s;
  s.block_size = *rc::gen::element<std::int64_t>(1, 2, 3, 53, 64, 256);
  const auto requests = *rc::gen::inRange(0, 5);
  std::int64_t longest = 1;
  for (int r = 0; r < requests; ++r) {
    const auto computed = *rc::gen::inRange(0, 300);
    const auto query = *rc::gen::inRange(0, 12);
    for (int i = 0; i < query; ++i) s.positions.push_back(computed + i);
    s.start.push_back(s.start.back() + query);
    s.seq_lens.push_back(computed + query);
    longest = std::max<std::int64_t>(longest, computed + query);
  }
  const auto padding = *rc::gen::inRange(0, 4);
  s.positions.resize(s.positions.size() + static_cast<std::size_t>(padding), 17);
  s.tokens = static_cast<std::int64_t>(s.positions.size());
  s.columns = (longest + s.block_size - 1) / s.block_size + *rc::gen::inRange(0, 3);
  s.table.resize(static_cast<std::size_t>(s.count() * s.columns));
  std::iota(s.table.begin(), s.table.end(), 0);
  const auto seed = *rc::gen::arbitrary<unsigned>();
  for (std::size_t i = s.table.size(); i > 1; --i) std::swap(s.table[i - 1], s.table[(seed + 7919 * i) % i]);

  s.requests.assign(static_cast<std::size_t>(s.tokens), 99);
  Plan<TokenToReq>({.requests = s.count(), .tokens = s.tokens})
      .run({.query_start_loc = s.start_view(), .token_to_req = view_of(s.requests.data(), {s.tokens})});
  s.slots.assign(static_cast<std::size_t>(s.tokens), 99);
  Plan<SlotMapping>({.requests = s.count(), .tokens = s.tokens, .block_size = s.block_size})
      .run({.query_start_loc = s.start_view(),
            .positions = s.positions_view(),
            .token_to_req = s.requests_view(),
            .block_table = s.table_view(),
            .slots = view_of(s.slots.data(), {s.tokens})});
  return s;
}

RC_GTEST_PROP(IndexProperty, SlotsFollowEachRequestsTokens, ()) {
  const Step s = any_step();
  std::int64_t t = 0;
  for (std::int64_t r = 0; r < s.count(); ++r) {
    for (; t < s.start[static_cast<std::size_t>(r + 1)]; ++t) {
      RC_ASSERT(s.requests[static_cast<std::size_t>(t)] == r);
      RC_ASSERT(s.slots[static_cast<std::size_t>(t)] ==
                s.slot(r, s.positions[static_cast<std::size_t>(t)], s.block_size));
    }
  }
  for (; t < s.tokens; ++t) {
    RC_ASSERT(s.requests[static_cast<std::size_t>(t)] == 0);
    RC_ASSERT(s.slots[static_cast<std::size_t>(t)] == -1);
  }
}

RC_GTEST_PROP(IndexProperty, WindowRowsHoldTheLastSlots, ()) {
  const Step s = any_step();
  const auto window = *rc::gen::element<std::int64_t>(1, 2, 5, 128);
  const std::int64_t width = window + *rc::gen::inRange(0, 3);
  Ints indices(static_cast<std::size_t>(s.tokens * width), 99);
  Ints lens(static_cast<std::size_t>(s.tokens), 99);
  Plan<WindowIndices>({.requests = s.count(), .tokens = s.tokens, .window = window, .block_size = s.block_size})
      .run({.query_start_loc = s.start_view(),
            .seq_lens = s.seq_view(),
            .token_to_req = s.requests_view(),
            .slot_mapping = s.slots_view(),
            .block_table = s.table_view(),
            .indices = view_of(indices.data(), {s.tokens, width}),
            .lens = view_of(lens.data(), {s.tokens})});
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    Ints expected;
    if (s.slots[static_cast<std::size_t>(t)] >= 0) {
      const std::int64_t pos = s.positions[static_cast<std::size_t>(t)];
      for (std::int64_t p = 0; p <= pos; ++p) {
        if (p > pos - window)
          expected.push_back(
              static_cast<std::int32_t>(s.slot(s.requests[static_cast<std::size_t>(t)], p, s.block_size)));
      }
    }
    RC_ASSERT(lens[static_cast<std::size_t>(t)] == static_cast<std::int32_t>(expected.size()));
    expected.resize(static_cast<std::size_t>(width), -1);
    RC_ASSERT(Ints(indices.begin() + t * width, indices.begin() + (t + 1) * width) == expected);
  }
}

// What the writer puts where, the readers must find there: entry g is written by token g * ratio + ratio - 1.
RC_GTEST_PROP(IndexProperty, ReadersFindTheEntriesThatWritersPlaced, ()) {
  const Step s = any_step();
  const auto ratio = *rc::gen::element<std::int64_t>(1, 2, 4, 128);
  const std::int64_t storage = s.block_size;
  Longs written(static_cast<std::size_t>(s.tokens), 99);
  Plan<CompressedSlotMapping>({.requests = s.count(), .tokens = s.tokens, .ratio = ratio, .storage_block = storage})
      .run({.query_start_loc = s.start_view(),
            .seq_lens = s.seq_view(),
            .block_table = s.table_view(),
            .slots = view_of(written.data(), {s.tokens})});
  const std::int64_t width = 320 / ratio;
  Ints rows(static_cast<std::size_t>(s.tokens * width), 99);
  Ints lens(static_cast<std::size_t>(s.tokens), 99);
  Plan<DenseCompressedIndices>({.requests = s.count(),
                                .tokens = s.tokens,
                                .ratio = ratio,
                                .storage_block = storage,
                                .width = width,
                                .global = true})
      .run({.positions = s.positions_view(),
            .token_to_req = s.requests_view(),
            .slot_mapping = s.slots_view(),
            .block_table = s.table_view(),
            .indices = view_of(rows.data(), {s.tokens, width}),
            .lens = view_of(lens.data(), {s.tokens})});
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    const std::int64_t pos = s.positions[static_cast<std::size_t>(t)];
    const bool closes = s.slots[static_cast<std::size_t>(t)] >= 0 && (pos + 1) % ratio == 0;
    RC_ASSERT((written[static_cast<std::size_t>(t)] >= 0) == closes);
    const std::int64_t n = lens[static_cast<std::size_t>(t)];
    RC_ASSERT(n == (s.slots[static_cast<std::size_t>(t)] >= 0 ? (pos + 1) / ratio : 0));
    if (closes) RC_ASSERT(rows[static_cast<std::size_t>(t * width + n - 1)] == written[static_cast<std::size_t>(t)]);
    for (std::int64_t j = n; j < width; ++j) RC_ASSERT(rows[static_cast<std::size_t>(t * width + j)] == -1);
  }

  // The short-context rows, mapped to global slots, are the dense rows; compacting changes nothing where no entry is
  // lost.
  Ints local(rows.size(), 99);
  Plan<ShortContextTopk>({.tokens = s.tokens, .ratio = ratio, .k = width})
      .run({.positions = s.positions_view(), .indices = view_of(local.data(), {s.tokens, width})});
  std::vector<std::uint8_t> valid;
  for (const std::int64_t slot : s.slots) valid.push_back(slot >= 0 ? 1 : 0);
  for (const bool compact : {false, true}) {
    Ints mapped = local;  // in place
    Ints mapped_lens(lens.size(), 99);
    Plan<GlobalTopk>(
        {.requests = s.count(), .tokens = s.tokens, .k = width, .storage_block = storage, .compact = compact})
        .run({.topk = view_of(static_cast<const std::int32_t*>(mapped.data()), {s.tokens, width}),
              .token_to_req = s.requests_view(),
              .block_table = s.table_view(),
              .valid = ConstTensorView(valid.data(), DType::kBool, {s.tokens}),
              .indices = view_of(mapped.data(), {s.tokens, width}),
              .lens = view_of(mapped_lens.data(), {s.tokens})});
    RC_ASSERT(mapped_lens == lens);
    for (std::int64_t t = 0; t < s.tokens; ++t) {
      if (valid[static_cast<std::size_t>(t)] == 0) continue;
      RC_ASSERT(std::equal(rows.begin() + t * width, rows.begin() + (t + 1) * width, mapped.begin() + t * width));
    }
  }
}

RC_GTEST_PROP(IndexProperty, GlobalTopkSurvivesAnything, ()) {
  const auto blocks =
      *rc::gen::container<Ints>(6, rc::gen::oneOf(rc::gen::inRange(-2, 5), rc::gen::arbitrary<std::int32_t>()));
  const auto entries =
      *rc::gen::container<Ints>(9, rc::gen::oneOf(rc::gen::inRange(-2, 14), rc::gen::arbitrary<std::int32_t>()));
  const auto requests =
      *rc::gen::container<Ints>(3, rc::gen::oneOf(rc::gen::inRange(-1, 4), rc::gen::arbitrary<std::int32_t>()));
  const std::vector<std::uint8_t> valid(3, 1);
  Ints out(9, 99);
  Ints lens(3, 99);
  Plan<GlobalTopk>({.requests = 2, .tokens = 3, .k = 3, .storage_block = 4, .compact = true})
      .run({.topk = view_of(entries.data(), {3, 3}),
            .token_to_req = view_of(requests.data(), {3}),
            .block_table = view_of(blocks.data(), {2, 3}),
            .valid = ConstTensorView(valid.data(), DType::kBool, {3}),
            .indices = view_of(out.data(), {3, 3}),
            .lens = view_of(lens.data(), {3})});
  for (std::size_t t = 0; t < 3; ++t) {
    Ints expected;
    for (std::size_t j = 0; j < 3; ++j) {
      const std::int64_t v = entries[3 * t + j];
      if (requests[t] < 0 || requests[t] >= 2 || v < 0 || v >= 12) continue;
      const std::int64_t block = blocks[static_cast<std::size_t>(3 * requests[t] + v / 4)];
      if (block >= 0 && block * 4 + v % 4 <= INT32_MAX)
        expected.push_back(static_cast<std::int32_t>(block * 4 + v % 4));
    }
    RC_ASSERT(lens[t] == static_cast<std::int32_t>(expected.size()));
    expected.resize(3, -1);
    RC_ASSERT(Ints(out.begin() + static_cast<std::ptrdiff_t>(3 * t),
                   out.begin() + static_cast<std::ptrdiff_t>(3 * t + 3)) == expected);
  }
}

}  // namespace
}  // namespace smla
