#pragma once

#include "device/ptx/prefetch.cuh"
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

}  // namespace smla::attention::sm90
