// Weights in NVFP4: what they mean, every code beside every scale, and what of wrong tensors is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "cases/case_file.h"
#include "cases/replay.h"
#include "core/host_tensor.h"
#include "parity/accepted.h"
#include "parity/projection_cases.h"
#include "sparsemla/case.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using ::testing::HasSubstr;

constexpr DType kNvfp4 = Projection::kNvfp4;

void run(const Projection::Problem& problem, const Projection::Args& args, const std::string& implementation) {
  const Plan<Projection> plan(problem, {.implementation = implementation, .threads = 2});
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()});
}

std::string text_of(const auto& what) {
  try {
    what();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ProjectionNvfp4, RefMultipliesByTheDequantisedWeights) {
  test::ProjectionCase c;
  c.problem = {.m = 3, .n = 7, .k = 48, .groups = 2, .w = kNvfp4, .y = DType::kF32};
  c.x_gap = 5;
  const test::ProjectionTensors t(c);
  test::ProjectionBuffer y = t.poisoned_y();
  const Projection::Args args = t.args(y);
  run(c.problem, args, "ref");
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t row = 0; row < 14; ++row) {  // outputs of both groups
      double want = 0;
      for (std::int64_t k = 0; k < 48; ++k) {
        const unsigned byte = static_cast<const std::uint8_t*>(args.w.data)[row * 24 + k / 2];
        const float code = from_e2m1(static_cast<std::uint8_t>(k % 2 == 0 ? byte & 15U : byte >> 4U));
        const float scale = to_float(static_cast<const E4M3*>(args.w_scale.data)[row * 3 + k / 16]);
        const double w = static_cast<double>(code) * static_cast<double>(scale) * static_cast<double>(t.w_global);
        want += static_cast<double>(t.x.get(i * t.x_row + row / 7 * 48 + k)) * w;
      }
      EXPECT_FLOAT_EQ(y.get(t.y_at(i, row / 7, row % 7)), static_cast<float>(want)) << i << ", " << row;
    }
  }
}

/// Row i of x chooses input i of a group: output s is then code i times scale s, which every implementation has
/// exactly.
TEST(ProjectionNvfp4, EveryCodeBesideEveryScale) {
  for (const std::int64_t m : {1, 4, 16, 32}) {
    for (const DType x : {DType::kBF16, DType::kF32}) {
      test::ProjectionCase c;
      c.problem = {.m = m, .n = 256, .k = 32, .x = x, .w = kNvfp4, .y = DType::kF32};
      test::ProjectionTensors t(c);
      t.w_global = 0.5F;
      for (std::int64_t i = 0; i < m * 32; ++i) t.x.set(i, i / 32 % 16 + 16 * (i / 32 % 2) == i % 32 ? 1.0F : 0.0F);
      for (std::int64_t i = 0; i < 256 * 16; ++i)
        static_cast<std::uint8_t*>(t.w.data())[i] = static_cast<std::uint8_t>(i % 8 * 0x22 + 0x10);
      for (std::int64_t i = 0; i < 512; ++i)  // the second group of inputs has the scales in reverse
        static_cast<std::uint8_t*>(t.w_scales.data())[i] = static_cast<std::uint8_t>(i % 2 == 0 ? i / 2 : 255 - i / 2);
      for (const std::string& name : test::accepted<Projection>(c.problem)) {
        test::ProjectionBuffer y = t.poisoned_y();
        run(c.problem, t.args(y), name);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t s = 0; s < 256; ++s) {
            const std::int64_t of = i % 2 == 0 ? s : 255 - s;
            const float scale = to_float(E4M3{static_cast<std::uint8_t>(of)});
            const float want = from_e2m1(static_cast<std::uint8_t>(i % 16)) * scale * 0.5F;
            const bool nan = s % 128 == 127 || (255 - s) % 128 == 127;  // either scale of the output
            const float got = y.get(i * 256 + s);
            ASSERT_TRUE(nan ? std::isnan(got) : got == want)
                << name << ", code " << i << " scale " << of << ": " << got;
          }
        }
      }
    }
  }
}

TEST(ProjectionNvfp4, WrongTensorsAreNamed) {
  test::ProjectionCase c;
  c.problem = {.m = 2, .n = 6, .k = 64, .groups = 3, .w = kNvfp4};
  const test::ProjectionTensors t(c);
  test::ProjectionBuffer y = t.poisoned_y();
  const auto text = [&](const auto& change) {
    Projection::Args args = t.args(y);
    change(args);
    return text_of([&] { run(c.problem, args, "ref"); });
  };
  EXPECT_EQ(text([](Projection::Args&) {}), "no error");
  EXPECT_EQ(text([](Projection::Args& a) { a.w.shape[2] = 64; }),
            "projection: w: got [3, 6, 64] U8, expected [3, 6, 32] U8");
  EXPECT_EQ(text([](Projection::Args& a) { a.w_scale.shape[2] = 1; }),
            "projection: w_scale: got [3, 6, 1] F8_E4M3, expected [3, 6, 4] F8_E4M3");
  EXPECT_EQ(text([](Projection::Args& a) { a.w_scale.dtype = DType::kF32; }),
            "projection: w_scale: got [3, 6, 4] F32, expected [3, 6, 4] F8_E4M3");
  EXPECT_EQ(text([](Projection::Args& a) { a.w_scale.stride[1] = 8; }),
            "projection: w_scale: got strides 24, 8, 1, expected contiguous");
  EXPECT_THAT(text([](Projection::Args& a) { a.w_scale = {}; }), HasSubstr("projection: w_scale: got"));
  EXPECT_THAT(text([](Projection::Args& a) { a.w_global_scale = {}; }), HasSubstr("projection: w_global_scale: got"));
  EXPECT_EQ(text([](Projection::Args& a) { a.w_global_scale.shape[0] = 2; }),
            "projection: w_global_scale: got [2] F32, expected [1] F32");
  EXPECT_EQ(text_of([&] { Plan<Projection>({.m = 2, .n = 6, .k = 24, .w = kNvfp4}); }),
            "projection: k: got 24, expected a multiple of 16, the inputs of a scale of NVFP4 w");
  test::ProjectionCase plain;
  plain.problem = {.m = 2, .n = 6, .k = 64, .groups = 3};
  const test::ProjectionTensors bf16(plain);
  Projection::Args args = bf16.args(y);
  args.w_global_scale = t.args(y).w_global_scale;
  EXPECT_EQ(text_of([&] { run(plain.problem, args, "ref"); }),
            "projection: w_global_scale: got [1] F32, expected none: w is BF16");
}

TEST(ProjectionNvfp4, AJointCallNamesThePart) {
  test::ProjectionCase c;
  c.problem = {.m = 2, .n = 6, .k = 64, .w = kNvfp4};
  const test::ProjectionTensors t(c);
  test::ProjectionBuffer y = t.poisoned_y();
  const Projection::Args part = t.args(y);
  JointProjection::Problem problem{.m = 2, .k = 64, .parts = 1};
  problem.part[0] = {.n = 6, .w = kNvfp4};
  JointProjection::Args args{.x = part.x};
  args.parts[0] = {.w = part.w, .y = part.y, .w_scale = part.w_scale, .w_global_scale = part.w_global_scale};
  const auto text = [&] {
    return text_of([&] { Plan<JointProjection>(problem, {.implementation = "ref"}).run(args); });
  };
  EXPECT_EQ(text(), "no error");
  args.parts[1].w_global_scale = part.w_global_scale;
  EXPECT_EQ(text(), "joint_projection: parts[1].w_global_scale: got [1] F32, expected none: there are 1 parts");
  args.parts[1].w_global_scale = {};
  args.parts[0].w_global_scale.shape[0] = 2;
  EXPECT_EQ(text(), "joint_projection: parts[0].w_global_scale: got [2] F32, expected [1] F32");
}

/// Where oneDNN multiplies bf16 weights it does NVFP4 ones, in calls of many rows: each widens them.
TEST(ProjectionNvfp4, OneDnnTakesManyRows) {
  const auto refusal = [](std::int64_t m, DType w) {
    for (const Candidate& candidate : explain<Projection>({.m = m, .n = 64, .k = 64, .w = w}))
      if (candidate.name == "onednn") return candidate.refusal;
    return std::string("no onednn");
  };
  if (const std::string none = refusal(64, DType::kE4M3); !none.empty()) GTEST_SKIP() << none;
  EXPECT_EQ(refusal(64, kNvfp4), "");
  EXPECT_EQ(refusal(32, kNvfp4), "");
  EXPECT_THAT(refusal(31, kNvfp4), HasSubstr("below 32 rows"));
}

TEST(ProjectionNvfp4, HasACaseForm) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "projection_nvfp4_cases";
  std::filesystem::remove_all(folder);
  record_calls(folder.string());
  test::ProjectionCase c;
  c.problem = {.m = 5, .n = 30, .k = 96, .groups = 2, .w = kNvfp4};
  const test::ProjectionTensors t(c);
  test::ProjectionBuffer y = t.poisoned_y();
  run(c.problem, t.args(y), "ref");
  record_calls("");
  int replayed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const CaseFile file = read_case(entry.path().string());
    if (file.op != Projection::kName) continue;
    for (const std::string implementation : {"ref", "cpu"}) {
      for (const Verdict& verdict : judge(file, replay(file, {.plan = {.implementation = implementation}})))
        EXPECT_TRUE(verdict.comparison.pass) << entry.path();
    }
    ++replayed;
  }
  EXPECT_EQ(replayed, 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace smla
