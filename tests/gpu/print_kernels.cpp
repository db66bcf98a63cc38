// With SMLA_PRINT_KERNELS in the environment this program tells each kernel's name on standard error, the first time it
// is launched: tools/gpu_check.sh asks which kernels a sanitizer has seen.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "device/launch_hook.h"

namespace smla::test {
namespace {

void print_first_launch(const char* kernel) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::lock_guard lock(mutex);
  if (seen.insert(kernel).second) std::fprintf(stderr, "kernel %s\n", kernel);
}

[[maybe_unused]] const bool wanted = [] {
  if (std::getenv("SMLA_PRINT_KERNELS") == nullptr) return false;
  device::launch_hook = print_first_launch;
  return true;
}();

}  // namespace
}  // namespace smla::test
