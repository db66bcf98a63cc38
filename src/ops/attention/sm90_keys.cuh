#pragma once

#include "ops/attention/sm90_lists.cuh"

namespace smla::attention::sm90 {

__device__ inline uint4 load16(const std::uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

/// Scale bytes that fp16 cannot represent (unrepresentable_scale()), the upper bit of each.
__device__ inline std::uint32_t unrepresentable_scales(std::uint32_t bytes) {
  constexpr std::uint32_t kLow = 0x7F7F'7F7FU;
  const std::uint32_t low = bytes & kLow;
  const std::uint32_t not_zero = low + kLow;                    // of the lower seven bits
  const std::uint32_t in_range = low + (128 - 101) * 0x0101'0101U;  // 101 and more
  return not_zero & (bytes | ~in_range) & ~kLow;
}

/// Eight warps that widen the numbers of listed rows to fp16 and write them to the stages. A thread has one row of a
/// tile, of each group of 64 dims the same 16. Rows are asked for kAhead groups before they are widened, across tiles
/// and items. What it writes is made visible to wgmma by those who wait for it: a fence here would wait for all rows
/// that were asked for.
template <int kCodeGroups>
struct KeyLoader {
  static constexpr int kGroups = AttentionTile::kGroups;
  static constexpr int kAhead = kCodeGroups == 0 ? 2 : 3;
  static constexpr int kWaiting = kCodeGroups == 0 ? 2 : 4;  ///< groups that `codes` holds; divides kGroups
  static constexpr int kWords = kCodeGroups == 0 ? 2 : 1;  ///< 16-byte words of a group that wait in `codes`
  static constexpr bool kRest = kCodeGroups > 0 && kCodeGroups < kGroups;
  static constexpr bool kScaled = kCodeGroups == 7;  ///< else the scale is the cache's

  const ListWalker& lists;
  Shared shared;
  std::uint32_t taken = 0;     ///< tiles so far
  std::uint32_t parities = 0;  ///< bits 0 and 1: of the stages' barriers

  const std::uint8_t* row;  ///< of the tile that is being widened, or, once its last group is asked for, the next one
  uint2 scales;
  uint4 codes[kWaiting][kWords];
  uint4 rest[kRest ? 2 : 1];

  __device__ explicit KeyLoader(const ListWalker& walker) : lists(walker), shared(walker.shared) {}
  __device__ static bool walks() { return __shfl_sync(kAll, fresh_thread() / 32, 0) == kComputeThreads / 32; }

  __device__ static int row_of(int thread) { return (thread - kComputeThreads) / 4; }

  /// Waits for the next listed tile and takes the place of this thread's row. Returns what tile it is.
  __device__ std::uint32_t take() {
    const std::uint32_t slot = taken % kListed;
    device::mbarrier_wait(shared.listed(slot), taken / kListed & 1);
    const int thread = fresh_thread();
    const uint2 v = device::ld_shared_v2(place_of_row(slot));
    row = reinterpret_cast<const std::uint8_t*>(std::uint64_t{v.y} << 32 | v.x) +
          thread % 4 * (kCodeGroups == 0 ? 32 : 16);
    return ld_shared_u32(shared.what(taken++));
  }
  __device__ std::uint32_t place_of_row(std::uint32_t slot) const {
    return shared.at + Place::kRows + slot * 64 * 16 + row_of(fresh_thread()) * 16;
  }

  /// Waits for the scales of the tile that was taken last.
  __device__ void take_scales() {
    const std::uint32_t slot = (taken - 1) % kListed;
    device::mbarrier_wait(shared.scaled(slot), (taken - 1) / kListed & 1);
    scales = device::ld_shared_v2(place_of_row(slot) + 8);
    arrive(shared.taken(slot));
  }

  /// Asks for group kGroup of the row.
  template <int kGroup>
  __device__ void ask() {
    if constexpr (kGroup < kCodeGroups) {
      codes[kGroup % kWaiting][0] = load16(row + 64 * kGroup);
    } else if constexpr (kCodeGroups == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) codes[kGroup % kWaiting][i] = load16(row + 128 * kGroup + 16 * i);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) rest[i] = load16(row + 64 * kCodeGroups + 16 * (fresh_thread() % 4) + 16 * i);
    }
  }

  /// Two bf16 numbers as fp16, times kHalfUnit.
  __device__ static std::uint32_t half_pair(std::uint32_t pair, std::uint32_t& overflow) {
    const std::uint32_t halves = halves_of(__uint_as_float(pair << 16) * kHalfUnit,
                                           __uint_as_float(pair & 0xFFFF'0000U) * kHalfUnit);
    overflow |= fp16_overflow(halves);
    return halves;
  }

  /// Widens group `kGroup` and writes it to a stage. `row_at`: where this thread's row begins there.
  template <int kGroup>
  __device__ void widen(std::uint32_t row_at, std::uint32_t& overflow) {
    const std::uint32_t first = row_at + kGroup * Place::kGroupBytes;
    uint4 low;
    uint4 high;
    if constexpr (kGroup < kCodeGroups) {
      const uint4& v = codes[kGroup % kWaiting][0];
      widen_codes(v.x, low.x, low.y), widen_codes(v.y, low.z, low.w);
      widen_codes(v.z, high.x, high.y), widen_codes(v.w, high.z, high.w);
      if constexpr (kScaled) {
        const std::uint32_t byte = (kGroup < 4 ? scales.x : scales.y) >> (8 * (kGroup % 4)) & 0xFFU;
        const float scale = __uint_as_float((byte + 6) << 23);
        const std::uint32_t pair = halves_of(scale, scale);
        low.x = multiply_halves(low.x, pair), low.y = multiply_halves(low.y, pair);
        low.z = multiply_halves(low.z, pair), low.w = multiply_halves(low.w, pair);
        high.x = multiply_halves(high.x, pair), high.y = multiply_halves(high.y, pair);
        high.z = multiply_halves(high.z, pair), high.w = multiply_halves(high.w, pair);
      }
    } else {
      uint4 a;
      uint4 b;
      if constexpr (kCodeGroups == 0) {
        a = codes[kGroup % kWaiting][0], b = codes[kGroup % kWaiting][kWords - 1];
      } else {
        a = rest[0], b = rest[kRest ? 1 : 0];
      }
      low.x = half_pair(a.x, overflow), low.y = half_pair(a.y, overflow);
      low.z = half_pair(a.z, overflow), low.w = half_pair(a.w, overflow);
      high.x = half_pair(b.x, overflow), high.y = half_pair(b.y, overflow);
      high.z = half_pair(b.z, overflow), high.w = half_pair(b.w, overflow);
    }
    device::st_shared_v4(first, low);
    device::st_shared_v4(first ^ 16, high);
  }

  template <int kGroup>
  __device__ void step(std::uint32_t row_at, std::uint32_t& next, std::uint32_t& overflow) {
    widen<kGroup>(row_at, overflow);
    if constexpr (kGroup + kAhead == kGroups) next = take();
    ask<(kGroup + kAhead) % kGroups>();
  }

  __device__ __forceinline__ void all_tiles() {
    if (walks()) {
      lists.begin();
#pragma unroll 1
      for (int tile = 0; tile < 2; ++tile) lists.tell();
    }
    std::uint32_t next = take();
    ask<0>(), ask<1>();
    if constexpr (kAhead > 2) ask<2>();
#pragma unroll 1
    while ((next & kNoMoreTiles) == 0) {
      const std::uint32_t tile = next;
      const std::uint32_t stage = tile & kTileStage;
      const std::uint32_t parity = parities >> stage & 1;
      parities ^= 1 << stage;
      const int thread = fresh_thread();
      const std::uint32_t row_at = shared.keys(static_cast<int>(stage)) + row_of(thread) * 128 +
                                   ((2 * (thread % 4) ^ (row_of(thread) & 7)) << 4);
      std::uint32_t overflow = 0;
      take_scales();
      if (walks()) lists.tell();
      device::mbarrier_wait(shared.free(static_cast<int>(stage), 0), parity ^ 1);
      if (thread == kComputeThreads)
        device::st_shared_v2(shared.at + Place::kValid + 8 * stage, device::ld_shared_v2(shared.named(taken - 1)));
      step<0>(row_at, next, overflow), step<1>(row_at, next, overflow), step<2>(row_at, next, overflow);
      step<3>(row_at, next, overflow);
      arrive(shared.full(static_cast<int>(stage), 0));
      device::mbarrier_wait(shared.free(static_cast<int>(stage), 1), parity ^ 1);
      if constexpr (kScaled) {
        overflow |= unrepresentable_scales(scales.x) | unrepresentable_scales(scales.y & 0x00FF'FFFFU);
      }
      step<4>(row_at, next, overflow), step<5>(row_at, next, overflow), step<6>(row_at, next, overflow);
      step<7>(row_at, next, overflow);
      // Overflow of fp16 is the upper bit of a half, a bad scale that of a byte.
      if ((overflow & (kScaled ? 0x8080'8080U : 0x8000'8000U)) != 0U)
        st_shared_u32(shared.info(tile >> kTileItem) + 8, 1);
      arrive(shared.full(static_cast<int>(stage), 1));
    }
  }
};

}  // namespace smla::attention::sm90
