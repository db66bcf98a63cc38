#pragma once

#include "ops/attention/exact_head.cuh"
#include "ops/attention/tile_sums_sm90.cuh"

namespace smla::attention::sm90 {

/// A warpgroup that computes, from an item's queries to its output.
template <bool kUnitWeights, class Item, bool kQuantised>
struct Compute : TileSums<kUnitWeights, Item::kPacked> {
  using Sums = TileSums<kUnitWeights, Item::kPacked>;
  using Sums::c, Sums::shared, Sums::parities, Sums::sum, Sums::reference, Sums::out;
  using Sums::kRehearsed, Sums::kRotated;

  __device__ Compute(const TileCall& call, const Shared& s) : Sums(call, s) {}

  __device__ bool rehearsed() const { return (parities & kRehearsed) != 0; }

  static constexpr int kFirstRotated = 96;  ///< of `output`: the last 64 columns, of side 1

  /// rotate_back() of packed tokens: a thread's rows are turned by rows of cos_sin of their own, or not. Where those
  /// are goes through shared memory, where the warp's ranges were: there are no registers to find it beside the output.
  __device__ void rotate_rows_back(const Item& item, const float (&factor)[2], const Lane& me) {
    if (me.side == 0 || c.positions == nullptr) return;
    parities |= kRotated;
    const std::uint32_t place = shared.range(me.side * kGroupWarps + me.warp, 0, 0);
    if (me.lane < 16) {
      const float* row = reinterpret_cast<const float*>(kNoRow);  // a rehearsal turns by zeros
      if (rehearsed()) row = c.back_row(item.token(), item.first_head() + me.warp * 16 + me.lane);
      device::st_shared_u64(place + 8 * me.lane, reinterpret_cast<std::uint64_t>(row));
    }
    __syncwarp();
#pragma unroll
    for (int i = kFirstRotated; i < 128; ++i) out(i) = finished(out(i), factor[i / 2 % 2]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* cosines = reinterpret_cast<const float*>(device::ld_shared_u64(place + 8 * (me.lane / 4 + 8 * r)));
      if (cosines == nullptr) continue;
      const int first = (256 + 2 * me.part() - c.rope.nope) / 2;  // pair, of the thread's first two columns
      cosines += first;
#pragma unroll
      for (int i = kFirstRotated + 2 * r; i < 128; i += 4) {
        if (static_cast<std::uint32_t>(first + i / 4 * 4) >= static_cast<std::uint32_t>(c.rope.pairs)) continue;
        if (c.a.o_dtype == DType::kBF16) {
          out(i) = device::from_bf16(device::to_bf16_bits(out(i)));
          out(i + 1) = device::from_bf16(device::to_bf16_bits(out(i + 1)));
        }
        Rope::rotate(out(i), out(i + 1), cosines[i / 4 * 4], -cosines[i / 4 * 4 + c.rope.pairs]);
        asm volatile("" ::: "memory");  // as in rotate_back()
      }
    }
  }

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
    const bool split = rehearsed() ? item.split() : Item::kByLength || item.split();
    float* to = nullptr;
    std::int64_t stride = kDim;
    float factor[2] = {1, 1};
    if (split) {
      const std::int64_t state = rehearsed() ? item.state() : 0;
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
      if constexpr (Item::kPacked)
        rotate_rows_back(item, factor, me);
      else
        rotate_back(rehearsed() ? c.back_row(item.token(), item.first_head()) : zeros, factor, me);
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

  /// Of packed tokens: finds which columns of the lists count for the warp's rows, for its own use.
  __device__ void place_ranges(const Item& item) const {
    const Lane me = Lane::fresh();
    const int scope = me.lane / 16;
    __syncwarp();  // other lanes may still read those of the item before
    if (scope < c.a.scopes) {
      const std::uint32_t head = item.first_head() + me.warp * 16 + me.lane % 16;
      const int2 columns = c.a.keys[scope].range(c.a.token_of(item.token(), head));
      device::st_shared_v2(shared.range(me.side * kGroupWarps + me.warp, scope, me.lane % 16),
                           make_uint2(static_cast<std::uint32_t>(columns.x), static_cast<std::uint32_t>(columns.y)));
    }
    __syncwarp();
  }
  /// Of packed tokens: a key that is not a number makes NaN of all rows, also of those for which it does not count. The
  /// item is computed in fp32 then, a row's own keys only.
  __device__ void look_for_nan() const {
    float zero = 0;  // NaN after one that is, or that is infinite
#pragma unroll
    for (int i = 0; i < 64; ++i) zero = fmaf(this->output[1][i], 0.0F, fmaf(this->output[0][i], 0.0F, zero));
    if (zero != 0.0F) device::st_shared_u32(shared.info(parities >> 4) + 12, 1);
  }

  /// Waits for an item's queries. Those that are normed and rotated become fp16 numbers here.
  __device__ void prepare(const Item& item) {
    device::mbarrier_wait(shared.item_ready(parities >> 4), Shared::item_parity(parities >> 4));
    if constexpr (Item::kPacked) place_ranges(item);
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

  /// One warp begins with a rehearsal of the end of the first item, which writes nothing: while the first keys are on
  /// their way, the code of the end comes from memory.
  __device__ __forceinline__ void all_items(std::uint32_t items) {
    // Computed anew at each use: kept, it would take a register from the loop over tiles.
    const auto number = [&] {
      std::uint32_t turn = parities >> 4;
      asm volatile("" : "+r"(turn));
      return blockIdx.x + turn * gridDim.x;
    };
    if (fresh_thread() / 32 != kOutputRehearser) parities |= kRehearsed;
    asm volatile("" : "+r"(parities));  // or else the rehearsal would be a copy of the code
    // Of lists that are cut by their lengths the items become known while the end is rehearsed.
    const auto is_one = [&] {
      if (Item::kByLength && !rehearsed()) return true;
      if constexpr (Item::kByLength) Item::wait(shared);
      return Item::is(shared, items, number(), parities >> 4);
    };
#pragma unroll 1
    for (; is_one(); parities = (parities & ~kRotated) + (rehearsed() ? 16 : kRehearsed)) {
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
        this->template pairs<0>(tiles);
      } else {
        this->template pairs<1>(tiles);
      }
      if constexpr (Item::kPacked) {
        if (rehearsed()) look_for_nan();
      }
      this->add_sums();
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
