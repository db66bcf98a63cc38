#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/codecs.h"
#include "core/host_tensor.h"
#include "sparsemla/ops/projection.h"

namespace smla {
namespace {

using testing::HasSubstr;

/// Two rows of three numbers by two weights: rows (1, 2, 3) and (4, 5, 6), weights (1, 0, 0; 0, 1, 1) and (1, 1, 1).
struct ByHand {
  std::vector<float> x{1, 2, 3, 4, 5, 6};
  std::vector<float> first{1, 0, 0, 0, 1, 1};
  std::vector<BF16> second{to_bf16(1), to_bf16(1), to_bf16(1)};
  std::vector<float> y = std::vector<float>(4, -1);
  std::vector<BF16> z = std::vector<BF16>(2);
  JointProjection::Problem problem{
      .m = 2,
      .k = 3,
      .x = DType::kF32,
      .parts = 2,
      .part = {{{.n = 2, .w = DType::kF32, .y = DType::kF32}, {.n = 1, .w = DType::kBF16, .y = DType::kBF16}}}};
  JointProjection::Args args() {
    JointProjection::Args a{.x = ConstTensorView(x.data(), DType::kF32, {2, 1, 3})};
    a.parts[0] = {.w = ConstTensorView(first.data(), DType::kF32, {1, 2, 3}), .y = view_of(y.data(), {2, 1, 2})};
    a.parts[1] = {.w = ConstTensorView(second.data(), DType::kBF16, {1, 1, 3}), .y = view_of(z.data(), {2, 1, 1})};
    return a;
  }
};

std::string text_of(const auto& call) {
  try {
    call();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

TEST(JointProjection, EachWeightOfTheOneInput) {
  for (const char* name : {"cpu", "ref"}) {
    ByHand h;
    const Plan<JointProjection> plan(h.problem, {.implementation = name});
    HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
    plan.run(h.args(), {.data = workspace.data(), .bytes = plan.workspace_bytes()});
    EXPECT_EQ(h.y, (std::vector<float>{1, 5, 4, 11})) << name;
    EXPECT_EQ(to_float(h.z[0]), 6.0F) << name;
    EXPECT_EQ(to_float(h.z[1]), 15.0F) << name;
  }
}

/// The root mean square of (1, 7, 5) is 5 and that of (5, 5, 5) is 5: rows (0.2, 1.4, 1) and (1, 1, 1) before the
/// norm's weights (5, 10, 2).
TEST(JointProjection, NormsItsInputFirst) {
  for (const DType of_weight : {DType::kF32, DType::kBF16}) {
    for (const char* name : {"cpu", "ref"}) {
      ByHand h;
      h.x = {1, 7, 5, 5, 5, 5};
      h.problem.norms_x = true;
      h.problem.eps = 0;
      std::vector<float> weight{5, 10, 2};
      std::vector<BF16> rounded{to_bf16(5), to_bf16(10), to_bf16(2)};
      JointProjection::Args args = h.args();
      args.x_weight = of_weight == DType::kF32 ? ConstTensorView(weight.data(), DType::kF32, {3})
                                               : ConstTensorView(rounded.data(), DType::kBF16, {3});
      const Plan<JointProjection> plan(h.problem, {.implementation = name});
      HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
      plan.run(args, {.data = workspace.data(), .bytes = plan.workspace_bytes()});
      const float expected[] = {1, 16, 5, 12};
      for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(h.y[i], expected[i], 1e-5F) << name << ", " << i;
      EXPECT_EQ(to_float(h.z[0]), 17.0F) << name;
      EXPECT_EQ(to_float(h.z[1]), 17.0F) << name;
      EXPECT_EQ(h.x[1], 7.0F) << name << " writes x";
    }
  }
}

TEST(JointProjection, ErrorsNameTheWeight) {
  const auto planned = [](const auto& change) {
    ByHand h;
    change(h.problem);
    return text_of([&] { Plan<JointProjection>(h.problem); });
  };
  EXPECT_EQ(planned([](auto& p) { p.parts = 0; }), "joint_projection: parts: got 0, expected 1 to 8");
  EXPECT_EQ(planned([](auto& p) { p.parts = 9; }), "joint_projection: parts: got 9, expected 1 to 8");
  EXPECT_EQ(planned([](auto& p) { p.x = DType::kE4M3; }),
            "joint_projection: x: got dtype F8_E4M3, expected BF16 or F32");
  EXPECT_EQ(planned([](auto& p) { p.m = -1; }), "joint_projection: m: got -1, expected at least 0");
  EXPECT_EQ(planned([](auto& p) { p.part[1].n = -4; }), "joint_projection: parts[1].n: got -4, expected at least 0");
  EXPECT_EQ(planned([](auto& p) { p.part[1].w = DType::kI32; }),
            "joint_projection: parts[1].w: got dtype I32, expected BF16, F32, F8_E4M3 or U8, which is NVFP4");

  EXPECT_EQ(planned([](auto& p) { p.norms_x = true, p.groups = 2; }),
            "joint_projection: groups: got 2, expected 1 with norms_x");

  const auto run = [](const auto& change) {
    ByHand h;
    JointProjection::Args a = h.args();
    change(a);
    const Plan<JointProjection> plan(h.problem, {.implementation = "ref"});
    return text_of([&] { plan.run(a); });
  };
  EXPECT_EQ(run([](auto& a) { a.parts[1].y.shape[2] = 2; }),
            "joint_projection: parts[1].y: got [2, 1, 2] BF16, expected [2, 1, 1] BF16");
  EXPECT_THAT(run([](auto& a) { a.parts[0].w_scale = a.x; }), HasSubstr("joint_projection: parts[0].w_scale: got"));
  EXPECT_THAT(run([](auto& a) { a.x.shape[2] = 4; }), HasSubstr("joint_projection: x: got [2, 1, 4] F32"));
  EXPECT_EQ(run([](auto& a) { a.x_weight = ConstTensorView(a.x.data, DType::kF32, {3}); }),
            "joint_projection: x_weight: got [3] F32, expected none without norms_x");
  EXPECT_THAT(run([](auto& a) { a.parts[2].w = a.parts[1].w; }),
              HasSubstr("joint_projection: parts[2].w: got [1, 1, 3] BF16, expected none: there are 2 parts"));

  ByHand normed;
  normed.problem.norms_x = true;
  const Plan<JointProjection> plan(normed.problem, {.implementation = "ref"});
  EXPECT_EQ(text_of([&] { plan.run(normed.args()); }),
            "joint_projection: x_weight: got no tensor, expected [3] BF16 or F32");
}

}  // namespace
}  // namespace smla
