// Projections on the GPU against `_ref` over the family's own cases.
#include <set>

#include "gpu/gpu_run.h"
#include "parity/projection_cases.h"

namespace smla::test {
namespace {

class ProjectionGpu : public GpuTest {};

TEST_F(ProjectionGpu, EveryImplementationAgreesWithRef) {
  std::map<std::string, int> compared;
  std::set<std::string> refusals;
  for (const ProjectionCase& c : projection_cases()) {
    const ProjectionTensors tensors(c);
    ProjectionBuffer truth = tensors.poisoned_y();
    Plan<Projection>(tensors.problem, {.implementation = "ref"}).run(tensors.args(truth));
    for (const Candidate& candidate : explain<Projection>(tensors.problem, {.device = DeviceKind::kCuda})) {
      if (!candidate.refusal.empty()) {
        if (!candidate.refusal.starts_with("runs on")) refusals.insert(candidate.name + ": " + candidate.refusal);
        continue;
      }
      SCOPED_TRACE(candidate.name + ": " + describe(c));
      ProjectionBuffer y = tensors.poisoned_y();
      run_on_gpu<Projection>(tensors.problem, tensors.args(y), candidate.name);
      check_written(tensors, y);
      check_close(tensors, y, truth, candidate.name);
      ASSERT_FALSE(HasFatalFailure());
      ++compared[candidate.name];
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  for (const std::string& refusal : refusals) std::cout << "[  refused ] " << refusal << "\n";
  EXPECT_GT(compared["cuda"], 0);
}

TEST_F(ProjectionGpu, ARowsBitsDoNotDependOnTheOthersWhenDeterministic) {
  ProjectionCase c;
  c.problem = {.m = 70, .n = 200, .k = 1032, .groups = 2};
  const ProjectionTensors tensors(c);
  ProjectionBuffer whole = tensors.poisoned_y();
  run_on_gpu<Projection>(tensors.problem, tensors.args(whole), "", true);
  for (const std::int64_t row : {0, 7, 69}) {
    Projection::Problem one = tensors.problem;
    one.m = 1;
    ProjectionBuffer alone = tensors.poisoned_y();
    Projection::Args args = tensors.args(alone);
    args.x = args.x.slice(0, row, row + 1);
    args.y = args.y.slice(0, row, row + 1);
    run_on_gpu<Projection>(one, args, "", true);
    for (std::int64_t g = 0; g < 2; ++g) {
      for (std::int64_t j = 0; j < one.n; ++j) ASSERT_TRUE(alone.same_bits(whole, tensors.y_at(row, g, j))) << "row " << row << " output " << j;
    }
  }
}

}  // namespace
}  // namespace smla::test
