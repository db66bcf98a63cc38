#pragma once

#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/mma_sm80.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_split.h"
#include "ops/attention/key_rows.cuh"

namespace smla {

// The two matrix products of a tile. Within a group of 64 dims the order of dims is chosen so that a lane loads codes
// 16 bytes at a time: lane t of four has dims 16t..16t+15, four for each of four steps. q is stored in the same order:
// in step s of a group, dims 16t+4s, +1 are at numbers 16s+2t, +1 and dims 16t+4s+2, +3 at 16s+8+2t, +1.

/// Byte offset of piece c of head h in shared memory. A row of q is 64 pieces of 16 bytes; piece c is at place c ^ (h %
/// 8).
__device__ inline int q_at(int head, int c) { return head * 2 * AttentionTile::kDim + ((c ^ (head & 7)) << 4); }

/// Computes <q_h, k_j> over this warp's part of the dims, for its heads and keys, and writes it to that part's rows of
/// scores. Returns whether fp16 cannot represent a number.
template <AttentionTile kTile>
__device__ bool score_tile(std::uint32_t shared, std::uint8_t* scores, const KeyBuffer<kTile>& keys) {
  constexpr int kHeadTiles = kTile.heads / 16 / kTile.head_warps;
  constexpr int kKeyTiles = kTile.keys / 8 / kTile.key_warps;
  constexpr int kGroups = AttentionTile::kGroups / kTile.dim_warps;
  static_assert(kHeadTiles >= 1 && kKeyTiles >= 1 &&
                kTile.head_warps * kTile.key_warps * kTile.dim_warps == AttentionTile::kWarps);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp % kTile.dim_warps;
  const int key = warp / kTile.dim_warps % kTile.key_warps * (8 * kKeyTiles) + lane / 4;
  const int head = warp / (kTile.dim_warps * kTile.key_warps) * (16 * kHeadTiles);
  const int quarter = lane % 4;
  // Groups are 128 bytes apart; the address of step s of a group is that of step 0 xor 32 s.
  const std::uint32_t q_row = shared + q_at(head + lane % 16, lane / 16);

  const std::uint32_t code_row = keys.codes(key) + ((quarter ^ KeyBuffer<kTile>::swizzle_codes(lane / 4)) << 4);

  float sums[kHeadTiles][kKeyTiles][4] = {};
  bool unrepresentable = false;
  const auto step = [&](int group, int s, const std::uint32_t(&b)[kKeyTiles][2]) {
    const std::uint32_t from = (q_row + 128 * group) ^ (32 * s);
    std::uint32_t q[kHeadTiles][4];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) device::ldmatrix_x4(q[h], from + h * 16 * kTile.row_bytes());
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) device::mma_m16n8k16_f16(sums[h][j], q[h], b[j][0], b[j][1]);
    }
  };
#pragma unroll 1
  for (int i = 0; i < kGroups; ++i) {
    const int group = part * kGroups + i;
    if (group < keys.layout.code_groups) {
      std::uint32_t codes[kKeyTiles][4];
      std::uint32_t scale[kKeyTiles];
      const std::uint32_t from = (code_row + group / 2 * 128) ^ (group % 2 * 64);
      const std::uint32_t scales = keys.scales(key) + 2 * group;
#pragma unroll
      for (int j = 0; j < kKeyTiles; ++j) {
        const uint4 v = device::ld_shared_v4(from + 8 * j * AttentionTile::kDim);
        codes[j][0] = v.x, codes[j][1] = v.y, codes[j][2] = v.z, codes[j][3] = v.w;
        std::uint16_t bits;
        asm volatile("ld.shared.u16 %0, [%1];"
                     : "=h"(bits)
                     : "r"(scales + 8 * j * 2 * AttentionTile::kGroups)
                     : "memory");
        scale[j] = bits * 0x1'0001U;
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        std::uint32_t b[kKeyTiles][2];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          unrepresentable = unrepresentable || misread_nan(codes[j][s]);
          widen_codes(codes[j][s], b[j][0], b[j][1]);
          b[j][0] = multiply_halves(b[j][0], scale[j]);
          b[j][1] = multiply_halves(b[j][1], scale[j]);
        }
        step(group, s, b);
      }
    } else {
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        uint2 even[kKeyTiles];
        uint2 odd[kKeyTiles];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          const int piece = 8 * (group - keys.layout.code_groups) + 2 * quarter;
          const std::uint32_t row = keys.halves(key + 8 * j) + 8 * half;
          even[j] = device::ld_shared_v2(row + ((piece ^ (lane / 4)) << 4));
          odd[j] = device::ld_shared_v2(row + (((piece + 1) ^ (lane / 4)) << 4));
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          std::uint32_t b[kKeyTiles][2];
#pragma unroll
          for (int j = 0; j < kKeyTiles; ++j) {
            b[j][0] = __byte_perm(s == 0 ? even[j].x : even[j].y, s == 0 ? odd[j].x : odd[j].y, 0x5410);
            b[j][1] = __byte_perm(s == 0 ? even[j].x : even[j].y, s == 0 ? odd[j].x : odd[j].y, 0x7632);
          }
          step(group, 2 * half + s, b);
        }
      }
    }
  }
  const int column = key - lane / 4 + 2 * quarter;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int j = 0; j < kKeyTiles; ++j) {
      std::uint8_t* row =
          scores + (part * kTile.heads + head + 16 * h + lane / 4) * kTile.score_row_bytes() + 4 * (column + 8 * j);
      *reinterpret_cast<float2*>(row) = make_float2(sums[h][j][0], sums[h][j][1]);
      *reinterpret_cast<float2*>(row + 8 * kTile.score_row_bytes()) = make_float2(sums[h][j][2], sums[h][j][3]);
    }
  }
  return unrepresentable;
}

/// A warp's part of the output: one group of 64 columns of all heads. sums[h][2u] holds the even and sums[h][2u+1] the
/// odd columns of 16u..16u+15.
template <AttentionTile kTile>
struct OutputTile {
  static constexpr int kHeadTiles = kTile.heads / 16;
  static constexpr int kUnits = AttentionTile::kGroup / 16;
  static_assert(AttentionTile::kGroups == AttentionTile::kWarps);
  float sums[kHeadTiles][2 * kUnits][4] = {};

  __device__ void rescale(const float* factors) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      const float low = factors[16 * h + lane / 4];
      const float high = factors[16 * h + 8 + lane / 4];
#pragma unroll
      for (int j = 0; j < 2 * kUnits; ++j) {
        sums[h][j][0] *= low, sums[h][j][1] *= low;
        sums[h][j][2] *= high, sums[h][j][3] *= high;
      }
    }
  }

  /// Whether all sums are finite numbers.
  __device__ bool finite() const {
    float zero = 0;  // NaN after one that is not
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int j = 0; j < 2 * kUnits; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) zero = fmaf(sums[h][j][i], 0.0F, zero);
      }
    }
    return zero == 0;
  }

  /// Adds weights x keys of a tile to the sums.
  __device__ void add(std::uint32_t scores, const KeyBuffer<kTile>& keys) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = static_cast<int>(threadIdx.x) / 32;
    const std::uint32_t weights = scores + lane % 16 * kTile.score_row_bytes() + lane / 16 * 16;
    const int quarter = lane % 4;
    std::uint32_t w[kHeadTiles][4];
    const auto load_weights = [&](int i) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h)
        device::ldmatrix_x4(w[h], weights + h * 16 * kTile.score_row_bytes() + 32 * i);
    };
    const auto multiply = [&](int unit, const std::uint32_t(&b)[2][2]) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        device::mma_m16n8k16_f16(sums[h][2 * unit], w[h], b[0][0], b[0][1]);
        device::mma_m16n8k16_f16(sums[h][2 * unit + 1], w[h], b[1][0], b[1][1]);
      }
    };
    if (group < keys.layout.code_groups) {
      const std::uint32_t code_row =
          keys.codes(lane % 16) + (((4 * group + lane / 16) ^ KeyBuffer<kTile>::swizzle_codes(lane % 8)) << 4);
#pragma unroll
      for (int i = 0; i < kTile.keys / 16; ++i) {
        load_weights(i);
        // Tiles: keys 0-7 and 8-15 of a piece, then of the next.
        const std::uint32_t scale = keys.scales(16 * i + 2 * quarter) + 2 * group;
        const auto scales = [&](int key) {
          std::uint16_t low;
          std::uint16_t high;
          asm volatile("ld.shared.u16 %0, [%1];"
                       : "=h"(low)
                       : "r"(scale + key * 2 * AttentionTile::kGroups)
                       : "memory");
          asm volatile("ld.shared.u16 %0, [%1];"
                       : "=h"(high)
                       : "r"(scale + (key + 1) * 2 * AttentionTile::kGroups)
                       : "memory");
          return static_cast<std::uint32_t>(high) << 16 | low;
        };
        const std::uint32_t low_scale = scales(0);
        const std::uint32_t high_scale = scales(8);
#pragma unroll
        for (int pair = 0; pair < kUnits / 2; ++pair) {
          std::uint32_t codes[4];
          device::ldmatrix_x4_trans(codes, (code_row ^ (32 * pair)) + 16 * i * AttentionTile::kDim);
#pragma unroll
          for (int u = 0; u < 2; ++u) {
            std::uint32_t b[2][2];
            widen_codes(__byte_perm(codes[2 * u], 0, 0x3120), b[0][0], b[1][0]);
            widen_codes(__byte_perm(codes[2 * u + 1], 0, 0x3120), b[0][1], b[1][1]);
#pragma unroll
            for (int e = 0; e < 2; ++e)
              b[e][0] = multiply_halves(b[e][0], low_scale), b[e][1] = multiply_halves(b[e][1], high_scale);
            multiply(2 * pair + u, b);
          }
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTile.keys / 16; ++i) {
        load_weights(i);
        const std::uint32_t row = keys.halves(16 * i + lane % 16);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          std::uint32_t v[4];
          const int place =
              (8 * (group - keys.layout.code_groups) + 2 * u + lane / 16) ^ KeyBuffer<kTile>::swizzle_halves(lane % 8);
          device::ldmatrix_x4_trans(v, row + (place << 4));
          const std::uint32_t b[2][2] = {{v[0], v[1]}, {v[2], v[3]}};
          multiply(u, b);
        }
      }
    }
  }

  /// Calls f(head, column, numbers) for all groups of four neighbouring columns that this lane holds.
  template <class F>
  __device__ void each(F&& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = static_cast<int>(threadIdx.x) / 32 * AttentionTile::kGroup + 4 * (lane % 4);
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int low = 0; low < 2; ++low) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const auto& even = sums[h][2 * u];
          const auto& odd = sums[h][2 * u + 1];
          f(16 * h + 8 * low + lane / 4, column + 16 * u,
            make_float4(even[2 * low], odd[2 * low], even[2 * low + 1], odd[2 * low + 1]));
        }
      }
    }
  }
};

}  // namespace smla
