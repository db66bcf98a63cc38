#pragma once

#include "ops/attention/attention_block.cuh"

namespace smla::attention {

// Key lists cut by their lengths. Every warp that asks finds the same cut by itself, from the lengths alone: no kernel
// has to run before, and nothing is waited for but the lengths.

/// How many parts of 1 / `of_one` tiles hold `tiles` tiles; one for a list without any. In fp32 that is exact for fewer
/// than 2^22 tiles, half a tile away from where rounding could matter.
__device__ inline std::uint32_t parts_of(std::uint32_t tiles, float of_one) {
  const int whole = __float2int_rd((static_cast<float>(tiles) - 0.5F) * of_one);
  return static_cast<std::uint32_t>(max(whole, 0)) + 1;
}

/// The parts of a call.
struct CutParts {
  std::uint32_t all;    ///< how many there are
  std::uint32_t alike;  ///< of each list, where all lists are of one length; otherwise 0
  std::uint32_t most;   ///< of a list
};

template <int kKeys, Lists kLists>
struct LengthCutter {
  const TileCall& c;
  int lane = static_cast<int>(threadIdx.x) % 32;

  static constexpr int kRounds = 4;  ///< of 32 numbers of parts that are weighed
  static constexpr float kStep = 0.25F;

  __device__ std::uint32_t tokens() const { return static_cast<std::uint32_t>(c.tokens); }

  __device__ std::uint32_t tiles(std::uint32_t list) const {
    int entries[SparseAttention::kMaxScopes];
    c.a.template entries<kLists>(list, 0, 1, entries);
    std::uint32_t sum = 0;
    for (const int of : entries) sum += (static_cast<std::uint32_t>(of) + kKeys - 1) / kKeys;
    return sum;
  }
  /// Those of list first + lane; none past the last. `of_first`: those of the first 32 lists, once they are known.
  __device__ std::uint32_t own_tiles(std::uint32_t first, std::uint32_t of_first) const {
    return first == 0 ? of_first : own_tiles(first);
  }
  __device__ std::uint32_t own_tiles(std::uint32_t first) const {
    const std::uint32_t list = first + lane;
    return list < tokens() ? tiles(list) : 0;
  }

  /// The time of `parts` parts of at most `most` tiles, `total` altogether; `rows` of the parts are of lists of
  /// several.
  __device__ float cost(std::uint32_t parts, std::uint32_t rows, std::uint32_t most, std::uint32_t total,
                        bool alike) const {
    const LengthCut& cut = c.cut;
    const float heads = static_cast<float>(c.head_tiles);
    const float blocks = static_cast<float>(parts) * heads;
    const bool crowded = parts * c.head_tiles > cut.alone.at_once;
    const float at_once = static_cast<float>(crowded ? cut.crowded.at_once : cut.alone.at_once);
    const float tile = crowded ? cut.crowded.tile : cut.alone.tile;
    const float block = crowded ? cut.crowded.block : cut.alone.block;
    const float longest = static_cast<float>(most) * tile + block;
    float time = longest;
    if (alike) {
      time = ceilf(blocks / at_once) * longest;
    } else if (blocks > at_once) {
      const float work = (static_cast<float>(total) * heads * tile + blocks * block) / at_once;
      time = fmaxf(longest, work + longest / 2);
    }
    return rows > 0 ? time + cut.merge + static_cast<float>(rows) * cut.sums : time;
  }

  /// The tiles of a part that promise the shortest time. `of_call`: what parts of that size the call has, but how many.
  __device__ std::uint32_t part_tiles(std::uint32_t of_first, CutParts& of_call) const {
    const std::uint32_t room = tokens() + c.cut.extra;
    std::uint32_t total = 0;
    std::uint32_t most = 0;
    for (std::uint32_t first = 0; first < tokens(); first += 32) {
      const std::uint32_t mine = own_tiles(first, of_first);
      total += mine;
      most = max(most, mine);
    }
    total = __reduce_add_sync(kAll, total);
    most = max(__reduce_max_sync(kAll, most), 1U);
    float best = INFINITY;
    std::uint32_t best_tiles = most;
    const bool alike = total == most * tokens();
    if (alike) {
      // A lane weighs lists in lane + 1 parts.
#pragma unroll 1
      for (std::uint32_t parts = lane + 1; parts <= min(most, 32U * kRounds) && parts * tokens() <= room; parts += 32) {
        const std::uint32_t of_part = (most + parts - 1) / parts;
        const std::uint32_t all = (most + of_part - 1) / of_part * tokens();
        const float time = cost(all, of_part < most ? all : 0, of_part, total, true);
        if (time < best) best = time, best_tiles = of_part;
      }
    } else {
      // A lane weighs parts of the longest list's tiles over 2^(lane / 4).
      const float scaled = static_cast<float>(most) * exp2f(-kStep * static_cast<float>(lane));
      const std::uint32_t of_part = max(static_cast<std::uint32_t>(ceilf(scaled)), 1U);
      const float of_one = 1.0F / static_cast<float>(of_part);
      std::uint32_t parts = 0;
      std::uint32_t rows = 0;
#pragma unroll 1
      for (std::uint32_t first = 0; first < tokens(); first += 32) {
        const std::uint32_t mine = own_tiles(first, of_first);
        const std::uint32_t last = min(tokens() - first, 32U);
#pragma unroll 4
        for (std::uint32_t i = 0; i < last; ++i) {
          const std::uint32_t own = parts_of(__shfl_sync(kAll, mine, i), of_one);
          parts += own;
          rows += own > 1 ? own : 0;
        }
      }
      if (parts <= room) best = cost(parts, rows, of_part, total, false), best_tiles = of_part;
    }
    const std::uint32_t time = __float_as_uint(best);  // times are positive: their bits are in the same order
    const std::uint32_t least = __reduce_min_sync(kAll, time);
    const int winner = __ffs(static_cast<int>(__ballot_sync(kAll, time == least))) - 1;
    const std::uint32_t chosen = __shfl_sync(kAll, best_tiles, winner);
    of_call.most = (most + chosen - 1) / chosen;
    of_call.alike = alike ? of_call.most : 0;
    return chosen;
  }

  /// Part number `number` of the call, and what `parts` it has.
  __device__ ListPart find(std::uint32_t number, CutParts& parts) const {
    const std::uint32_t of_first = own_tiles(0);
    const std::uint32_t of_part = part_tiles(of_first, parts);
    const float of_one = 1.0F / static_cast<float>(of_part);
    ListPart found{.part_keys = of_part * kKeys};
    std::uint32_t before = 0;  // parts of the tokens before, and in the upper half those of lists of several
#pragma unroll 1
    for (std::uint32_t first = 0; first < tokens(); first += 32) {
      const std::uint32_t mine = first + lane < tokens() ? parts_of(own_tiles(first, of_first), of_one) : 0;
      const std::uint32_t both = mine | (mine > 1 ? mine << 16 : 0);
      std::uint32_t to_here = both;
#pragma unroll
      for (int i = 1; i < 32; i *= 2) {
        const std::uint32_t other = __shfl_up_sync(kAll, to_here, i);
        if (lane >= i) to_here += other;
      }
      const std::uint32_t end = before + to_here;
      const std::uint32_t here = __ballot_sync(kAll, (end & 0xFFFFU) > number);
      if (found.parts == 0 && here != 0) {
        const int owner = __ffs(static_cast<int>(here)) - 1;
        const std::uint32_t begin = __shfl_sync(kAll, end - both, owner);
        found.token = first + owner;
        found.part = number - (begin & 0xFFFFU);
        found.parts = __shfl_sync(kAll, mine, owner);
        found.row = (begin >> 16) + found.part;
      }
      before = __shfl_sync(kAll, end, 31);
    }
    parts.all = before & 0xFFFFU;
    return found;
  }

  /// Tells the merge of a part that find() found, once for each list.
  __device__ void tell(const ListPart& list, const CutParts& parts) const {
    if (list.part > 0 || list.parts == 0) return;
    c.cuts[list.token] = make_uint2(list.row, list.parts);
    if (list.token == 0) c.cuts[tokens()] = make_uint2(parts.alike, parts.most);
  }
};

}  // namespace smla::attention
