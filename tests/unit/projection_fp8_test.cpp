// FP8 operands of the projection: what InverseRopeQuant and QuantizeRows write goes in as it is, and so do a
// checkpoint's weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "cases/case_file.h"
#include "cases/replay.h"
#include "core/host_tensor.h"
#include "parity/projection_cases.h"
#include "sparsemla/case.h"
#include "sparsemla/ops/projection.h"

namespace smla {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kTokens = 7, kHeads = 4, kGroups = 2, kDim = 512, kOutputs = 9, kWidth = kHeads / kGroups * kDim;

/// A quantised attention output and the weights of its grouped projection.
struct Quantised {
  OutputScale scale;
  HostTensor rotated{DType::kF32, {kTokens, kHeads, kDim}}, values{DType::kE4M3, {kGroups, kTokens, kWidth}}, scales,
      w{DType::kBF16, {kGroups, kOutputs, kWidth}};

  explicit Quantised(OutputScale form) : scale(form) {
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    HostTensor o(DType::kBF16, {kTokens, kHeads, kDim});
    HostTensor positions(DType::kI64, {kTokens});
    HostTensor cos_sin(DType::kF32, {kTokens, 64});
    for (std::int64_t i = 0; i < o.numel(); ++i)
      o.as<BF16>()[i] = to_bf16(normal(random) * (i % 700 < 128 ? 1e-3F : 1.0F));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      positions.as<std::int64_t>()[t] = t;
      for (std::int64_t i = 0; i < 32; ++i) {
        cos_sin.as<float>()[t * 64 + i] = std::cos(static_cast<float>(t * i));
        cos_sin.as<float>()[t * 64 + 32 + i] = std::sin(static_cast<float>(t * i));
      }
    }
    for (std::int64_t i = 0; i < w.numel(); ++i) w.as<BF16>()[i] = to_bf16(normal(random));
    const bool packed = form == OutputScale::kUe8m0x4;
    const std::int64_t chunks = kWidth / InverseRopeQuant::kGroup;
    scales = HostTensor(packed ? DType::kI32 : DType::kF32,
                        {kGroups, packed ? (chunks + 3) / 4 : chunks, (kTokens + 3) / 4 * 4});
    Plan<InverseRopeQuant>({.tokens = kTokens, .heads = kHeads, .groups = kGroups, .scale = form})
        .run({.x = o.view(),
              .positions = positions.view(),
              .cos_sin = cos_sin.view(),
              .values = values.view(),
              .scales = scales.view()});
    Plan<InverseRope>({.tokens = kTokens, .heads = kHeads, .out = DType::kF32})
        .run({.x = o.view(), .positions = positions.view(), .cos_sin = cos_sin.view(), .y = rotated.view()});
  }
  Projection::Problem problem(DType y = DType::kF32) const {
    return {.m = kTokens, .n = kOutputs, .k = kWidth, .groups = kGroups, .x = DType::kE4M3, .y = y, .x_scale = scale};
  }
  Projection::Args args(HostTensor& y) const {
    ConstTensorView x(values.data(), DType::kE4M3, {kTokens, kGroups, kWidth});
    x.stride = {kWidth, kTokens * kWidth, 1};
    return {.x = x, .w = w.view(), .y = y.view(), .x_scale = scales.view()};
  }
};

void run(const Projection::Problem& problem, const Projection::Args& args, const std::string& implementation) {
  const Plan<Projection> plan(problem, {.implementation = implementation, .threads = 2});
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()});
}

TEST(ProjectionFp8, ProjectsTheRotatedOutputUpToFp8Rounding) {
  for (const OutputScale form : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    const Quantised q(form);
    for (const Candidate& candidate : explain<Projection>(q.problem())) {
      if (!candidate.refusal.empty()) continue;
      HostTensor y(DType::kF32, {kTokens, kGroups, kOutputs});
      run(q.problem(), q.args(y), candidate.name);
      double off = 0.0;
      double size = 0.0;
      for (std::int64_t i = 0; i < y.numel(); ++i) {
        const std::int64_t t = i / (kGroups * kOutputs);
        const std::int64_t g = i / kOutputs % kGroups;
        double want = 0.0;
        for (std::int64_t k = 0; k < kWidth; ++k) {
          want += static_cast<double>(q.rotated.as<float>()[t * kHeads * kDim + g * kWidth + k]) *
                  static_cast<double>(to_float(q.w.as<BF16>()[(g * kOutputs + i % kOutputs) * kWidth + k]));
        }
        off += (static_cast<double>(y.as<float>()[i]) - want) * (static_cast<double>(y.as<float>()[i]) - want);
        size += want * want;
      }
      EXPECT_LT(std::sqrt(off / size), 0.04) << candidate.name;  // e4m3: half a step of 1/8, spread over many inputs
      EXPECT_GT(off, 0.0);
    }
  }
}

TEST(ProjectionFp8, BothScaleFormsGiveTheSameBits) {
  const Quantised floats(OutputScale::kF32);
  const Quantised packed(OutputScale::kUe8m0x4);
  for (const Candidate& candidate : explain<Projection>(floats.problem())) {
    if (!candidate.refusal.empty()) continue;
    HostTensor a(DType::kF32, {kTokens, kGroups, kOutputs});
    HostTensor b(DType::kF32, {kTokens, kGroups, kOutputs});
    run(floats.problem(), floats.args(a), candidate.name);
    run(packed.problem(), packed.args(b), candidate.name);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << candidate.name;
  }
}

/// oneDNN has no products of E4M3 with the library's scales, whatever the CPU.
TEST(ProjectionFp8, OneDnnRefuses) {
  const auto refusal = [](const Projection::Problem& problem) {
    for (const Candidate& candidate : explain<Projection>(problem)) {
      if (candidate.name == "onednn") return candidate.refusal;
    }
    return std::string("no such implementation");
  };
  const std::string fp8 = refusal(Quantised(OutputScale::kF32).problem(DType::kBF16));
  if (fp8.starts_with("this build has no oneDNN")) GTEST_SKIP() << fp8;
  EXPECT_THAT(fp8, HasSubstr("only BF16 x BF16, F8_E4M3 or NVFP4"));
  // The dtype is what it refuses: as many numbers in bf16 are refused for no such reason.
  Projection::Problem bf16 = Quantised(OutputScale::kF32).problem(DType::kBF16);
  bf16.x = DType::kBF16;
  EXPECT_THAT(refusal(bf16), Not(HasSubstr("only BF16 x BF16, F8_E4M3 or NVFP4")));
}

TEST(ProjectionFp8, WrongScalesAreNamed) {
  const Quantised q(OutputScale::kF32);
  HostTensor y(DType::kF32, {kTokens, kGroups, kOutputs});
  const auto text = [&](const Projection::Problem& problem, const Projection::Args& args) {
    try {
      run(problem, args, "ref");
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Projection::Args bad = q.args(y);
  EXPECT_EQ(text(q.problem(), bad), "no error");
  bad.x_scale = {};
  EXPECT_THAT(text(q.problem(), bad), HasSubstr("projection: x_scale: got"));
  bad = q.args(y);
  bad.x_scale.shape[2] = kTokens - 1;
  EXPECT_EQ(text(q.problem(), bad),
            "projection: x_scale: got [2, 8, 6] F32, expected at least 7 rows in its last dimension");
  bad = q.args(y);
  bad.x_scale.shape[1] = 7;
  EXPECT_THAT(text(q.problem(), bad), HasSubstr("projection: x_scale: got [2, 7, 8] F32, expected [2, 8, "));
  bad = q.args(y);
  bad.x_scale.dtype = DType::kI32;
  EXPECT_THAT(text(q.problem(), bad), HasSubstr("projection: x_scale: got [2, 8, 8] I32"));
  bad = q.args(y);
  bad.x_scale.stride[1] = -8;
  EXPECT_THAT(text(q.problem(), bad),
              HasSubstr("projection: x_scale: got strides 64, -8, 1, expected no negative stride"));
  Projection::Problem odd = q.problem();
  odd.k = 100;
  EXPECT_EQ(text(odd, q.args(y)),
            "projection: k: got 100, expected a multiple of 128, the inputs of a scale of F8_E4M3 x");
  Projection::Problem plain = q.problem();
  plain.x = DType::kBF16;
  bad = q.args(y);
  HostTensor bf16(DType::kBF16, {kTokens, kGroups, kWidth});
  bad.x = bf16.view();
  EXPECT_EQ(text(plain, bad), "projection: x_scale: got [2, 8, 8] F32, expected none: x is BF16");
}

/// [groups, n, k] in double.
double weight_at(const test::ProjectionTensors& t, std::int64_t g, std::int64_t n, std::int64_t k) {
  const Projection::Problem& p = t.problem;
  const double code = static_cast<double>(to_float(static_cast<const E4M3*>(t.w.data())[(g * p.n + n) * p.k + k]));
  return code * static_cast<double>(t.w_scales.get((g * t.w_scale_rows + n / 128) * t.w_scale_stride + k / 128));
}

TEST(ProjectionFp8, WeightsAreCodesTimesTheScaleOfTheirBlock) {
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{200, 384}, {129, 130}, {1, 1}, {128, 128}}) {
    test::ProjectionCase c;
    c.problem = {.m = 3, .n = n, .k = k, .groups = 2, .x = DType::kF32, .w = DType::kE4M3, .y = DType::kF32};
    c.w_scale_gap = 2;
    const test::ProjectionTensors t(c);
    test::ProjectionBuffer y = t.poisoned_y();
    run(c.problem, t.args(y), "ref");
    test::check_written(t, y);
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t g = 0; g < 2; ++g) {
        for (std::int64_t j = 0; j < n; ++j) {
          double want = 0.0;
          for (std::int64_t l = 0; l < k; ++l)
            want += static_cast<double>(t.x.get(i * t.x_row + g * k + l)) * weight_at(t, g, j, l);
          ASSERT_EQ(y.get(t.y_at(i, g, j)), static_cast<float>(want))
              << n << " x " << k << " row " << i << " output " << j;
        }
      }
    }
  }
}

/// Names of the implementations that take a problem here.
std::vector<std::string> takers(const Projection::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<Projection>(problem)) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

/// Every code, of every inputs' place in a register, on the paths of one row, of few rows and of many; times scales
/// that have a table of bf16 numbers in avx512_bf16, the ends of their range, and others.
TEST(ProjectionFp8, EveryCodeIsItsNumber) {
  constexpr std::int64_t kInputs = 300;
  for (const auto& [x, scale] : {std::pair{DType::kF32, 0.375F},
                                 {DType::kBF16, 0.375F},
                                 {DType::kBF16, 0.25F},
                                 {DType::kBF16, 0x1p-117F},
                                 {DType::kBF16, 0x1p118F},
                                 {DType::kBF16, 0x1p119F},
                                 {DType::kBF16, 0x1p-118F},
                                 {DType::kBF16, -0.5F}}) {
    for (const std::int64_t m : {1, 3, 6, 23, 40}) {
      test::ProjectionCase c;
      c.problem = {.m = m, .n = 256, .k = kInputs, .groups = 1, .x = x, .w = DType::kE4M3, .y = DType::kF32};
      test::ProjectionTensors t(c);
      auto* codes = static_cast<E4M3*>(t.w.data());
      for (std::int64_t j = 0; j < 256; ++j) {
        for (std::int64_t l = 0; l < kInputs; ++l)
          codes[j * kInputs + l] = E4M3{static_cast<std::uint8_t>((j + l) % 128 == 127 ? 0 : j + l)};
      }
      for (std::int64_t i = 0; i < m; ++i) {  // row i sees one input
        for (std::int64_t l = 0; l < kInputs; ++l) t.x.set(i * t.x_row + l, l == (7 * i + 13) % kInputs ? 1.0F : 0.0F);
      }
      for (std::int64_t s = 0; s < t.w_scales.elements(); ++s) t.w_scales.set(s, scale);
      const std::vector<std::string> names = takers(c.problem);
      EXPECT_GE(names.size(), 2U);
      for (const std::string& name : names) {
        test::ProjectionBuffer y = t.poisoned_y();
        run(c.problem, t.args(y), name);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < 256; ++j)
            ASSERT_EQ(y.get(t.y_at(i, 0, j)), to_float(codes[j * kInputs + (7 * i + 13) % kInputs]) * scale)
                << name << " row " << i << " of " << m << " output " << j << " scale " << scale;
        }
      }
    }
  }
}

/// Powers of two as scales: what oneDNN and avx512_bf16 take. Others, and those at the ends of the range, go another
/// way.
TEST(ProjectionFp8, PowersOfTwoAndOtherScales) {
  for (const float scale : {0x1p-9F, 0x1p-115F, 0x1p-118F, 0x1.8p-9F, -0x1p-9F}) {
    for (const auto& [m, n, k, groups] : {std::array<std::int64_t, 4>{1, 5, 64, 1},
                                          {2, 1023, 1025, 1},
                                          {7, 131, 333, 2},
                                          {24, 600, 1500, 1},
                                          {40, 300, 200, 2},
                                          {33, 1100, 5000, 1},
                                          {600, 40, 100, 1}}) {
      for (const DType out : {DType::kBF16, DType::kF32}) {
        test::ProjectionCase c;
        c.problem = {.m = m, .n = n, .k = k, .groups = groups, .x = DType::kBF16, .w = DType::kE4M3, .y = out};
        c.x_gap = m % 3;
        c.y_gap = m % 5;
        test::ProjectionTensors t(c);
        for (std::int64_t s = 0; s < t.w_scales.elements(); ++s) t.w_scales.set(s, s % 2 == 0 ? scale : 0x1p-9F);
        test::ProjectionBuffer truth = t.poisoned_y();
        run(c.problem, t.args(truth), "ref");
        for (const std::string& name : takers(c.problem)) {
          SCOPED_TRACE(name + ", scale " + std::to_string(scale) + ", m " + std::to_string(m));
          test::ProjectionBuffer y = t.poisoned_y();
          run(c.problem, t.args(y), name);
          test::check_written(t, y);
          test::check_close(t, y, truth, name);
        }
      }
    }
  }
}

TEST(ProjectionFp8, ACodeThatIsNoNumberSpoilsItsOutputAlone) {
  for (const std::int64_t m : {1, 5, 40}) {
    for (const std::int64_t at : {0, 70, 1023, 1024, 1099}) {
      test::ProjectionCase c;
      c.problem = {.m = m, .n = 9, .k = 1100, .groups = 1, .x = DType::kBF16, .w = DType::kE4M3, .y = DType::kF32};
      test::ProjectionTensors t(c);
      for (std::int64_t i = 0; i < m; ++i) t.x.set(i * t.x_row + at, 0.0F);
      static_cast<E4M3*>(t.w.data())[5 * 1100 + at] = E4M3{static_cast<std::uint8_t>(at % 2 == 0 ? 0x7F : 0xFF)};
      for (const std::string& name : takers(c.problem)) {
        test::ProjectionBuffer y = t.poisoned_y();
        run(c.problem, t.args(y), name);
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < 9; ++j)
            ASSERT_EQ(std::isnan(y.get(t.y_at(i, 0, j))), j == 5) << name << " row " << i << " output " << j;
        }
      }
    }
  }
}

TEST(ProjectionFp8, ScalesOfAnySize) {
  for (const float scale : {0x1p-120F, 0x1.8p-20F, 0x1.fffffep6F, 0x1p7F, 0x1.4p8F, 0x1p100F}) {
    for (const std::int64_t m : {1, 4, 30}) {
      test::ProjectionCase c;
      c.problem = {.m = m, .n = 140, .k = 260, .groups = 2, .x = DType::kF32, .w = DType::kE4M3, .y = DType::kF32};
      test::ProjectionTensors t(c);
      t.w_scales.set(3, scale);  // of the second block of outputs
      test::ProjectionBuffer truth = t.poisoned_y();
      run(c.problem, t.args(truth), "ref");
      for (const std::string& name : takers(c.problem)) {
        SCOPED_TRACE(name + ", scale " + std::to_string(scale));
        test::ProjectionBuffer y = t.poisoned_y();
        run(c.problem, t.args(y), name);
        test::check_close(t, y, truth, name);
        for (std::int64_t i = 0; i < m; ++i) {  // the small ones beside it
          for (std::int64_t j = 0; j < 128; ++j) {
            const float want = truth.get(t.y_at(i, 0, j));
            ASSERT_NEAR(y.get(t.y_at(i, 0, j)), want, 1e-5F) << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST(ProjectionFp8, WrongWeightScalesAreNamed) {
  test::ProjectionCase c;
  c.problem = {.m = 2, .n = 200, .k = 384, .groups = 2, .w = DType::kE4M3};
  const test::ProjectionTensors t(c);
  test::ProjectionBuffer y = t.poisoned_y();
  const auto text = [&](const Projection::Problem& problem, const Projection::Args& args) {
    try {
      run(problem, args, "ref");
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text(c.problem, t.args(y)), "no error");
  Projection::Args bad = t.args(y);
  bad.w_scale = {};
  EXPECT_THAT(text(c.problem, bad), HasSubstr("projection: w_scale: got"));
  bad = t.args(y);
  bad.w_scale.shape[1] = 1;
  EXPECT_EQ(text(c.problem, bad), "projection: w_scale: got [2, 1, 3] F32, expected [2, 2, 3] F32");
  bad = t.args(y);
  bad.w_scale.dtype = DType::kBF16;
  EXPECT_THAT(text(c.problem, bad), HasSubstr("projection: w_scale: got [2, 2, 3] BF16, expected [2, 2, 3] F32"));
  bad = t.args(y);
  bad.w_scale.stride[1] = -3;
  EXPECT_EQ(text(c.problem, bad), "projection: w_scale: got strides 6, -3, 1, expected no negative stride");
  Projection::Problem plain = c.problem;
  plain.w = DType::kBF16;
  bad = t.args(y);
  const HostTensor w(DType::kBF16, {2, 200, 384});
  bad.w = w.view();
  EXPECT_EQ(text(plain, bad), "projection: w_scale: got [2, 2, 3] F32, expected none: w is BF16");
  plain.w = DType::kI32;
  EXPECT_EQ(text(plain, bad), "projection: w: got dtype I32, expected BF16, F32, F8_E4M3 or U8, which is NVFP4");
}

TEST(ProjectionFp8, HasACaseForm) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "projection_fp8_cases";
  std::filesystem::remove_all(folder);
  record_calls(folder.string());
  for (const OutputScale form : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    const Quantised q(form);
    HostTensor y(DType::kBF16, {kTokens, kGroups, kOutputs});
    run(q.problem(DType::kBF16), q.args(y), "ref");
  }
  test::ProjectionCase both;
  both.problem = {.m = 5, .n = 130, .k = 256, .groups = 2, .x = DType::kE4M3, .w = DType::kE4M3};
  both.w_scale_gap = 1;
  const test::ProjectionTensors tensors(both);
  test::ProjectionBuffer product = tensors.poisoned_y();
  run(both.problem, tensors.args(product), "ref");
  record_calls("");
  int replayed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const CaseFile file = read_case(entry.path().string());
    if (file.op != Projection::kName) continue;
    for (const std::string implementation : {"ref", "cpu"}) {
      for (const Verdict& verdict : judge(file, replay(file, {.plan = {.implementation = implementation}}))) {
        EXPECT_TRUE(verdict.comparison.pass) << entry.path();
      }
    }
    ++replayed;
  }
  EXPECT_EQ(replayed, 3);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace smla
