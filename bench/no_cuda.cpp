#include "bench/gpu.h"
#include "sparsemla/error.h"

// Stands in for gpu_*.cu where the build has no CUDA.

namespace smla::bench {

namespace {
[[noreturn]] void none() { throw Unsupported("cuda: this build has no CUDA"); }
}  // namespace

GpuFacts gpu_facts() { none(); }
std::size_t gpu_free_bytes() { none(); }
GpuRecording::GpuRecording(Stream, const std::function<void()>&, const std::function<void()>&) { none(); }
void GpuRecording::Free::operator()(void*) const {}
void GpuRecording::launch(Stream) const { none(); }
double GpuRecording::seconds() const { none(); }
GpuNodes gpu_count_nodes(Stream, const std::function<void()>&) { none(); }
void gpu_sweep(const void*, std::size_t, Stream) { none(); }
void gpu_copy(void*, const void*, std::size_t, Stream) { none(); }
void gpu_gather(const PagedCache&, const std::int32_t*, std::int64_t, Stream) { none(); }
double gpu_multiply_add(std::int64_t, Stream) { none(); }
void gpu_random(const TensorView&, std::uint64_t, float, Stream) { none(); }
void gpu_follow(const std::int32_t*, int, std::int32_t*, Stream) { none(); }
void gpu_copy_rows(const PagedCache&, const PagedCache&, const std::int32_t*, std::int64_t, std::uint64_t, Stream) {
  none();
}
std::int64_t gpu_count_nan(const ConstTensorView&, Stream) { none(); }
void gpu_make_indices(const TensorView&, const ConstTensorView&, const IndexRule&, Stream) { none(); }

}  // namespace smla::bench
