#pragma once

#include "ops/attention/roles_sm90.cuh"

namespace smla::attention::sm90 {

// Items of work: a token, 64 of its heads, a part of its key list. A block takes every gridDim.x-th; an item's turn is
// how many the block took before. is(): whether there is such an item; `items`: of the call.

/// Of lists that are cut alike: an item follows from its number.
struct AlikeItem {
  const TileCall& c;
  std::uint32_t local;  ///< the token, of the launch
  std::uint32_t part;
  std::uint32_t first;
  std::int64_t of_call;  ///< the token, of the call

  template <class Shared>
  __device__ AlikeItem(const TileCall& call, const Shared&, std::uint32_t number, std::uint32_t) : c(call) {
    const std::uint32_t tile = number / c.parts;
    part = number - tile * c.parts;
    local = tile / c.head_tiles;
    first = (tile - local * c.head_tiles) * kTileHeads;
    of_call = c.first_token + local;
  }
  template <class Shared>
  __device__ static bool is(const Shared&, std::uint32_t items, std::uint32_t number, std::uint32_t) {
    return number < items;
  }
  __device__ std::int64_t token() const { return of_call; }
  __device__ std::uint32_t first_head() const { return first; }
  __device__ int heads() const { return static_cast<int>(min(c.a.heads - first, std::int64_t{kTileHeads})); }
  __device__ bool split() const { return c.parts > 1; }
  __device__ std::int64_t state() const { return (std::int64_t{local} * c.parts + part) * c.a.heads + first; }
  __device__ ListPart list() const { return ListPart::alike(c, local, part); }
};

/// Of lists that are cut by their lengths: a block's items are found when it begins, and read from shared memory a word
/// at a time, because there are no registers for more.
template <class Shared>
struct CutItem {
  const TileCall& c;
  Shared shared;
  std::uint32_t turn;

  __device__ CutItem(const TileCall& call, const Shared& of, std::uint32_t, std::uint32_t after)
      : c(call), shared(of), turn(after) {}
  __device__ static bool is(const Shared& shared, std::uint32_t, std::uint32_t, std::uint32_t turn) {
    return turn < word(shared.cut());
  }
  __device__ std::int64_t token() const { return word(shared.item(turn)); }
  __device__ std::uint32_t first_head() const { return word(shared.item(turn) + 12) >> kPartBits << kTileHeadBits; }
  __device__ int heads() const { return static_cast<int>(min(c.a.heads - first_head(), std::int64_t{kTileHeads})); }
  __device__ bool split() const { return word(shared.item(turn) + 4) > 1; }
  __device__ std::int64_t state() const { return std::int64_t{word(shared.item(turn) + 8)} * c.a.heads + first_head(); }
  __device__ ListPart list() const {
    const std::uint32_t place = shared.item(turn);
    return {.token = word(place),
            .part = word(place + 12) & ((1U << kPartBits) - 1),
            .parts = word(place + 4),
            .row = word(place + 8),
            .part_keys = word(shared.cut() + 4)};
  }

  /// Finds the items of a block, a warp each, and how many it has. Returns whether there are any. All that
  /// the kernel needs later is computed anew there: kept from here on, it would take registers.
  __device__ static bool find(const TileCall& c, Shared shared) {
    std::uint32_t block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    asm volatile("" : "+r"(shared.at));
    const std::uint32_t thread = fresh_thread();
    const std::uint32_t warp = thread / 32;
    const std::uint32_t number = block + warp * gridDim.x;
    const LengthCutter<kTileKeys> cutter{c};
    CutParts parts{};
    const ListPart list = cutter.find(number / c.head_tiles, parts);
    const std::uint32_t head_tile = number % c.head_tiles;
    if (thread % 32 == 0) {
      device::st_shared_v4(shared.item(warp),
                           make_uint4(list.token, list.parts, list.row, list.part | head_tile << kPartBits));
      if (warp == 0) {
        const std::uint32_t items = parts.all * c.head_tiles;
        const std::uint32_t own = block < items ? (items - block + gridDim.x - 1) / gridDim.x : 0;
        device::st_shared_v2(shared.cut(), make_uint2(own, list.part_keys));
      }
      if (head_tile == 0) cutter.tell(list, parts);
    }
    __syncthreads();
    return word(shared.cut()) > 0;
  }

 private:
  static constexpr int kPartBits = 16;
  static constexpr int kTileHeadBits = 6;
  static_assert(kTileHeads == 1 << kTileHeadBits);

  /// A word that find() wrote; loaded anew at each use.
  __device__ static std::uint32_t word(std::uint32_t place) {
    std::uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(place));
    return v;
  }
};

}  // namespace smla::attention::sm90
