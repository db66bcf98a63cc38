// RMSNorm on the device: a warp for a short row, which it keeps in shared memory between the two passes; eight for a long one, which stays in their
// registers as far as they go.
#include <algorithm>

#include "device/early_launch.cuh"
#include "device/ptx.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_op.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kWarps = HeadGrid::kWarps;

constexpr int kLineBytes = 4096;  ///< of shared memory, for a warp's row
template <class In>
constexpr std::int64_t kShort = kLineBytes / sizeof(In);  ///< the longest row of one warp
constexpr std::int64_t kMaxDim = 1LL << 30U;              ///< elements of a row are counted in int

/// A matrix to norm.
template <class In, class Out>
struct Matrix {
  Rows<const In> x;
  Rows<Out> y;
  const void* weight = nullptr;
  bool weight_f32 = false;
  int dim = 0;

  bool short_rows() const { return dim <= kShort<In>; }
};

/// One or two matrices of as many rows; the second one's blocks follow the first one's.
template <class In, class Out>
struct Call {
  Matrix<In, Out> matrix[2];
  std::int64_t rows = 0;
  unsigned blocks = 0;  ///< of the first matrix
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

/// A row that a warp brings to shared memory, all of it under way at once; to be used as a HeldRow of 32 threads, with less code.
template <bool kByFours, class T>
struct LineRow {
  Raw<T>* line;
  int n;

  __device__ LineRow(const T* row, int n_in, Raw<T>* line_in) : line(line_in), n(n_in) {
    const std::uint32_t to = shared_address(line);
#pragma unroll 4
    for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 128) {
      if constexpr (kByFours) {
        copy_async<sizeof(Raw<T>)>(to + static_cast<std::uint32_t>(sizeof(Raw<T>)) * (i / 4), row + i, true);
      } else {
        line[i / 4] = load_quad<false>(row, i, n);
      }
    }
    close_copies();
  }
  /// A thread's quads are those that it copied.
  template <class F>
  __device__ void each(F&& f) const {
#pragma unroll 4
    for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 128) f(i, line[i / 4]);
  }
  __device__ float squares() const {
    wait_copies<0>();
    float4 sum{0, 0, 0, 0};
    each([&](int, Raw<T> raw) {
      const float4 v = widened(raw);
      sum.x += v.x * v.x, sum.y += v.y * v.y, sum.z += v.z * v.z, sum.w += v.w * v.w;
    });
    return (sum.x + sum.y) + (sum.z + sum.w);
  }
};

/// A block's rows: kWarps short ones or a long one.
template <int kRowWarps, bool kByFours, class In, class Out>
__device__ void norm_block(const Matrix<In, Out>& m, std::int64_t rows, float eps, unsigned block, Raw<In>* lines) {
  const std::int64_t row = kRowWarps == 1 ? static_cast<std::int64_t>(block) * kWarps + threadIdx.y : block;
  if (row >= rows) return;
  const int thread = static_cast<int>(threadIdx.x) + (kRowWarps == 1 ? 0 : 32 * static_cast<int>(threadIdx.y));
  const auto x = [&] {
    if constexpr (kRowWarps == 1) {
      return LineRow<kByFours, In>(m.x.row(row), m.dim, lines + threadIdx.y * (kLineBytes / sizeof(Raw<In>)));
    } else {
      return HeldRow<32 * kRowWarps, kByFours, In>(m.x.row(row), m.dim, 0, thread);
    }
  }();
  // The first blocks send for the weights while they make their sums; all of them asking would wait for each other.
  constexpr unsigned kFirst = 64;
  const int weight_bytes = m.weight == nullptr || block >= kFirst ? 0 : m.dim * (m.weight_f32 ? 4 : 2);
  for (int i = 128 * thread; i < weight_bytes; i += 128 * 32 * kRowWarps) prefetch(static_cast<const std::uint8_t*>(m.weight) + i);
  const float sum = sum_of_row<kRowWarps>(x.squares());
  const float inverse = __frsqrt_rn(__fdiv_rn(sum, static_cast<float>(m.dim)) + eps);
  Out* y = m.y.row(row);
  x.each([&](int i, Raw<In> raw) {
    float4 v = scaled(widened(raw), inverse);
    if (m.weight != nullptr) {
      v = product(v, m.weight_f32 ? widened(load_quad<kByFours>(static_cast<const float*>(m.weight), i, m.dim))
                                  : widened(load_quad<kByFours>(static_cast<const BF16*>(m.weight), i, m.dim)));
    }
    store_quad<kByFours>(y, i, m.dim, computed<Out>(v));
  });
}

/// kShortRows: of each matrix.
template <bool kShortRows, bool kShortRows2, bool kByFours, class In, class Out>
__global__ void __launch_bounds__(32 * kWarps, sizeof(In) == 4 ? 3 : 4) norm_rows(const __grid_constant__ Call<In, Out> c) {
  take_turn();
  alignas(16) __shared__ Raw<In> lines[kShortRows || kShortRows2 ? kWarps * kLineBytes / sizeof(Raw<In>) : 1];
  if constexpr (kShortRows == kShortRows2) {
    const bool second = blockIdx.x >= c.blocks;
    norm_block<kShortRows ? 1 : kWarps, kByFours>(c.matrix[second ? 1 : 0], c.rows, c.eps, blockIdx.x - (second ? c.blocks : 0U), lines);
  } else if (blockIdx.x < c.blocks) {
    norm_block<kShortRows ? 1 : kWarps, kByFours>(c.matrix[0], c.rows, c.eps, blockIdx.x, lines);
  } else {
    norm_block<kShortRows2 ? 1 : kWarps, kByFours>(c.matrix[1], c.rows, c.eps, blockIdx.x - c.blocks, lines);
  }
}

template <bool kByFours, class In, class Out>
void launch(Call<In, Out> c, cudaStream_t stream) {
  const auto blocks = [&](const Matrix<In, Out>& m) { return m.dim == 0 ? 0U : blocks_for(c.rows, m.short_rows() ? kWarps : 1); };
  c.blocks = blocks(c.matrix[0]);
  const unsigned all = blocks_for(static_cast<std::int64_t>(c.blocks) + blocks(c.matrix[1]), 1);
  with_bool(c.matrix[0].short_rows(), [&]<bool kFirst>(std::bool_constant<kFirst>) {
    with_bool(c.matrix[1].short_rows(), [&]<bool kSecond>(std::bool_constant<kSecond>) {
      launch_early<norm_rows<kFirst, kSecond, kByFours, In, Out>>("norm_rows", all, dim3(32, kWarps), 0, stream, c);
    });
  });
}

}  // namespace

template <>
std::string CudaOp<RmsNorm>::refuse(const RmsNorm::Problem& problem, const PlanOptions&) {
  const std::string reason = needs_gpu();
  if (reason.empty() && std::max(problem.dim, problem.dim2) > kMaxDim) return "dim above 2^30";
  return reason;
}

template <>
std::size_t CudaOp<RmsNorm>::workspace_bytes(const RmsNorm::Problem&, int) {
  return 0;
}

template <>
void CudaOp<RmsNorm>::run(const RmsNorm::Problem& p, const RmsNorm::Args& a, const RunContext& context) {
  if (p.rows == 0 || (p.dim == 0 && p.dim2 == 0)) return;
  const auto aligned = [&](const ConstTensorView& x, const ConstTensorView& weight, const TensorView& y) {
    return by_fours(x) && by_fours(y) && (!p.has_weight || by_fours(weight));
  };
  const bool fours = (p.dim == 0 || aligned(a.x, a.weight, a.y)) && (p.dim2 == 0 || aligned(a.x2, a.weight2, a.y2));
  with_float(p.in, [&]<class In>(In) {
    with_float(p.out, [&]<class Out>(Out) {
      with_bool(fours, [&]<bool kByFours>(std::bool_constant<kByFours>) {
        const auto matrix = [&](const ConstTensorView& x, const ConstTensorView& weight, const TensorView& y, std::int64_t dim) {
          return Matrix<In, Out>{.x = rows_of<const In>(x),
                                 .y = rows_of<Out>(y),
                                 .weight = p.has_weight ? weight.data : nullptr,
                                 .weight_f32 = p.has_weight && weight.dtype == DType::kF32,
                                 .dim = static_cast<int>(dim)};
        };
        Call<In, Out> c{.rows = p.rows, .eps = p.eps};
        int count = 0;
        if (p.dim > 0) c.matrix[count++] = matrix(a.x, a.weight, a.y, p.dim);
        if (p.dim2 > 0) c.matrix[count++] = matrix(a.x2, a.weight2, a.y2, p.dim2);
        launch<kByFours>(c, stream_of(context.stream));
      });
    });
  });
}

}  // namespace smla
