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

}  // namespace smla::attention::sm90
