#pragma once

#include "device/ptx/cp_async.cuh"
#include "ops/attention/block_sm90.cuh"

namespace smla::attention::sm90 {

/// An item's queries on their way to shared memory. Rows past the last head are zeros. `warps` warps share the work,
/// `warp` is the caller's number among them. A lane has numbers 128 k + 4 lane and the next three of a head.
struct ItemQueries {
  static constexpr int kAtOnce = 2;  ///< heads
  static constexpr int kVec4s = kDim / 128;

  const TileCall& c;
  std::uint32_t queries;
  Item item;

  __device__ bool codes() const { return c.a.q_dtype == DType::kE4M3; }
  /// Where the numbers from `number` on of a head are; 4 or 8 of them lie together.
  __device__ std::uint32_t at(int head, int number) const {
    return queries + number / 64 * Place::kGroupBytes + head * 128 + ((number % 64 / 8 ^ (head & 7)) << 4) +
           number % 8 * 2;
  }
  __device__ std::int64_t index(int head) const {
    return item.token * c.a.q_stride[0] + (item.first_head + head) * c.a.q_stride[1];
  }

  /// Starts copying every warps-th head as it is; four codes of e4m3 go to the place of the first two numbers.
  __device__ void start(int warp, int warps) const {
    const int heads = item.heads(c);
    const int lane = fresh_thread() % 32;
#pragma unroll 1
#pragma unroll 1
    for (int head = warp; head < kTileHeads; head += warps) {
      const bool there = head < heads;
      const std::int64_t from = index(there ? head : 0);
      if (codes()) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          const int number = 128 * k + 4 * lane;
          device::cp_async<4>(at(head, number), static_cast<const std::uint8_t*>(c.a.q) + from + number, there);
        }
      } else {
#pragma unroll
        for (int k = 0; k < kVec4s / 2; ++k) {
          const int number = 256 * k + 8 * lane;
          device::cp_async<16>(at(head, number), static_cast<const std::uint16_t*>(c.a.q) + from + number, there);
        }
      }
    }
  }

  /// Converts them where they are, normed and rotated before that where the call says so. Returns whether fp16 cannot
  /// represent a number.
  __device__ bool finish(int warp, int warps) const {
    const float* const rotation = c.a.q_row(item.token);
    const int lane = fresh_thread() % 32;
    std::uint32_t overflow = 0;
#pragma unroll 1
    for (int first = warp * kAtOnce; first < kTileHeads; first += warps * kAtOnce) {
      float4 v[kAtOnce][kVec4s];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          const uint2 bits = device::ld_shared_v2(at(first + h, 128 * k + 4 * lane));
          v[h][k] = codes() ? device::widened_codes(bits.x) : device::widened(bits);
        }
      }
      if (rotation != nullptr) smla::norm_and_rotate(v, kDim, c.a.q_eps, c.a.q_rope, rotation);
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          const float4 x = rotation != nullptr ? device::rounded_to_bf16(v[h][k]) : v[h][k];
          const uint2 halves{halves_of(x.x, x.y), halves_of(x.z, x.w)};
          overflow |= fp16_overflow(halves.x) | fp16_overflow(halves.y);
          device::st_shared_v2(at(first + h, 128 * k + 4 * lane), halves);
        }
      }
    }
    return (overflow & 0x8000'8000U) != 0U;
  }
};

/// Asks for the queries of a later item, so that they come from L2. `thread`: of those of kQueryWarps.
__device__ inline void fetch_queries(const TileCall& c, const Item& item, int thread) {
  constexpr int kLine = 128;
  const int size = c.a.q_dtype == DType::kE4M3 ? 1 : 2;
  const int lines = size * kDim / kLine;
  const auto* first = static_cast<const std::uint8_t*>(c.a.q) +
                      size * (item.token * c.a.q_stride[0] + item.first_head * c.a.q_stride[1]);
#pragma unroll 1
  for (int i = thread; i < item.heads(c) * lines; i += 32 * kQueryWarps)
    device::prefetch(first + size * (i / lines) * c.a.q_stride[1] + kLine * (i % lines));
}

/// Brings the queries of all of a block's items, each once those before it are read.
__device__ inline void bring_queries(const TileCall& c, const Shared& shared, std::uint32_t items, int warp) {
  std::uint32_t turn = 0;
#pragma unroll 1
  for (std::uint32_t number = blockIdx.x; number < items; number += gridDim.x, ++turn) {
    device::mbarrier_wait_long(shared.queries_read(), (turn & 1) ^ 1);
    ItemQueries{c, shared.at + Place::kQueries, Item(c, number)}.start(warp, kQueryWarps);
    device::cp_async_arrive(shared.item_ready(turn));
    if (number + gridDim.x < items) fetch_queries(c, Item(c, number + gridDim.x), 32 * warp + fresh_thread() % 32);
  }
}

}  // namespace smla::attention::sm90
