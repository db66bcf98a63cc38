// AddRows on a GPU: a thread for four numbers, or with a norm a block for a row, which it holds in registers between
// the sum and the addition.
#include <algorithm>

#include "device/launch_pdl.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/head_rows.cuh"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kThreads = 32 * HeadGrid::kWarps;
constexpr int kBlocks = 2;  ///< on a multiprocessor at least; by itself ptxas 13.0 keeps to 64 registers, and spills
constexpr std::int64_t kMostThreads = std::int64_t{8192} * kThreads;

__device__ float4 sum_of(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <class T>
struct Call {
  Rows<const T> y;
  Rows<T> x;
  std::int64_t rows = 0;
  int dim = 0;
  float eps = 0;
};

template <bool kByFours, class T>
__global__ void __launch_bounds__(kThreads) add(const __grid_constant__ Call<T> c) {
  pdl_wait_and_trigger();
  const std::int64_t fours = (c.dim + 3) / 4;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t q = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; q < c.rows * fours; q += step) {
    const std::int64_t row = q / fours;
    const int i = static_cast<int>(4 * (q - row * fours));
    T* const x = c.x.row(row);
    const float4 y = widened(load_vec4<kByFours>(c.y.row(row), i, c.dim));
    store_vec4<kByFours>(x, i, c.dim, narrowed<T>(sum_of(widened(load_vec4<kByFours>(x, i, c.dim)), y)));
  }
}

template <bool kByFours, class T>
__global__ void __launch_bounds__(kThreads, kBlocks) norm_and_add(const __grid_constant__ Call<T> c) {
  // A product behind this kernel brings its weights while this one waits.
  pdl_trigger();
  pdl_wait();
  const int thread = static_cast<int>(threadIdx.x + 32 * threadIdx.y);
  const std::int64_t row = blockIdx.x;
  T* const x = c.x.row(row);
  const RegisterRow<kThreads, kByFours, T> y(c.y.row(row), c.dim, 0, thread);
  const RegisterRow<kThreads, kByFours, T> was(x, c.dim, 0, thread);
  const float inverse = inverse_root(sum_of_block(y.squares()), c.dim, c.eps);
  y.each_with(was, [&](int i, Raw<T> added, Raw<T> before) {
    const float4 normed = widened(narrowed<T>(scaled(widened(added), inverse)));
    store_vec4<kByFours>(x, i, c.dim, narrowed<T>(sum_of(widened(before), normed)));
  });
}

constexpr std::int64_t kMaxDim = 1LL << 30U;  ///< elements of a row must fit int

Decision decide(const AddRows::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  return refused(p.dim > kMaxDim ? "dim above 2^30" : needs_gpu(machine));
}

void run(const AddRows::Problem& p, const AddRows::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.dim == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  with_float(p.dtype, [&]<class T>(T) {
    const Call<T> c{
        .y = rows_of<const T>(a.y), .x = rows_of<T>(a.x), .rows = p.rows, .dim = static_cast<int>(p.dim), .eps = p.eps};
    with_bool(by_fours(a.x) && by_fours(a.y), [&]<bool kByFours>(std::bool_constant<kByFours>) {
      if (p.normed) {
        launch_pdl<norm_and_add<kByFours, T>>("add_rows, normed", blocks_for(p.rows, 1), dim3(32, HeadGrid::kWarps), 0,
                                              stream, c);
      } else {
        const std::int64_t most = std::min(p.rows * ((p.dim + 3) / 4), kMostThreads);
        launch_pdl<add<kByFours, T>>("add_rows", blocks_for(most, kThreads), kThreads, 0, stream, c);
      }
    });
  });
}

}  // namespace

template <>
Implementation<AddRows> cuda_row() {
  return any_gpu_row<AddRows>(run, decide);
}

}  // namespace smla
