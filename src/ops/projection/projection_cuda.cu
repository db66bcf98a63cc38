// Projections on any GPU from sm_80, four kernels:
//  - few_rows.cuh: memory bandwidth is the limit, so weights go straight into registers, and eight warps of a block
//  divide
//    k. Also for E4M3 x, with a scale for each 128 inputs.
//  - few_rows.cuh for E4M3 and NVFP4 weights, which are converted to bf16 for the tensor cores.
//  - many_rows.cuh: tiles in shared memory behind a three-stage cp.async pipeline; NVFP4 weights become bf16 on their
//  way.
//  - here, fp32 FMA for float32 operands and for tensors without 16-byte alignment.
// The order of additions depends on k alone in each; with `deterministic` the choice of kernel does not depend on m
// either.
#include "device/launch.cuh"
#include "device/launch_pdl.cuh"
#include "ops/projection/few_rows.cuh"
#include "ops/projection/implementations.h"
#include "ops/projection/many_rows.cuh"

namespace smla {

namespace {

using namespace projection;

// A block of 256 threads computes 32 x 32 outputs in fp32.

constexpr int kPlainTile = 32;
constexpr int kPlainK = 32;

__device__ float load_any(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::kBF16) return to_float(static_cast<const BF16*>(data)[at]);
  if (dtype == DType::kE4M3) return device::from_e4m3(static_cast<const std::uint8_t*>(data)[at]);
  return static_cast<const float*>(data)[at];
}

/// NVFP4 weight `at` of all, but for the scale of all.
__device__ float nvfp4_weight(const Operands& o, std::int64_t at) {
  const unsigned codes = static_cast<const std::uint8_t*>(o.w)[at / 2];
  const unsigned code = at % 2 == 0 ? codes : codes >> 4;
  // At the bottom of the exponent a code is 2^-126 of its value, subnormals included.
  const float value = __uint_as_float((code & 7U) << 22 | (code & 8U) << 28) * 0x1p126F;
  return value * device::from_e4m3(o.group_scale[at / Projection::kNvfp4Group]);
}

__global__ void __launch_bounds__(256, 3)
    plain(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  __shared__ float xs[kPlainTile][kPlainK + 1];
  __shared__ float ws[kPlainTile][kPlainK + 1];
  const std::int64_t row = blockIdx.x % row_blocks * kPlainTile;
  const std::int64_t column = blockIdx.x / row_blocks % column_blocks * kPlainTile;
  const std::int64_t group = blockIdx.x / row_blocks / column_blocks;
  const int tx = static_cast<int>(threadIdx.x) % 32;
  const int ty = static_cast<int>(threadIdx.x) / 32;
  float acc[4] = {};
  for (std::int64_t k = 0; k < o.k; k += kPlainK) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = ty + 8 * i;
      const bool in = k + tx < o.k;
      float xv = 0;
      if (in && row + r < o.m) {
        xv = load_any(o.x, o.x_dtype, (row + r) * o.x_row + group * o.x_group + k + tx);
        if (o.x_dtype == DType::kE4M3) xv *= o.scale(row + r, group, (k + tx) / kChunk);
      }
      xs[r][tx] = xv;
      float wv = 0;
      if (in && column + r < o.n) {
        const std::int64_t at = (group * o.n + column + r) * o.k + k + tx;
        wv = o.w_dtype == Projection::kNvfp4 ? nvfp4_weight(o, at) : load_any(o.w, o.w_dtype, at);
        if (o.w_dtype == DType::kE4M3) wv *= o.weight_scale(group, column + r, (k + tx) / Projection::kWeightBlock);
      }
      ws[r][tx] = wv;
    }
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < kPlainK; ++i) {
      const float b = ws[tx][i];
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[j] += xs[ty + 8 * j][i] * b;
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::int64_t r = row + ty + 8 * j;
    if (r < o.m && column + tx < o.n) o.store(r, group, column + tx, o.of_sum(acc[j], 1));
  }
}

bool multiple_of(std::int64_t v, std::int64_t of) { return v % of == 0; }

/// Whether both operands can be read 16 bytes at a time (E4M3 x: 8 bytes, unless w has codes too; NVFP4 w: 8 bytes).
bool aligned(const Operands& o, std::int64_t groups) {
  const auto address = [](const void* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); };
  const std::int64_t inputs = o.w_dtype == DType::kBF16 ? 8 : 16;
  const std::int64_t x_inputs = o.x_dtype == DType::kE4M3 ? inputs : 8;
  return multiple_of(address(o.x), o.x_dtype == DType::kE4M3 ? inputs : 16) && multiple_of(address(o.w), 16) &&
         multiple_of(o.k, inputs) && (o.m <= 1 || multiple_of(o.x_row, x_inputs)) &&
         (groups <= 1 || multiple_of(o.x_group, x_inputs));
}

}  // namespace

void projection_cuda(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  if (p.m == 0 || p.n == 0) return;
  const bool nvfp4 = p.w == Projection::kNvfp4;
  Operands o{.x = a.x.data,
             .w = a.w.data,
             .y = a.y.data,
             .x_scale = a.x_scale.data,
             .w_scale = nvfp4 ? nullptr : static_cast<const float*>(a.w_scale.data),
             .group_scale = nvfp4 ? static_cast<const std::uint8_t*>(a.w_scale.data) : nullptr,
             .global_scale = static_cast<const float*>(a.w_global_scale.data),
             .x_row = a.x.stride[0],
             .x_group = a.x.stride[1],
             .y_row = a.y.stride[0],
             .y_group = a.y.stride[1],
             .scale_group = a.x_scale.stride[0],
             .scale_chunk = a.x_scale.stride[1],
             .w_scale_group = a.w_scale.stride[0],
             .w_scale_row = a.w_scale.stride[1],
             .m = p.m,
             .n = p.n,
             .k = p.k,
             .x_dtype = p.x,
             .w_dtype = p.w,
             .y_dtype = p.y,
             .packed_scales = p.x_scale == OutputScale::kUe8m0x4};
  const cudaStream_t stream = stream_of(context.stream);
  const auto launch = [&](auto kernel, int threads, int shared, std::int64_t tile_m, std::int64_t tile_n) {
    const std::int64_t columns = (p.n + tile_n - 1) / tile_n;
    const std::int64_t rows = (p.m + tile_m - 1) / tile_m;
    kernel<<<blocks_for(columns * rows * p.groups, 1), threads, shared, stream>>>(o, columns, rows);
    check_launch("projection");
  };
  const bool tensor_cores = p.w != DType::kF32 && p.x != DType::kF32 && aligned(o, p.groups);
  if (!tensor_cores) {
    launch(plain, 256, 0, kPlainTile, kPlainTile);
  } else if (p.w == DType::kE4M3) {
    launch(p.x == DType::kE4M3 ? few_rows_of_codes<true, false> : few_rows_of_codes<false, false>, 32 * kFewWarps, 0,
           kFewRows, kFewColumns);
  } else if (nvfp4 && p.x == DType::kE4M3) {
    launch(few_rows_of_codes<true, true>, 32 * kFewWarps, 0, kFewRows, kFewColumns);
  } else if (p.x == DType::kE4M3) {
    launch(few_rows<true>, 32 * kFewWarps, 0, kFewRows, kFewColumns);
  } else if (p.m <= kFewRows && !context.deterministic) {
    launch(nvfp4 ? few_rows_of_codes<false, true> : few_rows<false>, 32 * kFewWarps, 0, kFewRows, kFewColumns);
  } else if (nvfp4) {
    device::allow_shared<many_rows<true>>();
    launch(many_rows<true>, 32 * kTileWarps, kTileShared, kTileM, kTileN);
  } else {
    device::allow_shared<many_rows<false>>();
    launch(many_rows<false>, 32 * kTileWarps, kTileShared, kTileM, kTileN);
  }
}

template <>
Implementation<Projection> cuda_row() {
  return any_gpu_row<Projection>(projection_cuda);
}

}  // namespace smla
