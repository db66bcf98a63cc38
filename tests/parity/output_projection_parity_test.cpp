// wo_a and wo_b at once: the bits of two projections.
#include <gtest/gtest.h>

#include <string>

#include "core/host_tensor.h"
#include "parity/output_projection_cases.h"
#include "sparsemla/error.h"

namespace smla::test {
namespace {

template <class Op>
void run(const typename Op::Problem& problem, const typename Op::Args& args, const PlanOptions& options) {
  const Plan<Op> plan(problem, options);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(args, {.data = workspace.data(), .bytes = plan.workspace_bytes()});
}

TEST(OutputProjectionParity, HasTheBitsOfTwoProjections) {
  for (const DType x : {DType::kBF16, DType::kF32}) {
    for (const OutputProjectionCase& c : output_projection_cases(x)) {
      SCOPED_TRACE(describe(c));
      const OutputTensors t(c);
      for (const auto& [name, of_product] : {std::pair("cpu", ""), {"ref", "ref"}}) {
        SCOPED_TRACE(name);
        ProjectionBuffer z = t.first.poisoned_y();
        ProjectionBuffer y = t.second.poisoned_y();
        run<OutputProjection>(t.problem, t.args(z, y), {.implementation = name, .threads = 1});
        ProjectionBuffer z_alone = t.first.poisoned_y();
        ProjectionBuffer y_alone = t.second.poisoned_y();
        run<Projection>(t.first.problem, t.first.args(z_alone), {.implementation = of_product, .threads = 1});
        run<Projection>(t.second.problem, t.second_args(z_alone, y_alone),
                        {.implementation = of_product, .threads = 1});
        check_written(t.first, z);
        check_written(t.second, y);
        ASSERT_TRUE(z.same_bits(z_alone));
        ASSERT_TRUE(y.same_bits(y_alone));
      }
    }
  }
}

std::string error_of(const OutputProjection::Problem& p, const OutputProjection::Args& a) {
  try {
    Plan<OutputProjection>(p, {.implementation = "ref"}).run(a);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

TEST(OutputProjection, ErrorsNameItsTensors) {
  OutputProjectionCase c;
  c.first.problem = {.m = 2, .n = 8, .k = 16, .groups = 2};
  c.second.problem = {.m = 2, .n = 4, .k = 16};
  const OutputTensors t(c);
  ProjectionBuffer z = t.first.poisoned_y();
  ProjectionBuffer y = t.second.poisoned_y();
  const OutputProjection::Args good = t.args(z, y);
  EXPECT_EQ(error_of(t.problem, good), "");
  const auto with = [&](const auto& change) {
    OutputProjection::Args a = good;
    change(a);
    return error_of(t.problem, a);
  };
  EXPECT_TRUE(with([](auto& a) { a.wo_a.shape[1] = 7; }).starts_with("output_projection: wo_a: "));
  EXPECT_TRUE(with([](auto& a) { a.wo_b.shape[1] = 3; }).starts_with("output_projection: wo_b: "));
  EXPECT_TRUE(with([](auto& a) { a.z.shape[2] = 7; }).starts_with("output_projection: z: "));
  EXPECT_TRUE(with([](auto& a) { a.y.shape[2] = 3; }).starts_with("output_projection: y: "));
  EXPECT_TRUE(with([](auto& a) { a.wo_a_scale = a.x; }).starts_with("output_projection: wo_a_scale: "));
  EXPECT_EQ(with([](auto& a) { a.z.stride[1] = 9, a.z.stride[0] = 20; }),
            "output_projection: z: got a second stride of 9, expected 8: the groups of a row side by side");
}

}  // namespace
}  // namespace smla::test
