#include "ops/registry.h"

#include <omp.h>

#include <cstdint>

namespace smla {

int resolve_threads(int requested) { return requested > 0 ? requested : omp_get_max_threads(); }

Machine machine_for(const PlanOptions& options) {
  Machine machine;
  machine.threads = resolve_threads(options.threads);
  if (options.device == DeviceKind::kCuda) machine.gpu = device::current_gpu();
  return machine;
}

std::string needs_avx2(const Machine& machine) { return machine.cpu->avx2 ? "" : "this CPU has no AVX2 + FMA"; }

std::string needs_avx512(const Machine& machine) {
  return machine.cpu->avx512 ? "" : "this CPU has no AVX-512 F/BW/DQ/VL";
}

std::string needs_avx512_bf16(const Machine& machine) {
  return machine.cpu->avx512_bf16 && machine.cpu->avx512_vbmi ? "" : "this CPU has no AVX-512 BF16 and VBMI";
}

std::string needs_sm90(const Machine& machine) {
  if (std::string missing = needs_gpu(machine); !missing.empty()) return missing;
  return machine.gpu.capability == 90 ? "" : "it runs on sm_90, this is sm_" + std::to_string(machine.gpu.capability);
}

void check_workspace(std::string_view op, const Workspace& workspace, std::size_t bytes) {
  if (workspace.bytes < bytes) {
    throw InvalidArgument(std::string(op) + ": workspace: got " + std::to_string(workspace.bytes) +
                          " bytes, expected at least " + std::to_string(bytes));
  }
  constexpr std::uintptr_t kAlignment = 64;
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(workspace.data) % kAlignment;
  if (bytes > 0 && past != 0) {
    throw InvalidArgument(std::string(op) + ": workspace: got an address " + std::to_string(past) +
                          " bytes past a multiple of 64, expected a multiple of 64");
  }
}

}  // namespace smla
