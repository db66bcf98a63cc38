// The index ops on the GPU against `_ref`: sound batches and hostile numbers, bit for bit.
#include <random>

#include "gpu/gpu_run.h"
#include "sparsemla/ops/index.h"

namespace smla {
namespace {

using test::run_on_gpu;

class IndexGpu : public test::GpuTest {};

/// A batch in memory of its own; with `hostile` every list may hold anything but query_start_loc, which ascends as its
/// contract says.
struct Batch {
  std::int64_t requests, tokens, block, columns, stride;
  std::vector<std::int32_t> start{0}, seq, request, table;
  std::vector<std::int64_t> positions, slots;
  std::mt19937_64 random;

  Batch(unsigned seed, bool hostile) : random(seed) {
    requests = pick(0, 9);
    constexpr std::int64_t kBlocks[] = {1, 2, 3, 53, 64, 256};
    block = kBlocks[pick(0, 5)];
    for (std::int64_t r = 0; r < requests; ++r) {
      const std::int64_t query = pick(0, 3) == 0 ? 0 : pick(1, 40);
      start.push_back(start.back() + static_cast<std::int32_t>(query));
      seq.push_back(static_cast<std::int32_t>(query + pick(0, 700)));
    }
    tokens = start.back() + pick(0, 5);
    columns = 800 / block + pick(0, 2);
    stride = columns + pick(0, 3);
    for (std::int64_t r = 0; r < requests; ++r) {
      for (std::int64_t i = start[static_cast<std::size_t>(r)]; i < start[static_cast<std::size_t>(r) + 1]; ++i) {
        request.push_back(static_cast<std::int32_t>(r));
        positions.push_back(seq[static_cast<std::size_t>(r)] - start[static_cast<std::size_t>(r) + 1] + i);
      }
    }
    request.resize(static_cast<std::size_t>(tokens), 0);
    positions.resize(static_cast<std::size_t>(tokens), 0);
    for (std::int64_t t = 0; t < tokens; ++t) slots.push_back(t < start.back() ? pick(0, 5000) : -1);
    for (std::int64_t i = 0; i < requests * stride; ++i) table.push_back(static_cast<std::int32_t>(pick(0, 4000)));
    if (!hostile) return;
    for (auto* list : {&seq, &request, &table}) {
      for (std::int32_t& v : *list) v = pick(0, 2) == 0 ? wild() : v;
    }
    for (auto* list : {&positions, &slots}) {
      for (std::int64_t& v : *list) v = pick(0, 2) == 0 ? static_cast<std::int64_t>(random()) : v;
    }
  }
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  }
  std::int32_t wild() {
    constexpr std::int32_t kWild[] = {INT32_MIN, -123456, -1, 114514, 2147480000, INT32_MAX};
    return pick(0, 1) == 0 ? kWild[pick(0, 5)] : static_cast<std::int32_t>(random());
  }
  template <class T>
  static ConstTensorView list(const std::vector<T>& v) {
    return view_of(v.data(), {static_cast<std::int64_t>(v.size())});
  }
  ConstTensorView table_view() const {
    ConstTensorView v(table.data(), DType::kI32, {requests, columns});
    v.stride[0] = stride;
    return v;
  }
  std::vector<std::int32_t> entries(std::int64_t rows, std::int64_t k, bool hostile) {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < rows * k; ++i)
      out.push_back(hostile && pick(0, 3) == 0 ? wild() : static_cast<std::int32_t>(pick(-1, 190)));
    return out;
  }
};

/// Output memory, poisoned alike for both runs.
template <class T>
std::vector<T> poisoned(std::int64_t n) {
  return std::vector<T>(static_cast<std::size_t>(n), static_cast<T>(0x5A5A5A5A));
}

template <class Op, class Make>
void expect_equal(const typename Op::Problem& problem, std::int64_t ints, std::int64_t longs, const Make& make) {
  std::vector<std::int32_t> want_ints = poisoned<std::int32_t>(ints);
  std::vector<std::int32_t> got_ints = want_ints;
  std::vector<std::int64_t> want_longs = poisoned<std::int64_t>(longs);
  std::vector<std::int64_t> got_longs = want_longs;
  Plan<Op>(problem, {.implementation = "ref"}).run(make(want_ints, want_longs));
  run_on_gpu<Op>(problem, make(got_ints, got_longs));
  EXPECT_EQ(want_ints, got_ints) << Op::kName;
  EXPECT_EQ(want_longs, got_longs) << Op::kName;
}

void check_all(unsigned seed, bool hostile) {
  Batch b(seed, hostile);
  const std::int64_t n = b.tokens;
  const auto matrix = [&](std::vector<std::int32_t>& memory, std::int64_t rows, std::int64_t width,
                          std::int64_t stride) {
    TensorView v(memory.data(), DType::kI32, {rows, width});
    v.stride[0] = stride;
    return v;
  };
  const auto tail = [&](std::vector<std::int32_t>& memory, std::int64_t rows) {
    return view_of(memory.data() + static_cast<std::int64_t>(memory.size()) - rows, {rows});
  };

  expect_equal<TokenToReq>({.requests = b.requests, .tokens = n}, n, 0, [&](auto& i, auto&) {
    return TokenToReq::Args{.query_start_loc = Batch::list(b.start), .token_to_req = view_of(i.data(), {n})};
  });
  expect_equal<SlotMapping>({.requests = b.requests, .tokens = n, .block_size = b.block}, 0, n, [&](auto&, auto& l) {
    return SlotMapping::Args{.query_start_loc = Batch::list(b.start),
                             .positions = Batch::list(b.positions),
                             .token_to_req = Batch::list(b.request),
                             .block_table = b.table_view(),
                             .slots = view_of(l.data(), {n})};
  });
  for (const std::int64_t ratio : {4, 128}) {
    expect_equal<CompressedSlotMapping>({.requests = b.requests, .tokens = n, .ratio = ratio, .storage_block = b.block},
                                        0, n, [&](auto&, auto& l) {
                                          return CompressedSlotMapping::Args{.query_start_loc = Batch::list(b.start),
                                                                             .seq_lens = Batch::list(b.seq),
                                                                             .block_table = b.table_view(),
                                                                             .slots = view_of(l.data(), {n})};
                                        });
  }
  for (const std::int64_t ratio : {1, 4, 128}) {
    expect_equal<VisibleEntries>({.tokens = n, .ratio = ratio, .top_k = b.pick(0, 40)}, 3 * n, 0, [&](auto& i, auto&) {
      return VisibleEntries::Args{.positions = Batch::list(b.positions),
                                  .slot_mapping = Batch::list(b.slots),
                                  .valid = TensorView(i.data() + 2 * n, DType::kBool, {n}),
                                  .lens = view_of(i.data(), {n}),
                                  .topk_lens = view_of(i.data() + n, {n})};
    });
    const std::int64_t decodes = b.pick(0, b.requests);
    const std::int64_t prefills = b.requests - decodes;
    expect_equal<PrefillLens>({.requests = b.requests, .decodes = decodes, .ratio = ratio}, 2 * prefills, 0,
                              [&](auto& i, auto&) {
                                return PrefillLens::Args{.query_start_loc = Batch::list(b.start),
                                                         .seq_lens = Batch::list(b.seq),
                                                         .gather_lens = view_of(i.data(), {prefills}),
                                                         .entry_counts = view_of(i.data() + prefills, {prefills})};
                              });
  }
  expect_equal<DraftPositions>({.requests = b.requests}, 0, b.requests, [&](auto&, auto& l) {
    return DraftPositions::Args{.seq_lens = Batch::list(b.seq), .positions = view_of(l.data(), {b.requests})};
  });
  expect_equal<DraftPositions>({.requests = b.requests, .longer = b.pick(0, 3)}, b.requests, b.requests,
                               [&](auto& i, auto& l) {
                                 return DraftPositions::Args{.seq_lens = Batch::list(b.seq),
                                                             .positions = view_of(l.data(), {b.requests}),
                                                             .next_lens = view_of(i.data(), {b.requests})};
                               });
  for (const std::int64_t blocks : {std::int64_t{0}, n / 2}) {
    const std::int64_t width = 192;
    expect_equal<WindowIndices>(
        {.requests = b.requests, .tokens = n, .window = 128, .block_size = b.block, .noncausal_tokens = blocks},
        n * (width + 3) + n, 0, [&](auto& i, auto&) {
          return WindowIndices::Args{.query_start_loc = Batch::list(b.start),
                                     .seq_lens = Batch::list(b.seq),
                                     .token_to_req = Batch::list(b.request),
                                     .slot_mapping = Batch::list(b.slots),
                                     .block_table = b.table_view(),
                                     .indices = matrix(i, n, width, width + 3),
                                     .lens = tail(i, n)};
        });
  }
  for (const bool global : {true, false}) {
    const std::int64_t width = b.pick(0, 300);
    expect_equal<DenseCompressedIndices>({.requests = b.requests,
                                          .tokens = n,
                                          .ratio = b.pick(0, 1) == 0 ? 128 : 1,
                                          .storage_block = b.block,
                                          .width = width,
                                          .global = global},
                                         n * (width + 1) + n, 0, [&](auto& i, auto&) {
                                           return DenseCompressedIndices::Args{
                                               .positions = Batch::list(b.positions),
                                               .token_to_req = Batch::list(b.request),
                                               .slot_mapping = Batch::list(b.slots),
                                               .block_table = b.table_view(),
                                               .indices = matrix(i, n, width, width + 1),
                                               .lens = tail(i, n)};
                                         });
  }
  std::vector<std::uint8_t> valid_bytes;
  for (std::int64_t t = 0; t < n; ++t) valid_bytes.push_back(static_cast<std::uint8_t>(b.pick(0, 3) != 0));
  const ConstTensorView valid(valid_bytes.data(), DType::kBool, {n});
  for (const bool compact : {true, false}) {
    const std::int64_t k = b.pick(0, 3) == 0 ? 0 : b.pick(1, 600);
    const std::vector<std::int32_t> topk = b.entries(n, k, hostile);
    expect_equal<GlobalTopk>(
        {.requests = b.requests, .tokens = n, .k = k, .storage_block = b.block, .compact = compact}, n * (k + 2) + n, 0,
        [&](auto& i, auto&) {
          return GlobalTopk::Args{.topk = view_of(topk.data(), {n, k}),
                                  .token_to_req = Batch::list(b.request),
                                  .block_table = b.table_view(),
                                  .valid = valid,
                                  .indices = matrix(i, n, k, k + 2),
                                  .lens = tail(i, n)};
        });
    expect_equal<ShortContextTopk>({.tokens = n, .ratio = 4, .k = k}, n * (k + 2), 0, [&](auto& i, auto&) {
      return ShortContextTopk::Args{.positions = Batch::list(b.positions), .indices = matrix(i, n, k, k + 2)};
    });
  }
  for (const bool clear : {true, false}) {
    const std::int64_t top_k = b.pick(0, 1) * b.pick(1, 200);
    const std::vector<std::int32_t> topk = b.entries(n, top_k, hostile);
    std::vector<std::int32_t> gather;
    for (std::int64_t r = 0; r < b.requests; ++r)
      gather.push_back(hostile ? b.wild() : static_cast<std::int32_t>(b.pick(0, 200)));
    std::vector<std::int32_t> shifted = b.start;
    for (std::int32_t& v : shifted) v += 17;
    const std::int64_t width = (top_k + 128 + 127) / 128 * 128;
    const CombineTopkWindow::Problem problem{.requests = b.requests,
                                             .tokens = n,
                                             .ratio = 4,
                                             .top_k = top_k,
                                             .m = b.pick(0, 500),
                                             .n = b.pick(0, 200),
                                             .clear_rest = clear};
    expect_equal<CombineTopkWindow>(problem, n * width + n, 0, [&](auto& i, auto&) {
      return CombineTopkWindow::Args{
          .topk = top_k == 0 ? ConstTensorView() : ConstTensorView(view_of(topk.data(), {n, top_k})),
          .query_start_loc = view_of(static_cast<const std::int32_t*>(shifted.data()), {b.requests + 1}),
          .seq_lens = Batch::list(b.seq),
          .gather_lens = view_of(static_cast<const std::int32_t*>(gather.data()), {b.requests}),
          .indices = matrix(i, n, width, width),
          .lens = tail(i, n)};
    });
  }
  for (const bool local : {true, false}) {
    const std::int64_t decode = b.pick(0, n);
    const std::int64_t k = b.pick(0, 130);
    const std::int64_t columns = (k + 3) / 4 * 4;
    const std::vector<std::int32_t> window = b.entries(decode, 128, hostile);
    const std::vector<std::int32_t> compressed = b.entries(decode, k, hostile);
    const std::vector<std::int32_t> prefill = b.entries(n - decode, k, hostile);
    std::vector<std::int32_t> lens;
    for (std::int64_t t = 0; t < decode; ++t)
      lens.push_back(hostile ? b.wild() : static_cast<std::int32_t>(b.pick(0, k)));
    const MixedSparseIndices::Problem problem{.requests = b.requests,
                                              .tokens = n,
                                              .decode_tokens = decode,
                                              .ratio = local ? 4 : 128,
                                              .top_k = k,
                                              .compressed_width = columns,
                                              .window_block = b.block,
                                              .compressed_block = b.block,
                                              .window_span = b.pick(0, 1) * (b.block + 7),
                                              .local = local};
    expect_equal<MixedSparseIndices>(problem, n * (128 + columns) + n, 0, [&](auto& i, auto&) {
      return MixedSparseIndices::Args{
          .decode_window = view_of(window.data(), {decode, 128}),
          .decode_compressed = view_of(compressed.data(), {decode, k}),
          .decode_lens = local ? ConstTensorView() : ConstTensorView(view_of(std::as_const(lens).data(), {decode})),
          .decode_valid = local ? valid.slice(0, 0, decode) : ConstTensorView(),
          .prefill_topk = view_of(prefill.data(), {n - decode, k}),
          .query_start_loc = Batch::list(b.start),
          .seq_lens = Batch::list(b.seq),
          .token_to_req = Batch::list(b.request),
          .window_table = b.table_view(),
          .compressed_table = b.table_view(),
          .indices = matrix(i, n, 128 + columns, 128 + columns),
          .lens = tail(i, n)};
    });
  }
}

TEST_F(IndexGpu, SoundBatchesAreRefBitForBit) {
  for (unsigned seed = 0; seed < 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    check_all(seed, false);
  }
}

TEST_F(IndexGpu, HostileNumbersAreRefBitForBit) {
  for (unsigned seed = 1000; seed < 1060 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    check_all(seed, true);
  }
}

TEST_F(IndexGpu, MoreThan65535Rows) {
  constexpr std::int64_t kTokens = 70000;
  std::vector<std::int64_t> positions(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t) positions[static_cast<std::size_t>(t)] = t * 15;
  expect_equal<ShortContextTopk>({.tokens = kTokens, .ratio = 4, .k = 9}, kTokens * 9, 0, [&](auto& i, auto&) {
    return ShortContextTopk::Args{.positions = Batch::list(positions), .indices = view_of(i.data(), {kTokens, 9})};
  });
}

}  // namespace
}  // namespace smla
