// RMSNorm on the device: a warp for a short row, eight for a long one; what a thread holds of it stays in registers between the two passes.
#include "device/row_views.cuh"
#include "ops/cuda_op.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kWarps = HeadGrid::kWarps;

constexpr std::int64_t kShort = 1024;         ///< the longest row of one warp
constexpr std::int64_t kMaxDim = 1LL << 30U;  ///< elements of a row are counted in int

template <class In, class Out>
struct Call {
  Rows<const In> x;
  Rows<Out> y;
  const void* weight = nullptr;
  bool weight_f32 = false;
  std::int64_t rows = 0;
  int dim = 0;
  float eps = 0;
};

template <int kRowWarps>
__device__ float sum_of_row(float v) {
  v = sum_of_warp(v);
  if constexpr (kRowWarps > 1) {
    __shared__ float parts[kRowWarps];
    if (threadIdx.x == 0) parts[threadIdx.y] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int w = 0; w < kRowWarps; ++w) v += parts[w];
  }
  return v;
}

template <int kRowWarps, bool kByFours, class In, class Out>
__global__ void __launch_bounds__(32 * kWarps, sizeof(In) == 4 ? 3 : 4) norm_rows(const __grid_constant__ Call<In, Out> c) {
  const std::int64_t row = kRowWarps == 1 ? static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y : blockIdx.x;
  if (row >= c.rows) return;
  const int thread = static_cast<int>(threadIdx.x) + (kRowWarps == 1 ? 0 : 32 * static_cast<int>(threadIdx.y));
  const HeldRow<32 * kRowWarps, kByFours, In> x(c.x.row(row), c.dim, 0, thread);
  const float sum = sum_of_row<kRowWarps>(x.squares());
  const float inverse = __frsqrt_rn(__fdiv_rn(sum, static_cast<float>(c.dim)) + c.eps);
  Out* y = c.y.row(row);
  x.each([&](int i, Raw<In> raw) {
    float4 v = scaled(widened(raw), inverse);
    if (c.weight != nullptr) {
      v = product(v, c.weight_f32 ? widened(load_quad<kByFours>(static_cast<const float*>(c.weight), i, c.dim))
                                  : widened(load_quad<kByFours>(static_cast<const BF16*>(c.weight), i, c.dim)));
    }
    store_quad<kByFours>(y, i, c.dim, computed<Out>(v));
  });
}

template <int kRowWarps, bool kByFours, class In, class Out>
void launch(const Call<In, Out>& c, cudaStream_t stream) {
  norm_rows<kRowWarps, kByFours><<<blocks_for(c.rows, kRowWarps == 1 ? kWarps : 1), dim3(32, kWarps), 0, stream>>>(c);
  check_launch("norm_rows");
}

}  // namespace

template <>
std::string CudaOp<RmsNorm>::refuse(const RmsNorm::Problem& problem, const PlanOptions&) {
  const std::string reason = needs_gpu();
  if (reason.empty() && problem.dim > kMaxDim) return "dim above 2^30";
  return reason;
}

template <>
std::size_t CudaOp<RmsNorm>::workspace_bytes(const RmsNorm::Problem&, int) {
  return 0;
}

template <>
void CudaOp<RmsNorm>::run(const RmsNorm::Problem& p, const RmsNorm::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.dim == 0) return;
  const bool fours = by_fours(a.x) && by_fours(a.y) && (!p.has_weight || by_fours(a.weight));
  with_float(p.in, [&]<class In>(In) {
    with_float(p.out, [&]<class Out>(Out) {
      with_bool(fours, [&]<bool kByFours>(std::bool_constant<kByFours>) {
        const Call<In, Out> c{.x = rows_of<const In>(a.x),
                              .y = rows_of<Out>(a.y),
                              .weight = p.has_weight ? a.weight.data : nullptr,
                              .weight_f32 = p.has_weight && a.weight.dtype == DType::kF32,
                              .rows = p.rows,
                              .dim = static_cast<int>(p.dim),
                              .eps = p.eps};
        if (p.dim <= kShort) {
          launch<1, kByFours>(c, stream_of(context.stream));
        } else {
          launch<kWarps, kByFours>(c, stream_of(context.stream));
        }
      });
    });
  });
}

}  // namespace smla
