// Several weights of one input in one call on the GPU, and the kernels that stream weights.
#include <algorithm>
#include <atomic>
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
      for (std::size_t i = 0; i < t.parts.size(); ++i) {
        SCOPED_TRACE("weight " + std::to_string(i));
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
