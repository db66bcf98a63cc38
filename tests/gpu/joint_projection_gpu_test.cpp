// Several weights of one input in one call on the GPU, and the kernels that stream weights.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <map>
#include <span>

#include "device/gpu.h"
#include "device/launch_hook.h"
#include "gpu/gpu_run.h"
#include "parity/joint_projection_cases.h"

namespace smla::test {
namespace {

class JointProjectionGpu : public GpuTest {};

void run_joint(const JointTensors& t, std::vector<ProjectionBuffer>& y, const std::string& name) {
  run_on_gpu<JointProjection>(t.problem, t.args(y), name);
}

TEST_F(JointProjectionGpu, EveryWeightHasTheBitsOfACallOfItsOwn) {
  std::map<std::string, int> compared;
  for (const std::vector<ProjectionCase>& cases : joint_projection_cases(DType::kBF16)) {
    const JointTensors t(cases);
    for (const std::string& name : gpu_implementations<JointProjection>(t.problem)) {
      SCOPED_TRACE(name + ": " + describe(cases));
      std::vector<ProjectionBuffer> joint = t.poisoned_y();
      run_joint(t, joint, name);
      JointProjection::Problem beside = t.problem;
      beside.leaves_room = true;
      std::vector<ProjectionBuffer> in_half = t.poisoned_y();
      run_on_gpu<JointProjection>(beside, t.args(in_half), name);
      for (std::size_t i = 0; i < t.parts.size(); ++i) {
        SCOPED_TRACE("weight " + std::to_string(i));
        ASSERT_TRUE(joint[i].same_bits(in_half[i])) << "with leaves_room";
        ProjectionBuffer alone = t.parts[i].poisoned_y();
        run_on_gpu<Projection>(t.parts[i].problem, t.part_args(i, alone), name == "cuda" ? "" : name);
        ProjectionBuffer truth = t.parts[i].poisoned_y();
        Plan<Projection>(t.parts[i].problem, {.implementation = "ref"}).run(t.part_args(i, truth));
        check_written(t.parts[i], joint[i]);
        check_close(
            t.parts[i], joint[i], truth, name,
            name != "cuda_stream" && t.parts[i].problem.w == DType::kE4M3 && t.parts[i].problem.y == DType::kBF16);
        if (HasFatalFailure()) return;
        ASSERT_TRUE(joint[i].same_bits(alone));
      }
      ++compared[name];
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  EXPECT_GT(compared["cuda_stream"], 50);
  EXPECT_TRUE(compared["sm90_stream"] > 50 || !has_sm90_stream());
}

/// The kernels that are one launch for all weights on this GPU.
std::vector<std::string> one_launch() {
  if (has_sm90_stream()) return {"cuda_stream", "sm90_stream"};
  return {"cuda_stream"};
}

/// Tiles of 8, 16, 32 and 64 rows, and of 16, 32, 128 and 256 outputs, give a row the same bits.
TEST_F(JointProjectionGpu, ARowsBitsDoNotDependOnHowManyThereAre) {
  constexpr std::int64_t kRows = 140;
  for (const DType w : {DType::kBF16, DType::kE4M3, Projection::kNvfp4}) {
    ProjectionCase c;
    c.problem = {
        .m = kRows, .n = 50, .k = 2320, .groups = 2, .w = w, .y = w == DType::kE4M3 ? DType::kBF16 : DType::kF32};
    if (w == Projection::kNvfp4) c.problem.k = 2368;
    c.x_gap = 8;
    const JointTensors t({c, c});
    for (const std::string& name : one_launch()) {
      if (w == Projection::kNvfp4 && name == "sm90_stream") continue;  // which refuses it
      std::vector<ProjectionBuffer> whole = t.poisoned_y();
      run_on_gpu<JointProjection>(t.problem, t.args(whole), name, true);
      for (const std::int64_t rows : {1, 8, 9, 17, 40, 100}) {
        JointProjection::Problem p = t.problem;
        p.m = rows;
        std::vector<ProjectionBuffer> few = t.poisoned_y();
        JointProjection::Args a = t.args(few);
        const std::int64_t begin = kRows - rows;
        a.x = a.x.slice(0, begin, kRows);
        for (JointProjection::PartArgs& part : std::span(a.parts).first(2)) part.y = part.y.slice(0, begin, kRows);
        run_on_gpu<JointProjection>(p, a, name, true);
        for (std::size_t i = 0; i < 2; ++i) {
          for (std::int64_t row = begin; row < kRows; ++row) {
            for (std::int64_t j = 0; j < 50; ++j)
              ASSERT_TRUE(few[i].same_bits(whole[i], t.parts[i].y_at(row, row % 2, j)))
                  << name << ": " << row << " of " << rows;
          }
        }
      }
    }
  }
}

/// As check_close(), of normed inputs, a few of which may be a step of bf16 away: their sums of squares are in fp32
/// here and in double there.
void check_close_to_normed(const ProjectionTensors& t, const ProjectionBuffer& y, const ProjectionBuffer& truth) {
  double difference = 0;
  double size = 0;
  for (std::int64_t i = 0; i < t.problem.m; ++i) {
    float largest = 0;
    for (std::int64_t j = 0; j < t.problem.n; ++j) largest = std::max(largest, std::fabs(truth.get(t.y_at(i, 0, j))));
    for (std::int64_t j = 0; j < t.problem.n; ++j) {
      const float want = truth.get(t.y_at(i, 0, j));
      const float off = std::fabs(y.get(t.y_at(i, 0, j)) - want);
      difference += static_cast<double>(off) * static_cast<double>(off);
      size += static_cast<double>(want) * static_cast<double>(want);
      const float step = t.problem.y == DType::kBF16 ? 2 * bf16_ulp(want) : 0;
      ASSERT_LE(off, std::max(step, 2e-3F * largest)) << "row " << i << " output " << j << " for " << want;
    }
  }
  ASSERT_LE(std::sqrt(difference), (t.problem.y == DType::kBF16 ? 4e-3 : 1e-3) * std::sqrt(size));
}

/// With norms_x: the product of what RmsNorm makes of x.
TEST_F(JointProjectionGpu, NormedInputsAreThoseOfRmsNorm) {
  std::map<std::string, int> compared;
  for (const std::vector<ProjectionCase>& cases : joint_projection_cases(DType::kBF16)) {
    const Projection::Problem& first = cases.front().problem;
    if (first.groups != 1) continue;
    for (const DType of_weight : {DType::kBF16, DType::kF32}) {
      const NormedTensors t(cases, of_weight);
      HostTensor normed(DType::kBF16, {first.m, first.k});
      Plan<RmsNorm>(t.norm(), {.implementation = "ref"}).run(t.norm_args(normed.view()));
      for (const std::string& name : gpu_implementations<JointProjection>(t.problem)) {
        SCOPED_TRACE(name + ": " + describe(cases));
        std::vector<ProjectionBuffer> joint = t.poisoned_y();
        run_on_gpu<JointProjection>(t.problem, t.args(joint), name);
        std::vector<ProjectionBuffer> truth = t.poisoned_y();
        Plan<JointProjection>(t.apart(), {.implementation = "ref"}).run(t.args_apart(truth, normed.data()));
        for (std::size_t i = 0; i < t.parts.size(); ++i) {
          SCOPED_TRACE("weight " + std::to_string(i));
          check_written(t.parts[i], joint[i]);
          check_close_to_normed(t.parts[i], joint[i], truth[i]);
          if (HasFatalFailure()) return;
        }
        ++compared[name];
      }
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  EXPECT_GT(compared["cuda"], 100);
  EXPECT_EQ(compared["cuda_stream"], 0);
  EXPECT_TRUE(compared["sm90_stream"] > 10 || !has_sm90_stream());
}

std::atomic<int> launches{0};

TEST_F(JointProjectionGpu, IsOneLaunch) {
  for (const std::vector<ProjectionCase>& cases : joint_projection_cases(DType::kBF16)) {
    const JointTensors t(cases);
    if (t.problem.m == 0 || t.problem.k % 16 != 0) continue;
    const std::vector<std::string> taken_by = gpu_implementations<JointProjection>(t.problem);
    for (const std::string& name : one_launch()) {
      if (std::find(taken_by.begin(), taken_by.end(), name) == taken_by.end()) continue;
      std::vector<ProjectionBuffer> y = t.poisoned_y();
      launches = 0;
      device::launch_hook = +[](const char*) { ++launches; };
      run_joint(t, y, name);
      device::launch_hook = nullptr;
      // Of more than 16 rows beside E4M3 weights x is split first.
      const auto* end = t.problem.part.begin() + t.problem.parts;
      const bool split = name == "sm90_stream" && t.problem.m > 16 && t.problem.k > 0 &&
                         std::any_of(t.problem.part.begin(), end, [](const JointProjection::Part& part) {
                           return part.w == DType::kE4M3 && part.n > 0;
                         });
      EXPECT_EQ(launches, split ? 2 : 1) << name << ": " << describe(cases);
    }
  }
}

TEST_F(JointProjectionGpu, NormedInputsAreOneLaunchOnHopper) {
  if (!has_sm90_stream()) GTEST_SKIP() << "no kernel for Hopper";
  ProjectionCase c;
  c.problem = {.m = 16, .n = 200, .k = 1296, .w = DType::kE4M3, .y = DType::kBF16};
  const auto launches_of = [&](DType of_weight) {
    const NormedTensors t({c, c}, of_weight);
    std::vector<ProjectionBuffer> y = t.poisoned_y();
    launches = 0;
    device::launch_hook = +[](const char*) { ++launches; };
    run_on_gpu<JointProjection>(t.problem, t.args(y), "sm90_stream");
    device::launch_hook = nullptr;
    return launches.load();
  };
  EXPECT_EQ(launches_of(DType::kBF16), 1);
  EXPECT_EQ(launches_of(DType::kF32), 3) << "a norm and two products";
}

/// The norm of a row reads that row alone, and its bits are those of the row among others.
TEST_F(JointProjectionGpu, ANormedRowIsTheSameAmongOthers) {
  if (!has_sm90_stream()) GTEST_SKIP() << "no kernel for Hopper";
  ProjectionCase c;
  c.problem = {.m = 16, .n = 70, .k = 1296, .w = DType::kE4M3, .y = DType::kBF16};
  const NormedTensors t({c});
  std::vector<ProjectionBuffer> whole = t.poisoned_y();
  run_on_gpu<JointProjection>(t.problem, t.args(whole), "sm90_stream", true);
  for (const std::int64_t rows : {1, 2, 5, 11}) {
    JointProjection::Problem p = t.problem;
    p.m = rows;
    std::vector<ProjectionBuffer> few = t.poisoned_y();
    JointProjection::Args a = t.args(few);
    a.x = a.x.slice(0, 16 - rows, 16);
    a.parts[0].y = a.parts[0].y.slice(0, 16 - rows, 16);
    run_on_gpu<JointProjection>(p, a, "sm90_stream", true);
    for (std::int64_t row = 16 - rows; row < 16; ++row) {
      for (std::int64_t j = 0; j < 70; ++j)
        ASSERT_TRUE(few[0].same_bits(whole[0], t.parts[0].y_at(row, 0, j))) << row << " of " << rows;
    }
  }
}

TEST_F(JointProjectionGpu, ItIsChosenForFewRows) {
  const auto chosen = [](std::int64_t rows, DType w, bool deterministic = false) {
    const JointProjection::Problem p{.m = rows, .k = 256, .parts = 2, .part = {{{.n = 16}, {.n = 16, .w = w}}}};
    return std::string(
        Plan<JointProjection>(p, {.device = DeviceKind::kCuda, .deterministic = deterministic}).implementation());
  };
  const bool hopper = device::current_gpu().capability == 90;
  EXPECT_EQ(chosen(16, DType::kE4M3), "cuda_stream");
  const bool wide = has_sm90_stream();
  EXPECT_EQ(chosen(32, DType::kE4M3), "cuda_stream");  // there is a bf16 weight, too
  EXPECT_EQ(chosen(64, DType::kE4M3), wide ? "sm90_stream" : "cuda_stream");
  EXPECT_EQ(chosen(65, DType::kE4M3), wide ? "sm90_stream" : "cuda");
  EXPECT_EQ(chosen(129, DType::kE4M3), "cuda");
  EXPECT_EQ(chosen(4, DType::kE4M3, true), "cuda");
  EXPECT_EQ(chosen(40, DType::kE4M3, true), "cuda");
  EXPECT_EQ(chosen(4, DType::kBF16), hopper ? "cuda_stream" : "cuda");
  EXPECT_EQ(chosen(5, DType::kBF16), "cuda");
  const auto one = [](std::int64_t rows, DType w, std::int64_t n = 16) {
    return std::string(
        Plan<Projection>({.m = rows, .n = n, .k = 256, .w = w}, {.device = DeviceKind::kCuda}).implementation());
  };
  EXPECT_NE(one(1, DType::kBF16), "cuda_stream");
  EXPECT_EQ(one(16, DType::kE4M3), "cuda_stream");
  EXPECT_EQ(one(64, DType::kE4M3), "cuda_stream");
  EXPECT_EQ(one(1, DType::kE4M3, (14 << 12) - 1), "cuda_stream");
  EXPECT_EQ(one(1, DType::kE4M3, 14 << 12), wide ? "sm90_stream" : "cuda_stream");  // 14 MiB
  EXPECT_EQ(one(16, DType::kE4M3, 1 << 15), "cuda_stream");
  EXPECT_EQ(one(17, DType::kE4M3, 1 << 15), wide ? "sm90_stream" : "cuda_stream");  // 8 MiB
  EXPECT_EQ(one(128, DType::kE4M3), wide ? "sm90_stream" : "cuda");
  EXPECT_EQ(one(129, DType::kE4M3), "cuda");
}

}  // namespace
}  // namespace smla::test
