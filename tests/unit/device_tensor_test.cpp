#include "device/device_tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace smla {
namespace {

std::vector<float> numbers_of(const DeviceTensor& t) {
  const auto* p = static_cast<const float*>(t.data());
  return {p, p + t.bytes() / sizeof(float)};
}

TEST(DeviceTensor, ACopyHonoursStrides) {
  std::vector<float> memory(24);
  std::iota(memory.begin(), memory.end(), 0.0F);
  ConstTensorView whole = view_of(std::as_const(memory).data(), {2, 3, 4});
  EXPECT_EQ(numbers_of(DeviceTensor::copy_of(DeviceKind::kCpu, whole)), memory);
  const DeviceTensor some = DeviceTensor::copy_of(DeviceKind::kCpu, whole.slice(1, 1, 3).slice(2, 0, 2));
  EXPECT_EQ(some.shape(), (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(numbers_of(some), (std::vector<float>{4, 5, 8, 9, 16, 17, 20, 21}));

  ConstTensorView turned = view_of(std::as_const(memory).data(), {4, 3});
  turned.stride = {1, 4};
  EXPECT_EQ(numbers_of(DeviceTensor::copy_of(DeviceKind::kCpu, turned)),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_TRUE(DeviceTensor::copy_of(DeviceKind::kCpu, {}).absent());
  EXPECT_EQ(DeviceTensor::copy_of(DeviceKind::kCpu, whole.slice(0, 1, 1)).bytes(), 0U);
}

}  // namespace
}  // namespace smla
