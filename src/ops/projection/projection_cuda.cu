// Projections on any GPU from sm_80, four kernels:
//  - few rows: the weights' way from memory is the limit, so they stream straight into registers; eight warps of a block share out k. Also E4M3 x, whose
//    scales hold for 128 inputs.
//  - the same for E4M3 weights, which become bf16 on their way into the tensor cores.
//  - many rows: tiles in shared memory behind a three-stage cp.async pipeline.
//  - fp32 FMA for float32 operands and for tensors without 16-byte alignment.
// Each adds in an order that depends on k alone; in deterministic mode the choice of kernel does not depend on m either.
#include <cuda_bf16.h>
#include <cuda_pipeline_primitives.h>

#include "core/codecs.h"
#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "ops/cuda_op.h"
#include "sparsemla/ops/projection.h"

namespace smla {

namespace {

struct Operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* x_scale = nullptr;
  const float* w_scale = nullptr;
  std::int64_t x_row = 0, x_group = 0;  ///< strides in elements
  std::int64_t y_row = 0, y_group = 0;
  std::int64_t scale_group = 0, scale_chunk = 0;
  std::int64_t w_scale_group = 0, w_scale_row = 0;
  std::int64_t m = 0, n = 0, k = 0;
  DType x_dtype = DType::kBF16, w_dtype = DType::kBF16, y_dtype = DType::kBF16;
  bool packed_scales = false;

  __device__ float scale(std::int64_t row, std::int64_t group, std::int64_t chunk) const {
    const std::int64_t at = group * scale_group + row;
    if (!packed_scales) return static_cast<const float*>(x_scale)[at + chunk * scale_chunk];
    const auto word = static_cast<std::uint32_t>(static_cast<const std::int32_t*>(x_scale)[at + chunk / 4 * scale_chunk]);
    return from_ue8m0(static_cast<std::uint8_t>(word >> (8 * (chunk % 4))));
  }
  /// Of output `column` and inputs [kWeightBlock * block, ...) of E4M3 w.
  __device__ float weight_scale(std::int64_t group, std::int64_t column, std::int64_t block) const {
    return w_scale[group * w_scale_group + column / Projection::kWeightBlock * w_scale_row + block];
  }
  __device__ void store(std::int64_t row, std::int64_t group, std::int64_t column, float v) const {
    const std::int64_t at = row * y_row + group * y_group + column;
    if (y_dtype == DType::kBF16) {
      static_cast<BF16*>(y)[at] = to_bf16(v);
    } else {
      static_cast<float*>(y)[at] = v;
    }
  }
};

__device__ void mma_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Few rows: 16 rows x kFewColumns outputs a block. Inside a dot product the order of inputs is free as long as both operands agree, so a lane loads 16
// bytes of a row, eight consecutive inputs, and spends them on two k-steps.

constexpr int kFewRows = 16;
constexpr int kFewColumns = 32;
constexpr int kFewWarps = 8;
constexpr int kFewTiles = kFewColumns / 8;
constexpr int kChunk = 128;  ///< inputs of a scale, and a warp's turn

/// Eight inputs of x as bf16; e4m3 is exact in it.
template <bool kE4M3>
__device__ uint4 load_x(const Operands& o, std::int64_t row, std::int64_t group, std::int64_t k) {
  if (row >= o.m || k >= o.k) return make_uint4(0, 0, 0, 0);
  const std::int64_t at = row * o.x_row + group * o.x_group + k;
  if constexpr (!kE4M3) {
    return *reinterpret_cast<const uint4*>(static_cast<const BF16*>(o.x) + at);
  } else {
    const uint2 bytes = *reinterpret_cast<const uint2*>(static_cast<const std::uint8_t*>(o.x) + at);
    const auto pair = [](std::uint32_t two) {
      const std::uint32_t low = __float_as_uint(device::from_e4m3(static_cast<std::uint8_t>(two & 0xFFU))) >> 16;
      const std::uint32_t high = __float_as_uint(device::from_e4m3(static_cast<std::uint8_t>(two >> 8))) & 0xFFFF'0000U;
      return low | high;
    };
    return make_uint4(pair(bytes.x & 0xFFFFU), pair(bytes.x >> 16), pair(bytes.y & 0xFFFFU), pair(bytes.y >> 16));
  }
}

/// The sums of a block's warps, added in their order and stored.
__device__ void add_warps(const Operands& o, const float (&acc)[kFewTiles][4], float (&sums)[kFewWarps][kFewRows][kFewColumns], std::int64_t row,
                          std::int64_t column, std::int64_t group) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int quad = static_cast<int>(threadIdx.x) % 32 / 4;
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int tile = 0; tile < kFewTiles; ++tile) {
    const int at = 8 * tile + 2 * lane;
    sums[warp][quad][at] = acc[tile][0];
    sums[warp][quad][at + 1] = acc[tile][1];
    sums[warp][quad + 8][at] = acc[tile][2];
    sums[warp][quad + 8][at + 1] = acc[tile][3];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kFewRows * kFewColumns; i += 32 * kFewWarps) {
    const int r = i / kFewColumns;
    const int j = i % kFewColumns;
    if (row + r >= o.m || column + j >= o.n) continue;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < kFewWarps; ++s) sum += sums[s][r][j];
    o.store(row + r, group, column + j, sum);
  }
}

template <bool kE4M3>
__global__ void __launch_bounds__(32 * kFewWarps) few_rows(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  __shared__ float sums[kFewWarps][kFewRows][kFewColumns];
  const std::int64_t column = blockIdx.x % column_blocks * kFewColumns;
  const std::int64_t row = blockIdx.x / column_blocks % row_blocks * kFewRows;
  const std::int64_t group = blockIdx.x / column_blocks / row_blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int quad = static_cast<int>(threadIdx.x) % 32 / 4;
  const int lane = static_cast<int>(threadIdx.x) % 4;
  const BF16* w = static_cast<const BF16*>(o.w) + group * o.n * o.k;

  float acc[kFewTiles][4] = {};
  for (std::int64_t chunk = warp; chunk * kChunk < o.k; chunk += kFewWarps) {
    float part[kFewTiles][4] = {};
    float(&into)[kFewTiles][4] = kE4M3 ? part : acc;
#pragma unroll(kE4M3 ? 1 : kChunk / 32)
    for (int step = 0; step < kChunk / 32; ++step) {
      const std::int64_t k = chunk * kChunk + 32 * step + 8 * lane;
      const uint4 a = load_x<kE4M3>(o, row + quad, group, k);
      const uint4 c = load_x<kE4M3>(o, row + quad + 8, group, k);
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        const std::int64_t j = column + 8 * tile + quad;
        uint4 b = make_uint4(0, 0, 0, 0);
        if (j < o.n && k < o.k) b = __ldg(reinterpret_cast<const uint4*>(w + j * o.k + k));
        mma_bf16(into[tile], a.x, c.x, a.y, c.y, b.x, b.y);
        mma_bf16(into[tile], a.z, c.z, a.w, c.w, b.z, b.w);
      }
    }
    if constexpr (kE4M3) {
      const float top = row + quad < o.m ? o.scale(row + quad, group, chunk) : 0;
      const float bottom = row + quad + 8 < o.m ? o.scale(row + quad + 8, group, chunk) : 0;
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        acc[tile][0] += top * part[tile][0];
        acc[tile][1] += top * part[tile][1];
        acc[tile][2] += bottom * part[tile][2];
        acc[tile][3] += bottom * part[tile][3];
      }
    }
  }
  add_warps(o, acc, sums, row, column, group);
}

/// Four E4M3 codes as bf16, in which they are exact, in two registers.
__device__ uint2 bf16_of_e4m3(std::uint32_t codes) {
  constexpr std::uint32_t kMagnitudes = 0x7F7F'7F7FU;
  if ((((codes & kMagnitudes) + 0x0101'0101U) & 0x8080'8080U) != 0) {  // a NaN among them
    const auto one = [&](int i) { return __float_as_uint(device::from_e4m3(static_cast<std::uint8_t>(codes >> (8 * i)))) >> 16; };
    return make_uint2(one(0) | one(1) << 16, one(2) | one(3) << 16);
  }
  // A code's exponent and mantissa at bf16's places are 2^-120 of its value, subnormals too.
  const auto pair = [](std::uint32_t high_bytes) {
    const std::uint32_t bits = (high_bytes >> 4 & 0x07F0'07F0U) | (high_bytes & 0x8000'8000U);
    std::uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(bits), "r"(0x7B80'7B80U), "r"(0x8000'8000U));  // times 2^120, plus -0
    return out;
  };
  return make_uint2(pair(__byte_perm(codes, 0, 0x1404)), pair(__byte_perm(codes, 0, 0x3424)));
}

/// Sixteen inputs of a row as bf16: inputs 0-7 and 8-15.
struct Sixteen {
  uint4 low = {0, 0, 0, 0};
  uint4 high = {0, 0, 0, 0};
};
__device__ Sixteen sixteen_of_e4m3(const uint4& codes) {
  const uint2 a = bf16_of_e4m3(codes.x);
  const uint2 b = bf16_of_e4m3(codes.y);
  const uint2 c = bf16_of_e4m3(codes.z);
  const uint2 d = bf16_of_e4m3(codes.w);
  return {make_uint4(a.x, a.y, b.x, b.y), make_uint4(c.x, c.y, d.x, d.y)};
}
template <bool kE4M3>
__device__ Sixteen load_sixteen(const Operands& o, std::int64_t row, std::int64_t group, std::int64_t k) {
  if (row >= o.m || k >= o.k) return {};
  const std::int64_t at = row * o.x_row + group * o.x_group + k;
  if constexpr (kE4M3) {
    return sixteen_of_e4m3(*reinterpret_cast<const uint4*>(static_cast<const std::uint8_t*>(o.x) + at));
  } else {
    const auto* x = reinterpret_cast<const uint4*>(static_cast<const BF16*>(o.x) + at);
    return {x[0], x[1]};
  }
}

static_assert(Projection::kWeightBlock == kChunk && Projection::kWeightBlock % kFewColumns == 0);  // one scale of w a warp's turn

/// few_rows for E4M3 weights: a lane's 16 bytes are sixteen inputs, spent on four k-steps.
template <bool kE4M3>
__global__ void __launch_bounds__(32 * kFewWarps)
    few_rows_of_e4m3(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  __shared__ float sums[kFewWarps][kFewRows][kFewColumns];
  // Rows innermost: blocks that run together share their weights.
  const std::int64_t row = blockIdx.x % row_blocks * kFewRows;
  const std::int64_t column = blockIdx.x / row_blocks % column_blocks * kFewColumns;
  const std::int64_t group = blockIdx.x / row_blocks / column_blocks;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int quad = static_cast<int>(threadIdx.x) % 32 / 4;
  const int lane = static_cast<int>(threadIdx.x) % 4;
  const std::uint8_t* w = static_cast<const std::uint8_t*>(o.w) + group * o.n * o.k;

  float acc[kFewTiles][4] = {};
  for (std::int64_t chunk = warp; chunk * kChunk < o.k; chunk += kFewWarps) {
    float part[kFewTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kChunk / 64; ++step) {
      const std::int64_t k = chunk * kChunk + 64 * step + 16 * lane;
      uint4 codes[kFewTiles];
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        const std::int64_t j = column + 8 * tile + quad;
        codes[tile] = j < o.n && k < o.k ? __ldg(reinterpret_cast<const uint4*>(w + j * o.k + k)) : make_uint4(0, 0, 0, 0);
      }
      const Sixteen a = load_sixteen<kE4M3>(o, row + quad, group, k);
      const Sixteen c = load_sixteen<kE4M3>(o, row + quad + 8, group, k);
#pragma unroll
      for (int tile = 0; tile < kFewTiles; ++tile) {
        const Sixteen b = sixteen_of_e4m3(codes[tile]);
        mma_bf16(part[tile], a.low.x, c.low.x, a.low.y, c.low.y, b.low.x, b.low.y);
        mma_bf16(part[tile], a.low.z, c.low.z, a.low.w, c.low.w, b.low.z, b.low.w);
        mma_bf16(part[tile], a.high.x, c.high.x, a.high.y, c.high.y, b.high.x, b.high.y);
        mma_bf16(part[tile], a.high.z, c.high.z, a.high.w, c.high.w, b.high.z, b.high.w);
      }
    }
    const float weights = o.weight_scale(group, column, chunk);
    float top = weights;
    float bottom = weights;
    if constexpr (kE4M3) {
      top = row + quad < o.m ? o.scale(row + quad, group, chunk) : 0;
      bottom = row + quad + 8 < o.m ? o.scale(row + quad + 8, group, chunk) : 0;
    }
#pragma unroll
    for (int tile = 0; tile < kFewTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v = part[tile][i] * (i < 2 ? top : bottom);
        if constexpr (kE4M3) v *= weights;
        acc[tile][i] += v;
      }
    }
  }
  add_warps(o, acc, sums, row, column, group);
}

// Many rows: 64 x 128 outputs a block of eight warps (2 x 4), 32 x 32 a warp.

constexpr int kTileM = 64;
constexpr int kTileN = 128;
constexpr int kTileK = 64;
constexpr int kStages = 3;
constexpr int kTileWarps = 8;
constexpr int kTileBytes = (kTileM + kTileN) * kTileK * 2;
constexpr int kTileShared = kStages * kTileBytes;

/// Where 16-byte chunk `c` of a row of 64 bf16 lies: chunks are permuted by the row, so that eight rows of one column lie in different banks.
__device__ int swizzled(int row, int c) { return row * 128 + ((c ^ (row & 7)) * 16); }

__device__ void load_matrices(std::uint32_t (&r)[4], const std::uint8_t* at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(at))));
}

/// A tile of `rows` rows from k on; rows and inputs that are not there are zeros.
__device__ void fetch(std::uint8_t* to, const BF16* from, std::int64_t stride, int rows, std::int64_t rows_left, std::int64_t k, std::int64_t k_end) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * (kTileK / 8); i += 32 * kTileWarps) {
    const int r = i / (kTileK / 8);
    const int c = i % (kTileK / 8);
    const bool there = r < rows_left && k + 8 * c < k_end;
    const BF16* source = from + (there ? r * stride + k + 8 * c : 0);
    __pipeline_memcpy_async(to + swizzled(r, c), source, 16, there ? 0 : 16);
  }
}

__global__ void __launch_bounds__(32 * kTileWarps)
    many_rows(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  // Rows innermost: blocks that run together share their weights.
  const std::int64_t row = blockIdx.x % row_blocks * kTileM;
  const std::int64_t column = blockIdx.x / row_blocks % column_blocks * kTileN;
  const std::int64_t group = blockIdx.x / row_blocks / column_blocks;
  const BF16* x = static_cast<const BF16*>(o.x) + row * o.x_row + group * o.x_group;
  const BF16* w = static_cast<const BF16*>(o.w) + (group * o.n + column) * o.k;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / 4 * 32;
  const int warp_n = warp % 4 * 32;
  const std::int64_t steps = (o.k + kTileK - 1) / kTileK;
  const auto stage = [&](std::int64_t step) { return shared + step % kStages * kTileBytes; };
  const auto start = [&](std::int64_t step) {
    if (step < steps) {
      fetch(stage(step), x, o.x_row, kTileM, o.m - row, step * kTileK, o.k);
      fetch(stage(step) + kTileM * kTileK * 2, w, o.k, kTileN, o.n - column, step * kTileK, o.k);
    }
    __pipeline_commit();
  };

  float acc[2][4][4] = {};
  for (int s = 0; s < kStages - 1; ++s) start(s);
  for (std::int64_t step = 0; step < steps; ++step) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();
    start(step + kStages - 1);
    const std::uint8_t* xs = stage(step);
    const std::uint8_t* ws = xs + kTileM * kTileK * 2;
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
      std::uint32_t a[2][4];
      std::uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_matrices(a[i], xs + swizzled(warp_m + 16 * i + lane % 16, 2 * k + lane / 16));
        load_matrices(b[i], ws + swizzled(warp_n + 16 * i + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_bf16(acc[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const std::int64_t r = row + warp_m + 16 * i + lane / 4 + v / 2 * 8;
        const std::int64_t c = column + warp_n + 8 * j + lane % 4 * 2 + v % 2;
        if (r < o.m && c < o.n) o.store(r, group, c, acc[i][j][v]);
      }
    }
  }
}

// Anything: 32 x 32 outputs a block of 256 threads, in fp32.

constexpr int kPlainTile = 32;
constexpr int kPlainK = 32;

__device__ float load_any(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::kBF16) return to_float(static_cast<const BF16*>(data)[at]);
  if (dtype == DType::kE4M3) return device::from_e4m3(static_cast<const std::uint8_t*>(data)[at]);
  return static_cast<const float*>(data)[at];
}

__global__ void __launch_bounds__(256, 3) plain(const __grid_constant__ Operands o, std::int64_t column_blocks, std::int64_t row_blocks) {
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
        wv = load_any(o.w, o.w_dtype, (group * o.n + column + r) * o.k + k + tx);
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
    if (r < o.m && column + tx < o.n) o.store(r, group, column + tx, acc[j]);
  }
}

bool multiple_of(std::int64_t v, std::int64_t of) { return v % of == 0; }

/// Whether both operands can be read 16 bytes (E4M3 x: 8 bytes, unless w is too) at a time.
bool aligned(const Operands& o, std::int64_t groups) {
  const auto address = [](const void* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); };
  const std::int64_t inputs = o.w_dtype == DType::kE4M3 ? 16 : 8;
  const std::int64_t x_inputs = o.x_dtype == DType::kE4M3 ? inputs : 8;
  return multiple_of(address(o.x), o.x_dtype == DType::kE4M3 ? inputs : 16) && multiple_of(address(o.w), 16) && multiple_of(o.k, inputs) &&
         (o.m <= 1 || multiple_of(o.x_row, x_inputs)) && (groups <= 1 || multiple_of(o.x_group, x_inputs));
}

}  // namespace

SMLA_CUDA_OP(Projection, 0) {
  if (p.m == 0 || p.n == 0) return;
  Operands o{.x = a.x.data,
             .w = a.w.data,
             .y = a.y.data,
             .x_scale = a.x_scale.data,
             .w_scale = static_cast<const float*>(a.w_scale.data),
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
    launch(p.x == DType::kE4M3 ? few_rows_of_e4m3<true> : few_rows_of_e4m3<false>, 32 * kFewWarps, 0, kFewRows, kFewColumns);
  } else if (p.x == DType::kE4M3) {
    launch(few_rows<true>, 32 * kFewWarps, 0, kFewRows, kFewColumns);
  } else if (p.m <= kFewRows && !context.deterministic) {
    launch(few_rows<false>, 32 * kFewWarps, 0, kFewRows, kFewColumns);
  } else {
    check_cuda(cudaFuncSetAttribute(many_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, kTileShared), "cudaFuncSetAttribute");
    launch(many_rows, 32 * kTileWarps, kTileShared, kTileM, kTileN);
  }
}

}  // namespace smla
