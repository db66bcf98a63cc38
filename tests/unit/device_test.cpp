#include "sparsemla/device.h"

#include <gtest/gtest.h>

#include <string>

#include "ops/decision.h"

namespace smla {
namespace {

TEST(Device, NamesGoBothWays) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) EXPECT_EQ(device_from_name(name_of(kind)), kind);
  EXPECT_THROW(device_from_name("gpu"), InvalidArgument);
}

TEST(Device, FeaturesAreConsistent) {
  const CpuFeatures& f = cpu_features();
  EXPECT_GE(f.cores, 1);
  EXPECT_FALSE(f.model.empty());
  EXPECT_TRUE(f.avx2 || !f.avx512) << "no processor has AVX-512 without AVX2";
  EXPECT_TRUE(f.avx512 || (!f.avx512_bf16 && !f.avx512_vbmi));
  EXPECT_EQ(&f, &cpu_features()) << "read once";
  const Machine machine;
  EXPECT_EQ(needs_avx2(machine).empty(), f.avx2);
  EXPECT_EQ(needs_avx512(machine).empty(), f.avx512);
  EXPECT_EQ(needs_avx512_bf16(machine).empty(), f.avx512_bf16 && f.avx512_vbmi);
}

TEST(Device, NoGpuHasAReason) {
  std::string reason;
  const std::vector<GpuInfo> found = gpus(&reason);
  if (found.empty()) {
    EXPECT_FALSE(reason.empty());
    if (!built_with_cuda()) {
      EXPECT_NE(reason.find("no CUDA"), std::string::npos) << reason;
    }
  }
  for (const GpuInfo& gpu : found) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.major, 0);
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_GT(gpu.memory_bytes, 0U);
  }
}

TEST(Device, ThreadsAsAskedOrAsManyAsThereAre) {
  EXPECT_EQ(resolve_threads(3), 3);
  EXPECT_GE(resolve_threads(0), 1);
}

}  // namespace
}  // namespace smla
