// Projections on the GPU against `_ref` over the family's own cases.
#include <set>

#include "gpu/gpu_run.h"
#include "parity/projection_cases.h"

namespace smla::test {
namespace {

class ProjectionGpu : public GpuTest {};

/// Every implementation on the GPU against `_ref`; how many cases each took.
std::map<std::string, int> compare_all(const std::vector<ProjectionCase>& cases) {
  std::map<std::string, int> compared;
  std::set<std::string> refusals;
  for (const ProjectionCase& c : cases) {
    const ProjectionTensors tensors(c);
    ProjectionBuffer truth = tensors.poisoned_y();
    Plan<Projection>(tensors.problem, {.implementation = "ref"}).run(tensors.args(truth));
    for (const Candidate& candidate : explain<Projection>(tensors.problem, {.device = DeviceKind::kCuda})) {
      if (!candidate.refusal.empty() && !candidate.refusal.starts_with("runs on"))
        refusals.insert(candidate.name + ": " + candidate.refusal);
    }
    for (const std::string& name : gpu_implementations<Projection>(tensors.problem)) {
      SCOPED_TRACE(name + ": " + describe(c));
      ProjectionBuffer y = tensors.poisoned_y();
      run_on_gpu<Projection>(tensors.problem, tensors.args(y), name);
      check_written(tensors, y);
      check_close(tensors, y, truth, name, name == "cublaslt" && tensors.problem.w == DType::kE4M3);
      if (testing::Test::HasFatalFailure()) return compared;
      ++compared[name];
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  for (const std::string& refusal : refusals) std::cout << "[  refused ] " << refusal << "\n";
  return compared;
}

TEST_F(ProjectionGpu, EveryImplementationAgreesWithRef) {
  const std::map<std::string, int> compared = compare_all(projection_cases());
  if (HasFatalFailure()) return;
  EXPECT_TRUE(compared.contains("cuda") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
  EXPECT_TRUE(compared.contains("cuda_stream") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
}

TEST_F(ProjectionGpu, Fp8WeightsAgreeWithRef) {
  std::vector<ProjectionCase> cases = fp8_weight_cases();
  for (const std::int64_t m : {64, 200, 203, 2048}) {
    for (const auto& [n, k, groups] : {std::array<std::int64_t, 3>{512, 4096, 1},
                                       {1024, 4096, 1},
                                       {4096, 1024, 1},
                                       {256, 1024, 8},
                                       {32768, 1024, 1},
                                       {4096, 8192, 1}}) {
      if (m * n * k * groups > 4'400'000'000) continue;
      ProjectionCase c;
      c.problem = {.m = m, .n = n, .k = k, .groups = groups, .x = DType::kE4M3, .w = DType::kE4M3};
      c.scale_gap = (m + 3) / 4 * 4 - m;
      c.y_group_major = groups > 1;
      cases.push_back(c);
    }
  }
  const std::map<std::string, int> compared = compare_all(cases);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(compared.contains("cuda") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
  EXPECT_TRUE(compared.contains("cuda_stream") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
}

/// All codes, NaN among them, and an output for each pair of a code and a power of two.
TEST_F(ProjectionGpu, EveryCodeOfAnFp8WeightIsRead) {
  ProjectionCase c;
  c.problem = {.m = 16, .n = 256, .k = 128, .x = DType::kBF16, .w = DType::kE4M3, .y = DType::kF32};
  ProjectionTensors tensors(c);
  for (std::int64_t i = 0; i < 16 * 128; ++i) tensors.x.set(i, i % 128 == 8 * (i / 128) ? 1.0F : 0.0F);
  auto* w = static_cast<std::uint8_t*>(tensors.w.data());
  for (std::int64_t i = 0; i < 256 * 128; ++i)
    w[i] = i % 128 % 8 == 0 ? static_cast<std::uint8_t>(i / 128 + 17 * (i % 128 / 8)) : std::uint8_t{0x38};
  ProjectionBuffer truth = tensors.poisoned_y();
  Plan<Projection>(tensors.problem, {.implementation = "ref"}).run(tensors.args(truth));
  for (const std::string& name : gpu_implementations<Projection>(tensors.problem)) {
    ProjectionBuffer y = tensors.poisoned_y();
    run_on_gpu<Projection>(tensors.problem, tensors.args(y), name);
    for (std::int64_t i = 0; i < 16 * 256; ++i) {
      const bool both_nan = std::isnan(y.get(i)) && std::isnan(truth.get(i));
      ASSERT_TRUE(both_nan || y.get(i) == truth.get(i))
          << name << ", row " << i / 256 << " code " << (i % 256 + 17 * (i / 256)) % 256;
    }
  }
}

TEST_F(ProjectionGpu, ARowsBitsDoNotDependOnTheOthersWhenDeterministic) {
  ProjectionCase c;
  c.problem = {.m = 70, .n = 200, .k = 1032, .groups = 2};
  for (const DType w : {DType::kBF16, DType::kE4M3}) {
    c.problem.w = w;
    if (w == DType::kE4M3) c.problem.k = 1040;
    const ProjectionTensors tensors(c);
    for (const std::string& name : gpu_implementations<Projection>(tensors.problem, true)) {
      ProjectionBuffer whole = tensors.poisoned_y();
      run_on_gpu<Projection>(tensors.problem, tensors.args(whole), name, true);
      for (const std::int64_t row : {0, 7, 69}) {
        Projection::Problem one = tensors.problem;
        one.m = 1;
        ProjectionBuffer alone = tensors.poisoned_y();
        Projection::Args args = tensors.args(alone);
        args.x = args.x.slice(0, row, row + 1);
        args.y = args.y.slice(0, row, row + 1);
        run_on_gpu<Projection>(one, args, name, true);
        for (std::int64_t g = 0; g < 2; ++g) {
          for (std::int64_t j = 0; j < one.n; ++j)
            ASSERT_TRUE(alone.same_bits(whole, tensors.y_at(row, g, j))) << name << ", row " << row << " output " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace smla::test
