#pragma once

#include "device/ptx/barrier.cuh"
#include "device/ptx/shared.cuh"
#include "device/vec4.cuh"
#include "ops/head_rows.cuh"
#include "ops/projection/split_inputs_sm90.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

// Rows of x that are normed in the launch that multiplies them (Shape::kNorms). While the warpgroup that brings x waits
// for its first copies, those that multiply find the rows' inverse roots: they have nothing else to do yet, and the
// registers for it.

constexpr int kRootsFound = 2;  ///< barrier of the warpgroups that multiply and of the one that brings x

/// Of all threads of those three.
__device__ inline void wait_for_inverse_roots() { device::bar_sync(kRootsFound, (kConsumers + 1) * kGroupThreads); }

/// The inverse root of each row's mean square, in shared memory; by the warps of the warpgroups that multiply, of which
/// warp w has rows w, w + 8, ....
template <class Shape>
__device__ void find_inverse_roots(const StreamCall& call, std::uint32_t shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pieces = call.k / 8;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / 32; row < call.m; row += kConsumers * kGroupWarps) {
    const auto* from = reinterpret_cast<const uint4*>(call.x + row * call.x_row);
    device::Squares sum;
#pragma unroll 4
    for (int i = lane; i < pieces; i += 32) {
      const uint4 x = __ldcg(from + i);
      sum.add(device::widened(make_uint2(x.x, x.y)));
      sum.add(device::widened(make_uint2(x.z, x.w)));
    }
    const float inverse = inverse_root(device::sum_of_warp(sum.all()), call.k, call.x_eps);
    if (lane == 0) device::st_shared_u32(shared + Shape::kInverses + 4 * row, __float_as_uint(inverse));
  }
  wait_for_inverse_roots();
}

/// The norm's weights of the sixteen inputs of a stage that a lane splits, zeros behind the last input.
struct SixteenWeights {
  uint4 low, high;
};
__device__ inline SixteenWeights norm_weights(const StreamCall& call, int stage) {
  SixteenWeights weights{};
  const int input = stage * kPiece + static_cast<int>(threadIdx.x) % kSplitLanes * 16;
  if (input < call.k) {
    const auto* from = reinterpret_cast<const uint4*>(call.x_weight + input);
    weights = {.low = __ldg(from), .high = __ldg(from + 1)};
  }
  return weights;
}

/// What RmsNorm makes of eight inputs of a row.
__device__ inline uint4 normed(uint4 x, float inverse, uint4 weights) {
  const auto four = [&](uint2 v, uint2 w) {
    return device::computed<BF16>(device::product(device::scaled(device::widened(v), inverse), device::widened(w)));
  };
  const uint2 low = four(make_uint2(x.x, x.y), make_uint2(weights.x, weights.y));
  const uint2 high = four(make_uint2(x.z, x.w), make_uint2(weights.z, weights.w));
  return make_uint4(low.x, low.y, high.x, high.y);
}

/// Norms the rows of a stage in their own place, by a warp: a lane the sixteen inputs of a row that it splits then.
template <class Shape>
__device__ void norm_stage(std::uint32_t shared, int slot, int rows, const SixteenWeights& weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int e = lane % kSplitLanes;
#pragma unroll 1
  for (int row = lane / kSplitLanes; row < rows; row += kSplitRows) {
    const float inverse = __uint_as_float(device::ld_shared_u32(shared + Shape::kInverses + 4 * row));
    const std::uint32_t at = shared + Shape::half_row(slot, e / 4, row);
    const std::uint32_t low = at + ((2 * e) ^ row) % 8 * 16;
    const std::uint32_t high = at + ((2 * e + 1) ^ row) % 8 * 16;
    device::st_shared_v4(low, normed(device::ld_shared_v4(low), inverse, weights.low));
    device::st_shared_v4(high, normed(device::ld_shared_v4(high), inverse, weights.high));
  }
  __syncwarp();
}

}  // namespace smla::projection::sm90
