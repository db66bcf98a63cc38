// Failures that users of other systems reported, each as a test named after the report: what went wrong there must not
// go wrong here. docs/verification.md has the list, with those that live in tests/property/incidents_property_test.cpp.
// Over 300 lines: one test a report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "aligned_workspace.h"
#include "parity/attention_cases.h"
#include "parity/attention_compare.h"
#include "parity/gathered_cases.h"
#include "parity/indexer_cases.h"
#include "parity/topk_cases.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"

namespace smla {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;
using Floats = std::vector<float>;

constexpr float kPoison = -12345.0F;
constexpr std::int32_t kUntouched = 0x5A5A5A5A;

std::int64_t count(const auto& v) { return static_cast<std::int64_t>(v.size()); }
auto view(const auto& v) { return view_of(v.data(), {count(v)}); }
auto view(auto& v) { return view_of(v.data(), {count(v)}); }

template <class Op>
std::vector<std::string> runnable(const typename Op::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<Op>(problem)) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

Floats scores(const cases::IndexerLogitsCase& c, const cases::IndexerLogitsInputs& inputs, const std::string& name,
              int threads = 1) {
  Floats out(static_cast<std::size_t>(c.rows * c.width), kPoison);
  IndexerLogits::Args args = inputs.args(c);
  args.logits = view_of(out.data(), {c.rows, c.width});
  const Plan<IndexerLogits> plan(c.problem(), {.implementation = name, .threads = threads});
  const test::AlignedWorkspace workspace(plan.workspace_bytes());
  plan.run(args, workspace.get());
  return out;
}

Ints select(const Floats& logits, std::int64_t rows, const Ints& lens, std::int64_t k, const std::string& name) {
  const std::int64_t width = rows == 0 ? 0 : count(logits) / rows;
  Ints out(static_cast<std::size_t>(rows * k), kUntouched);
  Plan<TopK>({.rows = rows, .width = width, .k = k}, {.implementation = name, .threads = 1})
      .run({.logits = view_of(logits.data(), {rows, width}),
            .lens = view(lens),
            .indices = view_of(out.data(), {rows, k})});
  return out;
}

// All-zero indexer lengths, as a captured warm-up has them, were read out of bounds by the kernel that schedules the
// paged scores.
TEST(Incident, Vllm51970AllZeroIndexerLengths) {
  cases::IndexerLogitsCase c{
      .rows = 6, .requests = 2, .heads = 4, .width = 130, .format = &index_fp8_rows(), .lens = {0}};
  const cases::IndexerLogitsInputs inputs(c);
  for (const std::string& name : runnable<IndexerLogits>(c.problem()))
    EXPECT_THAT(scores(c, inputs, name), Each(kPoison)) << name;
  for (const std::string& name : runnable<TopK>({.rows = 6, .width = 130, .k = 5})) {
    EXPECT_THAT(select(Floats(6 * 130, 1.0F), 6, Ints(6, 0), 5, name), Each(-1)) << name;
  }
}

// The first decode step after one request of 80,000 to 130,000 tokens crashed in the paged index scores.
TEST(Incident, Sglang34718FirstDecodeAfter130kTokens) {
  const std::int64_t entries = 130'000 / 4;
  const cases::IndexerLogitsCase c{.rows = 1, .requests = 1, .heads = 2, .width = entries, .format = &index_fp8_rows()};
  const cases::IndexerLogitsInputs inputs(c);
  const Floats want = scores(c, inputs, "ref");
  const Ints best = select(want, 1, {static_cast<std::int32_t>(entries)}, 512, "ref");
  for (const std::string& name : runnable<IndexerLogits>(c.problem())) {
    const Floats got = scores(c, inputs, name);
    for (std::size_t j = 0; j < got.size(); ++j)
      ASSERT_NEAR(got[j], want[j], 1e-4F * (1.0F + std::fabs(want[j]))) << name << " entry " << j;
  }
  for (const std::string& name : runnable<TopK>({.rows = 1, .width = entries, .k = 512})) {
    EXPECT_EQ(select(want, 1, {static_cast<std::int32_t>(entries)}, 512, name), best) << name;
  }
}

// Top-k crashed on the first prefill of 32,768 tokens although the warm-up with 256 had passed: the wide form was never
// reached.
TEST(Incident, Sglang37892TopkOfA32768TokenPrefill) {
  cases::TopkCase c{.rows = 8, .width = 32'768 / 4, .k = 1024, .padding = 64, .seed = 3};
  for (std::int64_t t = 0; t < c.rows; ++t)
    c.lens.push_back(static_cast<std::int32_t>(c.width - 1 + t / 4));  // the last chunk's rows
  const cases::TopkInputs inputs(c);
  const auto run = [&](const std::string& name) {
    Ints out(static_cast<std::size_t>(c.rows * c.k), kUntouched);
    Plan<TopK>(c.problem(), {.implementation = name, .threads = 2})
        .run({.logits = inputs.view(c), .lens = view(inputs.lens), .indices = view_of(out.data(), {c.rows, c.k})});
    return out;
  };
  const Ints want = run("ref");
  for (const std::string& name : runnable<TopK>(c.problem())) EXPECT_EQ(run(name), want) << name;
}

// Indexer faults under multi-turn load: a later turn came with tables that still named pages given to somebody else, or
// were too short.
TEST(Incident, Sglang36181StaleAndShortIndexTables) {
  cases::IndexerLogitsCase c{
      .rows = 2, .requests = 2, .heads = 3, .width = 200, .block_size = 64, .format = &index_fp8_rows()};
  cases::IndexerLogitsInputs inputs(c);
  inputs.table = {1, 2, 999'999, /**/ 3, -7, 4};  // three columns hold 192 of the 200 entries
  inputs.columns = 3;
  for (const std::string& name : runnable<IndexerLogits>(c.problem())) {
    const Floats got = scores(c, inputs, name);
    for (std::int64_t j = 0; j < c.width; ++j) {
      EXPECT_EQ(got[static_cast<std::size_t>(j)] == -INFINITY, j >= 128) << name << " " << j;
      EXPECT_EQ(got[static_cast<std::size_t>(200 + j)] == -INFINITY, (j >= 64 && j < 128) || j >= 192)
          << name << " " << j;
    }
  }
}

// A prompt shorter than next_n gave a negative row end, which the top-k kernels took as four thousand million.
TEST(Incident, Vllm56464SequenceShorterThanItsDraft) {
  const Ints start{0, 3};
  const Ints seq{1};
  const Ints requests{0, 0, 0};
  const Longs slots{0, 1, 2};
  const Ints table{5};
  Ints indices(12, kUntouched);
  Ints lens(3, kUntouched);
  Plan<WindowIndices>({.requests = 1, .tokens = 3, .window = 4, .block_size = 4})
      .run({.query_start_loc = view(start),
            .seq_lens = view(seq),
            .token_to_req = view(requests),
            .slot_mapping = view(slots),
            .block_table = view_of(table.data(), {1, 1}),
            .indices = view_of(indices.data(), {3, 4}),
            .lens = view(lens)});
  EXPECT_THAT(lens, ElementsAre(0, 0, 1));  // positions -2, -1 and 0
  EXPECT_THAT(indices, ElementsAre(-1, -1, -1, -1, -1, -1, -1, -1, 20, -1, -1, -1));
  for (const std::string& name : runnable<TopK>({.rows = 3, .width = 9, .k = 2})) {
    EXPECT_THAT(select(Floats(27, 1.0F), 3, {-2, -1, INT32_MIN}, 2, name), Each(-1)) << name;
  }
}

// The C128A index kernel had no guard against columns past the table and left parts of its buffers as they were.
TEST(Incident, Vllm48809DenseRowsPastTheTable) {
  const Longs positions{383, 383};
  const Ints requests{0, 7};
  const Longs slots{0, 1};
  const Ints table{4};
  Ints indices(10, kUntouched);
  Ints lens(2, kUntouched);
  Plan<DenseCompressedIndices>({.requests = 1, .tokens = 2, .ratio = 128, .storage_block = 2, .width = 5})
      .run({.positions = view(positions),
            .token_to_req = view(requests),
            .slot_mapping = view(slots),
            .block_table = view_of(table.data(), {1, 1}),
            .indices = view_of(indices.data(), {2, 5}),
            .lens = view(lens)});
  EXPECT_THAT(indices, ElementsAre(8, 9, -1, -1, -1, /**/ -1, -1, -1, -1, -1));
}

// Padding rows of a captured graph published slots of real cache rows.
TEST(Incident, Vllm55177PaddingRowsNameNoSlot) {
  const Ints start{0, 1, 1};
  const Ints seq{200, 0};
  const Ints requests{0, 0, 0};  // upstream gives padding to request 0
  const Longs positions{199, 199, 199};
  const Ints table{1, 2, 3, 4, /**/ 0, 0, 0, 0};
  const ConstTensorView tables = view_of(table.data(), {2, 4});
  Longs slots(3, kUntouched);
  Plan<SlotMapping>({.requests = 2, .tokens = 3, .block_size = 64})
      .run({.query_start_loc = view(start),
            .positions = view(positions),
            .token_to_req = view(requests),
            .block_table = tables,
            .slots = view(slots)});
  EXPECT_THAT(slots, ElementsAre(4 * 64 + 7, -1, -1));
  Ints indices(3 * 128, kUntouched);
  Ints lens(3, kUntouched);
  Plan<WindowIndices>({.requests = 2, .tokens = 3})
      .run({.query_start_loc = view(start),
            .seq_lens = view(seq),
            .token_to_req = view(requests),
            .slot_mapping = view(std::as_const(slots)),
            .block_table = tables,
            .indices = view_of(indices.data(), {3, 128}),
            .lens = view(lens)});
  EXPECT_THAT(lens, ElementsAre(128, 0, 0));
  EXPECT_THAT(Ints(indices.begin() + 128, indices.end()), Each(-1));
  Ints dense(3 * 4, kUntouched);
  Plan<DenseCompressedIndices>({.requests = 2, .tokens = 3, .ratio = 128, .storage_block = 2, .width = 4})
      .run({.positions = view(positions),
            .token_to_req = view(requests),
            .slot_mapping = view(std::as_const(slots)),
            .block_table = tables,
            .indices = view_of(dense.data(), {3, 4}),
            .lens = view(lens)});
  EXPECT_THAT(lens, ElementsAre(1, 0, 0));
  EXPECT_THAT(Ints(dense.begin() + 4, dense.end()), Each(-1));
}

// Index scores of 3 and 4 draft tokens a request read shared memory that did not belong to them.
TEST(Incident, DeepGemm314And324AnyNumberOfDrafts) {
  for (std::int64_t drafts = 1; drafts <= 8; ++drafts) {
    cases::IndexerLogitsCase c{.rows = 2 * drafts,
                               .requests = 2,
                               .heads = 5,
                               .width = 70,
                               .format = &index_fp8_rows(),
                               .lens = {66, 67, 68, 69, 70}};
    const cases::IndexerLogitsInputs inputs(c);
    const Floats want = scores(c, inputs, "ref");
    for (const std::string& name : runnable<IndexerLogits>(c.problem())) {
      const Floats got = scores(c, inputs, name);
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-4F * (1.0F + std::fabs(want[i]))) << name << " next_n " << drafts;
    }
  }
}

// Launch grids whose y or z counted tokens ended at 65,535; sequences beyond a million ended there too.
TEST(Incident, FlashMla173MoreThan65535RowsAndAMillionPositions) {
  constexpr std::int64_t kRows = 70'000;
  const Floats logits(static_cast<std::size_t>(2 * kRows), 1.0F);
  for (const std::string& name : runnable<TopK>({.rows = kRows, .width = 2, .k = 1})) {
    EXPECT_THAT(select(logits, kRows, Ints(kRows, 2), 1, name), Each(0)) << name;
  }
  const Longs positions{1'048'575};
  const Ints request{0};
  const Longs slot{0};
  Ints table(4096);
  std::iota(table.begin(), table.end(), 0);
  Ints indices(8192, kUntouched);
  Ints lens(1, kUntouched);
  Plan<DenseCompressedIndices>({.requests = 1, .tokens = 1, .ratio = 128, .storage_block = 2, .width = 8192})
      .run({.positions = view(positions),
            .token_to_req = view(request),
            .slot_mapping = view(slot),
            .block_table = view_of(std::as_const(table).data(), {1, 4096}),
            .indices = view_of(indices.data(), {1, 8192}),
            .lens = view(lens)});
  EXPECT_THAT(lens, ElementsAre(8192));
  EXPECT_EQ(indices.back(), 8191);
}

// No query, or no key, needed special handling and did not have it.
TEST(Incident, FlashMla92NoQueryAndNoKey) {
  for (const std::int64_t tokens : {0, 2}) {
    attention_cases::AttentionInputs in =
        attention_cases::make_inputs({.tokens = tokens, .heads = 3, .sink = 0.5F, .scopes = {{.width = 0}}});
    for (const std::string& name : runnable<SparseAttention>(in.problem)) {
      const attention_cases::AttentionOutputs out = attention_cases::run(in, name, 1);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t h = 0; h < 3; ++h) {
          EXPECT_EQ(out.value(t, h, 511), 0.0F) << name;
          EXPECT_EQ(out.lse_of(t, h), INFINITY) << name;
        }
      }
    }
  }
}

// A real serving shape of FP8 queries over FP8 rows hung.
TEST(Incident, Sglang32327Fp8QueriesOverFp8Rows) {
  attention_cases::AttentionInputs in = attention_cases::make_inputs(
      {.tokens = 2,
       .heads = 64,
       .q = DType::kE4M3,
       .q_scale = 0.7F,
       .sink = 0.0F,
       .scopes = {{.format = "fp8_per_tensor", .width = 128},
                  {.format = "fp8_per_tensor", .width = 512, .num_blocks = 20, .kv_scale = 0.5F}}});
  const attention_cases::AttentionOutputs want = attention_cases::run(in, "ref", 1);
  for (const std::string& name : runnable<SparseAttention>(in.problem)) {
    const attention_cases::AttentionOutputs got = attention_cases::run(in, name, 2);
    SCOPED_TRACE(name);
    attention_cases::expect_parity(want, got);
  }
}

// "cuda prefill failed", and no reason given.
TEST(Incident, Ds4RefusalsCarryTheirReason) {
  const auto expect_reasons = [](const std::vector<Candidate>& candidates) {
    std::string reasons;
    int on_cpu = 0;
    for (const Candidate& c : candidates) {
      on_cpu += c.refusal == "runs on cpu, asked for cuda" ? 1 : 0;
      reasons += c.refusal;
      if (c.refusal.empty()) continue;  // a GPU is here
      EXPECT_THAT(c.refusal, AnyOf("runs on cpu, asked for cuda", ContainsRegex("no GPU: .+"), HasSubstr("cublasLt"),
                                   HasSubstr("CUDA")))
          << c.name;
    }
    EXPECT_GE(on_cpu, 2) << "ref and a CPU kernel at least";
    return reasons;
  };
  const TopK::Problem topk{.rows = 1, .width = 2, .k = 1};
  const std::vector<Candidate> candidates = explain<TopK>(topk, {.device = DeviceKind::kCuda});
  expect_reasons(candidates);
  const bool runs = std::ranges::any_of(candidates, [](const Candidate& c) { return c.refusal.empty(); });
  std::string error;
  try {
    const Plan<TopK> plan(topk, {.device = DeviceKind::kCuda});
  } catch (const Unsupported& e) {
    error = e.what();
  }
  EXPECT_EQ(error.empty(), runs);
  // The error of a plan names the op, the device and each of its implementations with the reason.
  for (const Candidate& c : candidates) {
    if (runs || c.refusal == "runs on cpu, asked for cuda") continue;
    EXPECT_THAT(error, AllOf(HasSubstr("topk"), HasSubstr("on cuda"), HasSubstr(c.name + ": " + c.refusal)));
  }
  expect_reasons(explain<Projection>({.m = 1, .n = 1, .k = 1, .x = DType::kF32, .w = DType::kF32, .y = DType::kF32},
                                     {.device = DeviceKind::kCuda}));
}

// Packed pages, whose stride is the slab's, were read as if they followed each other: accuracy fell from 95 % to 0.
TEST(Incident, Vllm47783PackedPagesKeepTheirStride) {
  attention_cases::AttentionCase c{
      .tokens = 3,
      .heads = 4,
      .scopes = {{.width = 90, .num_blocks = 5}, {.width = 40, .block_size = 2, .num_blocks = 40}}};
  attention_cases::AttentionInputs packed = attention_cases::make_inputs(c);
  for (attention_cases::ScopeCase& s : c.scopes) s.block_gap = 37'440;
  attention_cases::AttentionInputs strided = attention_cases::make_inputs(c);
  ASSERT_EQ(packed.scopes[0].indices, strided.scopes[0].indices);
  for (const std::string& name : runnable<SparseAttention>(packed.problem)) {
    EXPECT_EQ(attention_cases::run(packed, name, 1).o, attention_cases::run(strided, name, 1).o) << name;
  }
}

// Scores came out different from run to run: a race between loading and using a tile.
TEST(Incident, DeepGemm392TwentyRunsHaveTheSameBits) {
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows()}) {
    const cases::IndexerLogitsCase c{.rows = 9, .requests = 3, .heads = 64, .width = 150, .format = format};
    const cases::IndexerLogitsInputs inputs(c);
    const Floats ref = scores(c, inputs, "ref");
    for (const std::string& name : runnable<IndexerLogits>(c.problem())) {
      const Floats first = scores(c, inputs, name, 3);
      for (std::size_t i = 0; i < ref.size(); ++i)
        ASSERT_NEAR(first[i], ref[i], 1e-4F * (1.0F + std::fabs(ref[i]))) << name;
      for (int i = 0; i < 19; ++i) ASSERT_EQ(scores(c, inputs, name, 3), first) << name << " run " << i;
    }
  }
}

// A swizzle that was right for 128 numbers a row was used for rows of 32 and 64 too, and its garbage was at least the
// same every time.
TEST(Incident, DeepGemm433RowsOfAnotherSizeAreRefusedByName) {
  try {
    Plan<IndexerLogits>({.rows = 1, .heads = 1, .dim = 64, .width = 1, .format = &index_fp8_rows()});
    FAIL() << "64 numbers a row were accepted for rows of 128";
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("indexer_logits"), HasSubstr("dim"), HasSubstr("64"), HasSubstr("128")));
  }
}

// The rotated part was written back past the end of its row.
TEST(Incident, Flashinfer4802RotationStaysInItsRow) {
  for (const std::int64_t heads : {1, 3, 128}) {
    const std::vector<std::uint16_t> q(static_cast<std::size_t>(2 * heads * 512), 0x3F80);
    const std::vector<std::uint16_t> kv(2 * 512, 0x3F80);
    const Longs positions{0, 3};
    const Floats cos_sin(4 * 64, 0.5F);
    const Longs slots{1, 2};
    for (const std::string& name :
         runnable<QNormRopeInsert>({.tokens = 2, .heads = heads, .out_heads = heads, .format = &bf16_rows()})) {
      std::vector<std::uint16_t> out(static_cast<std::size_t>(2 * heads * 512 + 64), 0xA5A5);
      std::vector<std::uint8_t> memory(static_cast<std::size_t>(4 * bf16_rows().row_bytes() + 64), 0xA5);
      Plan<QNormRopeInsert>({.tokens = 2, .heads = heads, .out_heads = heads, .format = &bf16_rows()},
                            {.implementation = name, .threads = 1})
          .run({.q = ConstTensorView(q.data(), DType::kBF16, {2, heads, 512}),
                .kv = ConstTensorView(kv.data(), DType::kBF16, {2, 512}),
                .positions = view(positions),
                .cos_sin = view_of(cos_sin.data(), {4, 64}),
                .slot_mapping = view(slots),
                .q_out = TensorView(out.data(), DType::kBF16, {2, heads, 512}),
                .cache = {.format = &bf16_rows(),
                          .base = memory.data(),
                          .num_blocks = 4,
                          .block_size = 1,
                          .block_stride_bytes = bf16_rows().row_bytes()}});
      EXPECT_THAT(std::vector<std::uint16_t>(out.end() - 64, out.end()), Each(0xA5A5)) << name;
      const auto row = static_cast<std::ptrdiff_t>(bf16_rows().row_bytes());
      EXPECT_THAT(std::vector<std::uint8_t>(memory.begin(), memory.begin() + row), Each(0xA5)) << name;    // slot 0
      EXPECT_THAT(std::vector<std::uint8_t>(memory.begin() + 3 * row, memory.end()), Each(0xA5)) << name;  // slot 3
    }
  }
}

// The window cache was seen as rows of 512 bytes instead of the record's.
TEST(Incident, Vllm47716PagesMustHoldTheirRecords) {
  attention_cases::AttentionInputs in =
      attention_cases::make_inputs({.heads = 1, .scopes = {{.width = 4, .num_blocks = 2}}});
  in.scopes[0].cache.block_stride_bytes = 64 * 512;
  try {
    attention_cases::run(in, "ref", 1);
    FAIL() << "a page too small for its rows was accepted";
  } catch (const InvalidArgument& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("scope 0 cache"), HasSubstr("stride"), HasSubstr("32768")));
  }
}

// A prefix hit read the window from a ring of the request's own (position modulo window) and not from the blocks that
// hold it.
TEST(Incident, Atom1417TheWindowFollowsTheBlockTable) {
  const Ints start{0, 1};
  const Ints seq{261};
  const Ints requests{0};
  const Longs slots{0};
  const Ints table{-1, -1, 9, 2, 5};  // the first blocks went when they slid out of the window
  Ints indices(128, kUntouched);
  Ints lens(1, kUntouched);
  Plan<WindowIndices>({.requests = 1, .tokens = 1})
      .run({.query_start_loc = view(start),
            .seq_lens = view(seq),
            .token_to_req = view(requests),
            .slot_mapping = view(slots),
            .block_table = view_of(table.data(), {1, 5}),
            .indices = view_of(indices.data(), {1, 128}),
            .lens = view(lens)});
  for (std::int32_t i = 0; i < 128; ++i) {
    const std::int32_t pos = 133 + i;
    EXPECT_EQ(indices[static_cast<std::size_t>(i)], table[static_cast<std::size_t>(pos / 64)] * 64 + pos % 64);
  }
}

// When more than 16,384 scores shared a coarse bin, candidates were dropped without a word.
TEST(Incident, Vllm51782NoCandidateIsDropped) {
  constexpr std::int64_t kWidth = 40'000;
  Floats logits(kWidth);
  for (std::int64_t j = 0; j < kWidth; ++j)
    logits[static_cast<std::size_t>(j)] = 1.0F + static_cast<float>(j % 1000) * 0x1p-23F;
  Ints want;  // the 512 best: those with j % 1000 of 999 down, lowest columns first at the boundary
  for (std::int64_t rest = 999; count(want) < 512; --rest) {
    for (std::int64_t j = rest; j < kWidth && count(want) < 512; j += 1000)
      want.push_back(static_cast<std::int32_t>(j));
  }
  std::ranges::sort(want);
  for (const std::string& name : runnable<TopK>({.rows = 1, .width = kWidth, .k = 512})) {
    EXPECT_EQ(select(logits, 1, {static_cast<std::int32_t>(kWidth)}, 512, name), want) << name;
  }
}

// A gate compared a cache with itself: both sides were corrupted alike. Here a changed byte of a selected row must
// change the answer.
TEST(Incident, RonakCreateACorruptedCacheShows) {
  attention_cases::AttentionInputs in = attention_cases::make_inputs(
      {.tokens = 1,
       .heads = 2,
       .scopes = {{.width = 8, .num_blocks = 1, .lens = attention_cases::Lens::kAbsent, .invalid = 0}}});
  for (const std::string& name : runnable<SparseAttention>(in.problem)) {
    const auto before = attention_cases::run(in, name, 1).o;
    PagedCache cache = in.scopes[0].cache;
    cache.base = in.scopes[0].memory.data();
    std::uint8_t& byte = row_data(cache, 0, in.scopes[0].index(0, 3))[5];
    byte ^= 0x40;
    EXPECT_NE(attention_cases::run(in, name, 1).o, before) << name;
    byte ^= 0x40;
  }
}

// Scratch memory shared by layers was overwritten while it was still needed. A result must stand when its workspace is
// used again, and must not depend on what the workspace held.
TEST(Incident, Vllm41834AWorkspaceCarriesNothingOver) {
  attention_cases::AttentionInputs in =
      attention_cases::make_inputs({.tokens = 5, .heads = 16, .scopes = {{.width = 200, .num_blocks = 9}}});
  for (const std::string& name : runnable<SparseAttention>(in.problem)) {
    const Plan<SparseAttention> plan(in.problem, {.implementation = name, .threads = 2});
    const test::AlignedWorkspace workspace(plan.workspace_bytes());
    std::vector<std::vector<std::uint8_t>> results;
    for (const int fill : {0x00, 0xFF, 0x7F}) {
      std::memset(workspace.get().data, fill, workspace.get().bytes);
      attention_cases::AttentionOutputs out(in.problem);
      SparseAttention::Args args = in.args();
      out.attach(args);
      plan.run(args, workspace.get());
      std::memset(workspace.get().data, 0xA5, workspace.get().bytes);
      results.push_back(out.o);
    }
    EXPECT_EQ(results[0], results[1]) << name;
    EXPECT_EQ(results[0], results[2]) << name;
  }
}

// A new indexer kernel passed its own checks and cost 29 points of GPQA: the scores were near, the choice was not.
TEST(Incident, VllmAscend15001EveryKernelChoosesTheSameEntries) {
  const cases::IndexerLogitsCase c{
      .rows = 4, .requests = 2, .heads = 64, .width = 600, .format = &index_fp8_rows(), .seed = 5};
  const cases::IndexerLogitsInputs inputs(c);
  const Floats ref = scores(c, inputs, "ref");
  constexpr std::int64_t kChosen = 64;
  for (const std::string& name : runnable<IndexerLogits>(c.problem())) {
    const Ints got = select(scores(c, inputs, name), c.rows, Ints(4, 600), kChosen, "ref");
    for (std::int64_t row = 0; row < c.rows; ++row) {
      // Whatever a kernel chose must be among the best of the reference, but for scores closer than its own error.
      Floats sorted(ref.begin() + row * c.width, ref.begin() + (row + 1) * c.width);
      std::ranges::sort(sorted, std::greater<>());
      const float least = sorted[kChosen - 1] - 1e-4F * std::fabs(sorted[kChosen - 1]);
      for (std::int64_t j = 0; j < kChosen; ++j) {
        EXPECT_GE(ref[static_cast<std::size_t>(row * c.width + got[static_cast<std::size_t>(row * kChosen + j)])],
                  least)
            << name << " row " << row;
      }
    }
  }
}

// From exactly 4 prompt tokens on the output was wrong: the first entry's token was not given its true length.
TEST(Incident, VllmAscendV4Issue76TheFourthTokenClosesTheFirstEntry) {
  for (const std::int64_t ratio : {4, 128}) {
    for (const std::int32_t length : {static_cast<std::int32_t>(ratio) - 1, static_cast<std::int32_t>(ratio)}) {
      const Ints start{0, length};
      const Ints seq{length};
      const Ints table{6};
      Longs slots(static_cast<std::size_t>(length), kUntouched);
      Plan<CompressedSlotMapping>({.requests = 1, .tokens = length, .ratio = ratio, .storage_block = 2})
          .run({.query_start_loc = view(start),
                .seq_lens = view(seq),
                .block_table = view_of(table.data(), {1, 1}),
                .slots = view(slots)});
      EXPECT_EQ(slots.back(), length == ratio ? 12 : -1);
      const Longs positions{length - 1};
      Ints seen(2, kUntouched);
      Plan<ShortContextTopk>({.tokens = 1, .ratio = ratio, .k = 2})
          .run({.positions = view(positions), .indices = view_of(seen.data(), {1, 2})});
      EXPECT_THAT(seen, ElementsAre(length == ratio ? 0 : -1, -1));
    }
  }
}

// With e < p/ratio+1 or seq_len/ratio a query saw an entry that its own future tokens wrote; only chunked prefill
// showed it.
TEST(Incident, SglangJax1607NoEntryOfTheFuture) {
  Longs positions(16);
  std::iota(positions.begin(), positions.end(), 0);
  Ints seen(16 * 5, kUntouched);
  Plan<ShortContextTopk>({.tokens = 16, .ratio = 4, .k = 5})
      .run({.positions = view(positions), .indices = view_of(seen.data(), {16, 5})});
  for (std::int64_t p = 0; p < 16; ++p) {
    for (std::int64_t e = 0; e < 5; ++e)
      EXPECT_EQ(seen[static_cast<std::size_t>(5 * p + e)] == e, 4 * e + 3 <= p) << "position " << p << " entry " << e;
  }
}

}  // namespace
}  // namespace smla
