#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/prefetch.cuh"
#include "ops/attention/list_walk_sm90.cuh"

namespace smla::attention::sm90 {

/// Scale bytes that fp16 cannot represent (unrepresentable_scale()), the upper bit of each.
__device__ inline std::uint32_t unrepresentable_scales(std::uint32_t bytes) {
  constexpr std::uint32_t kLow = 0x7F7F'7F7FU;
  const std::uint32_t low = bytes & kLow;
  const std::uint32_t not_zero = low + kLow;                        // of the lower seven bits
  const std::uint32_t in_range = low + (128 - 101) * 0x0101'0101U;  // 101 and more
  return not_zero & (bytes | ~in_range) & ~kLow;
}

/// The warpgroup that brings keys as their caches store them. A warp has 16 rows of each tile: it copies them to a ring
/// of its own in shared memory, eight at a time, a tile ahead of those that it widens to fp16 and writes to the stages.
/// kCodeGroups: of a row; the groups behind are bf16 numbers.
template <Form kForm, class Item, int kCodeGroups>
struct StoredKeys {
  static_assert(kCodeGroups == 7 || kCodeGroups == 8);
  using Place = Layout<kForm>;
  using Walk = ListWalk<kForm, Item>;
  static constexpr int kArrivals = 1;               ///< of a warp for each piece
  static constexpr bool kScaled = kCodeGroups == 7;  ///< else the scale is the cache's
  static constexpr int kUnit = 8;                   ///< rows that are widened together: those of stmatrix
  /// Bytes from a row of the ring to the next: 64 more than a multiple of 128, so that 64 bytes of two rows are in
  /// different banks.
  static constexpr int kPitch = 576;
  static constexpr int kRowBytes = 64 * kCodeGroups + (kScaled ? 128 : 0);
  static_assert(kRowBytes <= kPitch);
  static constexpr int kRingBytes = 2 * kUnit * (kPitch + 8);  ///< of a warp: rows, then their scales
  static_assert(kForm.raw_bytes == kRingBytes);

  const TileCall& c;
  Block<kForm> block;
  std::uint32_t items;

  __device__ std::uint32_t ring() const { return block.raw(Lane::fresh().warp); }

  /// Where a row that a list names begins, and its scales. Null when it names none.
  struct Where {
    const std::uint8_t* data = nullptr;
    const std::uint8_t* scales = nullptr;
  };
  __device__ Where where(const typename Walk::Entry& entry) const {
    const RowLayout& layout = c.layout[entry.what & Walk::kSecond];
    Where w;
    if (entry.listed >= layout.num_slots) return w;  // -1 and what lies outside are larger
    const std::uint32_t of_block = entry.listed >> layout.block_bits;
    const std::uint32_t in_block = entry.listed - (of_block << layout.block_bits);
    const std::uint8_t* const from = layout.base + static_cast<std::int64_t>(of_block) * layout.block_stride;
    w.data = from + static_cast<std::uint64_t>(in_block) * layout.row_bytes;
    w.scales = from + layout.scales + static_cast<std::uint64_t>(in_block) * layout.scale_bytes;
    return w;
  }

  /// Asks for a row, so that it comes from L2 when it is copied.
  __device__ void fetch(const typename Walk::Entry& entry) const {
    const Where w = where(entry);
    if (w.data == nullptr || Lane::fresh().lane >= 16) return;
#pragma unroll
    for (int i = 0; i < kRowBytes; i += 128) device::prefetch(w.data + i);
  }

  /// Copies rows 8 `unit` to 8 `unit` + 7 of the warp's, zeros for those that the list does not name.
  __device__ void copy(const typename Walk::Entry& entry, int unit) const {
    const Lane me = Lane::fresh();
    const Where own = where(entry);
    const std::uint32_t to = ring() + unit * kUnit * kPitch;
    const auto low = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(own.data));
    const auto high = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(own.data) >> 32);
    const auto row = [&](int r) {
      const std::uint64_t l = __shfl_sync(kAll, low, kUnit * unit + r);
      const std::uint64_t h = __shfl_sync(kAll, high, kUnit * unit + r);
      return reinterpret_cast<const std::uint8_t*>(h << 32 | l);
    };
#pragma unroll
    for (int r = 0; r < kUnit; ++r) {
      const std::uint8_t* const from = row(r);
      device::cp_async<16>(to + r * kPitch + 16 * me.lane, from + 16 * me.lane, from != nullptr);
    }
    if constexpr (kRowBytes > 512) {
      // The last 64 bytes of each, eight rows at once.
      const std::uint8_t* const from = row(me.lane / 4);
      const int piece = 512 + 16 * (me.lane % 4);
      device::cp_async<16>(to + me.lane / 4 * kPitch + piece, from + piece, from != nullptr);
    }
    if (kScaled && me.lane / kUnit == unit) {
      device::cp_async<8>(ring() + 2 * kUnit * kPitch + 8 * me.lane, own.data != nullptr ? own.scales : nullptr,
                          own.data != nullptr);
    }
    device::cp_async_commit();
  }

  /// Two bf16 numbers as fp16, times kHalfUnit.
  __device__ static std::uint32_t half_pair(std::uint32_t pair, std::uint32_t& overflow) {
    const std::uint32_t halves =
        halves_of(__uint_as_float(pair << 16) * kHalfUnit, __uint_as_float(pair & 0xFFFF'0000U) * kHalfUnit);
    overflow |= fp16_overflow(halves);
    return halves;
  }

  /// Widens eight rows and writes them to the stage. A lane has row lane / 4 and of each group 16 numbers. Returns
  /// whether fp16 cannot represent one.
  __device__ bool widen(std::uint32_t stage, int unit) const {
    const Lane me = Lane::fresh();
    const std::uint32_t from = ring() + (unit * kUnit + me.lane / 4) * kPitch + 16 * me.part();
    std::uint32_t overflow = 0;
    uint2 scales{};
    if constexpr (kScaled) {
      scales = device::ld_shared_v2(ring() + 2 * kUnit * kPitch + 8 * (unit * kUnit + me.lane / 4));
      overflow = unrepresentable_scales(scales.x) | unrepresentable_scales(scales.y & 0x00FF'FFFFU);
    }
    // stmatrix: lane l names the place of row l % 8 of matrix l / 8, which is a piece of 16 bytes of the row's 128.
    const std::uint32_t to = block.keys(stage, 0) + (16 * me.warp + kUnit * unit + me.lane % 8) * 128 +
                             ((me.lane / 8 ^ me.lane % 8) << 4);
#pragma unroll
    for (int g = 0; g < AttentionTile::kGroups; ++g) {
      std::uint32_t words[8];
      if (g < kCodeGroups) {
        const uint4 v = device::ld_shared_v4(from + 64 * g);
        widen_codes(v.x, words[0], words[1]), widen_codes(v.y, words[2], words[3]);
        widen_codes(v.z, words[4], words[5]), widen_codes(v.w, words[6], words[7]);
        if constexpr (kScaled) {
          const std::uint32_t byte = (g < 4 ? scales.x : scales.y) >> (8 * (g % 4)) & 0xFFU;
          const float scale = __uint_as_float((byte + 6) << 23);
          const std::uint32_t pair = halves_of(scale, scale);
#pragma unroll
          for (int w = 0; w < 8; ++w) words[w] = multiply_halves(words[w], pair);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 v = device::ld_shared_v4(from + 64 * kCodeGroups + 16 * me.part() + 16 * i);
          words[4 * i] = half_pair(v.x, overflow), words[4 * i + 1] = half_pair(v.y, overflow);
          words[4 * i + 2] = half_pair(v.z, overflow), words[4 * i + 3] = half_pair(v.w, overflow);
        }
      }
      device::stmatrix_x4(to + g * Place::kGroupBytes, words[0], words[1], words[2], words[3]);
      device::stmatrix_x4((to ^ 64) + g * Place::kGroupBytes, words[4], words[5], words[6], words[7]);
    }
    // Overflow of fp16 is the upper bit of a half, a bad scale that of a byte.
    return (overflow & (kScaled ? 0x8080'8080U : 0x8000'8000U)) != 0U;
  }

  __device__ __forceinline__ void all_tiles() const {
    Walk walk(c, block, items);
    StageTurn<kForm.stages> at;
    auto present = walk.next();
    auto next = walk.next();
    fetch(present);
    copy(present, 0), copy(present, 1);
    fetch(next);
    auto after = walk.next();
#pragma unroll 1
    while (present.what != Walk::kNoneAtAll) {
      const bool is = present.listed < c.layout[present.what & Walk::kSecond].num_slots;
      const std::uint32_t named = __ballot_sync(kAll, is) & 0xFFFFU;
      const std::uint32_t turn = present.what >> 1;
#pragma unroll
      for (int piece = 0; piece < Place::kPieces; ++piece)
        device::mbarrier_wait(block.free(at.stage(), piece), at.parity() ^ 1);
      bool bad = false;
#pragma unroll 1
      for (int unit = 0; unit < 2; ++unit) {
        device::cp_async_wait<1>();
        __syncwarp();
        bad = widen(at.stage(), unit) || bad;
        __syncwarp();
        copy(next, unit);
      }
      if (__any_sync(kAll, bad) && Lane::fresh().lane == 0)
        device::st_shared_u32(block.bad_keys(turn) + 4 * Lane::fresh().warp, 1);
      if (Lane::fresh().lane == 0) {
        const std::uint32_t place = block.names(at.tile) + 2 * Lane::fresh().warp;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(place), "h"(static_cast<std::uint16_t>(named)) : "memory");
      }
      device::fence_proxy_async();
#pragma unroll
      for (int piece = 0; piece < Place::kPieces; ++piece) device::mbarrier_arrive_warp(block.full(at.stage(), piece));
      at.next();
      present = next;
      next = after;
      fetch(next);
      after = walk.next();
    }
    device::cp_async_wait<0>();
  }
};

}  // namespace smla::attention::sm90
