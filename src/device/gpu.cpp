#include "device/gpu.h"

#include "sparsemla/device.h"

namespace smla::device {

std::string needs_gpu(const Gpu& gpu) {
  if (gpu.present()) {
    if (gpu.capability >= 80) return "";
    return std::string(gpu.name) + " is sm_" + std::to_string(gpu.capability) + ", expected sm_80 or later";
  }
  std::string reason;
  if (!gpus(&reason).empty()) reason = "the CUDA runtime has no current device";
  return "no GPU: " + reason;
}

}  // namespace smla::device
