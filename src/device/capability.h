#pragma once

#include "device/gpu.h"
#include "sparsemla/device.h"

namespace smla {

/// Compute capability (major) of the GPU that is current; 0 for the CPU and where there is no GPU.
inline int device_major(DeviceKind device) {
  return device == DeviceKind::kCpu ? 0 : device::current_gpu().capability / 10;
}

}  // namespace smla
