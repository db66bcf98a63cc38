// Projections on the GPU against `_ref` over the family's own cases.
#include <algorithm>
#include <atomic>
#include <set>

#include "device/launch_hook.h"
#include "gpu/gpu_run.h"
#include "parity/projection_cases.h"

namespace smla::test {
namespace {

class ProjectionGpu : public GpuTest {};

/// Whether E4M3 numbers are multiplied as they are, by tensor cores whose sums are narrower than fp32.
bool narrow_sums(std::string_view implementation, const Projection::Problem& p) {
  return p.w == DType::kE4M3 && (implementation == "cublaslt" || implementation == "sm90_stream");
}

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
      check_close(tensors, y, truth, name, narrow_sums(name, tensors.problem));
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
  for (const DType y_dtype : {DType::kF32, DType::kBF16}) {  // sm90_stream gives bf16 alone; codes are exact in both
    ProjectionCase c;
    c.problem = {.m = 16, .n = 256, .k = 128, .x = DType::kBF16, .w = DType::kE4M3, .y = y_dtype};
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
}

/// Each output is one input: bf16 numbers of all sizes beside larger ones of their row, which FP8 products have as
/// sums.
TEST_F(ProjectionGpu, Fp8ProductsDoNotRoundInputs) {
  if (!has_sm90_stream()) GTEST_SKIP() << "no GPU of compute capability 9.0, or too little shared memory";
  for (const std::int64_t m : {16, 32, 40}) {  // split by the blocks themselves, and by a kernel ahead
    ProjectionCase c;
    c.problem = {.m = m, .n = 128, .k = 256, .x = DType::kBF16, .w = DType::kE4M3, .y = DType::kBF16};
    ProjectionTensors t(c);
    for (std::int64_t i = 0; i < t.w_scales.elements(); ++i) t.w_scales.set(i, 1.0F);
    auto* w = static_cast<std::uint8_t*>(t.w.data());
    for (std::int64_t i = 0; i < 128 * 256; ++i) w[i] = i % 256 == 128 + i / 256 ? 0x38 : 0;
    const auto number = [](std::int64_t row, std::int64_t i) {
      const auto significant = static_cast<float>(128 + (row * 37 + i * 11) % 128);
      const int size = static_cast<int>(row * 13 % 200) - 100 - static_cast<int>(i % 13);
      return std::ldexp(i % 3 == 0 ? -significant : significant, size - 7);
    };
    for (std::int64_t i = 0; i < m * 256; ++i) t.x.set(i, number(i / 256, i % 256));
    ProjectionBuffer y = t.poisoned_y();
    run_on_gpu<Projection>(t.problem, t.args(y), "sm90_stream");
    for (std::int64_t i = 0; i < m * 128; ++i) ASSERT_EQ(y.get(i), number(i / 128, 128 + i % 128)) << m << ": " << i;
    // An infinity is one, and a NaN makes a NaN of the row.
    t.x.set(128 + 5, -INFINITY);
    t.x.set(256 + 128 + 7, NAN);
    run_on_gpu<Projection>(t.problem, t.args(y), "sm90_stream");
    EXPECT_EQ(y.get(5), -INFINITY);
    for (std::int64_t j = 0; j < 128; ++j) EXPECT_TRUE(std::isnan(y.get(128 + j)));
    EXPECT_EQ(y.get(256), number(2, 128));
  }
}

TEST_F(ProjectionGpu, Nvfp4WeightsAgreeWithRef) {
  const std::map<std::string, int> compared = compare_all(nvfp4_weight_cases());
  if (HasFatalFailure()) return;
  EXPECT_TRUE(compared.contains("cuda") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
  EXPECT_TRUE(compared.contains("cuda_stream") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
  EXPECT_TRUE(compared.contains("sm90_stream") || !has_sm90_stream());
}

/// Many rows: panels of some outputs of a group, of several groups with a rest, and of outputs longer than a panel.
TEST_F(ProjectionGpu, ManyRowsOfNvfp4WeightsAgreeWithRef) {
  std::vector<ProjectionCase> cases;
  for (const auto& [m, n, k, groups] : {std::array<std::int64_t, 4>{65, 200, 400, 1},
                                        {66, 9000, 1024, 1},
                                        {130, 24, 8192, 3},
                                        {72, 1000, 1024, 20},
                                        {100, 7, 48, 5},
                                        {512, 1024, 4096, 1}}) {
    for (const DType y : {DType::kBF16, DType::kF32}) {
      ProjectionCase c;
      c.problem = {.m = m, .n = n, .k = k, .groups = groups, .w = Projection::kNvfp4, .y = y};
      c.seed = cases.size() + 1;
      c.x_gap = cases.size() % 3 == 1 ? 24 : 0;
      c.y_gap = cases.size() % 3 == 2 ? 5 : 0;
      c.y_group_major = cases.size() % 4 > 1;
      cases.push_back(c);
    }
  }
  const std::map<std::string, int> compared = compare_all(cases);
  if (HasFatalFailure()) return;
  EXPECT_TRUE(compared.contains("cuda") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
  const std::vector<std::string> of_bf16 = gpu_implementations<Projection>({.m = 128, .n = 128, .k = 128});
  const bool has_cublaslt = std::ranges::find(of_bf16, "cublaslt") != of_bf16.end();
  EXPECT_TRUE(compared.contains("cublaslt") || !has_cublaslt);
}

/// Row i chooses one input: output s of it is code i % 16 times scale s, at every place of a group.
TEST_F(ProjectionGpu, EveryCodeOfAnNvfp4WeightBesideEveryScale) {
  for (const std::int64_t m : {16, 32, 96}) {
    for (const DType x : {DType::kBF16, DType::kF32}) {
      ProjectionCase c;
      c.problem = {.m = m, .n = 256, .k = 64, .x = x, .w = Projection::kNvfp4, .y = DType::kF32};
      ProjectionTensors tensors(c);
      const auto input_of = [](std::int64_t row) { return row * 7 % 64; };
      for (std::int64_t i = 0; i < m * 64; ++i) tensors.x.set(i, input_of(i / 64) == i % 64 ? 1.0F : 0.0F);
      auto* w = static_cast<std::uint8_t*>(tensors.w.data());
      for (std::int64_t i = 0; i < 256 * 32; ++i) w[i] = static_cast<std::uint8_t>(i % 8 * 0x22 + 0x10);
      auto* scales = static_cast<std::uint8_t*>(tensors.w_scales.data());
      for (std::int64_t i = 0; i < 256 * 4; ++i) scales[i] = static_cast<std::uint8_t>(i / 4 ^ i % 4);
      ProjectionBuffer truth = tensors.poisoned_y();
      Plan<Projection>(tensors.problem, {.implementation = "ref"}).run(tensors.args(truth));
      for (const std::string& name : gpu_implementations<Projection>(tensors.problem)) {
        ProjectionBuffer y = tensors.poisoned_y();
        run_on_gpu<Projection>(tensors.problem, tensors.args(y), name);
        for (std::int64_t i = 0; i < m * 256; ++i) {
          const bool both_nan = std::isnan(y.get(i)) && std::isnan(truth.get(i));
          ASSERT_TRUE(both_nan || y.get(i) == truth.get(i))
              << name << ", row " << i / 256 << " output " << i % 256 << ": " << y.get(i) << " for " << truth.get(i);
        }
      }
    }
  }
}

/// x in bf16 and in E4M3, NVFP4 weights among those of bf16 x. Rows at the edges of the blocks of 16, 32, 64 and 128,
/// outputs at those of 64, 128 and 256, stages that are not whole, inputs that 1 to 8 blocks share, more tiles than run
/// at once; scales of every size, and a NaN.
TEST_F(ProjectionGpu, WeightsStreamedOnHopperAgreeWithRef) {
  if (!has_sm90_stream()) GTEST_SKIP() << "no GPU of compute capability 9.0, or too little shared memory";
  const std::string name = "sm90_stream";
  std::vector<ProjectionCase> cases;
  std::vector<std::pair<DType, DType>> dtypes = {
      {DType::kBF16, DType::kE4M3}, {DType::kBF16, DType::kBF16}, {DType::kE4M3, DType::kE4M3}};
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t groups) {
    for (const auto& [x, w] : dtypes) {
      if (x == DType::kE4M3 && (k == 0 || k % Projection::kScaleGroup != 0)) continue;
      if (w == Projection::kNvfp4 && k % 64 != 0) continue;
      ProjectionCase c;
      const bool odd = cases.size() % 4 > 1;
      c.problem = {.m = m,
                   .n = n,
                   .k = k,
                   .groups = groups,
                   .x = x,
                   .w = w,
                   .y = odd && w != DType::kE4M3 ? DType::kF32 : DType::kBF16};
      c.seed = cases.size() + 1;
      c.x_gap = odd ? 48 : 0;
      c.scale_gap = odd && x == DType::kE4M3 ? 3 : 0;
      c.y_gap = odd ? 5 : 0;
      c.y_group_major = cases.size() % 8 > 3;
      c.w_scale_gap = odd ? 1 : 0;
      cases.push_back(c);
    }
  };
  for (const std::int64_t m : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 300}) add(m, 200, 400, 1);
  for (const std::int64_t n : {1, 8, 63, 64, 65, 127, 128, 129, 255, 256, 257, 520}) add(20, n, 272, 2);
  for (const std::int64_t m : {1, 16, 31, 32, 33, 64, 65, 127, 128, 129, 300}) add(m, 200, 384, 2);
  for (const std::int64_t n : {1, 63, 65, 128, 129, 257, 520}) add(40, n, 256, 2);
  for (const std::int64_t k : {0, 16, 64, 112, 128, 144, 256, 1024, 2320, 4096}) add(37, 130, k, 3);
  add(70, 2000, 64, 40);
  add(17, 64, 8192, 1);
  dtypes = {{DType::kBF16, Projection::kNvfp4}};
  for (const std::int64_t m : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300}) add(m, 200, 384, 1);
  for (const std::int64_t n : {1, 8, 63, 64, 65, 127, 128, 129, 257, 520}) add(20 + n % 3 * 20, n, 192, 2);
  for (const std::int64_t k : {0, 64, 128, 1024, 4096}) add(37, 130, k, 3);
  add(70, 2000, 64, 40);
  add(17, 64, 8192, 1);
  for (const ProjectionCase& c : cases) {
    ProjectionTensors t(c);
    SCOPED_TRACE(describe(c));
    if (c.seed % 3 == 0 && c.problem.w == DType::kE4M3) {
      for (std::int64_t i = 0; i < t.w_scales.elements(); ++i)
        t.w_scales.set(i, std::ldexp(1.0F + 0.37F * static_cast<float>(i % 3), static_cast<int>(i * 17 % 90) - 30));
    }
    ProjectionBuffer truth = t.poisoned_y();
    Plan<Projection>(t.problem, {.implementation = "ref"}).run(t.args(truth));
    ProjectionBuffer y = t.poisoned_y();
    run_on_gpu<Projection>(t.problem, t.args(y), name);
    check_written(t, y);
    check_close(t, y, truth, name, narrow_sums(name, t.problem));
    if (HasFatalFailure()) return;
    if (c.problem.w != DType::kE4M3 || c.seed % 5 != 1 || c.problem.k == 0) continue;
    const std::int64_t output = c.problem.n / 2;
    static_cast<std::uint8_t*>(t.w.data())[output * c.problem.k + c.problem.k - 1] = 0xFF;
    run_on_gpu<Projection>(t.problem, t.args(y), name);
    for (std::int64_t i = 0; i < c.problem.m; ++i) {
      for (std::int64_t g = 0; g < c.problem.groups; ++g) {
        for (std::int64_t j = 0; j < c.problem.n; ++j)
          ASSERT_EQ(std::isnan(y.get(t.y_at(i, g, j))), g == 0 && j == output) << i << ", " << g << ", " << j;
      }
    }
  }
}

TEST_F(ProjectionGpu, OutputsAreQuantisedAsQuantizeRowsDoes) {
  std::map<std::string, int> compared;
  for (const ProjectionCase& c : quantising_cases()) {
    for (const std::string& name : gpu_implementations<Projection>(c.problem)) {
      SCOPED_TRACE(name + ": " + describe(c));
      const auto run = [&](const auto& problem, const auto& args) { run_on_gpu<Projection>(problem, args, name); };
      check_quantised(c, run, [](const auto& problem, const auto& args) {
        Plan<QuantizeRows>(problem, {.implementation = "ref"}).run(args);
      });
      if (HasFatalFailure()) return;
      ++compared[name];
    }
  }
  EXPECT_TRUE(compared.contains("cuda") || std::getenv("SMLA_TEST_IMPLEMENTATION") != nullptr);
  if (has_sm90_stream()) {
    EXPECT_GE(compared["sm90_stream"], 30);
  }
}

std::atomic<int> launches{0};

/// The kernel that streams weights on Hopper quantises what it stores; where rows of values are not aligned to four
/// numbers, QuantizeRows does.
TEST_F(ProjectionGpu, OnHopperOutputsAreQuantisedInTheSameLaunch) {
  if (!has_sm90_stream()) GTEST_SKIP() << "no GPU of compute capability 9.0, or too little shared memory";
  for (const std::int64_t gap : {0, 2}) {
    ProjectionCase c;
    c.problem = {.m = 40, .n = 128, .k = 128, .groups = 2, .x = DType::kE4M3, .w = DType::kE4M3, .quantises_y = true};
    const ProjectionTensors tensors(c);
    ProjectionBuffer y = tensors.poisoned_y();
    QuantisedRows quantised(c.problem.m, 256, gap);
    Projection::Args args = tensors.args(y);
    args.y_values = quantised.rows();
    args.y_scales = quantised.scales.view();
    launches = 0;
    device::launch_hook = +[](const char*) { ++launches; };
    run_on_gpu<Projection>(c.problem, args, "sm90_stream");
    device::launch_hook = nullptr;
    EXPECT_EQ(launches, gap == 0 ? 1 : 2);
  }
}

/// Memory that is reserved for the most rows serves fewer, whichever implementation takes them.
TEST_F(ProjectionGpu, MoreRowsNeedNoLessWorkspace) {
  for (const auto& [x, w] :
       {std::pair(DType::kBF16, DType::kBF16), {DType::kE4M3, DType::kE4M3}, {DType::kBF16, Projection::kNvfp4}}) {
    for (const std::int64_t groups : {1, 8}) {
      std::size_t most = 0;
      for (std::int64_t m = 1; m <= 530; ++m) {
        const Plan<Projection> plan({.m = m, .n = 1024, .k = 1024, .groups = groups, .x = x, .w = w},
                                    {.device = DeviceKind::kCuda});
        ASSERT_GE(plan.workspace_bytes(), most)
            << name_of(x) << " x " << name_of(w) << ", " << groups << " groups: " << m;
        most = plan.workspace_bytes();
      }
    }
  }
}

TEST_F(ProjectionGpu, ARowsBitsDoNotDependOnTheOthersWhenDeterministic) {
  ProjectionCase c;
  c.problem = {.m = 70, .n = 200, .groups = 2};
  for (const auto& [x, w, k] : {std::tuple(DType::kBF16, DType::kBF16, 1032),
                                {DType::kBF16, DType::kE4M3, 1040},
                                {DType::kE4M3, DType::kE4M3, 1152},
                                {DType::kBF16, Projection::kNvfp4, 1088}}) {
    c.problem.x = x;
    c.problem.w = w;
    c.problem.k = k;
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
        if (x == DType::kE4M3) args.x_scale = args.x_scale.slice(2, row, row + 1);
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
