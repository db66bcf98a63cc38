#pragma once

#include "ops/attention/attention_block.cuh"

namespace smla::attention {

/// Online softmax over tiles of scores. kLanes threads of a warp share a row (a head) and its state. Weights are
/// 2^(score - reference). The largest score so far exceeds the reference by kRoom - kSlack to kRoom, so older sums are
/// rescaled only when it grows by more than kSlack, and small weights keep their bits in fp16.
template <AttentionTile kTile>
struct Softmax {
  static constexpr int kLanes = kThreads / kTile.heads;
  static constexpr int kRows = 32 / kLanes;          ///< rows of a warp
  static constexpr int kKeys = kTile.keys / kLanes;  ///< keys of a thread
  static constexpr float kRoom = 10;
  static constexpr float kSlack = 4;
  float reference = -INFINITY;
  float sum = 0;  ///< sum of the weights of this thread's keys

  __device__ static int row() {
    return static_cast<int>(threadIdx.x) / 32 * kRows + static_cast<int>(threadIdx.x) % kRows;
  }
  __device__ static bool first() { return threadIdx.x % 32 < kRows; }

  /// The lowest `n` bits, of n up to 31; none of fewer than none.
  __device__ static std::uint32_t bits_below(int n) { return (1U << min(max(n, 0), 31)) - 1; }

  /// Replaces the scores of a tile by weights and returns the factor that rescales older sums. `counting()`: of packed
  /// tokens the keys {first, behind the last} of the tile that count for the row.
  template <Lists kLists, class Counting>
  __device__ float take(const TileCall& c, std::uint8_t* scores, const std::uint8_t* valid, int scope,
                        const Counting& counting) {
    static_assert(kKeys % 2 == 0 && kKeys <= 16);
    const int key = static_cast<int>(threadIdx.x) % 32 / kRows * kKeys;
    std::uint8_t* line = scores + row() * kTile.score_row_bytes();
    // Found before the scores take their registers: a bit for each of the thread's keys.
    std::uint32_t counts = 0;
    constexpr bool kPacked = kLists == Lists::kPacked;
    if (kPacked) {
      const int2 keys = counting();
      counts = bits_below(keys.y - key) & ~bits_below(keys.x - key);
    }
    float s[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) s[i] = 0;
#pragma unroll
    for (int w = 0; w < kTile.dim_warps; ++w) {
      const std::uint8_t* part = line + w * kTile.heads * kTile.score_row_bytes() + 4 * key;
      if constexpr (kKeys % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kKeys; i += 4) {
          const float4 v = reinterpret_cast<const float4*>(part)[i / 4];
          s[i] += v.x, s[i + 1] += v.y, s[i + 2] += v.z, s[i + 3] += v.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kKeys; i += 2) {
          const float2 v = reinterpret_cast<const float2*>(part)[i / 2];
          s[i] += v.x, s[i + 1] += v.y;
        }
      }
    }
    const float scale = c.score_scale[scope];
    float top = -INFINITY;
    if (kPacked) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        s[i] = valid[key + i] != 0 && (counts >> i & 1U) != 0U ? s[i] * scale : -INFINITY;
        top = fmaxf(top, s[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys; i += 2) {
        const std::uint16_t pair = *reinterpret_cast<const std::uint16_t*>(valid + key + i);
        s[i] = (pair & 1U) != 0U ? s[i] * scale : -INFINITY;
        s[i + 1] = (pair & 0x100U) != 0U ? s[i + 1] * scale : -INFINITY;
        top = fmaxf(top, fmaxf(s[i], s[i + 1]));
      }
    }
#pragma unroll
    for (int i = kRows; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, i));
    float rescale = 1;
    if (top > reference + (kRoom + kSlack)) {
      const float next = top - kRoom;
      rescale = exp2f(reference - next);
      reference = next;
    }
    const float shift = reference == -INFINITY ? 0 : reference;
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      s[i] = exp2f(s[i] - shift);
      mine += s[i];
    }
    sum = fmaf(sum, rescale, mine);
    // All threads of a row are in one warp, so all have read their scores before one of them writes.
    __syncwarp();
    auto* weights = reinterpret_cast<std::uint32_t*>(line) + key / 2;
    const float weight = c.weight_scale[scope];
    std::uint32_t pairs[kKeys / 2];
#pragma unroll
    for (int i = 0; i < kKeys; i += 2) pairs[i / 2] = halves_of(s[i] * weight, s[i + 1] * weight);
    if constexpr (kKeys % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 4)
        *reinterpret_cast<uint4*>(weights + i) = make_uint4(pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) weights[i] = pairs[i];
    }
    return rescale;
  }

  /// The sum of the row's weights, the same in all of its threads.
  __device__ float whole_sum() const {
    float all = sum;
#pragma unroll
    for (int i = kRows; i < 32; i *= 2) all += __shfl_xor_sync(kAll, all, i);
    return all;
  }
};

}  // namespace smla::attention
