#include "device/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/check.h"
#include "device/cuda_memory.h"
#include "device/gpu.h"

namespace smla {

DeviceMemory::DeviceMemory(DeviceKind device, std::size_t bytes, bool zeroed) : bytes_(bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
  void* p = device == DeviceKind::kCpu ? std::aligned_alloc(64, rounded) : cuda_allocate(rounded);
  if (p == nullptr) throw std::bad_alloc();
  data_ = std::unique_ptr<void, FreeDeviceMemory>(p, FreeDeviceMemory(device));
  if (!zeroed) return;
  fill_bytes(device, p, 0, rounded);
  synchronize(device);
}

void FreeDeviceMemory::operator()(void* p) const { device == DeviceKind::kCpu ? std::free(p) : cuda_free(p); }

void copy_bytes(DeviceKind device, void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  if (device == DeviceKind::kCpu) {
    std::memcpy(to, from, bytes);
  } else {
    cuda_copy(to, from, bytes, stream);
  }
}

void fill_bytes(DeviceKind device, void* to, int byte, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  if (device == DeviceKind::kCpu) {
    std::memset(to, byte, bytes);
  } else {
    cuda_fill(to, byte, bytes, stream);
  }
}

void synchronize(DeviceKind device, Stream stream) {
  if (device == DeviceKind::kCuda) cuda_synchronize(stream);
}

int current_device(DeviceKind device) { return device == DeviceKind::kCpu ? 0 : device::current_gpu().ordinal; }

void check_current_device(std::string_view what, DeviceKind device, int expected) {
  const int current = current_device(device);
  check_that(current == expected || device == DeviceKind::kCpu, what, "current GPU", current,
             std::to_string(expected) + ", the one it was made on");
}

void make_current(int ordinal) { cuda_set_device(ordinal); }

CurrentDevice::CurrentDevice(DeviceKind device, int ordinal) {
  if (device == DeviceKind::kCpu) return;
  const int current = current_device(device);
  if (current == ordinal) return;
  cuda_set_device(ordinal);
  before_ = current;
}

CurrentDevice::~CurrentDevice() {
  if (before_ < 0) return;
  try {
    cuda_set_device(before_);
  } catch (const CudaError&) {
    // A GPU that was current a moment ago has failed: the next call of the library on it says so.
  }
}

}  // namespace smla
