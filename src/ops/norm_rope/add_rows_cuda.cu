#include "device/launch.cuh"
#include "ops/cuda_row.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

constexpr int kThreads = 256;

__device__ float sum_of(float x, float y) { return x + y; }
__device__ BF16 sum_of(BF16 x, BF16 y) { return to_bf16(to_float(x) + to_float(y)); }

template <class T>
__global__ void add(T* x, std::int64_t x_stride, const T* y, std::int64_t y_stride, std::int64_t dim,
                    std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / dim;
    T* at = x + row * x_stride + (i - row * dim);
    *at = sum_of(*at, y[row * y_stride + (i - row * dim)]);
  }
}

void run(const AddRows::Problem& p, const AddRows::Args& a, const RunContext& context) {
  const std::int64_t count = p.rows * p.dim;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 8192));
  const auto launch = [&](auto* x, const auto* y) {
    add<<<blocks, kThreads, 0, stream_of(context.stream)>>>(x, a.x.stride[0], y, a.y.stride[0], p.dim, count);
  };
  if (p.dtype == DType::kBF16) {
    launch(static_cast<BF16*>(a.x.data), static_cast<const BF16*>(a.y.data));
  } else {
    launch(static_cast<float*>(a.x.data), static_cast<const float*>(a.y.data));
  }
  check_launch("add_rows");
}

}  // namespace

template <>
Implementation<AddRows> cuda_row() {
  return any_gpu_row<AddRows>(run);
}

}  // namespace smla
