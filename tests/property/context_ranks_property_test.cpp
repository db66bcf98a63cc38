// Decode and prefill of context-parallel ranks, each a thread with its share of index rows and compressed rows, against
// one rank that has all of them (docs/parallel.md).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "cache/row_codec.h"
#include "core/host_tensor.h"
#include "on_ranks.h"
#include "sparsemla/context_parallel.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/plan.h"

namespace smla::test {
namespace {

constexpr std::int64_t kHeads = 2, kIndexHeads = 4, kBlock = 4, kWindow = 9;
constexpr int kDim = 512, kIndexDim = 128;

enum class Keys { kRandom, kFew, kEqual };

/// Requests with entries of `ratio` tokens, a token each (or more) that sees all entries of its request so far.
struct Sequences {
  int ratio = 4;
  std::vector<std::int64_t> lengths;  ///< tokens, the last of which are queries
  std::vector<std::int64_t> queries;  ///< query tokens of each request

  std::int64_t requests() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t tokens() const { return std::accumulate(queries.begin(), queries.end(), std::int64_t{0}); }
  std::int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
};

struct Memory {
  HostTensor bytes;
  explicit Memory(std::size_t n) : bytes(DType::kU8, {static_cast<std::int64_t>(n)}) {}
  Workspace get() { return {.data = bytes.data(), .bytes = bytes.bytes()}; }
};

/// Numbers that every rank has alike.
struct Batch {
  Sequences seq;
  std::int64_t k = 0;
  HostTensor start, seq_lens, positions, request, window_slots, window_table;
  HostTensor q, sink, index_q, index_w;
  std::vector<std::vector<float>> rows, keys;  ///< of each request, [entries, dim]
  std::vector<float> window;                   ///< [requests * kWindow, 512]

  Batch(Sequences s, std::int64_t top_k, Keys kind, unsigned seed)
      : seq(std::move(s)),
        k(top_k),
        start(DType::kI32, {seq.requests() + 1}),
        seq_lens(DType::kI32, {seq.requests()}),
        positions(DType::kI64, {seq.tokens()}),
        request(DType::kI32, {seq.tokens()}),
        window_slots(DType::kI64, {seq.tokens()}),
        window_table(DType::kI32, {seq.requests(), 1}),
        q(DType::kF32, {seq.tokens(), kHeads, kDim}),
        sink(DType::kF32, {kHeads}),
        index_q(DType::kF32, {seq.tokens(), kIndexHeads, kIndexDim}),
        index_w(DType::kF32, {seq.tokens(), kIndexHeads}) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](HostTensor& t) {
      for (std::int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = normal(random);
    };
    fill(q), fill(sink), fill(index_q), fill(index_w);
    std::int64_t t = 0;
    for (std::int64_t r = 0; r < seq.requests(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      start.as<std::int32_t>()[r] = static_cast<std::int32_t>(t);
      seq_lens.as<std::int32_t>()[r] = static_cast<std::int32_t>(seq.lengths[at]);
      window_table.as<std::int32_t>()[r] = static_cast<std::int32_t>(r);
      for (std::int64_t i = 0; i < seq.queries[at]; ++i, ++t) {
        positions.as<std::int64_t>()[t] = seq.lengths[at] - seq.queries[at] + i;
        request.as<std::int32_t>()[t] = static_cast<std::int32_t>(r);
        window_slots.as<std::int64_t>()[t] = r * kWindow;
      }
      const std::int64_t entries = seq.lengths[at] / seq.ratio;
      std::vector<float> few(3 * kIndexDim);
      for (float& x : few) x = normal(random);
      rows.emplace_back(static_cast<std::size_t>(entries * kDim));
      for (float& x : rows.back()) x = normal(random);
      keys.emplace_back(static_cast<std::size_t>(entries * kIndexDim));
      for (std::int64_t j = 0; j < entries; ++j) {
        const auto choice = kind == Keys::kEqual ? 0 : random() % 3;
        for (int d = 0; d < kIndexDim; ++d)
          keys.back()[static_cast<std::size_t>(j * kIndexDim + d)] =
              kind == Keys::kRandom ? normal(random) : few[choice * kIndexDim + static_cast<std::size_t>(d)];
      }
    }
    start.as<std::int32_t>()[seq.requests()] = static_cast<std::int32_t>(t);
    for (std::int64_t i = 0; i < seq.requests() * kWindow * kDim; ++i) window.push_back(normal(random));
  }
};

/// A cache in memory of its own.
struct Cache {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;
  Cache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size) {
    const std::int64_t stride = page_bytes(format, block_size);
    bytes.assign(static_cast<std::size_t>(std::max<std::int64_t>(blocks, 1) * stride), 0xFF);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = std::max<std::int64_t>(blocks, 1),
             .block_size = block_size,
             .block_stride_bytes = stride};
  }
};

/// What one rank has: its entries in blocks of its own, and what the index ops make of the step for it.
struct Rank {
  EntryShare share;
  std::int64_t width = 0;  ///< columns for the entries of a row
  std::int64_t held = 0;   ///< entries
  HostTensor table, lens, valid, slots, dense, dense_lens;
  Cache rows, keys;
  Cache window;
  HostTensor window_indices, window_lens;

  Rank(const Batch& b, const EntryShare& of, const RowFormat& format, const RowFormat& index_format)
      : share(of),
        width(std::max<std::int64_t>(
            EntryShare{.rank = 0, .ranks = of.ranks, .interleave = of.interleave}.count(b.seq.longest() / b.seq.ratio),
            1)),
        table(DType::kI32, {b.seq.requests(), width / kBlock + 1}),
        lens(DType::kI32, {b.seq.tokens()}),
        valid(DType::kBool, {b.seq.tokens()}),
        slots(DType::kI64, {b.seq.tokens()}),
        dense(DType::kI32, {b.seq.tokens(), width}),
        dense_lens(DType::kI32, {b.seq.tokens()}),
        rows(format, b.seq.requests() * table.size(1), kBlock),
        keys(index_format, b.seq.requests() * table.size(1), kBlock),
        window(format, b.seq.requests(), kWindow),
        window_indices(DType::kI32, {b.seq.tokens(), kWindow}),
        window_lens(DType::kI32, {b.seq.tokens()}) {
    // Blocks in an order of the rank's own.
    const std::int64_t columns = table.size(1);
    const std::int64_t blocks = b.seq.requests() * columns;
    for (std::int64_t i = 0; i < blocks; ++i)
      table.as<std::int32_t>()[i] = static_cast<std::int32_t>((i * 7 + share.rank) % blocks);
    if (blocks % 7 == 0) std::iota(table.as<std::int32_t>(), table.as<std::int32_t>() + blocks, 0);
    for (std::int64_t r = 0; r < b.seq.requests(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      for (std::int64_t j = 0; j < b.seq.lengths[at] / b.seq.ratio; ++j) {
        if (!share.owns(j)) continue;
        ++held;
        const std::int64_t i = share.local(j);
        const std::int64_t slot = table.as<std::int32_t>()[r * columns + i / kBlock] * kBlock + i % kBlock;
        encode_row(rows.cache, slot, b.rows[at].data() + j * kDim);
        encode_row(keys.cache, slot, b.keys[at].data() + j * kIndexDim);
      }
    }
    for (std::int64_t i = 0; i < b.seq.requests() * kWindow; ++i)
      encode_row(window.cache, i, b.window.data() + i * kDim);
    for (std::int64_t t = 0; t < b.seq.tokens(); ++t) {
      const std::int64_t r = b.request.as<std::int32_t>()[t];
      const std::int64_t seen = std::min<std::int64_t>(b.positions.as<std::int64_t>()[t] + 1, kWindow);
      window_lens.as<std::int32_t>()[t] = static_cast<std::int32_t>(seen);
      for (std::int64_t i = 0; i < kWindow; ++i)
        window_indices.as<std::int32_t>()[t * kWindow + i] = i < seen ? static_cast<std::int32_t>(r * kWindow + i) : -1;
    }
    Plan<VisibleEntries>({.tokens = b.seq.tokens(), .ratio = b.seq.ratio, .share = share})
        .run({.positions = b.positions.view(),
              .slot_mapping = b.window_slots.view(),
              .valid = valid.view(),
              .lens = lens.view(),
              .topk_lens = {}});
    Plan<CompressedSlotMapping>({.requests = b.seq.requests(),
                                 .tokens = b.seq.tokens(),
                                 .ratio = b.seq.ratio,
                                 .storage_block = kBlock,
                                 .share = share})
        .run({.query_start_loc = b.start.view(),
              .seq_lens = b.seq_lens.view(),
              .block_table = table.view(),
              .slots = slots.view()});
    Plan<DenseCompressedIndices>({.requests = b.seq.requests(),
                                  .tokens = b.seq.tokens(),
                                  .ratio = b.seq.ratio,
                                  .storage_block = kBlock,
                                  .width = width,
                                  .share = share})
        .run({.positions = b.positions.view(),
              .token_to_req = b.request.view(),
              .slot_mapping = b.window_slots.view(),
              .block_table = table.view(),
              .indices = dense.view(),
              .lens = dense_lens.view()});
  }

  HostTensor scores(const Batch& b) const {
    HostTensor logits(DType::kF32, {b.seq.tokens(), width});
    const Plan<IndexerLogits> plan(
        {.rows = b.seq.tokens(), .heads = kIndexHeads, .dim = kIndexDim, .width = width, .format = keys.cache.format});
    Memory memory(plan.workspace_bytes());
    plan.run({.q = b.index_q.view(),
              .q_scale = {},
              .weights = b.index_w.view(),
              .row_to_req = b.request.view(),
              .lens = lens.view(),
              .block_table = table.view(),
              .cache = keys.cache,
              .logits = logits.view()},
             memory.get());
    return logits;
  }

  SparseAttention::Problem problem(const Batch& b, std::int64_t columns) const {
    SparseAttention::Problem p{
        .tokens = b.seq.tokens(), .heads = kHeads, .q = DType::kF32, .o = DType::kF32, .scopes = 2};
    p.scope[0] = {.format = window.cache.format, .block_size = kWindow, .width = kWindow};
    p.scope[1] = {.format = rows.cache.format, .block_size = kBlock, .width = columns};
    return p;
  }
  SparseAttention::Args args(const Batch& b, const HostTensor& indices, const HostTensor& counts) const {
    SparseAttention::Args a;
    a.q = b.q.view();
    a.sink = b.sink.view();
    a.scopes[0] = {.cache = window.cache, .indices = window_indices.view(), .lens = window_lens.view()};
    a.scopes[1] = {.cache = rows.cache, .indices = indices.view(), .lens = counts.view()};
    return a;
  }
};

struct Output {
  HostTensor o, lse, chosen;
  explicit Output(const Batch& b)
      : o(DType::kF32, {b.seq.tokens(), kHeads, kDim}),
        lse(DType::kF32, {b.seq.tokens(), kHeads}),
        chosen(DType::kI32, {b.seq.tokens(), std::max<std::int64_t>(b.k, 1)}) {}
};

HostTensor slots_of(const Batch& b, const Rank& rank, const HostTensor& topk, HostTensor& counts) {
  HostTensor slots(DType::kI32, {b.seq.tokens(), b.k});
  Plan<GlobalTopk>(
      {.requests = b.seq.requests(), .tokens = b.seq.tokens(), .k = b.k, .storage_block = kBlock, .compact = true})
      .run({.topk = topk.view(),
            .token_to_req = b.request.view(),
            .block_table = rank.table.view(),
            .valid = rank.valid.view(),
            .indices = slots.view(),
            .lens = counts.view()});
  return slots;
}

/// One rank with everything, by the ops that layers use.
Output whole(const Batch& b, const Rank& all) {
  Output out(b);
  HostTensor counts(DType::kI32, {b.seq.tokens()});
  HostTensor slots;
  const HostTensor* indices = &all.dense;
  const HostTensor* lens = &all.dense_lens;
  if (b.k > 0) {
    const HostTensor logits = all.scores(b);
    Plan<TopK>({.rows = b.seq.tokens(), .width = all.width, .k = b.k})
        .run({.logits = logits.view(), .lens = all.lens.view(), .indices = out.chosen.view()});
    slots = slots_of(b, all, out.chosen, counts);
    indices = &slots, lens = &counts;
  }
  SparseAttention::Args args = all.args(b, *indices, *lens);
  args.o = out.o.view();
  args.lse = out.lse.view();
  const Plan<SparseAttention> plan(all.problem(b, indices->size(1)));
  Memory memory(plan.workspace_bytes());
  plan.run(args, memory.get());
  return out;
}

/// The same over ranks.
Output one_of(const Batch& b, const Rank& rank, Communicator& ranks) {
  Output out(b);
  HostTensor counts(DType::kI32, {b.seq.tokens()});
  HostTensor slots;
  const HostTensor* indices = &rank.dense;
  const HostTensor* lens = &rank.dense_lens;
  if (b.k > 0) {
    const HostTensor logits = rank.scores(b);
    HostTensor own(DType::kI32, {b.seq.tokens(), b.k});
    const ContextTopK choose({.rows = b.seq.tokens(), .width = rank.width, .k = b.k, .share = rank.share});
    Memory memory(choose.workspace_bytes());
    choose.run(ranks,
               {.logits = logits.view(), .lens = rank.lens.view(), .chosen = out.chosen.view(), .own = own.view()},
               memory.get());
    slots = slots_of(b, rank, own, counts);
    indices = &slots, lens = &counts;
  }
  SparseAttention::Args args = rank.args(b, *indices, *lens);
  args.o = out.o.view();
  args.lse = out.lse.view();
  const ContextAttention attention(rank.problem(b, indices->size(1)), rank.share);
  Memory memory(attention.workspace_bytes());
  attention.run(ranks, args, memory.get());
  return out;
}

void expect_close(const Output& got, const Output& want, double bound) {
  double off = 0;
  double size = 0;
  for (std::int64_t i = 0; i < want.o.numel(); ++i) {
    const double w = want.o.as<float>()[i];
    const double d = got.o.as<float>()[i] - w;
    off += d * d;
    size += w * w;
  }
  EXPECT_LE(std::sqrt(off), bound * std::sqrt(size));
  for (std::int64_t i = 0; i < want.lse.numel(); ++i) {
    const float w = want.lse.as<float>()[i];
    EXPECT_NEAR(got.lse.as<float>()[i], w, 1e-5F * std::max(1.0F, std::fabs(w)));
  }
}

void check_ranks(const Batch& b, int ranks, std::int64_t interleave, const RowFormat& format,
                 const RowFormat& index_format) {
  const Rank all(b, {}, format, index_format);
  const Output want = whole(b, all);
  std::mutex mutex;
  std::int64_t held = 0;
  std::vector<std::int64_t> closed(static_cast<std::size_t>(b.seq.tokens()), 0);
  on_ranks(ranks, [&](Communicator& c) {
    const Rank rank(b, {.rank = c.rank(), .ranks = ranks, .interleave = interleave}, format, index_format);
    const Output got = one_of(b, rank, c);
    const std::lock_guard lock(mutex);
    for (std::int64_t i = 0; b.k > 0 && i < want.chosen.numel(); ++i)
      EXPECT_EQ(got.chosen.as<std::int32_t>()[i], want.chosen.as<std::int32_t>()[i])
          << "row " << i / b.k << " place " << i % b.k;
    expect_close(got, want, 1e-5);
    held += rank.held;
    for (std::int64_t t = 0; t < b.seq.tokens(); ++t)
      closed[static_cast<std::size_t>(t)] += rank.slots.as<std::int64_t>()[t] >= 0 ? 1 : 0;
    EXPECT_LE(rank.held, b.seq.requests() * rank.width);
  });
  EXPECT_EQ(held, all.held) << "every entry lies on one rank";
  for (std::int64_t t = 0; t < b.seq.tokens(); ++t) {
    const bool closes = (b.positions.as<std::int64_t>()[t] + 1) % b.seq.ratio == 0;
    EXPECT_EQ(closed[static_cast<std::size_t>(t)], closes ? 1 : 0) << "one rank stores what token " << t << " closes";
  }
}

TEST(ContextRanks, DecodeOfC4aIsThatOfOneRank) {
  // No entry, fewer entries than ranks, one more than a run or a block, more than k and fewer.
  const Sequences decodes{
      .ratio = 4, .lengths = {1, 3, 4, 7, 15, 29, 257, 259, 600}, .queries = {1, 1, 1, 1, 1, 1, 1, 1, 1}};
  unsigned seed = 1;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t interleave : {1, 2, 64}) {
      for (const Keys keys : {Keys::kRandom, Keys::kFew, Keys::kEqual}) {
        for (const std::int64_t k : {1, 8, 512}) {
          SCOPED_TRACE(testing::Message() << "ranks " << ranks << " interleave " << interleave << " keys "
                                          << static_cast<int>(keys) << " k " << k);
          check_ranks(Batch(decodes, k, keys, ++seed), ranks, interleave, f32_rows(), index_f32_rows());
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(ContextRanks, RowsOfAPrefillSeeWhatCameBefore) {
  const Sequences mixed{.ratio = 4, .lengths = {90, 33, 5, 200}, .queries = {1, 33, 2, 20}};
  for (const int ranks : {2, 3, 8}) {
    SCOPED_TRACE(ranks);
    check_ranks(Batch(mixed, 6, Keys::kRandom, 70), ranks, 3, f32_rows(), index_f32_rows());
    check_ranks(Batch(mixed, 6, Keys::kFew, 71), ranks, 64, fp8_ds_mla_rows(), index_f32_rows());
  }
}

TEST(ContextRanks, DecodeOfC128aIsThatOfOneRank) {
  const Sequences decodes{
      .ratio = 128, .lengths = {1, 127, 128, 129, 700, 1500, 4000}, .queries = {1, 1, 1, 1, 1, 2, 9}};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t interleave : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "ranks " << ranks << " interleave " << interleave);
      check_ranks(Batch(decodes, 0, Keys::kRandom, 9), ranks, interleave, fp8_ds_mla_rows(), index_f32_rows());
      if (HasFailure()) return;
    }
  }
}

TEST(ContextRanks, ACommunicatorOfOtherRanksIsRefused) {
  on_ranks(2, [](Communicator& c) {
    const ContextTopK choose({.rows = 1, .width = 4, .k = 2, .share = {.rank = 0, .ranks = 3}});
    EXPECT_THROW(choose.run(c, {}, {}), InvalidArgument);
  });
  EXPECT_THROW(ContextAttention({.tokens = 1, .heads = 1, .scopes = 1}, {}), InvalidArgument);
}

// --- the indexer's rows of a prefill, shared out ---

TEST(ContextRanks, PiecesAreBalancedAndCoverAllRows) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> entries(random() % 200);
    std::int64_t most = 0;
    std::int64_t all = 0;
    for (std::int64_t& n : entries) {
      n = round % 3 == 0 ? 7 : static_cast<std::int64_t>(random() % 5000);
      most = std::max(most, n + 1);
      all += n + 1;
    }
    const int ranks = 1 + static_cast<int>(random() % 9);
    const std::vector<RowPiece> pieces = balanced_pieces(entries, ranks);
    ASSERT_EQ(static_cast<int>(pieces.size()), ranks);
    std::int64_t end = 0;
    for (const RowPiece& piece : pieces) {
      ASSERT_EQ(piece.begin, end);
      ASSERT_GE(piece.end, piece.begin);
      end = piece.end;
      std::int64_t work = 0;
      for (std::int64_t i = piece.begin; i < piece.end; ++i) work += entries[static_cast<std::size_t>(i)] + 1;
      ASSERT_LE(work, all / ranks + most + 1) << "no piece is off by more than a row";
    }
    ASSERT_EQ(end, static_cast<std::int64_t>(entries.size()));
  }
  const std::vector<std::int32_t> seq{100}, query{100};
  const auto halves = balanced_pieces(seq, query, 1, 2);
  EXPECT_NEAR(static_cast<double>(halves[0].rows()), 70.7, 2) << "later rows see more";
  EXPECT_THROW((void)balanced_pieces(seq, std::vector<std::int32_t>{101}, 4, 2), InvalidArgument);
  EXPECT_THROW((void)balanced_pieces(seq, query, 4, 0), InvalidArgument);
}

TEST(ContextRanks, SharedPrefillRowsHaveTheSameBits) {
  const Sequences prefill{.ratio = 4, .lengths = {301, 50, 3}, .queries = {160, 50, 3}};
  const Batch b(prefill, 12, Keys::kFew, 4);
  const Rank all(b, {}, f32_rows(), index_f32_rows());
  const Output want = whole(b, all);
  const std::vector<std::int32_t> seq{301, 50, 3}, query{160, 50, 3};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const std::vector<RowPiece> pieces = balanced_pieces(seq, query, 4, ranks);
    on_ranks(ranks, [&](Communicator& c) {
      const RowPiece piece = pieces[static_cast<std::size_t>(c.rank())];
      HostTensor topk(DType::kI32, {b.seq.tokens(), b.k});
      HostTensor logits(DType::kF32, {std::max<std::int64_t>(piece.rows(), 1), all.width});
      const auto rows = [&](const HostTensor& t) { return t.view().slice(0, piece.begin, piece.end); };
      const Plan<IndexerLogits> score({.rows = piece.rows(),
                                       .heads = kIndexHeads,
                                       .dim = kIndexDim,
                                       .width = all.width,
                                       .format = &index_f32_rows()});
      Memory scratch(score.workspace_bytes());
      score.run({.q = rows(b.index_q),
                 .q_scale = {},
                 .weights = rows(b.index_w),
                 .row_to_req = rows(b.request),
                 .lens = rows(all.lens),
                 .block_table = all.table.view(),
                 .cache = all.keys.cache,
                 .logits = logits.view().slice(0, 0, piece.rows())},
                scratch.get());
      Plan<TopK>({.rows = piece.rows(), .width = all.width, .k = b.k})
          .run({.logits = std::as_const(logits).view().slice(0, 0, piece.rows()),
                .lens = rows(all.lens),
                .indices = topk.view().slice(0, piece.begin, piece.end)});
      const RowGather gather(pieces, static_cast<std::size_t>(4 * b.k));
      Memory memory(gather.workspace_bytes());
      gather.run(c, topk.data(), memory.get());
      EXPECT_EQ(std::memcmp(topk.data(), want.chosen.data(), topk.bytes()), 0)
          << "rank " << c.rank() << " of " << ranks;
    });
  }
}

}  // namespace
}  // namespace smla::test
