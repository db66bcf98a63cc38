#pragma once

#include "device/ptx/cp_async.cuh"
#include "ops/attention/list_walk_sm90.cuh"
#include "ops/attention/named_rows.h"

namespace smla::attention::sm90 {

/// The warpgroup that brings keys which were widened before (named_rows.h): a warp copies 16 rows of each tile, 128
/// bytes of four at once.
template <Form kForm, class Item>
struct KeyCopies {
  using Place = Layout<kForm>;
  static constexpr int kArrivals = 33;  ///< of a warp for each piece: its lanes' copies, and one for what it wrote itself
  static constexpr int kAtOnce = 4;     ///< rows

  const TileCall& c;
  const NamedRows& widened;
  Block<kForm> block;
  std::uint32_t items;

  /// Where a row of a tile is, once that is known.
  struct Found {
    std::uint32_t bits = 0;
    std::uint32_t rank = 0;
    std::uint32_t unfit = 0;
    std::uint32_t bit = 0;  ///< of the slot, among those of all scopes
    bool is = false;
  };
  __device__ Found find(std::uint32_t listed, std::uint32_t what) const {
    Found f;
    const int scope = what & ListWalk<kForm, Item>::kSecond;
    f.is = listed < c.layout[scope].num_slots;  // -1 and what lies outside are larger
    f.bit = widened.first_word[scope] * 32 + (f.is ? listed : 0);
    if (f.is) {
      f.bits = __ldg(widened.bits + f.bit / 32);
      f.rank = __ldg(widened.rank + f.bit / 32);
      f.unfit = __ldg(widened.unfit + f.bit / 32);
    }
    return f;
  }

  __device__ __forceinline__ void all_tiles() const {
    ListWalk<kForm, Item> walk(c, block, items);
    StageTurn<kForm.stages> at;
    // Entries are asked for two tiles ahead, what is known of their rows one.
    auto entry = walk.next();
    auto what = entry.what;
    Found found = find(entry.listed, what);
    entry = walk.next();
#pragma unroll 1
    while (what != ListWalk<kForm, Item>::kNoneAtAll) {
      const std::uint32_t below = (1U << found.bit % 32) - 1;
      const std::uint32_t row = found.is ? found.rank + static_cast<std::uint32_t>(__popc(found.bits & below)) : ~0U;
      const bool unfit = (found.unfit & ~below & (below + 1)) != 0;
      const std::uint32_t turn = what >> 1;
      const std::uint32_t named = __ballot_sync(kAll, found.is) & 0xFFFFU;
      const bool bad = __any_sync(kAll, unfit);
      // The next tile's, while this one waits for room.
      what = entry.what;
      found = find(entry.listed, what);

      const Lane me = Lane::fresh();
      const std::uint32_t piece = me.lane % 8;
      const std::uint32_t in_warp = me.lane / 8;  // of the first four rows
      const std::uint32_t to = (16 * me.warp + in_warp) * 128 + ((piece ^ in_warp) << 4);
      const std::uint8_t* from[16 / kAtOnce];
      std::uint32_t there = 0;
#pragma unroll
      for (int r = 0; r < 16 / kAtOnce; ++r) {
        const std::uint32_t of = __shfl_sync(kAll, row, kAtOnce * r + static_cast<int>(in_warp));
        there |= of != ~0U ? 1U << r : 0;
        from[r] = reinterpret_cast<const std::uint8_t*>(widened.rows + std::size_t{of != ~0U ? of : 0} * kDim) +
                  16 * piece;
      }
#pragma unroll
      for (int half = 0; half < Place::kPieces; ++half) {
        device::mbarrier_wait(block.free(at.stage(), half), at.parity() ^ 1);
        if (half == 0 && me.lane == 0) {
          const std::uint32_t place = block.names(at.tile) + 2 * me.warp;
          asm volatile("st.shared.u16 [%0], %1;" ::"r"(place), "h"(static_cast<std::uint16_t>(named)) : "memory");
          if (bad) device::st_shared_u32(block.bad_keys(turn) + 4 * me.warp, 1);
        }
        const std::uint32_t begin = block.keys(at.stage(), half) + to;
#pragma unroll
        for (int g = 0; g < Place::kPieceGroups; ++g) {
#pragma unroll
          for (int r = 0; r < 16 / kAtOnce; ++r) {
#ifdef X_NOCOPY
            continue;
#endif
            // Rows 4 apart differ in the upper bit of the swizzle.
            device::cp_async<16>((begin ^ (r % 2 * 64)) + r * kAtOnce * 128 + g * Place::kGroupBytes,
                                 from[r] + (half * Place::kPieceGroups + g) * 128, (there >> r & 1) != 0);
          }
        }
        device::cp_async_arrive(block.full(at.stage(), half));
        device::mbarrier_arrive_warp(block.full(at.stage(), half));
        if (half == 0) entry = walk.next();
      }
      at.next();
    }
  }
};

}  // namespace smla::attention::sm90
