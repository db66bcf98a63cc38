#pragma once

#include "device/ptx/cp_async.cuh"
#include "ops/attention/block_sm90.cuh"

namespace smla::attention::sm90 {

/// An item's queries on their way to shared memory. Rows past the last head are zeros. `warps` or kWarps warps share
/// the work, `warp` is the caller's number among them.
template <class Item>
struct ItemQueries {
  static constexpr int kAtOnce = 2;  ///< heads that are normed and rotated together
  static constexpr int kVec4s = kDim / 128;
  static constexpr int kGroups = AttentionTile::kGroups;
  // A warp copies and converts kRows heads at a time, of which a lane has eight numbers of each group: the groups are
  // at fixed distances from the first, in memory as in shared memory.
  static constexpr int kRows = 4;
  static constexpr int kPieces = 8;  ///< of a group; 16 bytes each in shared memory
  static constexpr int kPieceNumbers = AttentionTile::kGroup / kPieces;

  const TileCall& c;
  std::uint32_t queries;
  Item item;

  __device__ bool codes() const { return c.a.q_dtype == DType::kE4M3; }
  /// Where the numbers from `number` on of a head are; 4 or 8 of them lie together.
  __device__ std::uint32_t at(int head, int number) const {
    return queries + number / 64 * Place::kGroupBytes + head * 128 + ((number % 64 / 8 ^ (head & 7)) << 4) +
           number % 8 * 2;
  }

  /// The first of the heads of which a lane has numbers, and which piece of each group.
  struct Part {
    std::uint32_t head;
    std::uint32_t piece;
    __device__ explicit Part(int warp) {
      const std::uint32_t lane = static_cast<std::uint32_t>(fresh_thread()) % 32;
      head = kRows * static_cast<std::uint32_t>(warp) + lane / kPieces;
      piece = lane % kPieces;
    }
  };
  /// Where a lane's numbers of group 0 are.
  __device__ std::uint32_t place(const Part& part) const {
    return queries + part.head * 128 + ((part.piece ^ part.head % 8) << 4);
  }
  /// The same of the head `kWarps` x kRows further on, whose number modulo 8 is another by 4.
  template <int kWarps>
  __device__ static std::uint32_t next(std::uint32_t place) {
    static_assert(kWarps * kRows % 8 == 4);
    return (place + kWarps * kRows * 128) ^ (4 << 4);
  }

  /// Starts copying a warp's heads as they are; eight codes of e4m3 go to the place of the first four numbers.
  template <int kWarps>
  __device__ void start(int warp) const {
    const Part part(warp);
    const int size = codes() ? 1 : 2;
    const std::int64_t stride = size * c.a.q_stride[1];
    const auto* from = static_cast<const std::uint8_t*>(c.a.q) +
                       size * (item.token() * c.a.q_stride[0] + part.piece * kPieceNumbers) +
                       (item.first_head() + part.head) * stride;
    if (codes()) {
      copy<kWarps, 1>(warp, part, from, stride);
    } else {
      copy<kWarps, 2>(warp, part, from, stride);
    }
  }

  /// Whether the call norms and rotates queries, for which a warp needs whole heads and more registers than those that
  /// bring queries have.
  __device__ bool rotated() const {
    if constexpr (Item::kPacked) return c.a.q_positions != nullptr;
    return c.a.q_row(item.token(), item.first_head()) != nullptr;
  }

  /// Converts what this thread has started to copy, once that has arrived. Returns whether fp16 cannot represent a
  /// number.
  template <int kWarps>
  __device__ bool convert_own(int warp) const {
    const int heads = item.heads();
    std::uint32_t at = place(Part(warp));
    std::uint32_t top = 0;
    if (codes()) {
#pragma unroll 1
      for (int head = kRows * warp; head < heads; head += kRows * kWarps, at = next<kWarps>(at)) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const std::uint32_t to = at + g * Place::kGroupBytes;
          const uint2 v = device::ld_shared_v2(to);
          uint4 halves;
          widen_codes(v.x, halves.x, halves.y), widen_codes(v.y, halves.z, halves.w);
          device::st_shared_v4(to, halves);
        }
      }
    } else {
      const auto halves = [&](std::uint32_t pair) {
        top = device::largest_sizes(top, pair);
        return halves_of(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF'0000U));
      };
#pragma unroll 1
      for (int head = kRows * warp; head < heads; head += kRows * kWarps, at = next<kWarps>(at)) {
        uint4 next_pairs = device::ld_shared_v4(at);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const uint4 v = next_pairs;
          // Asked for before the present ones are stored, or each load would be waited for.
          if (g + 1 < kGroups) next_pairs = device::ld_shared_v4(at + (g + 1) * Place::kGroupBytes);
          device::st_shared_v4(at + g * Place::kGroupBytes, {halves(v.x), halves(v.y), halves(v.z), halves(v.w)});
        }
      }
    }
    // 65,536, the least number of bf16 that fp16 makes infinite, has the bits 0x4780. Codes are all below it.
    return device::at_least(top, 0x4780) != 0;
  }

  /// Converts queries that are normed and rotated before that, bf16 as all such are. A lane has numbers 128 k + 4 lane
  /// and the next three of a head. Returns whether fp16 cannot represent a number.
  __device__ bool finish(int warp, int warps) const {
    const float* const rotation = c.a.q_row(item.token(), item.first_head());
    const int lane = fresh_thread() % 32;
    std::uint32_t overflow = 0;
#pragma unroll 1
    for (int first = warp * kAtOnce; first < kTileHeads; first += warps * kAtOnce) {
      float4 v[kAtOnce][kVec4s];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k)
          v[h][k] = device::widened(device::ld_shared_v2(at(first + h, 128 * k + 4 * lane)));
      }
      if constexpr (Item::kPacked) {
        const float* rows[kAtOnce];
#pragma unroll
        for (int h = 0; h < kAtOnce; ++h) rows[h] = c.a.q_row(item.token(), item.first_head() + first + h);
        smla::norm_and_rotate(v, kDim, c.a.q_eps, c.a.q_rope, rows);
      } else {
        smla::norm_and_rotate(v, kDim, c.a.q_eps, c.a.q_rope, rotation);
      }
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

 private:
  /// start() for numbers of kBytes bytes. `from`: the lane's first ones; `stride`: bytes from a head to the next.
  template <int kWarps, int kBytes>
  __device__ void copy(int warp, const Part& part, const std::uint8_t* from, std::int64_t stride) const {
    int left = item.heads() - static_cast<int>(part.head);  // heads from this lane's on
    std::uint32_t to = place(part);
#pragma unroll 1
    for (int head = kRows * warp; head < kTileHeads; head += kRows * kWarps) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        device::cp_async<kBytes * kPieceNumbers>(to + g * Place::kGroupBytes, from + g * kBytes * AttentionTile::kGroup,
                                                 left > 0);
      }
      from += kRows * kWarps * stride, to = next<kWarps>(to), left -= kRows * kWarps;
    }
  }
};

/// Asks for the queries of a later item, so that they come from L2. `warp`: of kQueryWarps.
template <class Item>
__device__ void fetch_queries(const TileCall& c, const Item& item, int warp) {
  // A lane asks for an eighth of each head of which it is going to copy numbers.
  const typename ItemQueries<Item>::Part part(warp);
  const int size = c.a.q_dtype == DType::kE4M3 ? 1 : 2;
  const int heads = item.heads();
  const std::int64_t stride = size * c.a.q_stride[1];
  const auto* from = static_cast<const std::uint8_t*>(c.a.q) +
                     size * (item.token() * c.a.q_stride[0] + part.piece * (kDim / ItemQueries<Item>::kPieces)) +
                     (item.first_head() + part.head) * stride;
  constexpr int kStep = ItemQueries<Item>::kRows * kQueryWarps;
#pragma unroll 1
  for (int head = static_cast<int>(part.head); head < heads; head += kStep, from += kStep * stride)
    device::prefetch(from);
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
    queries.template start<kQueryWarps>(warp);
    device::cp_async_commit();
    if (Item::is(shared, items, number_of(turn + 1), turn + 1))
      fetch_queries(c, Item(c, shared, number_of(turn + 1), turn + 1), warp);
    device::cp_async_wait<0>();
    const bool bad = !queries.rotated() && queries.template convert_own<kQueryWarps>(warp);
    const bool any = __any_sync(kAll, bad);
    // The warp's number is computed anew, too: kept, it would take another register.
    if (const Lane me = Lane::fresh(); me.lane == 0)
      device::st_shared_u32(shared.bad_queries(turn) + 4 * (me.warp + kQueryWarps - kGroupWarps), any ? 1 : 0);
    device::fence_proxy_async();
    device::mbarrier_arrive(shared.item_ready(turn));
  }
}

}  // namespace smla::attention::sm90
