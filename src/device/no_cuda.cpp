#include "sparsemla/device.h"

namespace smla {

bool built_with_cuda() { return false; }

std::vector<GpuInfo> gpus(std::string* reason) {
  if (reason != nullptr) *reason = "this build has no CUDA";
  return {};
}

}  // namespace smla
