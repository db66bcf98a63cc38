#include "device/cuda_memory.h"
#include "device/gpu.h"
#include "device/word_runs.h"
#include "sparsemla/device.h"
#include "sparsemla/error.h"

namespace smla {

bool built_with_cuda() { return false; }

std::vector<GpuInfo> gpus(std::string* reason) {
  if (reason != nullptr) *reason = "this build has no CUDA";
  return {};
}

namespace {
[[noreturn]] void none() { throw Unsupported("cuda: this build has no CUDA"); }
}  // namespace

void* cuda_allocate(std::size_t) { none(); }
void cuda_free(void*) {}
void cuda_copy(void*, const void*, std::size_t, Stream) { none(); }
void cuda_fill(void*, int, std::size_t, Stream) { none(); }
void cuda_synchronize(Stream) { none(); }
void cuda_write_runs(std::int32_t*, const void*, std::int64_t, Stream) { none(); }
void cuda_set_device(int) { none(); }
void* cuda_make_stream() { none(); }
void cuda_free_stream(void*) {}
void* cuda_make_event() { none(); }
void cuda_free_event(void*) {}
void cuda_record(void*, Stream) { none(); }
void cuda_wait(void*, Stream) { none(); }
void cuda_begin_capture(Stream) { none(); }
void* cuda_end_capture(Stream, std::int64_t*) { none(); }
void cuda_abandon_capture(Stream) {}
void cuda_launch_graph(void*, Stream) { none(); }
void cuda_free_graph(void*) {}

device::Gpu device::current_gpu() { return {}; }
void device::limit_shared_bytes(std::size_t) {}

}  // namespace smla
