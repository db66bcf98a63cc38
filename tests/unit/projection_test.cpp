#include "sparsemla/ops/projection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/host_tensor.h"

namespace smla {
namespace {

using ::testing::HasSubstr;

struct Memory {
  explicit Memory(std::size_t bytes) : data(bytes + 64) {}
  Workspace workspace() {
    const std::size_t shift = (64 - reinterpret_cast<std::uintptr_t>(data.data()) % 64) % 64;
    return {.data = data.data() + shift, .bytes = data.size() - 64};
  }
  std::vector<unsigned char> data;
};

void run(const Projection::Problem& problem, const Projection::Args& args, const PlanOptions& options) {
  const Plan<Projection> plan(problem, options);
  Memory memory(plan.workspace_bytes());
  plan.run(args, memory.workspace());
}

std::vector<std::string> accepting(const Projection::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& c : explain<Projection>(problem)) {
    if (c.refusal.empty()) names.push_back(c.name);
  }
  return names;
}

std::string message_of(const Projection::Problem& problem, const Projection::Args& args) {
  try {
    run(problem, args, {.implementation = "cpu"});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Projection, GroupsByHand) {
  // Two rows, two groups: y[m, g, n] = sum_k x[m, g, k] * w[g, n, k].
  const std::vector<float> x{1, 2, 3, /**/ 4, 5, 6, /* row 1 */ -1, 0, 1, /**/ 2, 0, -2};
  const std::vector<float> w{1, 1, 1, 0, 1, 0, /* group 1 */ 2, 0, 0, 1, 2, 3};
  const std::vector<float> expected{6, 2, /**/ 8, 32, /* row 1 */ 0, 0, /**/ 4, -4};
  const Projection::Problem problem{
      .m = 2, .n = 2, .k = 3, .groups = 2, .x = DType::kF32, .w = DType::kF32, .y = DType::kF32};
  for (const std::string& name : accepting(problem)) {
    std::vector<float> y(8, NAN);
    run(problem,
        {.x = view_of(x.data(), {2, 2, 3}), .w = view_of(w.data(), {2, 2, 3}), .y = view_of(y.data(), {2, 2, 2})},
        {.implementation = name});
    EXPECT_EQ(y, expected) << name;
  }
}

TEST(Projection, NoInputsGiveZeros) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Projection::Problem problem{.m = 3, .n = 4, .k = 0, .groups = 1, .y = type};
    for (const std::string& name : accepting(problem)) {
      std::vector<float> y(12, NAN);
      run(problem,
          {.x = ConstTensorView(nullptr, DType::kBF16, {3, 1, 0}),
           .w = ConstTensorView(nullptr, DType::kBF16, {1, 4, 0}),
           .y = TensorView(y.data(), type, {3, 1, 4})},
          {.implementation = name});
      const std::size_t written = type == DType::kF32 ? 12 : 6;
      for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(y[i] == 0.0F, i < written) << name << " " << i;
    }
  }
}

TEST(Projection, NoRowsOrNoOutputsNeedNoData) {
  for (const Projection::Problem& problem :
       {Projection::Problem{.m = 0, .n = 4, .k = 8}, Projection::Problem{.m = 4, .n = 0, .k = 8}}) {
    std::vector<BF16> some(64);
    for (const std::string& name : accepting(problem)) {
      Projection::Args args;
      args.x = ConstTensorView(some.data(), DType::kBF16, {problem.m, 1, 8});
      args.w = ConstTensorView(some.data(), DType::kBF16, {1, problem.n, 8});
      args.y = TensorView(nullptr, DType::kBF16, {problem.m, 1, problem.n});
      EXPECT_NO_THROW(run(problem, args, {.implementation = name})) << name;
    }
  }
}

TEST(Projection, RefRoundsOnce) {
  // 1 + 2^-8 is a tie between two bfloat16 numbers; 2^-40 more is lost in a float, but decides the tie in one rounding.
  const std::vector<float> x{1.0F, 0x1p-8F, 0x1p-40F};
  const std::vector<float> w{1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 0.0F, -1.0F, -1.0F, -1.0F};
  std::vector<BF16> y(3);
  run({.m = 1, .n = 3, .k = 3, .x = DType::kF32, .w = DType::kF32},
      {.x = view_of(x.data(), {1, 1, 3}), .w = view_of(w.data(), {1, 3, 3}), .y = view_of(y.data(), {1, 1, 3})},
      {.implementation = "ref"});
  EXPECT_EQ(to_float(y[0]), 1.0F + 0x1p-7F);
  EXPECT_EQ(to_float(y[1]), 1.0F);
  EXPECT_EQ(to_float(y[2]), -1.0F - 0x1p-7F);
}

TEST(Projection, NanAndInfinityReachOnlyTheirRow) {
  const std::int64_t m = 9;
  const std::int64_t n = 5;
  const std::int64_t k = 37;
  std::vector<float> x(static_cast<std::size_t>(m * k), 1.0F);
  x[static_cast<std::size_t>(2 * k + 36)] = std::numeric_limits<float>::quiet_NaN();
  x[static_cast<std::size_t>(4 * k)] = std::numeric_limits<float>::infinity();
  const std::vector<BF16> w(static_cast<std::size_t>(n * k), to_bf16(1.0F));
  const Projection::Problem problem{.m = m, .n = n, .k = k, .x = DType::kF32};
  for (const std::string& name : accepting(problem)) {
    std::vector<BF16> y(static_cast<std::size_t>(m * n));
    run(problem,
        {.x = view_of(x.data(), {m, 1, k}), .w = view_of(w.data(), {1, n, k}), .y = view_of(y.data(), {m, 1, n})},
        {.implementation = name});
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const float v = to_float(y[static_cast<std::size_t>(i * n + j)]);
        if (i == 2) {
          EXPECT_TRUE(std::isnan(v)) << name;
        } else if (i == 4) {
          EXPECT_TRUE(std::isinf(v)) << name;
        } else {
          EXPECT_EQ(v, 37.0F) << name << " row " << i;
        }
      }
    }
  }
}

TEST(Projection, ImpossibleProblemsAreNamed) {
  const auto text = [](const Projection::Problem& problem) {
    try {
      const Plan<Projection> plan(problem);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(text({.m = -1, .n = 1, .k = 1}), "projection: m: got -1, expected at least 0");
  EXPECT_EQ(text({.m = 1, .n = 1, .k = 1, .groups = 0}), "projection: groups: got 0, expected at least 1");
  EXPECT_EQ(text({.m = 1, .n = 1, .k = 1, .w = DType::kI32}),
            "projection: w: got dtype I32, expected BF16, F32, F8_E4M3 or U8, which is NVFP4");
  EXPECT_THAT(text({.m = 1, .n = std::int64_t{1} << 40, .k = std::int64_t{1} << 40}),
              HasSubstr("projection: w: got 1 x 1099511627776 x 1099511627776"));
}

TEST(Projection, WrongTensorsAreNamed) {
  const Projection::Problem problem{.m = 2, .n = 4, .k = 8, .groups = 2};
  std::vector<BF16> memory(512);
  Projection::Args good{.x = view_of<const BF16>(memory.data(), {2, 2, 8}),
                        .w = view_of<const BF16>(memory.data(), {2, 4, 8}),
                        .y = view_of(memory.data() + 256, {2, 2, 4})};
  EXPECT_EQ(message_of(problem, good), "no error");

  Projection::Args bad = good;
  bad.x = view_of<const BF16>(memory.data(), {2, 2, 7});
  EXPECT_EQ(message_of(problem, bad), "projection: x: got [2, 2, 7] BF16, expected [2, 2, 8] BF16");
  bad = good;
  bad.x.stride[0] = -16;
  EXPECT_THAT(message_of(problem, bad), HasSubstr("projection: x: got strides -16, 8, 1, expected no negative stride"));
  bad = good;
  bad.w.stride[1] = 9;
  EXPECT_THAT(message_of(problem, bad), HasSubstr("projection: w: got strides 32, 9, 1, expected contiguous"));
  bad = good;
  bad.y.dtype = DType::kF32;
  EXPECT_THAT(message_of(problem, bad), HasSubstr("projection: y: got [2, 2, 4] F32"));
  bad = good;
  bad.y.stride[0] = 7;
  EXPECT_THAT(message_of(problem, bad),
              HasSubstr("projection: y: got strides 7, 4, 1, expected rows that do not overlap"));
  bad = good;
  bad.y.stride = {4, 8, 1};  // groups outside
  EXPECT_EQ(message_of(problem, bad), "no error");
  bad = good;
  bad.y.data = nullptr;
  EXPECT_THAT(message_of(problem, bad), HasSubstr("without data"));
}

TEST(Projection, WrongQuantisedOutputsAreNamed) {
  Projection::Problem problem{.m = 2, .n = 128, .k = 8, .groups = 2};
  std::vector<BF16> memory(1024);
  std::vector<BF16> weights(2048);
  HostTensor values(DType::kE4M3, {2, 256});
  HostTensor scales(DType::kF32, {1, 2, 4});
  Projection::Args good{.x = view_of<const BF16>(memory.data(), {2, 2, 8}),
                        .w = view_of<const BF16>(weights.data(), {2, 128, 8}),
                        .y = view_of(memory.data() + 32, {2, 2, 128})};
  EXPECT_EQ(message_of(problem, good), "no error");
  Projection::Args bad = good;
  bad.y_values = values.view();
  EXPECT_EQ(message_of(problem, bad), "projection: y_values: got [2, 256] F8_E4M3, expected none without quantises_y");
  problem.quantises_y = true;
  good.y_values = values.view();
  good.y_scales = scales.view();
  EXPECT_EQ(message_of(problem, good), "no error");
  bad = good;
  bad.y_scales.shape[2] = 2;
  EXPECT_EQ(message_of(problem, bad), "projection: y_scales: got [1, 2, 2] F32, expected [1, 2, 4] F32");
  bad = good;
  bad.y_values.stride[0] = 128;
  EXPECT_EQ(message_of(problem, bad), "projection: y_values: got stride 128, expected rows that do not overlap");
  bad = good;
  bad.y.stride = {128, 256, 1};  // groups outside
  EXPECT_EQ(message_of(problem, bad),
            "projection: y: got strides 128, 256, 1, expected a second stride of 128 with quantises_y");
  problem.n = 100;
  EXPECT_EQ(message_of(problem, good), "projection: n: got 100, expected a multiple of 128 with quantises_y");
}

TEST(Projection, WorkspaceIsChecked) {
  const Projection::Problem problem{.m = 2, .n = 4, .k = 8};
  std::vector<BF16> memory(128);
  const Plan<Projection> plan(problem, {.implementation = "cpu"});
  ASSERT_GT(plan.workspace_bytes(), 0U);
  const Projection::Args args{.x = view_of<const BF16>(memory.data(), {2, 1, 8}),
                              .w = view_of<const BF16>(memory.data(), {1, 4, 8}),
                              .y = view_of(memory.data() + 64, {2, 1, 4})};
  EXPECT_THROW(plan.run(args), InvalidArgument);
}

TEST(Projection, OneDnnStandsBackWhereItMust) {
  const auto refusal = [](const Projection::Problem& problem, const PlanOptions& options) {
    for (const Candidate& c : explain<Projection>(problem, options)) {
      if (c.name == "onednn") return c.refusal;
    }
    return std::string("missing");
  };
  PlanOptions steady;
  steady.deterministic = true;
  const Projection::Problem large{.m = 128, .n = 256, .k = 256};
  EXPECT_NE(refusal(large, steady), "");
  Projection::Problem floats = large;
  floats.x = DType::kF32;
  EXPECT_NE(refusal(floats, {}), "") << "x must not be rounded to bfloat16";
  EXPECT_NE(refusal({.m = 1, .n = 256, .k = 256}, {}), "");
  EXPECT_NE(Plan<Projection>(large, steady).implementation(), "onednn");
  steady.implementation = "onednn";
  EXPECT_THROW(Plan<Projection>(large, steady), Unsupported);
}

/// What adds in another order than the implementation of more rows does not run where bits count.
TEST(Projection, DotProductsOfPairsStandBackWhereTheyMust) {
  const auto refusal = [](const Projection::Problem& problem, bool deterministic = false) {
    for (const Candidate& c : explain<Projection>(problem, {.deterministic = deterministic})) {
      if (c.name == "avx512_bf16") return c.refusal;
    }
    return std::string("no such implementation");
  };
  const Projection::Problem few{.m = 24, .n = 64, .k = 256};
  EXPECT_THAT(refusal({.m = 24, .n = 64, .k = 256}, true), HasSubstr("a row's bits could depend on its neighbours"));
  EXPECT_EQ(refusal({.m = 25, .n = 64, .k = 256}), "got m = 25, expected 5 to 24");
  EXPECT_EQ(refusal({.m = 4, .n = 64, .k = 256}), "got m = 4, expected 5 to 24");
  EXPECT_EQ(refusal({.m = 25, .n = 64, .k = 256, .w = DType::kE4M3}), "got m = 25, expected 0 to 24");
  EXPECT_EQ(refusal({.m = 9, .n = 64, .k = 256, .x = DType::kF32}), "only BF16 x; BF16, F8_E4M3 or NVFP4 w");
  EXPECT_EQ(refusal({.m = 9, .n = 64, .k = 256, .w = DType::kF32}), "only BF16 x; BF16, F8_E4M3 or NVFP4 w");
  const CpuFeatures& cpu = cpu_features();
  const bool has = cpu.avx512_bf16 && cpu.avx512_vbmi;
  EXPECT_EQ(refusal(few), has ? "" : "this CPU has no AVX-512 BF16 and VBMI");
  if (has) {
    EXPECT_EQ(Plan<Projection>(few).implementation(), "avx512_bf16");
    EXPECT_EQ(Plan<Projection>({.m = 1, .n = 64, .k = 256, .w = DType::kE4M3}).implementation(), "avx512_bf16");
  }
}

TEST(Projection, SizesThatOneDnnCannotCountArePlannedWithoutIt) {
  const Plan<Projection> plan({.m = 200, .n = 512, .k = std::int64_t{1} << 32});
  EXPECT_NE(plan.implementation(), "onednn");
  EXPECT_NE(Plan<Projection>({.m = 200, .n = std::int64_t{1} << 31, .k = 512}).implementation(), "onednn");
}

TEST(Projection, OneDnnKeepsTheCallersThreadsAndMayRunConcurrently) {
  const Projection::Problem probe{.m = 64, .n = 96, .k = 128};
  const std::vector<std::string> names = accepting(probe);
  if (std::find(names.begin(), names.end(), "onednn") == names.end()) GTEST_SKIP() << "SKIP: oneDNN does not run here";
  const auto work = [](std::int64_t first) {
    for (std::int64_t m = first; m < first + 12; ++m) {
      const std::vector<BF16> x(static_cast<std::size_t>(m * 128), to_bf16(1.0F));
      const std::vector<BF16> w(96 * 128, to_bf16(0.5F));
      std::vector<BF16> y(static_cast<std::size_t>(m * 96));
      const int before = omp_get_max_threads();
      run({.m = m, .n = 96, .k = 128},
          {.x = view_of(x.data(), {m, 1, 128}),
           .w = view_of(w.data(), {1, 96, 128}),
           .y = view_of(y.data(), {m, 1, 96})},
          {.implementation = "onednn", .threads = before + 1});
      EXPECT_EQ(omp_get_max_threads(), before);
      for (const BF16 v : y) ASSERT_EQ(to_float(v), 64.0F);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, 40 + 6 * i);
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace smla
