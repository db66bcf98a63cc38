#pragma once

#include "device/ptx/wgmma_sm90.cuh"
#include "ops/attention/exact_head.cuh"
#include "ops/attention/output_sm90.cuh"
#include "ops/attention/queries_sm90.cuh"

namespace smla::attention::sm90 {

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A warpgroup that computes: side 0 the left 256 columns of the output and the softmax of even tiles, 1 the right
/// columns and odd tiles. A thread has, of two heads r = lane / 4 and r + 8 of its warp's 16, the columns 2 (lane % 4)
/// and the next of every 8. kUnitWeights: the scopes' weight_scale is 1.
template <bool kUnitWeights, class Item, bool kQuantised>
struct Compute {
  static constexpr float kRoom = 10;  ///< see Softmax (softmax_tile.cuh)
  static constexpr float kSlack = 4;

  const TileCall& c;
  Shared shared;
  /// Bits 0 and 1: parities of the stages' barriers. Bit 2: the end of an item was rehearsed. From bit 4 on: items so
  /// far. In one register.
  std::uint32_t parities = 0;
  static constexpr std::uint32_t kRehearsed = 4;
  static constexpr std::uint32_t kRotated = 8;

  float output[2][64];  ///< of 128 columns each
  float scores[32];
  float reference[2];
  float sum[2];

  __device__ Compute(const TileCall& call, const Shared& s) : c(call), shared(s) {}

  __device__ float& out(int i) { return output[i / 64][i % 64]; }
  __device__ std::uint32_t parity(int bit) const { return parities >> bit & 1; }
  __device__ bool rehearsed() const { return (parities & kRehearsed) != 0; }

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
  /// to the output.
  template <int kSide>
  __device__ void follow() {
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
    fade(kOther);
  }

  /// Whether the list names all keys of the own tile, once that is there.
  template <int kSide>
  __device__ bool all_named() const {
    const uint2 named = device::ld_shared_v2(shared.at + Place::kValid + 8 * kSide);
    return (named.x & named.y) == ~0U;
  }

  /// Makes weights of the own tile's scores, and of its references; `all`: all_named(). The scores become the weights,
  /// before they are rounded and multiplied by the scope's; count_weights() is due. Returns whether references have
  /// changed; then fade(kSide) is due before the tile's values are added.
  template <int kSide>
  __device__ bool weigh(int scope, bool all) {
    const float scale = c.score_scale[scope];
    if (!all) {
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
          factor = exp2_approx(reference[r] - next);
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
    for (int i = 0; i < 32; ++i) scores[i] = exp2_approx(fmaf(scores[i], scale, -shift[i / 2 % 2]));
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
        const bool changed = weigh<kSide>(of, all);
        device::mbarrier_arrive_warp(shared.weighed(0));
        if (changed) fade(0);
        device::mbarrier_wait(shared.weighed(0), parity(0));  // the weights of the other warps
        start_values<kSide, 0>();
        count_weights();
        finish_values<kSide, 0>();
        parities ^= 1;
        if (tile + 1 >= tiles) break;
        follow<kSide>();
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
        follow<kSide>();
        start_values<kSide, 0>();
        if (!both) {
          finish_values<kSide, 0>();
          parities ^= 1;
          break;
        }
        const bool changed = weigh<kSide>(scope(tile + 1), all_named<kSide>());
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
    device::bar_sync(kComputeBarrier, kComputeThreads);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = device::ld_shared_f32(at + 32 * r) + device::ld_shared_f32(at + 256 + 32 * r);
  }

  static constexpr int kFirstRotated = 96;  ///< of `output`: the last 64 columns, of side 1

  /// Finishes the last 64 columns and rotates those that the epilogue names; remembers whether it did.
  __device__ void rotate_back(const float* back, const float (&factor)[2], const Lane& me) {
    if (me.side == 0 || back == nullptr) return;
    parities |= kRotated;
    const int first = (256 + 2 * me.part() - c.rope.nope) / 2;  // pair, of the thread's first two columns
    const float* const cosines = back + first;
#pragma unroll
    for (int i = kFirstRotated; i < 128; i += 2) {
      out(i) = finished(out(i), factor[i / 2 % 2]);
      out(i + 1) = finished(out(i + 1), factor[i / 2 % 2]);
      if (static_cast<std::uint32_t>(first + i / 4 * 4) >= static_cast<std::uint32_t>(c.rope.pairs)) continue;
      if (kQuantised || c.a.o_dtype == DType::kBF16) {
        out(i) = device::from_bf16(device::to_bf16_bits(out(i)));
        out(i + 1) = device::from_bf16(device::to_bf16_bits(out(i + 1)));
      }
      Rope::rotate(out(i), out(i + 1), cosines[i / 4 * 4], -cosines[i / 4 * 4 + c.rope.pairs]);
      asm volatile("" ::: "memory");  // not all of the table's numbers at once: there are no registers for them
    }
  }

  /// Finishes an item: its output, or its sums for the merge. In a rehearsal there are no heads to write.
  __device__ void finish_item(const Item& item) {
    const int heads = rehearsed() ? item.heads() : 0;
    const Lane me = Lane::fresh();
    const int part = me.part();
    const int left = heads - me.row();  // heads from the thread's first row on
    const bool split = item.split();
    float* to = nullptr;
    std::int64_t stride = kDim;
    float factor[2] = {1, 1};
    if (split) {
      const std::int64_t state = item.state();
      if (me.side == 0 && part < 2 && 8 * part < left) {
        c.states[state + me.row() + 8 * part] =
            part == 0 ? make_float2(reference[0], sum[0]) : make_float2(reference[1], sum[1]);
      }
      to = c.sums + state * kDim;
      if (c.half_sums) factor[0] = per_sum_unit(sum[0]), factor[1] = per_sum_unit(sum[1]);
    } else {
      // Lanes 0 and 1 of the four that share the rows finish one each.
      const int r = part & 1;
      const std::int64_t head = item.first_head() + min(me.row() + 8 * r, heads - 1);
      const Finish f = finish(c.a, head, r == 0 ? reference[0] : reference[1], r == 0 ? sum[0] : sum[1]);
      if (me.side == 0 && part < 2 && 8 * r < left && c.a.lse != nullptr)
        c.a.lse[item.token() * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
      const float mine = f.factor * c.unit;
      factor[0] = __shfl_sync(kAll, mine, me.lane & ~3);
      factor[1] = __shfl_sync(kAll, mine, (me.lane & ~3) + 1);
      // A rehearsal turns by zeros: positions may not have been written yet.
      const float* const zeros = c.positions == nullptr ? nullptr : reinterpret_cast<const float*>(kNoRow);
      rotate_back(rehearsed() ? c.back_row(item.token()) : zeros, factor, me);
      if constexpr (kQuantised) {
        store_quantised(factor);
        return;
      }
      to = static_cast<float*>(c.a.o);
      stride = c.a.o_stride[1];
    }
    const auto number = [&](int i) {
      const float done = finished(out(i), factor[i / 2 % 2]);
      return i >= kFirstRotated && (parities & kRotated) != 0 ? out(i) : done;
    };
    const bool bf16 = c.a.o_dtype == DType::kBF16;
    const int warp_row = me.warp * 16;
    if (!kQuantised && !split && c.word < 16) {
      const std::int64_t first =
          item.token() * c.a.o_stride[0] + (item.first_head() + me.row()) * c.a.o_stride[1] + 256 * me.side;
      if (bf16) {
        store_singly(static_cast<std::uint16_t*>(c.a.o) + first, c.a.o_stride[1], left, part, number,
                     [](float x) { return device::to_bf16_bits(x); });
      } else {
        store_singly(to + first, c.a.o_stride[1], left, part, number, [](float x) { return x; });
      }
      return;
    }
    // Both warpgroups have read all weights (add_sums()); the rows that a warp has there are its own.
    const RowStage stage{shared.weights(me.side) + warp_row * 128, heads - warp_row};
    const std::int64_t first =
        split ? warp_row * kDim + 256 * me.side
              : item.token() * c.a.o_stride[0] + (item.first_head() + warp_row) * c.a.o_stride[1] + 256 * me.side;
    if (!kQuantised && !split && bf16) {
      store_pairs(stage, static_cast<std::uint16_t*>(c.a.o) + first, c.a.o_stride[1], number, Bf16Pair{});
    } else if (split && c.half_sums) {
      auto* const halves = reinterpret_cast<std::uint16_t*>(to) + 2 * warp_row * kDim + 256 * me.side;
      store_pairs(stage, halves, 2 * kDim, number, HalfPair{});
    } else {
      store_f32(stage, to + first, stride, number);
    }
  }

  __device__ QuantisedRows quantised_rows() const {
    return {shared.at + Place::kQuantised + fresh_thread() / 32 * 16 * QuantisedRows::kBytes};
  }
  /// Finds out where the warp's rows go, before the output takes the registers. A rehearsal's go zeros.
  __device__ void place_rows(const Item& item) const {
    const Lane me = Lane::fresh();
    const int heads = rehearsed() ? item.heads() - 16 * me.warp : 0;
    quantised_rows().put(c.a, item.token(), item.first_head() + 16 * me.warp, heads, me.side);
  }

  /// Stores a warp's rows as E4M3 with their scales: numbers rounded to bf16, but for the last 64 columns, which have
  /// been rotated in fp32 (kRotatedE4M3) unless the token's position has no row for it.
  __device__ void store_quantised(const float (&factor)[2]) {
    // Computed anew at each use: there are no registers to keep it.
    const auto stage = [&] {
      const Lane me = Lane::fresh();
      return RowStage{shared.weights(me.side) + me.warp * 16 * 128, 0};
    };
    const auto rotated = [&] { return (parities & kRotated) != 0; };
    // Rounded to bf16 the output takes half of the registers; the last 64 columns may be fp32.
    constexpr int kPairs = kFirstRotated / 2;
    std::uint32_t pair[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      pair[i] = Bf16Pair{}(finished(out(2 * i), factor[i % 2]), finished(out(2 * i + 1), factor[i % 2]));
    const auto rounded = [&](int i) {
      if (i >= kFirstRotated) {
        const float done = device::from_bf16(device::to_bf16_bits(finished(out(i), factor[i / 2 % 2])));
        return rotated() ? out(i) : done;
      }
      return i % 2 == 0 ? __uint_as_float(pair[i / 2] << 16) : __uint_as_float(pair[i / 2] & 0xFFFF'0000U);
    };
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      int exponent[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float most = 0;
#pragma unroll
        for (int i = 64 * chunk + 2 * r; i < 64 * chunk + 64; i += 4) {
          most = fmaxf(most, fabsf(rounded(i)));
          most = fmaxf(most, fabsf(rounded(i + 1)));
        }
        exponent[r] = scale_exponent(most);
      }
      const auto number = [&](int i) { return rounded(i) * exp2_int(-exponent[i / 2 % 2]); };
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        stage_f32(stage(), fresh_thread() % 32, 4 * chunk + part, number);
        flush_codes(stage(), quantised_rows(), 128 * chunk + 32 * part);
      }
      // Of four lanes that share two rows, two write their scales.
      const Lane me = Lane::fresh();
      if (me.part() < 2) {
        quantised_rows().store_scale(c.a.quantised, me.lane / 4 + 8 * me.part(), chunk,
                                     me.part() == 0 ? exponent[0] : exponent[1]);
      }
    }
    __syncwarp();  // the next item's rows are placed where these were
  }

  /// Computes the item once more, in fp32, because fp16 could not represent a number.
  __device__ void repeat(const Item& item) {
    extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
    const int warp = fresh_thread() / 32;
    if (warp < kScratchWarps) {
      const int heads = item.heads();
      for (int h = warp; h < heads; h += kScratchWarps)
        attend_exactly<kListTile, kQuantised>(c, item.list(), item.first_head() + h,
                                              reinterpret_cast<float*>(dynamic + Place::kScratch));
    }
    device::bar_sync(kComputeBarrier, kComputeThreads);
  }

  __device__ ItemQueries<Item> queries_of(const Item& item) const { return {c, shared.at + Place::kQueries, item}; }

  /// Waits for an item's queries. Those that are normed and rotated become fp16 numbers here.
  __device__ void prepare(const Item& item) {
    device::mbarrier_wait(shared.item_ready(parities >> 4), Shared::item_parity(parities >> 4));
    if (!queries_of(item).rotated()) return;
    const bool bad = queries_of(item).finish(fresh_thread() / 32, 2 * kGroupWarps);
    device::fence_proxy_async();
    if (bad) device::st_shared_u32(shared.info(parities >> 4) + 12, 1);
    device::bar_sync(kComputeBarrier, kComputeThreads);
  }

  /// Whether the present item has to be computed in fp32.
  __device__ bool unrepresentable() const {
    const uint4 flags = device::ld_shared_v4(shared.info(parities >> 4));
    const uint4 bad = device::ld_shared_v4(shared.bad_queries(parities >> 4));
    const std::uint32_t any = flags.z | flags.w | bad.x | bad.y | bad.z;
    return __any_sync(kAll, any != 0);
  }

  /// Begins with a rehearsal of the end of the first item, which writes nothing: while the first keys are on their way,
  /// the code of the end comes from memory.
  __device__ __forceinline__ void all_items(std::uint32_t items) {
    // Computed anew at each use: kept, it would take a register from the loop over tiles.
    const auto number = [&] {
      std::uint32_t turn = parities >> 4;
      asm volatile("" : "+r"(turn));
      return blockIdx.x + turn * gridDim.x;
    };
    asm volatile("" : "+r"(parities));  // or else the rehearsal would be a copy of the code
#pragma unroll 1
    for (; Item::is(shared, items, number(), parities >> 4);
         parities = (parities & ~kRotated) + (rehearsed() ? 16 : kRehearsed)) {
      int tiles = 0;
      if (rehearsed()) {
        prepare(Item(c, shared, number(), parities >> 4));
        tiles = __shfl_sync(kAll, static_cast<int>(device::ld_shared_u32(shared.info(parities >> 4))), 0);
      }
      if constexpr (kQuantised) {
        place_rows(Item(c, shared, number(), parities >> 4));
        asm volatile("" ::: "memory");
      }
#pragma unroll
      for (int i = 0; i < 128; ++i) out(i) = 0;
      sum[0] = sum[1] = 0;
      reference[0] = reference[1] = -INFINITY;
      if (Lane::fresh().side == 0) {
        pairs<0>(tiles);
      } else {
        pairs<1>(tiles);
      }
      add_sums();
      const bool bad = rehearsed() && unrepresentable();
      const Item item(c, shared, number(), parities >> 4);
      if (bad) {
        repeat(item);
      } else {
        finish_item(item);
      }
      if (!rehearsed() || item.split() || item.first_head() + kTileHeads < c.a.heads) continue;
      const int lane = fresh_thread() % 32;
      for (std::int64_t h = c.a.heads + fresh_thread() / 32; h < c.a.out_heads; h += 2 * kGroupWarps) {
        for (int d = 4 * lane; d < kDim; d += 128)
          store(c, item.token() * c.a.o_stride[0] + h * c.a.o_stride[1] + d, make_float4(0, 0, 0, 0));
      }
    }
  }
};

}  // namespace smla::attention::sm90
