#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/prefetch.cuh"
#include "ops/attention/named_rows.h"
#include "ops/attention/roles_sm90.cuh"

namespace smla::attention::sm90 {

/// A key warp's walk through the lists of the block's items, tile by tile: 16 rows of each are its own, row lane % 16.
/// The first key warp tells the other warpgroups of the items.
template <Form kForm, class Item>
struct ListWalk {
  const TileCall& c;
  Block<kForm> block;
  std::uint32_t items;
  std::uint32_t turn = 0;
  std::int32_t base = 0;   ///< first entry of the next tile
  std::int32_t first = 0;  ///< of ListRun
  std::int32_t end = 0;

  /// What the list has of a row of a tile.
  struct Entry {
    std::uint32_t listed = ~0U;       ///< the slot as the list names it
    std::uint32_t what = kNoneAtAll;  ///< kNoneAtAll, or kSecond and the item's turn above it
  };
  static constexpr std::uint32_t kNoneAtAll = ~0U;
  static constexpr std::uint32_t kSecond = 1;  ///< the tile is of the second scope

  __device__ ListWalk(const TileCall& call, const Block<kForm>& b, std::uint32_t n) : c(call), block(b), items(n) {
    enter();
  }

  __device__ static std::int32_t second_of(std::int32_t first) { return (first + kTileKeys - 1) / kTileKeys * kTileKeys; }
  __device__ Item item() const { return Item(c, block, blockIdx.x + turn * gridDim.x, turn); }

  /// Begins an item, if there is one.
  __device__ void enter() {
    if (!Item::is(block, items, blockIdx.x + turn * gridDim.x, turn)) return;
    const ListRun run(c, item().list());
    first = run.first, base = run.begin, end = run.end;
    fetch_queries();
    const Lane me = Lane::fresh();
    if (me.lane != 0) return;
    device::st_shared_u32(block.bad_keys(turn) + 4 * me.warp, c.exact ? 1 : 0);
    if (me.warp != 0) return;
    // An item without keys is a tile that names none.
    const int tiles = max((end - base + kTileKeys - 1) / kTileKeys, 1);
    const int of_first = c.a.scopes == 1 ? tiles : min(max((second_of(first) - base) / kTileKeys, 0), tiles);
    device::st_shared_v2(block.info(turn),
                         make_uint2(static_cast<std::uint32_t>(tiles), static_cast<std::uint32_t>(of_first)));
    device::mbarrier_arrive(block.item_ready(turn));
  }

  /// Asks for the item's queries, so that they come from L2 when the score warps need them. A warp asks for sixteen
  /// heads, two lanes for half of one each.
  __device__ void fetch_queries() const {
    const Item of = item();
    const Lane me = Lane::fresh();
    const int head = 16 * me.warp + me.lane / 2;
    if (head >= of.heads()) return;
    const int size = c.a.q_dtype == DType::kE4M3 ? 1 : 2;
    const auto* from = static_cast<const std::uint8_t*>(c.a.q) +
                       size * (of.token() * c.a.q_stride[0] + (of.first_head() + head) * c.a.q_stride[1]) +
                       me.lane % 2 * (size * kDim / 2);
    for (int i = 0; i < size * kDim / 2; i += 128) device::prefetch(from + i);
  }

  /// Asks for the next tile's entries.
  __device__ Entry next() {
    Entry entry;
    if (!Item::is(block, items, blockIdx.x + turn * gridDim.x, turn)) return entry;
    const Lane me = Lane::fresh();
    const std::int32_t second = second_of(first);
    const bool of_second = c.a.scopes > 1 && base >= second;
    const std::int32_t at = base + 16 * me.warp + me.lane % 16;
    entry.what = turn << 1 | (of_second ? kSecond : 0);
    if (at < (of_second ? end : min(first, end))) {
      const KeyList& list = c.a.keys[of_second ? 1 : 0];
      entry.listed = static_cast<std::uint32_t>(
          __ldg(list.indices + item().token() * list.index_stride + (of_second ? at - second : at)));
    }
    base += kTileKeys;
    if (base >= end) {
      ++turn;
      enter();
    }
    return entry;
  }
};

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
        device::mbarrier_wait(block.free(at.stage, half), at.parity ^ 1);
        if (half == 0 && me.lane == 0) {
          const std::uint32_t place = block.names(at.tile) + 2 * me.warp;
          asm volatile("st.shared.u16 [%0], %1;" ::"r"(place), "h"(static_cast<std::uint16_t>(named)) : "memory");
          if (bad) device::st_shared_u32(block.bad_keys(turn) + 4 * me.warp, 1);
        }
        const std::uint32_t begin = block.keys(at.stage, half) + to;
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
        device::cp_async_arrive(block.full(at.stage, half));
        device::mbarrier_arrive_warp(block.full(at.stage, half));
        if (half == 0) entry = walk.next();
      }
      at.next();
    }
  }
};

}  // namespace smla::attention::sm90
