#pragma once

#include "ops/attention/named_rows.h"
#include "ops/attention/queries_sm90.cuh"

namespace smla::attention::sm90 {

/// Walks the items' lists and finds the rows that they name, a few tiles ahead of the warps that read them. One warp
/// does it, with few registers: what it remembers from tile to tile is in shared memory. A lane has rows lane and lane
/// + 32 of a tile. kCodeGroups: of the rows that it finds; Item: AlikeItem or CutItem.
template <int kCodeGroups, class Item>
struct ListWalker {
  const TileCall& c;
  const NamedRows& widened;  ///< where they are, if they were widened
  Shared shared;
  std::uint32_t items;

  /// Where the walk is: the item, its run of entries, and the next tile to tell of, whose entries are on their way.
  struct Walk {
    std::uint32_t number;
    std::uint32_t turn;
    std::int32_t tile;
    std::uint32_t told;  ///< tiles so far
    std::int32_t first;  ///< of ListRun
    std::int32_t second;
    std::int32_t begin;
    std::int32_t end;
  };
  __device__ Walk load() const {
    const uint4 a = device::ld_shared_v4(shared.at + Place::kWalk);
    const uint4 b = device::ld_shared_v4(shared.at + Place::kWalk + 16);
    return {a.x,
            a.y,
            static_cast<std::int32_t>(a.z),
            a.w,
            static_cast<std::int32_t>(b.x),
            static_cast<std::int32_t>(b.y),
            static_cast<std::int32_t>(b.z),
            static_cast<std::int32_t>(b.w)};
  }
  __device__ void keep(const Walk& w) const {
    if (fresh_thread() % 32 == 0) {
      device::st_shared_v4(shared.at + Place::kWalk, make_uint4(w.number, w.turn, w.tile, w.told));
      device::st_shared_v4(shared.at + Place::kWalk + 16, make_uint4(w.first, w.second, w.begin, w.end));
    }
    __syncwarp();
  }
  __device__ Item item(const Walk& w) const { return Item(c, shared, w.number, w.turn); }
  __device__ int scope_of(const Walk& w, int base) const { return base < w.second || c.a.scopes == 1 ? 0 : 1; }
  /// An item without keys is a tile that names none.
  __device__ static int tiles(const Walk& w) { return max((w.end - w.begin + kTileKeys - 1) / kTileKeys, 1); }

  /// Asks for the entries of the walk's tile.
  __device__ void look(const Walk& w) const {
    const int base = w.begin + w.tile * kTileKeys;
    const int lane = fresh_thread() % 32;
    if (base < w.end) {
      const int scope = scope_of(w, base);
      const int end = scope == 0 ? min(w.first, w.end) : w.end;
      const KeyList& list = c.a.keys[scope];
      const std::int32_t* from =
          list.template first<Item::kLists>(item(w).token()) + (scope == 0 ? base : base - w.second);
#pragma unroll 1
      for (int row = lane; row < kTileKeys; row += 32) {
        const bool there = base + row < end;
        device::cp_async<4>(shared.at + Place::kEntries + (w.told % 2 * 64 + row) * 4, from + (there ? row : 0), there);
      }
    }
    device::cp_async_commit();
  }

  /// Asks for the lengths of an item's lists, where they are numbers of its token alone, before its first entries, for
  /// which they are not waited. One lane copies them.
  __device__ void ask_lengths(const Walk& w) const {
    if constexpr (Item::kLists != Lists::kOwnRows) return;
    if (fresh_thread() % 32 != 0) return;
    const std::int64_t token = item(w).token();
#pragma unroll
    for (int s = 0; s < SparseAttention::kMaxScopes; ++s) {
      const KeyList& list = c.a.keys[s];
      if (s < c.a.scopes && list.lens != nullptr)
        device::cp_async<4>(shared.length(s), list.lens + token * list.lens_stride, true);
    }
  }
  /// How many entries the item's lists have.
  __device__ void take_entries(const Walk& w, int (&of)[SparseAttention::kMaxScopes]) const {
    if constexpr (Item::kLists != Lists::kOwnRows) {
      c.a.template entries_by_warp<Item::kLists>(item(w).token(), of);
    } else {
      device::cp_async_wait<0>();
      __syncwarp();
#pragma unroll
      for (int s = 0; s < SparseAttention::kMaxScopes; ++s) {
        const KeyList& list = c.a.keys[s];
        of[s] = static_cast<int>(list.width);
        if (list.lens != nullptr) of[s] = list.entries_of(static_cast<int>(device::ld_shared_u32(shared.length(s))));
        if (s >= c.a.scopes) of[s] = 0;
      }
    }
  }

  /// What an item's first tile has if it begins with the first scope's row, before the row's length is known.
  __device__ void guess(Walk& w) const {
    const KeyList& keys = c.a.keys[0];
    std::int64_t there = keys.width;
    if (Item::kLists == Lists::kAlone && keys.sharing > 1)
      there = keys.template entries<Lists::kAlone>(item(w).token());
    if (item(w).list().part > 0) there = 0;
    w.tile = w.begin = 0;
    w.first = w.second = w.end = static_cast<std::int32_t>(min(there, std::int64_t{kTileKeys}));
  }
  /// Begins an item: tells of its size. Returns whether its first tile begins with the first scope's row.
  __device__ bool enter(Walk& w) const {
    int entries[SparseAttention::kMaxScopes];
    take_entries(w, entries);
    const ListRun<Item> run(c, item(w).list(), entries);
    w.first = run.first, w.second = run.second, w.begin = run.begin, w.end = run.end;
    if (fresh_thread() % 32 == 0) {
      const int all = tiles(w);
      const int first = c.a.scopes == 1 ? all : min(max((w.second - w.begin) / kTileKeys, 0), all);
      device::st_shared_v4(shared.info(w.turn), make_uint4(all, first, c.exact ? 1 : 0, 0));
      if constexpr (Item::kPacked) device::st_shared_u32(shared.column(w.turn), run.in_scope(run.begin, run.begin));
    }
    device::mbarrier_arrive_warp(shared.item_ready(w.turn));
    return w.begin == 0 && w.first > 0;
  }

  /// Tells of the next tile, or that there are no more. Returns whether there was one.
  __device__ bool tell() const {
    Walk w = load();
    ++w.told;
    bool begins = ++w.tile >= tiles(w);
    if (begins) {
      w.number += gridDim.x;
      ++w.turn;
      if (!Item::is(shared, items, w.number, w.turn)) {
        wait_for_slot(w);
        end(w.told % kListed, w.told);
        return false;
      }
      ask_lengths(w);
      guess(w);
    }
#pragma unroll 1
    for (;;) {  // one copy of the code for all tiles
      look(w);
      if (!begins || enter(w)) break;
      begins = false;
      device::cp_async_wait<0>();  // entries that were asked for in vain
    }
    keep(w);
    device::cp_async_wait<0>();
    __syncwarp();
    const Walk kept = load();
    wait_for_slot(kept);
    name_rows(kept, kept.told % kListed);
    return true;
  }

  __device__ void all_tiles() const {
    // Of the item before the first, all tiles have been told of.
    keep({.number = blockIdx.x - gridDim.x, .turn = ~0U, .told = ~0U});
    while (tell()) {
    }
  }

 private:
  __device__ void wait_for_slot(const Walk& w) const {
    device::mbarrier_wait_long(shared.taken(w.told % kListed), (w.told / kListed & 1) ^ 1);
  }

  /// Writes the places of the tile's rows, and its scales as they arrive.
  __device__ void name_rows(const Walk& w, std::uint32_t slot) const {
    const int base = w.begin + w.tile * kTileKeys;
    const int scope = scope_of(w, base);
    const int end = scope == 0 ? min(w.first, w.end) : w.end;
    const RowLayout& layout = c.layout[scope];
    const int lane = fresh_thread() % 32;
    const std::uint32_t tile_at = shared.named(w.told);
#pragma unroll 1
    for (int row = lane; row < kTileKeys; row += 32) {
      const std::uint32_t listed = device::ld_shared_u32(shared.at + Place::kEntries + (w.told % 2 * 64 + row) * 4);
      const bool is = base + row < end && listed < layout.num_slots;
      if constexpr (kCodeGroups == kWidened) {
        name_widened(w, slot, row, is, is ? widened.first_word[scope] * 32 + listed : 0);
        const std::uint32_t named = __ballot_sync(kAll, is);
        if (lane == 0) device::st_shared_u32(tile_at + row / 32 * 4, named);
        continue;
      }
      const std::uint32_t block = listed >> layout.block_bits;
      const std::uint32_t in_block = listed - (block << layout.block_bits);
      const std::uint8_t* from = layout.base + static_cast<std::int64_t>(block) * layout.block_stride;
      const std::uint8_t* data = is ? from + static_cast<std::uint64_t>(in_block) * layout.row_bytes
                                    : reinterpret_cast<const std::uint8_t*>(kNoRow);
      if (is) fetch_row(data);
      const auto bits = reinterpret_cast<std::uint64_t>(data);
      device::st_shared_v2(row_place(slot, row),
                           make_uint2(static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32)));
      if (layout.scaled) {
        const std::uint8_t* scales = from + layout.scales + static_cast<std::uint64_t>(in_block) * layout.scale_bytes;
        device::cp_async<8>(row_place(slot, row) + 8, is ? scales : data, is);
      }
      const std::uint32_t named = __ballot_sync(kAll, is);
      if (lane == 0) device::st_shared_u32(tile_at + row / 32 * 4, named);
    }
    if (lane == 0) device::st_shared_u32(tile_at + 8, (w.tile & 1) | w.turn % kInfos << kTileItemShift);
    device::mbarrier_arrive(shared.listed(slot));
    if constexpr (kCodeGroups != kWidened) device::cp_async_arrive(shared.scaled(slot));
  }

  /// Asks for a row, so that it comes from L2 when the key warps need it: they ask for a half or a quarter of it at a
  /// time.
  __device__ static void fetch_row(const std::uint8_t* data) {
    constexpr int kBytes = 64 * kCodeGroups + 128 * (AttentionTile::kGroups - kCodeGroups);
    constexpr int kLine = 128;  // a row that begins at a multiple of 64 bytes lies in no other lines
#pragma unroll
    for (int i = 0; i < kBytes; i += kLine) device::prefetch(data + i);
  }

  /// Writes the place of a row that was widened, `bit` among those of all scopes' slots.
  __device__ void name_widened(const Walk& w, std::uint32_t slot, int row, bool is, std::uint32_t bit) const {
    const std::uint32_t below = (1U << bit % 32) - 1;
    std::uint32_t bits = 0;
    std::uint32_t rank = 0;
    std::uint32_t unfit = 0;
    if (is) bits = widened.bits[bit / 32], rank = widened.rank[bit / 32], unfit = widened.unfit[bit / 32];
    rank += static_cast<std::uint32_t>(__popc(bits & below));
    const void* const data = is ? static_cast<const void*>(widened.rows + std::size_t{rank} * kDim) : kNoRow;
    const auto at = reinterpret_cast<std::uint64_t>(data);
    device::st_shared_v2(row_place(slot, row),
                         make_uint2(static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32)));
    if ((unfit & ~below & (below + 1)) != 0) device::st_shared_u32(shared.info(w.turn) + 8, 1);
  }

  __device__ std::uint32_t row_place(std::uint32_t slot, int row) const {
    return shared.at + Place::kRows + (slot * 64 + row) * 16;
  }
  __device__ void end(std::uint32_t slot, std::uint32_t number) const {
    const int lane = fresh_thread() % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {  // rows that are asked for in vain
      const auto bits = reinterpret_cast<std::uint64_t>(kNoRow);
      device::st_shared_v4(row_place(slot, lane + 32 * r),
                           make_uint4(static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32), 0, 0));
    }
    if (lane == 0) device::st_shared_u32(shared.what(number), kNoMoreTiles);
    device::mbarrier_arrive(shared.listed(slot));
  }
};

}  // namespace smla::attention::sm90
