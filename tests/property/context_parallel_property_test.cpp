// Context parallel attention (spec 9): compressed entries dealt out to ranks, each rank's partial result without sink,
// one merge.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cache/row_codec.h"
#include "core/host_tensor.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/plan.h"

namespace smla::test {
namespace {

constexpr std::int64_t kTokens = 7, kHeads = 3, kWindow = 12, kEntries = 150, kBlock = 4;
constexpr int kDim = 512;

/// A cache of its own memory whose rows are copies of `rows` [count, 512] by the given list.
struct Cache {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;
  Cache(const RowFormat& format, const std::vector<float>& rows, const std::vector<std::int64_t>& list) {
    const std::int64_t blocks = static_cast<std::int64_t>(list.size()) / kBlock + 1;
    const std::int64_t stride = page_bytes(format, kBlock);
    bytes.assign(static_cast<std::size_t>(blocks * stride), 0xFF);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = blocks,
             .block_size = kBlock,
             .block_stride_bytes = stride};
    for (std::size_t i = 0; i < list.size(); ++i)
      encode_row(cache, static_cast<std::int64_t>(i), rows.data() + list[i] * kDim);
  }
};

/// Rows of indices and their lengths.
struct Lists {
  HostTensor indices, lens;
  explicit Lists(const std::vector<std::vector<std::int32_t>>& rows, std::int64_t width)
      : indices(DType::kI32, {kTokens, width}), lens(DType::kI32, {kTokens}) {
    std::fill_n(indices.as<std::int32_t>(), indices.numel(), -1);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      std::copy(rows[t].begin(), rows[t].end(), indices.as<std::int32_t>() + static_cast<std::int64_t>(t) * width);
      lens.as<std::int32_t>()[t] = static_cast<std::int32_t>(rows[t].size());
    }
  }
};

struct Batch {
  HostTensor q{DType::kBF16, {kTokens, kHeads, kDim}}, sink{DType::kF32, {kHeads}};
  std::vector<float> window, entries;
  std::vector<std::vector<std::int32_t>> window_rows, entry_rows;

  /// Token t sees the first `visible[t]` entries, or a random half of them.
  Batch(const std::vector<std::int64_t>& visible, bool chosen, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < q.numel(); ++i) q.as<BF16>()[i] = to_bf16(normal(random));
    for (std::int64_t h = 0; h < kHeads; ++h) sink.as<float>()[h] = h == 0 ? -20.0F : normal(random);
    for (std::int64_t i = 0; i < kWindow * kDim; ++i) window.push_back(normal(random));
    for (std::int64_t i = 0; i < kEntries * kDim; ++i) entries.push_back(normal(random));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      window_rows.emplace_back();
      // The last token sees nothing at all.
      for (std::int32_t i = 0; i < kWindow && t + 1 < kTokens; ++i) window_rows.back().push_back(i);
      entry_rows.emplace_back();
      for (std::int32_t j = 0; j < visible[static_cast<std::size_t>(t)]; ++j) {
        if (!chosen || random() % 2 == 0) entry_rows.back().push_back(j);
      }
    }
  }
};

struct Output {
  HostTensor o, lse;
};

Output attend(const Batch& batch, const RowFormat& format, const Cache& window, const Lists& window_lists,
              const Cache& entries, const Lists& entry_lists, bool partial, const std::string& implementation) {
  SparseAttention::Problem problem{
      .tokens = kTokens, .heads = kHeads, .o = DType::kF32, .scopes = 2, .partial = partial};
  problem.scope[0] = {.format = &format, .block_size = kBlock, .width = window_lists.indices.size(1)};
  problem.scope[1] = {.format = &format, .block_size = kBlock, .width = entry_lists.indices.size(1)};
  Output out{HostTensor(DType::kF32, {kTokens, kHeads, kDim}), HostTensor(DType::kF32, {kTokens, kHeads})};
  SparseAttention::Args args;
  args.q = batch.q.view();
  if (!partial) args.sink = batch.sink.view();
  args.scopes[0] = {.cache = window.cache, .indices = window_lists.indices.view(), .lens = window_lists.lens.view()};
  args.scopes[1] = {.cache = entries.cache, .indices = entry_lists.indices.view(), .lens = entry_lists.lens.view()};
  args.o = out.o.view();
  args.lse = out.lse.view();
  const Plan<SparseAttention> plan(problem, {.implementation = implementation, .threads = 2});
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()});
  return out;
}

/// The ranks' partial results, merged.
Output by_ranks(const Batch& batch, const RowFormat& format, const Cache& window, std::int64_t ranks,
                std::int64_t interleave, const std::string& implementation, std::int64_t& empty_ranks) {
  HostTensor partial_o(DType::kF32, {ranks, kTokens, kHeads, kDim});
  HostTensor partial_lse(DType::kF32, {ranks, kTokens, kHeads});
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::int64_t> owned;
    std::vector<std::int32_t> local(kEntries, -1);
    for (std::int64_t j = 0; j < kEntries; ++j) {
      if (j / interleave % ranks != rank) continue;
      local[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(owned.size());
      owned.push_back(j);
    }
    EXPECT_EQ(static_cast<std::int64_t>(owned.size()), local_length(kEntries, rank, ranks, interleave));
    std::vector<std::vector<std::int32_t>> rows;
    for (const auto& row : batch.entry_rows) {
      rows.emplace_back();
      for (const std::int32_t j : row) {
        if (local[static_cast<std::size_t>(j)] >= 0) rows.back().push_back(local[static_cast<std::size_t>(j)]);
      }
      // All visible entries: a rank sees its first local_length of them, no list needed.
      if (static_cast<std::int64_t>(row.size()) == (row.empty() ? 0 : row.back() + 1)) {
        EXPECT_EQ(static_cast<std::int64_t>(rows.back().size()),
                  local_length(static_cast<std::int64_t>(row.size()), rank, ranks, interleave));
      }
      if (rows.back().empty()) ++empty_ranks;
    }
    const Cache mine(format, batch.entries, owned);
    const Lists lists(rows, kEntries);
    const bool has_window = rank == ranks - 1;
    const Lists window_lists(has_window ? batch.window_rows : std::vector<std::vector<std::int32_t>>(kTokens), kWindow);
    const Output part = attend(batch, format, window, window_lists, mine, lists, true, implementation);
    std::memcpy(partial_o.as<float>() + rank * part.o.numel(), part.o.data(), part.o.bytes());
    std::memcpy(partial_lse.as<float>() + rank * part.lse.numel(), part.lse.data(), part.lse.bytes());
  }
  Output out{HostTensor(DType::kF32, {kTokens, kHeads, kDim}), HostTensor(DType::kF32, {kTokens, kHeads})};
  Plan<MergePartials>({.slices = ranks, .tokens = kTokens, .heads = kHeads, .dim = kDim, .o = DType::kF32},
                      {.implementation = implementation == "ref" ? "ref" : ""})
      .run({.partial_o = partial_o.view(),
            .partial_lse = partial_lse.view(),
            .sink = batch.sink.view(),
            .o = out.o.view(),
            .lse = out.lse.view()});
  return out;
}

void expect_same(const Output& got, const Output& want, double bound) {
  double off = 0;
  double size = 0;
  for (std::int64_t i = 0; i < want.o.numel(); ++i) {
    const double d = static_cast<double>(got.o.as<float>()[i]) - static_cast<double>(want.o.as<float>()[i]);
    off += d * d;
    size += static_cast<double>(want.o.as<float>()[i]) * static_cast<double>(want.o.as<float>()[i]);
  }
  ASSERT_LE(std::sqrt(off), bound * std::sqrt(size));
  for (std::int64_t i = 0; i < want.lse.numel(); ++i) {
    const float w = want.lse.as<float>()[i];
    if (std::isinf(w)) {
      ASSERT_EQ(got.lse.as<float>()[i], w) << i;
    } else {
      ASSERT_NEAR(got.lse.as<float>()[i], w, 1e-5F * std::max(1.0F, std::fabs(w))) << i;
    }
  }
  // A row that sees no key anywhere: exactly 0, lse +inf.
  for (std::int64_t i = (kTokens - 1) * kHeads * kDim; i < want.o.numel(); ++i) ASSERT_EQ(got.o.as<float>()[i], 0.0F);
  ASSERT_EQ(got.lse.as<float>()[want.lse.numel() - 1], std::numeric_limits<float>::infinity());
}

TEST(ContextParallelProperty, RanksTogetherEqualTheWhole) {
  std::vector<std::int64_t> everything(kEntries);
  for (std::int64_t i = 0; i < kEntries; ++i) everything[static_cast<std::size_t>(i)] = i;
  std::vector<std::int64_t> recent(kWindow);
  for (std::int64_t i = 0; i < kWindow; ++i) recent[static_cast<std::size_t>(i)] = i;
  std::int64_t empty_ranks = 0;
  for (const RowFormat* format : {&fp8_ds_mla_rows(), &f32_rows()}) {
    for (const bool chosen : {false, true}) {
      const Batch batch({0, 1, 3, 64, 65, kEntries, 0}, chosen, chosen ? 5 : 6);
      const Cache window(*format, batch.window, recent);
      const Cache entries(*format, batch.entries, everything);
      const Lists window_lists(batch.window_rows, kWindow);
      const Lists entry_lists(batch.entry_rows, kEntries);
      const Output whole = attend(batch, *format, window, window_lists, entries, entry_lists, false, "ref");
      for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
        for (const std::int64_t interleave : {1, 2, 64}) {
          for (const std::string implementation : {"ref", ""}) {
            const Output merged = by_ranks(batch, *format, window, ranks, interleave, implementation, empty_ranks);
            expect_same(merged, whole, implementation == "ref" ? 1e-6 : 1e-5);
            ASSERT_FALSE(HasFatalFailure())
                << format->name << " ranks " << ranks << " interleave " << interleave << " " << implementation;
          }
        }
      }
    }
  }
  EXPECT_GT(empty_ranks, 100) << "ranks without a key were met";
}

}  // namespace
}  // namespace smla::test
