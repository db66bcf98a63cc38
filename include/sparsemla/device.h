#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// The kind of machine a plan runs on.
enum class DeviceKind : std::uint8_t { kCpu, kCuda };

/// The name of a kind: "cpu" or "cuda".
std::string name_of(DeviceKind kind);
/// The kind of that name. @throws InvalidArgument for another name.
DeviceKind device_from_name(const std::string& name);

/// Where work is queued: a cudaStream_t on a GPU, null on the CPU (work is done when the call returns).
struct Stream {
  void* handle = nullptr;  ///< null on the CPU
};

/// Scratch memory lent by the caller for the duration of one call; at least `Plan::workspace_bytes()`, 64-byte aligned.
struct Workspace {
  void* data = nullptr;  ///< 64-byte aligned
  std::size_t bytes = 0;
};

/// What this CPU and operating system support.
struct CpuFeatures {
  std::string model;         ///< the processor's brand text
  int cores = 0;             ///< processors this process may use
  bool avx2 = false;         ///< AVX2, FMA and F16C
  bool avx512 = false;       ///< AVX-512 F, BW, DQ and VL
  bool avx512_bf16 = false;  ///< AVX-512 BF16
  bool avx512_vbmi = false;  ///< AVX-512 VBMI
  bool amx_bf16 = false;     ///< AMX with BF16 tiles
};

/// The features of this machine, read once. SMLA_CPU=generic|avx2|avx512 in the environment hides everything above the
/// named level.
const CpuFeatures& cpu_features();

/// One GPU as the driver reports it.
struct GpuInfo {
  std::string name;
  int major = 0;  ///< compute capability, 9 of 9.0
  int minor = 0;  ///< compute capability, 0 of 9.0
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;  ///< memory of the device
};

/// The GPUs of this machine; empty where there is none or the build has no CUDA, then `reason` (if given) says why.
std::vector<GpuInfo> gpus(std::string* reason = nullptr);

/// Whether the CUDA parts were compiled in.
bool built_with_cuda();

}  // namespace smla
