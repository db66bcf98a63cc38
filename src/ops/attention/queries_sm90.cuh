#pragma once

#include "device/ptx/cp_async.cuh"
#include "ops/attention/block_sm90.cuh"

namespace smla::attention::sm90 {

/// An item's queries on their way to shared memory. Rows past the last head are zeros. `warps` warps share the work,
/// `warp` is the caller's number among them. A lane has numbers 128 k + 4 lane and the next three of a head.
template <class Item>
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
    return item.token() * c.a.q_stride[0] + (item.first_head() + head) * c.a.q_stride[1];
  }

  /// Starts copying every warps-th head as it is; four codes of e4m3 go to the place of the first two numbers.
  __device__ void start(int warp, int warps) const {
    const int heads = item.heads();
    const int lane = fresh_thread() % 32;
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

  /// Whether the call norms and rotates queries, for which a warp needs whole heads and more registers than those that
  /// bring queries have.
  __device__ bool rotated() const { return c.a.q_row(item.token()) != nullptr; }

  /// Converts what this thread has started to copy, once that has arrived. Returns whether fp16 cannot represent a
  /// number.
  __device__ bool convert_own(int warp, int warps) const {
    const int heads = item.heads();
    const int lane = fresh_thread() % 32;
    std::uint32_t overflow = 0;
#pragma unroll 1
    for (int head = warp; head < heads; head += warps) {
      if (codes()) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          const std::uint32_t place = at(head, 128 * k + 4 * lane);
          const float4 x = device::widened_codes(device::ld_shared_u32(place));
          device::st_shared_v2(place, {halves_of(x.x, x.y), halves_of(x.z, x.w)});
        }
      } else {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          const std::uint32_t place = at(head, 256 * (k / 2) + 8 * lane) + k % 2 * 8;
          const auto pair = [&](std::uint32_t bits) {
            const std::uint32_t halves = halves_of(__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF'0000U));
            overflow |= fp16_overflow(halves);
            return halves;
          };
          const uint2 bits = device::ld_shared_v2(place);
          device::st_shared_v2(place, {pair(bits.x), pair(bits.y)});
        }
      }
    }
    return (overflow & 0x8000'8000U) != 0U;
  }

  /// Converts queries that are normed and rotated before that. Returns whether fp16 cannot represent a number.
  __device__ bool finish(int warp, int warps) const {
    const float* const rotation = c.a.q_row(item.token());
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
      smla::norm_and_rotate(v, kDim, c.a.q_eps, c.a.q_rope, rotation);
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) {
          const float4 x = device::rounded_to_bf16(v[h][k]);
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
template <class Item>
__device__ void fetch_queries(const TileCall& c, const Item& item, int thread) {
  constexpr int kLine = 128;
  const int size = c.a.q_dtype == DType::kE4M3 ? 1 : 2;
  const int lines = size * kDim / kLine;
  const auto* first = static_cast<const std::uint8_t*>(c.a.q) +
                      size * (item.token() * c.a.q_stride[0] + item.first_head() * c.a.q_stride[1]);
#pragma unroll 1
  for (int i = thread; i < item.heads() * lines; i += 32 * kQueryWarps)
    device::prefetch(first + size * (i / lines) * c.a.q_stride[1] + kLine * (i % lines));
}

/// Brings the queries of all of a block's items, each once those before it are read, and makes fp16 numbers of them
/// while the item before is finished.
template <class Item>
__device__ void bring_queries(const TileCall& c, const Shared& shared, std::uint32_t items, int warp) {
  // An item's number is computed anew at each use: kept, it would take a register more than there are.
  const auto number_of = [](std::uint32_t turn) {
    asm volatile("" : "+r"(turn));
    return blockIdx.x + turn * gridDim.x;
  };
#pragma unroll 1
  for (std::uint32_t turn = 0; Item::is(shared, items, number_of(turn), turn); ++turn) {
    device::mbarrier_wait_long(shared.queries_read(), (turn & 1) ^ 1);
    const ItemQueries<Item> queries{c, shared.at + Place::kQueries, Item(c, shared, number_of(turn), turn)};
    queries.start(warp, kQueryWarps);
    device::cp_async_commit();
    if (Item::is(shared, items, number_of(turn + 1), turn + 1))
      fetch_queries(c, Item(c, shared, number_of(turn + 1), turn + 1), 32 * warp + fresh_thread() % 32);
    device::cp_async_wait<0>();
    const bool bad = !queries.rotated() && queries.convert_own(warp, kQueryWarps);
    const bool any = __any_sync(kAll, bad);
    if (fresh_thread() % 32 == 0) device::st_shared_u32(shared.bad_queries(turn) + 4 * warp, any ? 1 : 0);
    device::fence_proxy_async();
    device::mbarrier_arrive(shared.item_ready(turn));
  }
}

}  // namespace smla::attention::sm90
