// RmsNorm and LatentNorms on the device: a warp for a short row, which it keeps in shared memory between the two
// passes, with the weights of all rows of its block; eight for a long one, which stays in their registers as far as
// they go; four for a row that is inserted into a cache.
#include <algorithm>

#include "device/launch_pdl.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/shared.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/head_rows.cuh"
#include "ops/norm_rope/insert.cuh"
#include "ops/norm_rope/quantise.cuh"
#include "ops/norm_rope/scalar.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kWarps = HeadGrid::kWarps;

constexpr int kLineBytes = 4096;  ///< bytes of shared memory for a warp's row
template <class In>
constexpr std::int64_t kShort = kLineBytes / sizeof(In);  ///< the longest row of one warp
constexpr std::int64_t kMaxDim = 1LL << 30U;              ///< elements of a row must fit int

/// A matrix to norm.
template <class In, class Out>
struct Matrix {
  Rows<const In> x;
  Rows<Out> y;
  const void* weight = nullptr;
  bool weight_f32 = false;
  int dim = 0;

  bool short_rows() const { return dim <= kShort<In>; }
  /// Prefetches the weights, by a whole block.
  __device__ void fetch_weights() const {
    const int thread = static_cast<int>(threadIdx.x + 32 * threadIdx.y);
    const int bytes = weight == nullptr ? 0 : dim * (weight_f32 ? 4 : 2);
    for (int i = 128 * thread; i < bytes; i += 128 * 32 * kWarps)
      prefetch(static_cast<const std::uint8_t*>(weight) + i);
  }
};

/// What else becomes of the first matrix: E4M3 numbers and their scales. A warp has the 128 numbers of a scale.
struct Quantised {
  Rows<E4M3> values;
  float* scales = nullptr;  ///< null: nothing
  std::int64_t scale_stride = 0;
  std::int64_t rows = 0;
  std::int64_t padded = 0;  ///< rows of scales, zeros behind the last

  /// Quantises numbers i..i+3 of each lane, 4 lane apart, as their row was stored.
  template <bool kByFours, class Out>
  __device__ void store(std::int64_t row, int i, int n, Raw<Out> stored) const {
    if (scales == nullptr) return;
    std::uint32_t codes = 0;
    const int exponent = quantised(widened(stored), codes);
    store_vec4<kByFours>(values.row(row), i, n, codes);
    const int lane = static_cast<int>(threadIdx.x);
    float* const first = scales + i / QuantizeRows::kGroup * scale_stride + row;
    if (lane == 0) {
      *first = exp2_int(exponent);
    } else if (row + 1 == rows && lane < padded - row) {
      first[lane] = 0;
    }
  }
};
static_assert(QuantizeRows::kGroup == 4 * 32);

/// One or two matrices with the same number of rows. The blocks of the second follow those of the first.
template <class In, class Out>
struct NormCall {
  Matrix<In, Out> matrix[2];
  Quantised quantised;  ///< of the first
  std::int64_t rows = 0;
  unsigned blocks = 0;  ///< blocks of the first matrix
  float eps = 0;
};

/// Shared memory of a block: a short row for each warp, and the weights.
template <class In>
struct Short {
  alignas(16) Raw<In> rows[kWarps][kLineBytes / sizeof(Raw<In>)];
  alignas(16) uint4 weights[kShort<In> / 4];
};

/// The weights of a matrix. All threads of a block copy them to shared memory; where they cannot be copied four at a
/// time, they are read one by one from global memory.
template <bool kByFours>
struct Weights {
  const void* memory;
  const void* shared;
  bool f32;
  int n;

  template <class In, class Out>
  __device__ Weights(const Matrix<In, Out>& m, uint4* place)
      : memory(m.weight), shared(place), f32(m.weight_f32), n(m.dim) {
    if (!kByFours || memory == nullptr) return;
    constexpr int kPiece = 8;
    const int thread = static_cast<int>(threadIdx.x + 32 * threadIdx.y);
    const int bytes = n * (f32 ? 4 : 2);
    for (int i = kPiece * thread; i < bytes; i += kPiece * 32 * kWarps) {
      cp_async<kPiece>(shared_address(place) + static_cast<std::uint32_t>(i),
                       static_cast<const std::uint8_t*>(memory) + i, true);
    }
  }
  __device__ float4 times(float4 v, int i) const {
    if (memory == nullptr) return v;
    if constexpr (kByFours) {
      return product(v, f32 ? widened(static_cast<const uint4*>(shared)[i / 4])
                            : widened(static_cast<const uint2*>(shared)[i / 4]));
    } else {
      return product(v, f32 ? widened(load_vec4<false>(static_cast<const float*>(memory), i, n))
                            : widened(load_vec4<false>(static_cast<const BF16*>(memory), i, n)));
    }
  }
};

/// Starts copying vec4s thread, thread + threads, ... of a row of n numbers to shared memory. kPastL1: copies them
/// past L1, which may have what the row was before as long as no wait for other kernels has ended.
template <bool kByFours, bool kPastL1, class T>
__device__ void bring_row(const T* row, int n, Raw<T>* line, int thread, int threads) {
  if constexpr (kByFours && kPastL1) {
#pragma unroll 8
    for (int i = 4 * thread; i < n; i += 4 * threads) line[i / 4] = __ldcg(reinterpret_cast<const Raw<T>*>(row + i));
  } else {
#pragma unroll 4
    for (int i = 4 * thread; i < n; i += 4 * threads) {
      if constexpr (kByFours) {
        cp_async<sizeof(Raw<T>)>(shared_address(line + i / 4), row + i, true);
      } else {
        line[i / 4] = load_vec4<false>(row, i, n);
      }
    }
  }
}
/// Calls f(i, numbers i..i+3) for this lane's part of a row in shared memory.
template <class T, class F>
__device__ void each_vec4_of_lane(const Raw<T>* line, int n, F&& f) {
#pragma unroll 4
  for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 128) f(i, widened(line[i / 4]));
}
template <class T>
__device__ float inverse_root_of_line(const Raw<T>* line, int n, float eps) {
  Squares sum;
  each_vec4_of_lane<T>(line, n, [&](int, float4 v) { sum.add(v); });
  return inverse_root(sum_of_warp(sum.all()), n, eps);
}

/// Norms kWarps short rows, one for each warp.
template <bool kByFours, bool kPastL1, class In, class Out>
__device__ void norm_short(const Matrix<In, Out>& m, const Quantised& q, std::int64_t rows, float eps, unsigned block,
                           Short<In>& shared) {
  const std::int64_t row = static_cast<std::int64_t>(block) * kWarps + threadIdx.y;
  Raw<In>* line = shared.rows[threadIdx.y];
  const Weights<kByFours> weights(m, shared.weights);
  if (row < rows) bring_row<kByFours, kPastL1>(m.x.row(row), m.dim, line, static_cast<int>(threadIdx.x), 32);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  if (row >= rows) return;
  const float inverse = inverse_root_of_line<In>(line, m.dim, eps);
  Out* y = m.y.row(row);
  each_vec4_of_lane<In>(line, m.dim, [&](int i, float4 v) {
    const auto stored = computed<Out>(weights.times(scaled(v, inverse), i));
    store_vec4<kByFours>(y, i, m.dim, stored);
    q.store<kByFours, Out>(row, i, m.dim, stored);
  });
}

/// Norms a long row.
template <bool kByFours, class In, class Out>
__device__ void norm_long(const Matrix<In, Out>& m, const Quantised& q, float eps, std::int64_t row) {
  const int thread = static_cast<int>(threadIdx.x + 32 * threadIdx.y);
  const RegisterRow<32 * kWarps, kByFours, In> x(m.x.row(row), m.dim, 0, thread);
  // Only the first blocks prefetch the weights; if all did, they would wait for each other.
  constexpr std::int64_t kFirst = 64;
  if (row < kFirst) m.fetch_weights();
  const float inverse = inverse_root(sum_of_block(x.squares()), m.dim, eps);
  Out* y = m.y.row(row);
  x.each([&](int i, Raw<In> raw) {
    float4 v = scaled(widened(raw), inverse);
    if (m.weight != nullptr) {
      v = product(v, m.weight_f32 ? widened(load_vec4<kByFours>(static_cast<const float*>(m.weight), i, m.dim))
                                  : widened(load_vec4<kByFours>(static_cast<const BF16*>(m.weight), i, m.dim)));
    }
    const auto stored = computed<Out>(v);
    store_vec4<kByFours>(y, i, m.dim, stored);
    q.store<kByFours, Out>(row, i, m.dim, stored);
  });
}

/// Norms the rows of a block.
template <bool kShortRows, bool kByFours, bool kPastL1 = false, class In, class Out>
__device__ void norm_block(const Matrix<In, Out>& m, const Quantised& q, std::int64_t rows, float eps, unsigned block,
                           Short<In>& shared) {
  if constexpr (kShortRows) {
    norm_short<kByFours, kPastL1>(m, q, rows, eps, block, shared);
  } else {
    norm_long<kByFours>(m, q, eps, block);
  }
}

/// kShortRows: whether each matrix has short rows.
template <bool kShortRows, bool kShortRows2, bool kByFours, class In, class Out>
__global__ void __launch_bounds__(32 * kWarps, sizeof(In) == 4 ? 3 : 4)
    norm_rows(const __grid_constant__ NormCall<In, Out> c) {
  pdl_wait_and_trigger();
  __shared__ Short<In> shared;
  if constexpr (kShortRows == kShortRows2) {
    const bool second = blockIdx.x >= c.blocks;
    norm_block<kShortRows, kByFours>(c.matrix[second ? 1 : 0], second ? Quantised{} : c.quantised, c.rows, c.eps,
                                     blockIdx.x - (second ? c.blocks : 0U), shared);
  } else if (blockIdx.x < c.blocks) {
    norm_block<kShortRows, kByFours>(c.matrix[0], c.quantised, c.rows, c.eps, blockIdx.x, shared);
  } else {
    norm_block<kShortRows2, kByFours>(c.matrix[1], Quantised{}, c.rows, c.eps, blockIdx.x - c.blocks, shared);
  }
}

/// The rows of the second matrix, rotated and encoded at their slots.
template <class T>
struct Target {
  insertion::Insert<T> insert;  ///< Insert::kv is not used
  const std::int64_t* positions = nullptr;
  Rope rope;
};

constexpr int kRowWarps = 4;                   ///< warps of a row that is inserted
constexpr int kInserted = kWarps / kRowWarps;  ///< rows of a block
constexpr int kNearRope = 128;                 ///< longest row of cos_sin that fits into shared memory
constexpr int kNearDim = 512;                  ///< longest row that is inserted with little shared memory

/// Where a block keeps the rows that it inserts, `stride` apart, and their weights.
template <class T>
struct Lines {
  Raw<T>* rows;
  int stride;
  uint4* weights;
};

/// Norms and inserts kInserted rows. Each warp of a row computes the sum of squares of the whole row, as norm_short
/// does.
template <bool kByFours, bool kPastL1, class T>
__device__ void norm_insert(const Matrix<T, T>& m, const Target<T>& target, std::int64_t rows, float eps,
                            unsigned block, const Lines<T>& lines) {
  static_assert(kRowWarps * kLineBytes >= 4 * kMaxRopeRow);
  __shared__ float near_rope[kInserted][kNearRope];
  const int which = static_cast<int>(threadIdx.y) / kRowWarps;
  const int warp = static_cast<int>(threadIdx.y) % kRowWarps;
  const int thread = 32 * warp + static_cast<int>(threadIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(block) * kInserted + which;
  const Weights<kByFours> weights(m, lines.weights);
  const std::int64_t position = row < rows ? __ldcg(target.positions + row) : -1;
  const std::int64_t slot = target.insert.slot(row);
  Raw<T>* line = lines.rows + which * lines.stride;
  const bool acts = slot >= 0 && target.rope.has(position);
  const float* cos_sin = acts ? target.rope.row(position) : nullptr;
  const bool near = 2 * target.rope.pairs <= kNearRope;
  const bool brings_rope = acts && near && thread < 2 * target.rope.pairs;
  const float of_rope = brings_rope ? cos_sin[thread] : 0;
  if (acts) bring_row<kByFours, kPastL1>(m.x.row(row), m.dim, line, thread, 32 * kRowWarps);
  if (brings_rope) near_rope[which][thread] = of_rope;
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  if (!acts) return;
  const float inverse = inverse_root_of_line<T>(line, m.dim, eps);
  const float* turn = near ? near_rope[which] : cos_sin;
  encode_row_of(target.insert.cache, slot, target.insert.clamp, warp, kRowWarps, [&](int q) {
    const float4 v = weights.times(scaled(widened(line[q]), inverse), 4 * q);
    return target.rope.rotated(widened(computed<T>(v)), 4 * q, turn);
  });
}

/// Of few rows: prefetches what a block reads besides them, before the kernels ahead have ended. Later the next
/// kernel's weights come through the same memory. A position may not have been written yet, so it is good for a
/// prefetch alone.
template <class T>
__device__ void fetch_ahead(const NormCall<T, T>& c, const Target<T>& target) {
  constexpr unsigned kFewBlocks = 128;  // more would wait for each other
  if (gridDim.x > kFewBlocks) return;
  const bool inserts = blockIdx.x >= c.blocks;
  c.matrix[inserts ? 1 : 0].fetch_weights();
  const int thread = static_cast<int>(threadIdx.x + 32 * threadIdx.y);
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) - c.blocks) * kInserted + thread;
  if (!inserts || thread >= kInserted || row >= c.rows) return;
  prefetch(target.insert.slots + row);
  const std::int64_t position = __ldcg(target.positions + row);  // not by L1, where a later load would find it
  if (!target.rope.has(position)) return;
  const float* const cos_sin = target.rope.row(position);
  for (int i = 0; i < 2 * target.rope.pairs; i += 32) prefetch(cos_sin + i);
}

/// kBeside: LatentNorms::Args::beside_previous. The kernel just ahead let this one start when its own wait had ended,
/// so all others ahead are done.
template <bool kShortRows, bool kByFours, bool kBeside, class T>
__global__ void __launch_bounds__(32 * kWarps, sizeof(T) == 4 ? 3 : 4)
    norm_insert_rows(const __grid_constant__ NormCall<T, T> c, const __grid_constant__ Target<T> target) {
  if constexpr (kShortRows) fetch_ahead(c, target);  // for others there is no register
  if constexpr (!kBeside) pdl_wait();
  pdl_trigger();
  __shared__ Short<T> shared;
  if (blockIdx.x < c.blocks) {
    norm_block<kShortRows, kByFours, kBeside>(c.matrix[0], c.quantised, c.rows, c.eps, blockIdx.x, shared);
  } else {
    constexpr int kStride = kRowWarps * (kLineBytes / sizeof(Raw<T>));
    const Lines<T> lines{.rows = shared.rows[0], .stride = kStride, .weights = shared.weights};
    norm_insert<kByFours, kBeside>(c.matrix[1], target, c.rows, c.eps, blockIdx.x - c.blocks, lines);
  }
  if constexpr (kBeside) pdl_wait();
}

/// The second matrix alone, beside the kernel ahead: a streamed product, whose blocks leave few multiprocessors with
/// any room. 5 to 7 KB of shared memory, where norm_insert_rows has 42.
template <class T>
__global__ void __launch_bounds__(32 * kWarps, 4)
    insert_rows_beside(const __grid_constant__ NormCall<T, T> c, const __grid_constant__ Target<T> target) {
  static_assert(sizeof(T) * kNearDim * kInserted + 4 * kNearDim + 4 * kNearRope * kInserted <= 7 << 10);
  fetch_ahead(c, target);
  pdl_trigger();
  __shared__ alignas(16) Raw<T> rows[kInserted][kNearDim / 4];
  __shared__ alignas(16) uint4 weights[kNearDim / 4];
  norm_insert<true, true>(c.matrix[1], target, c.rows, c.eps, blockIdx.x,
                          Lines<T>{.rows = rows[0], .stride = kNearDim / 4, .weights = weights});
  pdl_wait();
}

template <bool kByFours, class T>
void launch(NormCall<T, T> c, const Target<T>& target, bool beside, cudaStream_t stream) {
  const bool short_rows = c.matrix[0].short_rows();
  c.blocks = c.matrix[0].dim == 0 ? 0U : blocks_for(c.rows, short_rows ? kWarps : 1);
  const unsigned all = blocks_for(static_cast<std::int64_t>(c.blocks) + blocks_for(c.rows, kInserted), 1);
  const auto by = [&]<bool kShort, bool kBeside>() {
    launch_pdl<norm_insert_rows<kShort, kByFours, kBeside, T>>("norm_insert_rows", all, dim3(32, kWarps), 0, stream, c,
                                                               target);
  };
  if (kByFours && beside && c.blocks == 0 && c.matrix[1].dim <= kNearDim) {
    device::prefer_shared<insert_rows_beside<T>>();
    launch_pdl<insert_rows_beside<T>>("insert_rows_beside", all, dim3(32, kWarps), 0, stream, c, target);
  } else if (!short_rows) {
    by.template operator()<false, false>();
  } else if (kByFours && beside) {
    by.template operator()<true, kByFours>();
  } else {
    by.template operator()<true, false>();
  }
}

template <bool kByFours, class In, class Out>
void launch(NormCall<In, Out> c, cudaStream_t stream) {
  const auto blocks = [&](const Matrix<In, Out>& m) {
    return m.dim == 0 ? 0U : blocks_for(c.rows, m.short_rows() ? kWarps : 1);
  };
  c.blocks = blocks(c.matrix[0]);
  const unsigned all = blocks_for(static_cast<std::int64_t>(c.blocks) + blocks(c.matrix[1]), 1);
  with_bool(c.matrix[0].short_rows(), [&]<bool kFirst>(std::bool_constant<kFirst>) {
    with_bool(c.matrix[1].short_rows(), [&]<bool kSecond>(std::bool_constant<kSecond>) {
      launch_pdl<norm_rows<kFirst, kSecond, kByFours, In, Out>>("norm_rows", all, dim3(32, kWarps), 0, stream, c);
    });
  });
}

/// A matrix of a call. `weight` may be absent.
template <class In, class Out>
Matrix<In, Out> matrix_of(const ConstTensorView& x, const ConstTensorView& weight, const TensorView& y) {
  return {.x = rows_of<const In>(x),
          .y = rows_of<Out>(y),
          .weight = weight.absent() ? nullptr : weight.data,
          .weight_f32 = !weight.absent() && weight.dtype == DType::kF32,
          .dim = static_cast<int>(x.size(1))};
}

/// Whether a matrix can be loaded and stored four numbers at a time; one without columns can.
bool aligned(const ConstTensorView& x, const ConstTensorView& weight, const TensorView& y) {
  return x.size(1) == 0 || (by_fours(x) && by_fours(y) && by_fours(weight));
}

Decision decide(const RmsNorm::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  return refused(p.dim > kMaxDim ? "dim above 2^30" : needs_gpu(machine));
}

void run(const RmsNorm::Problem& p, const RmsNorm::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.dim == 0) return;
  const ConstTensorView weight = p.has_weight ? a.weight : ConstTensorView();
  with_float(p.in, [&]<class In>(In) {
    with_float(p.out, [&]<class Out>(Out) {
      with_bool(aligned(a.x, weight, a.y), [&]<bool kByFours>(std::bool_constant<kByFours>) {
        const NormCall<In, Out> c{.matrix = {matrix_of<In, Out>(a.x, weight, a.y)}, .rows = p.rows, .eps = p.eps};
        launch<kByFours>(c, stream_of(context.stream));
      });
    });
  });
}

Decision decide(const LatentNorms::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  std::string reason = insertion::refusal(p.insert ? p.insert->format : nullptr, machine);
  if (reason.empty() && std::max(p.qr_dim, p.kv_dim) > kMaxDim) reason = "qr_dim or kv_dim above 2^30";
  return refused(std::move(reason));
}

void run(const LatentNorms::Problem& p, const LatentNorms::Args& a, const RunContext& context) {
  if (p.rows == 0 || (p.qr_dim == 0 && p.kv_dim == 0)) return;
  const ConstTensorView qr_weight = p.has_weight ? a.qr_weight : ConstTensorView();
  const ConstTensorView kv_weight = p.has_weight ? a.kv_weight : ConstTensorView();
  const bool fours = aligned(a.qr, qr_weight, a.qr_out) && aligned(a.kv, kv_weight, a.kv_out) &&
                     (!p.quantises_qr || p.qr_dim == 0 || by_fours(a.qr_values));
  Quantised quantised;
  if (p.quantises_qr && p.qr_dim > 0) {
    quantised = {.values = rows_of<E4M3>(a.qr_values),
                 .scales = static_cast<float*>(a.qr_scales.data),
                 .scale_stride = a.qr_scales.stride[1],
                 .rows = p.rows,
                 .padded = a.qr_scales.size(2)};
  }
  const cudaStream_t stream = stream_of(context.stream);
  with_float(p.in, [&]<class In>(In) {
    with_bool(fours, [&]<bool kByFours>(std::bool_constant<kByFours>) {
      if (p.insert) {
        const NormCall<In, In> c{
            .matrix = {matrix_of<In, In>(a.qr, qr_weight, a.qr_out), matrix_of<In, In>(a.kv, kv_weight, {})},
            .quantised = quantised,
            .rows = p.rows,
            .eps = p.eps};
        const Target<In> target{
            .insert = insertion::insert_of<In>({}, a.insert.slot_mapping, a.insert.cache, p.insert->clamp),
            .positions = static_cast<const std::int64_t*>(a.insert.positions.data),
            .rope = rope_of(a.insert.cos_sin, static_cast<int>(p.kv_dim), p.insert->rope_dim)};
        launch<kByFours>(c, target, a.beside_previous, stream);
        return;
      }
      with_float(p.out, [&]<class Out>(Out) {
        NormCall<In, Out> c{.quantised = quantised, .rows = p.rows, .eps = p.eps};
        int count = 0;
        if (p.qr_dim > 0) c.matrix[count++] = matrix_of<In, Out>(a.qr, qr_weight, a.qr_out);
        if (p.kv_dim > 0) c.matrix[count++] = matrix_of<In, Out>(a.kv, kv_weight, a.kv_out);
        launch<kByFours>(c, stream);
      });
    });
  });
}

}  // namespace

template <>
Implementation<RmsNorm> cuda_row() {
  return any_gpu_row<RmsNorm>(run, decide);
}

template <>
Implementation<LatentNorms> cuda_row() {
  return any_gpu_row<LatentNorms>(run, decide);
}

}  // namespace smla
