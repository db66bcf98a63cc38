#pragma once

#include "device/ptx/wgmma_sm90.cuh"
#include "ops/attention/output_sm90.cuh"
#include "ops/attention/queries_sm90.cuh"

namespace smla::attention::sm90 {

/// What a warpgroup that computes keeps of an item, and how it adds the item's tiles: scores, softmax, values. Side 0
/// has the left 256 columns of the output and the softmax of even tiles, 1 the right columns and odd tiles. A thread
/// has, of two heads r = lane / 4 and r + 8 of its warp's 16, the columns 2 (lane % 4) and the next of every 8.
/// kUnitWeights: the scopes' weight_scale is 1; kPacked: see PackedItem.
template <bool kUnitWeights, bool kPacked>
struct TileSums {
  static constexpr float kRoom = 10;  ///< see Softmax (softmax_tile.cuh)
  static constexpr float kSlack = 4;

  const TileCall& c;
  Shared shared;
  /// Bits 0 and 1: parities of the stages' barriers. Bit 2: this is no rehearsal of an item's end. Bit 3: its output
  /// has been rotated. From bit 4 on: items so far. In one register.
  std::uint32_t parities = 0;
  static constexpr std::uint32_t kRehearsed = 4;
  static constexpr std::uint32_t kRotated = 8;

  float output[2][64];  ///< of 128 columns each
  float scores[32];
  float reference[2];
  float sum[2];

  __device__ TileSums(const TileCall& call, const Shared& s) : c(call), shared(s) {}

  __device__ float& out(int i) { return output[i / 64][i % 64]; }
  __device__ std::uint32_t parity(int bit) const { return parities >> bit & 1; }

  /// Starts the products of the queries with the own tile.
  template <int kSide>
  __device__ void start_scores() {
    const std::uint64_t q = device::wgmma_matrix(shared.at + Place::kQueries, 16, 1024);
    const std::uint64_t k = device::wgmma_matrix(shared.keys(kSide), 16, 1024);
#pragma unroll
    for (int piece = 0; piece < kKeyPieces; ++piece) {
      device::mbarrier_wait(shared.full(kSide, piece), parity(kSide));
      device::fence_proxy_async();
      device::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4 * kPieceGroups; ++i) {
        const std::uint64_t step = ((kPieceGroups * piece + i / 4) * Place::kGroupBytes + i % 4 * 32) >> 4;
        device::wgmma_ss_n64(scores, q + step, k + step, piece + i > 0);
      }
    }
    device::wgmma_commit();
  }

  /// Starts adding a tile's values, whose weights are in shared memory.
  template <int kSide, int kStage>
  __device__ void start_values() {
    const std::uint64_t v =
        device::wgmma_matrix(shared.keys(kStage) + kSide * 4 * Place::kGroupBytes, Place::kGroupBytes, 1024);
    const std::uint64_t p = device::wgmma_matrix(shared.weights(kStage), 16, 1024);
    const auto add = [&](int i, int h) {
      device::wgmma_ss_n128(output[h], p + (i * 32 >> 4), v + ((i * 2048 + h * 2 * Place::kGroupBytes) >> 4));
    };
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) add(i, 0), add(i, 1);
    device::wgmma_commit();
  }

  /// Waits until they are added, and frees the side's piece of the tile.
  template <int kSide, int kStage>
  __device__ void finish_values() {
    device::wgmma_wait<0>();
    device::mbarrier_arrive_warp(shared.free(kStage, kSide));
  }

  /// A number that warpgroup `side` keeps for row r of this thread's two.
  __device__ float kept(std::uint32_t place, int side, int r, const Lane& at) const {
    return device::ld_shared_f32(shared.at + place + 4 * (64 * side + at.row() + 8 * r));
  }
  /// Multiplies the output by the factors of warpgroup `side`. No product may be adding to it.
  __device__ void fade(int side) {
    const Lane at = Lane::fresh();
    const float f[2] = {kept(Place::kFades, side, 0, at), kept(Place::kFades, side, 1, at)};
#pragma unroll
    for (int i = 0; i < 128; ++i) out(i) *= f[i / 2 % 2];
  }

  /// Waits for the other warpgroup's weights, and follows it where it has changed references. No product may be adding
  /// to the output. `empty`: nothing has been added to it.
  template <int kSide>
  __device__ void follow(bool empty) {
    constexpr int kOther = 1 - kSide;
    device::mbarrier_wait(shared.weighed(kOther), parity(kOther));
    const Lane at = Lane::fresh();
    const std::uint32_t changed = device::ld_shared_u32(shared.at + Place::kChanged + 4 * (4 * kOther + at.warp));
    if (!__any_sync(kAll, changed != 0)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = kept(Place::kReferences, kOther, r, at);
      sum[r] *= kept(Place::kFades, kOther, r, at);
    }
    if (!empty) fade(kOther);
  }

  /// Whether the list names all keys of the own tile, once that is there.
  template <int kSide>
  __device__ bool all_named() const {
    if constexpr (kPacked) return false;
    const uint2 named = device::ld_shared_v2(shared.at + Place::kValid + 8 * kSide);
    return (named.x & named.y) == ~0U;
  }

  /// The lower and the upper word of a number's lowest `n` bits.
  __device__ static uint2 bits_below(int n) {
    const auto word = [](int bits) { return bits >= 32 ? ~0U : (1U << max(bits, 0)) - 1; };
    return {word(n), word(n - 32)};
  }
  /// Of packed tokens: makes -inf of the scores of keys that are not named or do not count for a row's token.
  template <int kSide>
  __device__ void mask_by_row(int tile, int scope) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Found anew for each row: kept, it would take registers.
      const auto first_tiles = static_cast<int>(device::ld_shared_u32(shared.info(parities >> 4) + 4));
      auto column = static_cast<int>(device::ld_shared_u32(shared.column(parities >> 4))) + tile * kTileKeys;
      if (first_tiles > 0 && tile >= first_tiles) column = (tile - first_tiles) * kTileKeys;
      const Lane me = Lane::fresh();
      const uint2 range =
          device::ld_shared_v2(shared.range(me.side * kGroupWarps + me.warp, scope, me.lane / 4 + 8 * r));
      uint2 counts = bits_below(static_cast<int>(range.y) - column);
      const uint2 before = bits_below(static_cast<int>(range.x) - column);
      counts.x &= ~before.x, counts.y &= ~before.y;
      const uint2 valid = device::ld_shared_v2(shared.at + Place::kValid + 8 * kSide);
      counts.x &= valid.x, counts.y &= valid.y;
      const int first = 2 * me.part();
      counts.x >>= first, counts.y >>= first;
      asm volatile("" : "+r"(counts.x), "+r"(counts.y));  // as in weigh()
#pragma unroll
      for (int i = 2 * r; i < 32; i += 4) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int key = i / 4 * 8 + k;
          if (((key < 32 ? counts.x : counts.y) >> (key % 32) & 1U) == 0) scores[i + k] = -INFINITY;
        }
      }
    }
  }

  /// Makes weights of the own tile's scores, and of its references; `all`: all_named(). The scores become the weights,
  /// before they are rounded and multiplied by the scope's; count_weights() is due. Returns whether references have
  /// changed; then fade(kSide) is due before the tile's values are added.
  template <int kSide>
  __device__ bool weigh(int tile, int scope, bool all) {
    const float scale = c.score_scale[scope];
    if constexpr (kPacked) {
      mask_by_row<kSide>(tile, scope);
    } else if (!all) {
      uint2 named = device::ld_shared_v2(shared.at + Place::kValid + 8 * kSide);
      const int first = 2 * Lane::fresh().part();
      named.x >>= first, named.y >>= first;
      asm volatile("" : "+r"(named.x), "+r"(named.y));  // or else 16 masks would be kept
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = i / 4 * 8 + i % 2;
        if (((key < 32 ? named.x : named.y) >> (key % 32) & 1U) == 0) scores[i] = -INFINITY;
      }
    }
    // Of the thread's own keys. Those of the row's other threads are asked for only where a reference changes.
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) of[k] = fmaxf(scores[8 * k + 2 * r], scores[8 * k + 2 * r + 1]);
#pragma unroll
      for (int k = 0; k < 4; ++k) of[k] = fmaxf(of[k], fmaxf(scores[8 * k + 4 + 2 * r], scores[8 * k + 5 + 2 * r]));
      top[r] = fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3])) * scale;
    }
    const auto grown = [&](int r) { return top[r] > reference[r] + (kRoom + kSlack); };
    const bool changed = __any_sync(kAll, grown(0) || grown(1));
    const Lane at = Lane::fresh();
    if (changed) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAll, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAll, top[r], 2));
        float factor = 1;
        if (grown(r)) {
          const float next = top[r] - kRoom;
          factor = device::exp2_approx(reference[r] - next);
          reference[r] = next;
        }
        if (at.part() == 0) {
          const std::uint32_t place = shared.at + 4 * (64 * kSide + at.row() + 8 * r);
          device::st_shared_f32(place + Place::kFades, factor);
          device::st_shared_f32(place + Place::kReferences, reference[r]);
        }
        sum[r] *= factor;
      }
      __syncwarp();
    }
    if (at.lane == 0) device::st_shared_u32(shared.at + Place::kChanged + 4 * (4 * kSide + at.warp), changed ? 1 : 0);
    const float shift[2] = {reference[0] == -INFINITY ? 0 : reference[0], reference[1] == -INFINITY ? 0 : reference[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = device::exp2_approx(fmaf(scores[i], scale, -shift[i / 2 % 2]));
    const float weight = c.weight_scale[scope];
    const std::uint32_t place =
        shared.weights(kSide) + (at.warp * 16 + at.lane % 16) * 128 + (((at.lane / 16) ^ (at.lane % 8)) << 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float x = scores[8 * i + 2 * w];
        const float y = scores[8 * i + 2 * w + 1];
        words[w] = kUnitWeights ? halves_of(x, y) : halves_of(x * weight, y * weight);
      }
      device::stmatrix_x4(place ^ (i << 5), words[0], words[1], words[2], words[3]);
    }
    device::fence_proxy_async();
    return changed;
  }
  /// Adds the own tile's weights to the sums.
  __device__ void count_weights() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) of[k] = scores[8 * k + 2 * r] + scores[8 * k + 2 * r + 1];
#pragma unroll
      for (int k = 0; k < 4; ++k) of[k] += scores[8 * k + 4 + 2 * r] + scores[8 * k + 5 + 2 * r];
      sum[r] += (of[0] + of[1]) + (of[2] + of[3]);
    }
  }

  // Products run asynchronously only within straight code: where branches met with some running and some not, the
  // compiler would make each wait for the one before.

  /// All `tiles` of an item, two at a time.
  template <int kSide>
  __device__ void pairs(const int tiles) {
    // Read at each use: kept, it would take a register.
    const auto scope = [&](int tile) {
      return tile < static_cast<int>(device::ld_shared_u32(shared.info(parities >> 4) + 4)) ? 0 : 1;
    };
    int tile = 0;
    if constexpr (kSide == 0) {
#pragma unroll 1
      for (; tile < tiles; tile += 2) {
        start_scores<kSide>();
        const int of = scope(tile);
        const bool all = all_named<kSide>();
        device::wgmma_wait<0>();
        if (tile + 2 >= tiles) device::mbarrier_arrive_warp(shared.queries_read());
        const bool changed = weigh<kSide>(tile, of, all);
        device::mbarrier_arrive_warp(shared.weighed(0));
        if (changed && tile > 0) fade(0);
        device::mbarrier_wait(shared.weighed(0), parity(0));  // the weights of the other warps
        start_values<kSide, 0>();
        count_weights();
        finish_values<kSide, 0>();
        parities ^= 1;
        if (tile + 1 >= tiles) break;
        follow<kSide>(false);
        start_values<kSide, 1>();
        finish_values<kSide, 1>();
        parities ^= 2;
      }
    } else {
      if (tiles == 1) device::mbarrier_arrive_warp(shared.queries_read());
#pragma unroll 1
      for (; tile < tiles; tile += 2) {
        const bool both = tile + 1 < tiles;
        if (both) {
          start_scores<kSide>();
          device::wgmma_wait<0>();
          if (tile + 3 >= tiles) device::mbarrier_arrive_warp(shared.queries_read());
        }
        follow<kSide>(tile == 0);
        start_values<kSide, 0>();
        if (!both) {
          finish_values<kSide, 0>();
          parities ^= 1;
          break;
        }
        const bool changed = weigh<kSide>(tile + 1, scope(tile + 1), all_named<kSide>());
        device::mbarrier_arrive_warp(shared.weighed(1));
        finish_values<kSide, 0>();
        parities ^= 1;
        if (changed) fade(1);
        device::mbarrier_wait(shared.weighed(1), parity(1));  // the weights of the other warps
        start_values<kSide, 1>();
        count_weights();
        finish_values<kSide, 1>();
        parities ^= 2;
      }
    }
  }

  /// The sums of a row's weights, of both warpgroups.
  __device__ void add_sums() {
    const Lane me = Lane::fresh();
    // One item's are read while a faster warp may write the next one's; the rehearsal counts as an item.
    const std::uint32_t turn = (parities >> 4 ^ parities / kRehearsed) & 1;
    const std::uint32_t at = shared.at + Place::kSums + 512 * turn + 4 * me.row();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kAll, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAll, sum[r], 2);
      if (me.part() == 0) device::st_shared_f32(at + 256 * me.side + 32 * r, sum[r]);
    }
    if ((parities & kRehearsed) == 0) return;  // one warp rehearses
    device::bar_sync(kComputeBarrier, kComputeThreads);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = device::ld_shared_f32(at + 32 * r) + device::ld_shared_f32(at + 256 + 32 * r);
  }
};

}  // namespace smla::attention::sm90
