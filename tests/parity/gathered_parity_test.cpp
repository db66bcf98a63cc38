#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "aligned_workspace.h"
#include "core/codecs.h"
#include "parity/gathered_cases.h"

namespace smla {
namespace {

using namespace gathered_cases;

constexpr std::uint16_t kPoison16 = 0xA5A5;
constexpr std::uint32_t kPoison = 0x7FA5'5A5A;
constexpr std::int64_t kPadding = 5;

std::vector<std::uint16_t> gather(const GatherCase& c, const PagedRequests& inputs, const std::string& implementation,
                                  int threads) {
  const std::int64_t width = c.format->dim + kPadding;
  std::vector<std::uint16_t> out(static_cast<std::size_t>(inputs.requests() * c.rows * width), kPoison16);
  GatherRows::Args args;
  args.cache = inputs.cache;
  args.seq_lens = view_of(inputs.seq_lens.data(), {inputs.requests()});
  if (!c.gather.empty()) args.gather_lens = view_of(c.gather.data(), {inputs.requests()});
  args.block_table = inputs.table_view();
  args.out = TensorView(out.data(), DType::kBF16, {inputs.requests(), c.rows, c.format->dim});
  args.out.stride[0] = c.rows * width;
  args.out.stride[1] = width;
  Plan<GatherRows>(c.problem(), {.implementation = implementation, .threads = threads}).run(args);
  return out;
}

TEST(GatherRowsParity, EveryImplementationEqualsRefInEveryBit) {
  for (const GatherCase& c : gather_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const PagedRequests inputs(*c.format, c.block_size, c.seq, c.hostile, 7);
    const auto expected = gather(c, inputs, "ref", 1);
    for (const Candidate& candidate : explain<GatherRows>(c.problem())) {
      if (!candidate.refusal.empty()) {
        std::printf("[ refused  ] gather_rows %s: %s: %s\n", std::string(c.format->name).c_str(),
                    candidate.name.c_str(), candidate.refusal.c_str());
        continue;
      }
      for (const int threads : {1, 3})
        ASSERT_TRUE(gather(c, inputs, candidate.name, threads) == expected) << candidate.name << " " << threads;
    }
  }
}

TEST(GatherRows, WritesTheTailOfEachRequestAndNothingElse) {
  const GatherCase c{
      .format = &bf16_rows(), .block_size = 4, .seq = {19, 8, 30}, .gather = {6, 8, 29}, .rows = 40, .offset = 5};
  PagedRequests inputs(*c.format, c.block_size, c.seq, false, 3);
  // Columns that no gathered position needs hold wild numbers: they must not be read.
  for (std::int64_t b = 0; b < 3; ++b) {
    for (std::int64_t column = 0; column < inputs.columns; ++column) {
      const std::int64_t first = c.seq[static_cast<std::size_t>(b)] - c.gather[static_cast<std::size_t>(b)];
      if ((column + 1) * 4 <= first || column * 4 >= c.seq[static_cast<std::size_t>(b)]) {
        inputs.table[static_cast<std::size_t>(b * inputs.columns + column)] = -1'000'000;
      }
    }
  }
  for (const std::string& name : {std::string("ref"), std::string("cpu")}) {
    const auto out = gather(c, inputs, name, 2);
    const std::int64_t width = c.format->dim + kPadding;
    std::vector<float> row(512);
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::int64_t length = c.gather[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i < c.rows; ++i) {
        const std::uint16_t* got = out.data() + (b * c.rows + i) * width;
        const bool written = i >= c.offset && i < c.offset + length;
        if (written) {
          const std::int64_t pos = c.seq[static_cast<std::size_t>(b)] - length + i - c.offset;
          decode_row(inputs.cache, inputs.table[static_cast<std::size_t>(b * inputs.columns + pos / 4)] * 4 + pos % 4,
                     row.data());
        }
        for (int d = 0; d < 512; ++d)
          ASSERT_EQ(got[d], written ? to_bf16(row[static_cast<std::size_t>(d)]).bits : kPoison16) << name << b << i;
        ASSERT_EQ(got[512], kPoison16);
      }
    }
  }
}

TEST(GatherIndexRows, CopiesValuesAndScalesOfEveryRequest) {
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    for (const bool hostile : {false, true}) {
      const PagedRequests inputs(*format, 3, {7, 0, 10}, hostile, 5);
      const std::vector<std::int32_t> starts =
          hostile ? std::vector<std::int32_t>{-2, 4, INT32_MAX, 11} : std::vector<std::int32_t>{0, 7, 7, 17};
      const std::int64_t rows = 20;
      std::vector<std::uint8_t> values(static_cast<std::size_t>(rows * format->data_bytes), 0xA5);
      std::vector<std::uint8_t> scales(static_cast<std::size_t>(rows * format->scale_bytes), 0xA5);
      GatherIndexRows::Args args;
      args.cache = inputs.cache;
      args.cu_seq_lens = view_of(starts.data(), {4});
      args.block_table = inputs.table_view();
      args.values = view_of(values.data(), {rows, format->data_bytes});
      if (format->scale_bytes > 0) args.scales = view_of(scales.data(), {rows, format->scale_bytes});
      for (const Candidate& candidate : explain<GatherIndexRows>({.requests = 3, .rows = rows, .format = format})) {
        if (!candidate.refusal.empty()) continue;
        Plan<GatherIndexRows>({.requests = 3, .rows = rows, .format = format}, {.implementation = candidate.name})
            .run(args);
      }
      if (hostile) continue;  // it must only stay inside
      for (std::int64_t to = 0; to < rows; ++to) {
        const std::int64_t b = to < 7 ? 0 : 2;
        const std::int64_t j = to < 7 ? to : to - 7;
        const std::int64_t block = to < 17 ? inputs.table[static_cast<std::size_t>(b * inputs.columns + j / 3)] : 0;
        for (int i = 0; i < format->data_bytes; ++i) {
          ASSERT_EQ(values[static_cast<std::size_t>(to * format->data_bytes + i)],
                    to < 17 ? row_data(inputs.cache, block, j % 3)[i] : 0xA5);
        }
        for (int i = 0; i < format->scale_bytes; ++i) {
          ASSERT_EQ(scales[static_cast<std::size_t>(to * format->scale_bytes + i)],
                    to < 17 ? row_scales(inputs.cache, block, j % 3)[i] : 0xA5);
        }
      }
    }
  }
}

using Bits = std::vector<std::uint32_t>;

Bits score(const RaggedCase& c, RaggedIndexerLogits::Args args, const std::string& implementation, int threads) {
  Bits out(static_cast<std::size_t>(c.rows() * (c.keys + kPadding)), kPoison);
  args.logits = TensorView(out.data(), DType::kF32, {c.rows(), c.keys});
  args.logits.stride[0] = c.keys + kPadding;
  const Plan<RaggedIndexerLogits> plan(c.problem(), {.implementation = implementation, .threads = threads});
  const test::AlignedWorkspace workspace(plan.workspace_bytes());
  plan.run(args, workspace.get());
  return out;
}

TEST(RaggedIndexerLogitsParity, EveryImplementationAgainstRef) {
  for (const RaggedCase& c : ragged_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const RaggedInputs inputs(c);
    const RaggedIndexerLogits::Args args = inputs.args(c);
    const Bits want = score(c, args, "ref", 1);
    for (const Candidate& candidate : explain<RaggedIndexerLogits>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      SCOPED_TRACE(candidate.name);
      const Bits got = score(c, args, candidate.name, 1);
      ASSERT_EQ(score(c, args, candidate.name, 3), got) << "threads show";
      double error = 0;
      double norm = 0;
      for (std::int64_t row = 0; row < c.rows(); ++row) {
        for (std::int64_t j = 0; j < c.keys + kPadding; ++j) {
          const auto at = static_cast<std::size_t>(row * (c.keys + kPadding) + j);
          const auto r = static_cast<std::size_t>(row);
          if (j < c.starts[r] || j >= c.ends[r] || j >= c.keys) {
            ASSERT_EQ(got[at], kPoison) << "row " << row << " column " << j << " is not defined";
            continue;
          }
          const double g = std::bit_cast<float>(got[at]);
          const double w = std::bit_cast<float>(want[at]);
          ASSERT_TRUE(std::isfinite(g) && std::isfinite(w)) << "row " << row << " column " << j;
          error += (g - w) * (g - w);
          norm += w * w;
        }
      }
      EXPECT_LE(std::sqrt(error), 2e-6 * std::sqrt(norm));
    }
  }
}

TEST(RaggedIndexerLogits, EqualsTheScoresStraightFromThePages) {
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    const PagedRequests pages(*format, 16, {90}, false, 11);
    const RaggedCase c{.format = format, .heads = 12, .keys = 90, .starts = {0, 20, 0}, .ends = {90, 70, 1}, .seed = 4};
    const RaggedInputs inputs(c);
    std::vector<std::uint8_t> values(static_cast<std::size_t>(90 * format->data_bytes));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(90 * format->scale_bytes));
    const std::int32_t cu[] = {0, 90};
    GatherIndexRows::Args gather_args{.cache = pages.cache,
                                      .cu_seq_lens = view_of(cu, {2}),
                                      .block_table = pages.table_view(),
                                      .values = view_of(values.data(), {90, format->data_bytes}),
                                      .scales = {}};
    RaggedIndexerLogits::Args ragged = inputs.args(c);
    ragged.values = gather_args.values;
    if (format->scale_bytes > 0) ragged.scales = gather_args.scales = view_of(scales.data(), {90, format->scale_bytes});
    Plan<GatherIndexRows>({.requests = 1, .rows = 90, .format = format}).run(gather_args);

    const std::vector<std::int32_t> requests(3, 0);
    const std::vector<std::int32_t> lens(3, 90);
    std::vector<float> paged(3 * 90);
    for (const Candidate& candidate : explain<RaggedIndexerLogits>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      const Plan<IndexerLogits> plan({.rows = 3, .heads = 12, .dim = 128, .width = 90, .format = format},
                                     {.implementation = candidate.name});
      const test::AlignedWorkspace workspace(plan.workspace_bytes());
      plan.run({.q = ragged.q,
                .q_scale = ragged.q_scale,
                .weights = ragged.weights,
                .row_to_req = view_of(requests.data(), {3}),
                .lens = view_of(lens.data(), {3}),
                .block_table = pages.table_view(),
                .cache = pages.cache,
                .logits = view_of(paged.data(), {3, 90})},
               workspace.get());
      const Bits got = score(c, ragged, candidate.name, 1);
      for (std::size_t row = 0; row < 3; ++row) {
        for (auto j = static_cast<std::size_t>(c.starts[row]); j < static_cast<std::size_t>(c.ends[row]); ++j) {
          ASSERT_EQ(got[row * 95 + j], std::bit_cast<std::uint32_t>(paged[row * 90 + j]))
              << candidate.name << " row " << row << " column " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace smla
