// Several weights of one input at once: the bits of separate calls.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/host_tensor.h"
#include "parity/joint_projection_cases.h"

namespace smla::test {
namespace {

template <class Op>
void run(const typename Op::Problem& problem, const typename Op::Args& args, const PlanOptions& options) {
  const Plan<Op> plan(problem, options);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(args, {.data = workspace.data(), .bytes = plan.workspace_bytes()});
}

TEST(JointProjectionParity, EveryWeightHasTheBitsOfACallOfItsOwn) {
  for (const DType x : {DType::kBF16, DType::kF32}) {
    for (const std::vector<ProjectionCase>& cases : joint_projection_cases(x)) {
      SCOPED_TRACE(describe(cases));
      const JointTensors t(cases);
      for (const bool deterministic : {false, true}) {
        for (const auto& [name, of_part] : {std::pair("cpu", ""), {"ref", "ref"}}) {
          std::vector<ProjectionBuffer> joint = t.poisoned_y();
          run<JointProjection>(t.problem, t.args(joint),
                               {.implementation = name, .deterministic = deterministic, .threads = 1});
          for (std::size_t i = 0; i < t.parts.size(); ++i) {
            SCOPED_TRACE(std::string(name) + ", weight " + std::to_string(i));
            Projection::Problem p = t.parts[i].problem;
            ProjectionBuffer alone = t.parts[i].poisoned_y();
            run<Projection>(p, t.part_args(i, alone),
                            {.implementation = of_part, .deterministic = deterministic, .threads = 1});
            check_written(t.parts[i], joint[i]);
            ASSERT_TRUE(joint[i].same_bits(alone));
          }
        }
      }
    }
  }
}

/// With norms_x, of what RmsNorm makes of x.
TEST(JointProjectionParity, NormedInputsAreThoseOfRmsNorm) {
  int compared = 0;
  for (const DType x : {DType::kBF16, DType::kF32}) {
    for (const std::vector<ProjectionCase>& cases : joint_projection_cases(x)) {
      if (cases.front().problem.groups != 1) continue;
      SCOPED_TRACE(describe(cases));
      const NormedTensors t(cases, compared % 2 == 0 ? DType::kBF16 : DType::kF32);
      for (const char* name : {"cpu", "ref"}) {
        SCOPED_TRACE(name);
        HostTensor normed(x, {t.problem.m, t.problem.k});
        run<RmsNorm>(t.norm(), t.norm_args(normed.view()),
                     {.implementation = name == std::string("ref") ? "ref" : "", .threads = 1});
        std::vector<ProjectionBuffer> apart = t.poisoned_y();
        run<JointProjection>(t.apart(), t.args_apart(apart, normed.data()), {.implementation = name, .threads = 1});
        std::vector<ProjectionBuffer> whole = t.poisoned_y();
        run<JointProjection>(t.problem, t.args(whole), {.implementation = name, .threads = 1});
        for (std::size_t i = 0; i < t.parts.size(); ++i) {
          check_written(t.parts[i], whole[i]);
          ASSERT_TRUE(whole[i].same_bits(apart[i])) << "weight " << i;
        }
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace smla::test
