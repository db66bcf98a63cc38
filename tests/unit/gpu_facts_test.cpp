// What a GPU must be for this library's kernels; with GPUs of the test's own.
#include <gtest/gtest.h>

#include "device/gpu.h"
#include "ops/decision.h"

namespace smla {
namespace {

TEST(GpuFacts, NeedSm80) {
  EXPECT_EQ("", device::needs_gpu({.ordinal = 0, .capability = 80}));
  EXPECT_EQ("", device::needs_gpu({.ordinal = 3, .capability = 120}));
  EXPECT_EQ("Old Card is sm_75, expected sm_80 or later",
            device::needs_gpu({.ordinal = 0, .capability = 75, .name = "Old Card"}));
}

TEST(GpuFacts, WithoutAGpuTheReasonIsTold) {
  EXPECT_TRUE(device::needs_gpu({}).starts_with("no GPU: ")) << device::needs_gpu({});
  if (!built_with_cuda()) {
    EXPECT_EQ("no GPU: this build has no CUDA", device::needs_gpu({}));
    EXPECT_FALSE(device::current_gpu().present());
  }
}

TEST(GpuFacts, HoppersKernelsRunOnHopperAlone) {
  EXPECT_EQ("", needs_sm90({.gpu = {.ordinal = 0, .capability = 90}}));
  EXPECT_EQ("it runs on sm_90, this is sm_100", needs_sm90({.gpu = {.ordinal = 0, .capability = 100}}));
  EXPECT_EQ("it runs on sm_90, this is sm_80", needs_sm90({.gpu = {.ordinal = 0, .capability = 80}}));
  EXPECT_TRUE(needs_sm90({}).starts_with("no GPU: "));
}

/// A decision is made for the machine that it is asked for, not for the one it is made on.
TEST(GpuFacts, ACpuWithoutAvxIsAMachineToo) {
  const CpuFeatures plain{.model = "plain"};
  Machine machine;
  machine.cpu = &plain;
  EXPECT_EQ("this CPU has no AVX2 + FMA", needs_avx2(machine));
  EXPECT_EQ("this CPU has no AVX-512 F/BW/DQ/VL", needs_avx512(machine));
}

}  // namespace
}  // namespace smla
