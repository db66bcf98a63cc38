#include "ops/cuda_op.h"

namespace smla {

std::string needs_gpu() {
  static const std::string refusal = [] {
    std::string reason;
    const std::vector<GpuInfo> found = gpus(&reason);
    if (found.empty()) return "no GPU: " + reason;
    for (const GpuInfo& gpu : found) {
      if (gpu.major < 8)
        return gpu.name + " is sm_" + std::to_string(gpu.major) + std::to_string(gpu.minor) +
               ", expected sm_80 or later";
    }
    return std::string();
  }();
  return refusal;
}

}  // namespace smla
