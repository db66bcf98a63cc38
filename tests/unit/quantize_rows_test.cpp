// quantize_rows: InverseRopeQuant without the rotation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/codecs.h"
#include "core/host_tensor.h"
#include "parity/inverse_rope_cases.h"
#include "parity/quantize_rows_cases.h"
#include "sparsemla/ops/projection.h"

namespace smla {
namespace {

using namespace norm_rope_cases;

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

TEST(QuantizeRows, EveryImplementationEqualsRefInEveryBit) {
  for (const RowsCase& c : rows_cases()) {
    RowsRun want(c);
    Plan<QuantizeRows>(c.problem, {.implementation = "ref"}).run(want.args());
    for (const Candidate& candidate : explain<QuantizeRows>(c.problem)) {
      if (!candidate.refusal.empty()) continue;
      for (const int threads : {1, 3}) {
        RowsRun got(c);
        Plan<QuantizeRows>(c.problem, {.implementation = candidate.name, .threads = threads}).run(got.args());
        ASSERT_TRUE(same_bytes(want.values, got.values) && same_bytes(want.scales, got.scales))
            << candidate.name << " " << c;
      }
    }
  }
}

TEST(QuantizeRows, IsTheOutputQuantisationWithoutARotation) {
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      const QuantCase q{.tokens = 5, .heads = 3, .groups = 1, .in = in, .scale = scale};
      QuantRun rotated(q);
      InverseRopeQuant::Problem problem = q.problem();
      problem.rope_dim = 0;
      const HostTensor no_table(DType::kF32, {300, 0});
      InverseRopeQuant::Args args = rotated.args();
      args.cos_sin = no_table.view();
      HostTensor positions(DType::kI64, {5});
      for (int t = 0; t < 5; ++t) positions.as<std::int64_t>()[t] = 0;
      args.positions = positions.view();
      Plan<InverseRopeQuant>(problem, {.implementation = "ref"}).run(args);

      RowsRun rows({.problem = {.rows = 5, .dim = q.width(), .in = in, .scale = scale}});
      QuantizeRows::Args plain = rows.args();
      plain.x = ConstTensorView(rotated.x.data(), in, {5, q.width()});
      plain.x.stride[0] = 4 * 512;
      Plan<QuantizeRows>(rows.problem).run(plain);
      EXPECT_TRUE(same_bytes(rotated.values, rows.values));
      EXPECT_TRUE(same_bytes(rotated.scales, rows.scales));
    }
  }
}

TEST(QuantizeRows, KnownNumbers) {
  HostTensor x(DType::kF32, {1, 256});
  for (int i = 0; i < 256; ++i) x.as<float>()[i] = i < 128 ? 0.0F : 1.0F;
  x.as<float>()[3] = -449.0F;  // scale 2
  x.as<float>()[4] = 1.0F;     // 0.5
  x.as<float>()[200] = 1.75F;  // scale 2^-8: 448
  RowsRun r({.problem = {.rows = 1, .dim = 256, .in = DType::kF32}});
  QuantizeRows::Args args = r.args();
  args.x = x.view();
  Plan<QuantizeRows>(r.problem).run(args);
  EXPECT_EQ(r.scales.as<float>()[0], 2.0F);
  EXPECT_EQ(r.scales.as<float>()[4], 0x1p-8F);
  EXPECT_EQ(r.scales.as<float>()[1], 0.0F);  // padding
  EXPECT_EQ(to_float(r.values.as<E4M3>()[3]), -224.0F);
  EXPECT_EQ(to_float(r.values.as<E4M3>()[4]), 0.5F);
  EXPECT_EQ(to_float(r.values.as<E4M3>()[200]), 448.0F);
  EXPECT_EQ(to_float(r.values.as<E4M3>()[201]), 256.0F);
}

TEST(QuantizeRows, BadInputIsNamed) {
  const auto text = [](const QuantizeRows::Problem& problem, auto&& change) {
    try {
      RowsRun r({.problem = {.rows = 3, .dim = 256}});
      QuantizeRows::Args args = r.args();
      change(args);
      Plan<QuantizeRows>(problem).run(args);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto nothing = [](QuantizeRows::Args&) {};
  EXPECT_EQ(text({.rows = 3, .dim = 256}, nothing), "no error");
  EXPECT_EQ(text({.rows = 3, .dim = 200}, nothing),
            "quantize_rows: dim: got 200, expected a multiple of 128, 0 or more");
  EXPECT_EQ(text({.rows = -1, .dim = 256}, nothing), "quantize_rows: rows: got -1, expected 0 or more");
  EXPECT_EQ(text({.rows = 3, .dim = 256, .in = DType::kE4M3}, nothing),
            "quantize_rows: in: got F8_E4M3, expected BF16 or F32");
  EXPECT_EQ(text({.rows = 3, .dim = 256}, [](QuantizeRows::Args& a) { a.scales.shape[2] = 3; }),
            "quantize_rows: scales: got [1, 2, 3] F32, expected [1, 2, 4] F32");
  EXPECT_THAT(text({.rows = 3, .dim = 256}, [](QuantizeRows::Args& a) { a.values = {}; }),
              testing::HasSubstr("quantize_rows: values: got"));
}

/// What it is for: values and scales go into a projection as they are.
TEST(QuantizeRows, FeedsAProjection) {
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    const RowsCase c{.problem = {.rows = 5, .dim = 640, .in = DType::kF32, .scale = scale}};
    RowsRun r(c);
    std::mt19937_64 random(8);
    fill_activations(r.x, random);
    Plan<QuantizeRows>(c.problem).run(r.args());
    HostTensor w(DType::kF32, {1, 1, 640});
    for (std::int64_t i = 0; i < 640; ++i) w.as<float>()[i] = static_cast<float>(i % 7) - 3.0F;
    HostTensor y(DType::kF32, {5, 1, 1});
    Plan<Projection>(
        {.m = 5, .n = 1, .k = 640, .x = DType::kE4M3, .w = DType::kF32, .y = DType::kF32, .x_scale = scale},
        {.implementation = "ref"})
        .run({.x = ConstTensorView(r.values.data(), DType::kE4M3, {5, 1, 640}),
              .w = w.view(),
              .y = y.view(),
              .x_scale = r.scales.view()});
    for (std::int64_t t = 0; t < 5; ++t) {
      double want = 0;
      double bound = 0;
      for (std::int64_t i = 0; i < 640; ++i) {
        const double x = static_cast<double>(r.x.as<float>()[t * 640 + i]);
        want += x * static_cast<double>(w.as<float>()[i]);
        bound += std::fabs(x * static_cast<double>(w.as<float>()[i])) / 16.0 + 1e-3;
      }
      EXPECT_NEAR(static_cast<double>(y.as<float>()[t]), want, bound);
    }
  }
}

}  // namespace
}  // namespace smla
