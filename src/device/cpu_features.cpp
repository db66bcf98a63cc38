#include <omp.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "sparsemla/device.h"
#include "sparsemla/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace smla {

namespace {

CpuFeatures read_features() {
  CpuFeatures f;
  f.model = "unknown";
  f.cores = omp_get_num_procs();
#if defined(__x86_64__)
  __builtin_cpu_init();
  f.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  f.avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  f.avx512_vbmi = f.avx512 && __builtin_cpu_supports("avx512vbmi") != 0;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (f.avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0)
    f.amx_bf16 = ((d >> 22) & 1U) != 0 && ((d >> 24) & 1U) != 0;
  char brand[49] = {};
  for (unsigned i = 0; i < 3; ++i) {
    unsigned r[4] = {};
    if (__get_cpuid(0x8000'0002U + i, &r[0], &r[1], &r[2], &r[3]) == 0) break;
    std::memcpy(brand + 16 * i, r, 16);
  }
  if (brand[0] != 0) f.model = brand;
#endif
  if (const char* limit = std::getenv("SMLA_CPU"); limit != nullptr) {
    const std::string_view level(limit);
    if (level == "generic") f.avx2 = false;
    if (level == "generic" || level == "avx2") f.avx512 = f.avx512_bf16 = f.avx512_vbmi = f.amx_bf16 = false;
    if (level != "generic" && level != "avx2" && level != "avx512") {
      throw InvalidArgument("SMLA_CPU: got \"" + std::string(level) + "\", expected generic, avx2 or avx512");
    }
  }
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_features();
  return features;
}

std::string name_of(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

DeviceKind device_from_name(const std::string& name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name == "cuda") return DeviceKind::kCuda;
  throw InvalidArgument("device: got \"" + name + "\", expected cpu or cuda");
}

}  // namespace smla
