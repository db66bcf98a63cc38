#pragma once

#include "device/ptx.cuh"
#include "ops/attention/attention_split.h"

namespace smla {

/// Rows of 512 bf16 numbers in shared memory are 64 pieces of 16 bytes, and piece c of row r lies at place c ^ (r % 8): eight rows' pieces c are in
/// different banks, which is what loading an 8x8 tile wants.
__device__ inline int piece_at(int row, int c) { return row * 2 * AttentionTile::kDim + ((c ^ (row & 7)) << 4); }

/// Scores of a tile: <q_h, k_j> over this warp's part of the dims, for its heads and its keys, into the rows of scores of that part. All of them in fp32.
template <AttentionTile kTile>
__device__ void score_tile(std::uint32_t shared, std::uint8_t* scores) {
  constexpr int kHeadTiles = kTile.heads / 16 / kTile.head_warps;
  constexpr int kKeyTiles = kTile.keys / 8 / kTile.key_warps;
  constexpr int kSteps = AttentionTile::kDim / 16 / kTile.dim_warps;
  static_assert(kHeadTiles >= 1 && kKeyTiles >= 2 && kKeyTiles % 2 == 0 &&
                kTile.head_warps * kTile.key_warps * kTile.dim_warps == AttentionTile::kWarps);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp % kTile.dim_warps;
  const int key = warp / kTile.dim_warps % kTile.key_warps * (8 * kKeyTiles);
  const int head = warp / (kTile.dim_warps * kTile.key_warps) * (16 * kHeadTiles);

  // A lane's rows are the same modulo 8 in every tile.
  const std::uint32_t q_row = shared + (head + lane % 16) * kTile.row_bytes();
  const std::uint32_t k_row = shared + kTile.keys_at() + (key + lane / 16 * 8 + lane % 8) * kTile.row_bytes();
  float sums[kHeadTiles][kKeyTiles][4] = {};
#pragma unroll 4
  for (int i = 0; i < kSteps; ++i) {
    const int c = 2 * (part * kSteps + i);
    const int q_place = ((c + lane / 16) ^ (lane & 7)) << 4;
    const int k_place = ((c + lane / 8 % 2) ^ (lane & 7)) << 4;
    std::uint32_t q[kHeadTiles][4];
    std::uint32_t k[kKeyTiles / 2][4];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) device::load_tiles(q[h], q_row + h * 16 * kTile.row_bytes() + q_place);
#pragma unroll
    for (int j = 0; j < kKeyTiles / 2; ++j) device::load_tiles(k[j], k_row + j * 16 * kTile.row_bytes() + k_place);
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) device::multiply_add(sums[h][j], q[h], k[j / 2][j % 2 * 2], k[j / 2][j % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      std::uint8_t* row = scores + (part * kTile.heads + head + 16 * h + lane / 4) * kTile.score_row_bytes() + 4 * (key + 8 * j + 2 * (lane % 4));
      *reinterpret_cast<float2*>(row) = make_float2(sums[h][j][0], sums[h][j][1]);
      *reinterpret_cast<float2*>(row + 8 * kTile.score_row_bytes()) = make_float2(sums[h][j][2], sums[h][j][3]);
    }
  }
}

/// A warp's part of the output: all heads, 64 columns.
template <AttentionTile kTile>
struct OutputTile {
  static constexpr int kHeadTiles = kTile.heads / 16;
  static constexpr int kColumns = AttentionTile::kDim / AttentionTile::kWarps;
  float sums[kHeadTiles][kColumns / 8][4] = {};

  __device__ void fade(const float* factors) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const float low = factors[16 * h + lane / 4];
      const float high = factors[16 * h + 8 + lane / 4];
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        sums[h][j][0] *= low, sums[h][j][1] *= low;
        sums[h][j][2] *= high, sums[h][j][3] *= high;
      }
    }
  }

  /// sums += weights x rows. A weight is two bf16 numbers, the second what the first leaves: one alone is as coarse as a rounded output, and both together
  /// would miss the output's bound.
  __device__ void add(std::uint32_t shared) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t weights = shared + kTile.scores_at() + lane % 16 * kTile.score_row_bytes() + lane / 16 * 16;
    const std::uint32_t k_row = shared + kTile.keys_at() + lane % 16 * kTile.row_bytes();
#pragma unroll
    for (int i = 0; i < kTile.keys / 16; ++i) {
      std::uint32_t v[kColumns / 16][4];
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        const int place = ((warp * (kColumns / 8) + 2 * j + lane / 16) ^ (lane & 7)) << 4;
        device::load_tiles_transposed(v[j], k_row + i * 16 * kTile.row_bytes() + place);
      }
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t w[4];
          device::load_tiles(w, weights + 16 * h * kTile.score_row_bytes() + half * 2 * kTile.keys + 32 * i);
#pragma unroll
          for (int j = 0; j < kColumns / 8; ++j) device::multiply_add(sums[h][j], w, v[j / 2][j % 2 * 2], v[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  /// f(head, column, a, b) for every two neighbours that this lane holds.
  template <class F>
  __device__ void each(F&& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = static_cast<int>(threadIdx.x) / 32 * kColumns + 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) f(16 * h + 8 * low + lane / 4, column + 8 * j, sums[h][j][2 * low], sums[h][j][2 * low + 1]);
      }
    }
  }
};

}  // namespace smla
