// The three front-ends over one table of batches: they prepare attention differently and must answer alike (spec 8,
// 15).
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "../property/layer_harness.h"
#include "layer/reference_layer.h"

namespace smla {
namespace {

using test::LayerHarness;
using test::Steps;
using test::Surroundings;
using test::Trace;

/// A batch over requests whose first `context` tokens already stand in the caches.
struct Batch {
  std::string name;
  struct Row {
    std::int64_t context = 0;
    std::int64_t tokens = 0;
    std::int64_t rejected = 0;
  };
  std::vector<Row> rows;
  Surroundings around{};
};

std::vector<Batch> batches() {
  return {
      {.name = "decode",
       .rows = {{.context = 0, .tokens = 1},
                {.context = 3, .tokens = 1},
                {.context = 130, .tokens = 1},
                {.context = 300, .tokens = 1}}},
      {.name = "prefill",
       .rows = {{.context = 0, .tokens = 150}, {.context = 70, .tokens = 33}, {.context = 127, .tokens = 2}}},
      {.name = "mixed",
       .rows = {{.context = 255, .tokens = 1},
                {.context = 131, .tokens = 1},
                {.context = 40, .tokens = 3},
                {.context = 0, .tokens = 129}}},
      {.name = "many_prefills",
       .rows = {{.context = 0, .tokens = 9},
                {.context = 4, .tokens = 8},
                {.context = 130, .tokens = 7},
                {.context = 0, .tokens = 6},
                {.context = 256, .tokens = 5},
                {.context = 1, .tokens = 2}}},
      {.name = "padded",
       .rows = {{.context = 7, .tokens = 1}, {.context = 129, .tokens = 12}},
       .around = {.gap = 64, .fill = 0xFF, .padding_tokens = 3, .padding_requests = 2}},
      {.name = "padded_decode",
       .rows = {{.context = 128, .tokens = 1}},
       .around = {.fill = 0xFF, .padding_tokens = 5, .padding_requests = 3}},
      {.name = "zero_length",
       .rows = {{.context = 12, .tokens = 0},
                {.context = 140, .tokens = 1},
                {.context = 9, .tokens = 5},
                {.context = 64, .tokens = 0}}},
      {.name = "speculative",
       .rows = {{.context = 3, .tokens = 4, .rejected = 2},
                {.context = 200, .tokens = 2},
                {.context = 126, .tokens = 4, .rejected = 3},
                {.context = 5, .tokens = 40}},
       .around = {.decode_threshold = 4}},
      {.name = "dspark",
       .rows = {{.context = 300, .tokens = 6},
                {.context = 2, .tokens = 6},
                {.context = 127, .tokens = 5},
                {.context = 10, .tokens = 20}},
       .around = {.decode_threshold = 11, .dspark_tokens = 5}},
  };
}

/// A front-end and whether its prefills are gathered.
struct Variant {
  FrontEnd front_end = FrontEnd::kFlashMla;
  bool gather = false;
  std::string name() const { return std::string(name_of(front_end)) + (gather ? "_gathered" : ""); }
};
constexpr Variant kVariants[] = {{FrontEnd::kFlashMla, false},
                                 {FrontEnd::kFlashMla, true},
                                 {FrontEnd::kFlashInfer, false},
                                 {FrontEnd::kSm120, false}};

struct Case {
  Batch batch;
  int ratio = 1;

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.batch.name << "_r" << c.ratio; }
};

Steps steps_of(const Batch& batch) {
  Steps steps(2);
  for (std::size_t r = 0; r < batch.rows.size(); ++r) {
    const Batch::Row& row = batch.rows[r];
    if (row.context > 0) steps[0].push_back({.request = static_cast<int>(r), .begin = 0, .end = row.context});
    steps[1].push_back({.request = static_cast<int>(r),
                        .begin = row.context,
                        .end = row.context + row.tokens,
                        .rejected = row.rejected});
  }
  if (steps[0].empty()) steps.erase(steps.begin());
  return steps;
}

LayerHarness harness(const Case& c, const LayerOptions& options) {
  std::vector<std::int64_t> lengths;
  for (const Batch::Row& row : c.batch.rows) lengths.push_back(std::max<std::int64_t>(row.context + row.tokens, 1));
  return {c.ratio, options, lengths};
}

Trace run(const Case& c, LayerOptions options, const Variant& v) {
  options.front_end = v.front_end;
  options.gather_prefill = v.gather;
  return harness(c, options).run(steps_of(c.batch), c.batch.around);
}

double relative_l2(const Trace& got, const Trace& want) {
  double error = 0;
  double norm = 0;
  for (const auto& [key, bytes] : want.attention) {
    const auto& other = got.attention.at(key);
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      const auto value = [&](const std::vector<std::uint8_t>& b) {
        return static_cast<double>(to_float(BF16{static_cast<std::uint16_t>(b[i] | (b[i + 1] << 8))}));
      };
      error += (value(other) - value(bytes)) * (value(other) - value(bytes));
      norm += value(bytes) * value(bytes);
    }
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

class FrontEndParity : public testing::TestWithParam<Case> {};

TEST_P(FrontEndParity, RefIsTheSameBitForBit) {
  const LayerOptions options{.implementations = {{"*", "ref"}}};
  const Trace want = run(GetParam(), options, kVariants[0]);
  EXPECT_FALSE(want.output.empty());
  EXPECT_FALSE(want.output.contains({-1, 0}));
  for (const Variant& v : kVariants) {
    const Trace got = run(GetParam(), options, v);
    EXPECT_EQ(got.output, want.output) << v.name();
    EXPECT_EQ(got.topk, want.topk) << v.name();
    EXPECT_EQ(got.caches, want.caches) << v.name();
  }
}

TEST_P(FrontEndParity, FastStaysWithinTheBound) {
  for (const RowFormat* rows : {&fp8_ds_mla_rows(), &fp8_per_tensor_rows()}) {
    LayerOptions options{.caches = {.rows = rows}};
    if (rows->scale == ScaleKind::kPerTensor) options.caches.kv_scale = 0.9F;
    const Trace want = run(GetParam(), options, kVariants[0]);
    for (const Variant& v : kVariants) {
      if (v.gather && rows != &fp8_ds_mla_rows()) continue;  // refused: nothing is gathered out of other rows
      const Trace got = run(GetParam(), options, v);
      EXPECT_LE(relative_l2(got, want), 2.2e-3) << v.name() << " " << rows->name;
      EXPECT_EQ(got.caches, want.caches) << v.name();
    }
  }
}

TEST_P(FrontEndParity, Float32MeetsFloat64) {
  const Case& c = GetParam();
  LayerOptions options{.precision = Precision::kF32, .short_context = false};
  const LayerHarness truth = harness(c, options);
  for (const Variant& v : kVariants) {
    if (v.gather) continue;  // bf16 rows cannot hold float32 caches
    const Trace got = run(c, options, v);
    for (std::size_t r = 0; r < c.batch.rows.size(); ++r) {
      const Batch::Row& row = c.batch.rows[r];
      if (row.tokens == 0 || row.rejected > 0) continue;
      const HostTensor inputs = truth.inputs(static_cast<int>(r), DType::kF32);
      ReferenceLayer reference(truth.config(), truth.weights(), truth.cos_sin(), inputs.view());
      const bool block = c.batch.around.dspark_tokens > 0 && row.tokens <= c.batch.around.decode_threshold;
      for (const std::int64_t position :
           std::set<std::int64_t>{row.context, row.context + row.tokens / 2, row.context + row.tokens - 1}) {
        std::optional<std::span<const std::int32_t>> entries;
        if (c.ratio == 4) entries = got.topk.at({static_cast<int>(r), position});
        std::optional<std::pair<std::int64_t, std::int64_t>> window;
        if (block) window = {std::max<std::int64_t>(row.context - 128, 0), row.context + row.tokens - 1};
        const std::vector<double> want = reference.output(position, entries, window);
        const auto* values = reinterpret_cast<const float*>(got.output.at({static_cast<int>(r), position}).data());
        double error = 0;
        double norm = 0;
        for (std::size_t i = 0; i < want.size(); ++i) {
          error += (values[i] - want[i]) * (values[i] - want[i]);
          norm += want[i] * want[i];
        }
        EXPECT_LE(std::sqrt(error / norm), 1e-5) << v.name() << " request " << r << " position " << position;
      }
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Batch& batch : batches()) {
    for (const int ratio : {1, 4, 128}) out.push_back({.batch = batch, .ratio = ratio});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Batches, FrontEndParity, testing::ValuesIn(cases()),
                         [](const auto& tested) { return testing::PrintToString(tested.param); });

TEST(FrontEndParity, ADraftBlockSeesItsOwnFuture) {
  Case c{.batch = batches().back(), .ratio = 1};
  const Trace block = run(c, {}, kVariants[0]);
  c.batch.around.dspark_tokens = 0;
  const Trace causal = run(c, {}, kVariants[0]);
  EXPECT_GT(relative_l2(block, causal), 0.1);
}

}  // namespace
}  // namespace smla
