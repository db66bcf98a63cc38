#pragma once

#include "device/ptx/wgmma_sm90.cuh"
#include "ops/attention/exact_head.cuh"
#include "ops/attention/query_fragments_sm90.cuh"

namespace smla::attention::sm90 {

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The warpgroup that multiplies queries with keys and makes weights of the scores. A thread has, of two heads r = lane
/// / 4 and r + 8 of its warp's 16, the keys 2 (lane % 4) and the next of every 8. kUnitWeights: the scopes' weight_scale
/// is 1.
template <Form kForm, bool kUnitWeights, class Item, bool kQuantised>
struct Scores {
  static constexpr float kRoom = 10;  ///< see Softmax (softmax_tile.cuh)
  static constexpr float kSlack = 4;
  using Place = Layout<kForm>;

  const TileCall& c;
  Block<kForm> block;
  StageTurn<kForm.stages> at;
  std::uint32_t turn = 0;

  QueryFragments<kForm> queries;
  float scores[2][16];  ///< of both halves of a tile's keys
  float reference[2];
  float sum[2];

  __device__ Scores(const TileCall& call, const Block<kForm>& b) : c(call), block(b) {}

  // Computed anew at each use: kept, it would take registers from the loop over tiles.
  __device__ static std::uint32_t number_of(std::uint32_t turn) {
    asm volatile("" : "+r"(turn));
    return blockIdx.x + turn * gridDim.x;
  }
  __device__ Item item(std::uint32_t of) const { return Item(c, block, number_of(of), of); }

  /// Starts multiplying the queries with half of the keys of a tile that is there.
  __device__ void multiply(float (&of)[16], const StageTurn<kForm.stages>& tile, int half) const {
    device::wgmma_fence();
#pragma unroll
    for (int group = 0; group < AttentionTile::kGroups; ++group) {
      const int piece = group / Place::kPieceGroups;
      const std::uint64_t k =
          device::wgmma_matrix(block.keys(tile.stage, piece) + half * (Place::kGroupBytes / 2), 16, 1024);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const std::uint64_t step = (group % Place::kPieceGroups * Place::kGroupBytes + s * 32) >> 4;
#ifdef X_NOQK
        if (group + s > 0) continue;
#endif
        if (group < kForm.held) {
          const auto& w = queries.words[group < kForm.held ? group : 0];
          const std::uint32_t a[4] = {w[4 * s], w[4 * s + 1], w[4 * s + 2], w[4 * s + 3]};
          device::wgmma_rs_n32(of, a, k + step, group + s > 0);
        } else {
          const std::uint64_t q = device::wgmma_matrix(block.queries(group), 16, 1024);
          device::wgmma_ss_n32(of, q + (s * 32 >> 4), k + step, true);
        }
      }
    }
    device::wgmma_commit();
  }
  /// Waits for a tile.
  __device__ void await(const StageTurn<kForm.stages>& tile) const {
#pragma unroll
    for (int piece = 0; piece < Place::kPieces; ++piece)
      device::mbarrier_wait(block.full(tile.stage, piece), tile.parity);
    device::fence_proxy_async();
  }

  /// Makes weights of the scores of half of the present tile's keys.
  template <int kHalf>
  __device__ void weigh(float (&s)[16], int scope) {
    const float scale = c.score_scale[scope];
    const std::uint32_t named = device::ld_shared_u32(block.names(at.tile) + 4 * kHalf);
    if (named != ~0U) {
      std::uint32_t own = named >> 2 * Lane::fresh().part();
      asm volatile("" : "+r"(own));  // or else masks would be kept
#pragma unroll
      for (int i = 0; i < 16; ++i)
        if ((own >> (i / 4 * 8 + i % 2) & 1U) == 0) s[i] = -INFINITY;
    }
    // Of the thread's own keys. Those of the row's other threads are asked for only where a reference changes.
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) of[k] = fmaxf(s[4 * k + 2 * r], s[4 * k + 2 * r + 1]);
      top[r] = fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3])) * scale;
    }
    const auto grown = [&](int r) { return top[r] > reference[r] + (kRoom + kSlack); };
    const bool changed = __any_sync(kAll, grown(0) || grown(1));
    if (kHalf == 0) device::mbarrier_wait(block.added(at.weights()), at.weights_parity() ^ 1);
    if (changed) {
      const Lane me = Lane::fresh();
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
        sum[r] *= factor;
        if (me.part() == 0)
          device::st_shared_f32(block.fades(at.weights(), kHalf) + 4 * (me.row() + 8 * r), factor);
      }
    }
    const float shift[2] = {reference[0] == -INFINITY ? 0 : reference[0], reference[1] == -INFINITY ? 0 : reference[1]};
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i] = exp2_approx(fmaf(s[i], scale, -shift[i / 2 % 2]));
    const Lane me = Lane::fresh();
    const std::uint32_t place =
        block.weights(at.weights()) + (me.warp * 16 + me.lane % 16) * 128 + (((me.lane / 16) ^ (me.lane % 8)) << 4);
    const float weight = c.weight_scale[scope];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float x = s[8 * i + 2 * w];
        const float y = s[8 * i + 2 * w + 1];
        words[w] = kUnitWeights ? halves_of(x, y) : halves_of(x * weight, y * weight);
      }
      device::stmatrix_x4(place ^ ((2 * kHalf + i) << 5), words[0], words[1], words[2], words[3]);
    }
    if (me.lane == 0) {
      const std::uint32_t place_of_flags = block.changed(at.weights()) + 4 * me.warp;
      const std::uint32_t before = kHalf == 0 ? 0 : device::ld_shared_u32(place_of_flags);
      if (kHalf == 0 || changed) device::st_shared_u32(place_of_flags, before | (changed ? 1U << kHalf : 0));
    }
    if (kHalf == 1) {
      device::fence_proxy_async();
      device::mbarrier_arrive_warp(block.weighed(at.weights()));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) of[k] = s[4 * k + 2 * r] + s[4 * k + 2 * r + 1];
      sum[r] += (of[0] + of[1]) + (of[2] + of[3]);
    }
  }

  /// Whether the present item has to be computed in fp32, because fp16 cannot represent a number.
  __device__ bool unrepresentable() const {
    const uint4 keys = device::ld_shared_v4(block.bad_keys(turn));
    const uint4 of = device::ld_shared_v4(block.bad_queries(turn));
    return __any_sync(kAll, (keys.x | keys.y | keys.z | keys.w | of.x | of.y | of.z | of.w) != 0);
  }

  /// Tells what the item's outputs are multiplied with, and writes its log-sum-exps, or a part's states.
  __device__ void finish(bool bad) {
    const Item of = item(turn);
    const Lane me = Lane::fresh();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kAll, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAll, sum[r], 2);
    }
    device::mbarrier_wait(block.taken(turn), (turn >> 1 & 1) ^ 1);
    if (me.part() < 2) {
      const int row = me.row() + 8 * me.part();
      const bool there = row < of.heads() && !bad;
      const float mine = me.part() == 0 ? sum[0] : sum[1];
      const float from = me.part() == 0 ? reference[0] : reference[1];
      float factor = 1;
      if (of.split()) {
        if (there) c.states[of.state() + row] = make_float2(from, mine);
        if (c.half_sums) factor = per_sum_unit(mine);
      } else {
        const std::int64_t head = of.first_head() + min(row, of.heads() - 1);
        const Finish f = attention::finish(c.a, head, from, mine);
        if (there && c.a.lse != nullptr) c.a.lse[of.token() * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
        factor = f.factor * c.unit;
      }
      device::st_shared_f32(block.factors(turn) + 4 * row, factor);
    }
    if (me.lane == 0 && me.warp == 0) device::st_shared_u32(block.skipped(turn), bad ? 1 : 0);
    device::mbarrier_arrive_warp(block.finished(turn));
  }

  static constexpr int kScratchWarps = Place::kWeightStages * Place::kGroupBytes / (3 * kDim * 4);

  /// Computes the item once more, in fp32, where the weights are, once nobody reads them.
  __device__ void repeat() {
    extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
    StageTurn<kForm.stages> last = at;  // behind the last tile
    device::mbarrier_wait(block.added(last.weights()), last.weights_parity() ^ 1);
    --last.tile;
    device::mbarrier_wait(block.added(last.weights()), last.weights_parity());
    const int warp = fresh_thread() / 32;
    if (warp < kScratchWarps) {
      const int heads = item(turn).heads();
#pragma unroll 1
      for (int h = warp; h < heads; h += kScratchWarps) {
        const Item of = item(turn);  // anew for each: kept, it would take too many registers
        attend_exactly<kListTile, kQuantised>(c, of.list(), of.first_head() + h,
                                              reinterpret_cast<float*>(dynamic + Place::kWeights));
      }
    }
    device::bar_sync(kScoreBarrier, kGroupThreads);
  }

  __device__ __forceinline__ void all_items(std::uint32_t items) {
    if (!Item::is(block, items, number_of(0), 0)) return;
    queries.ask(c, block, item(0));
#pragma unroll 1
    for (;; ++turn) {
      bool bad = __any_sync(kAll, queries.convert(c, block, item(turn)));
      if (const Lane me = Lane::fresh(); me.lane == 0)
        device::st_shared_u32(block.bad_queries(turn) + 4 * me.warp, bad ? 1 : 0);
      device::bar_sync(kScoreBarrier, kGroupThreads);
      device::mbarrier_wait(block.item_ready(turn), turn / kInfos & 1);
      uint2 left = device::ld_shared_v2(block.info(turn));  // tiles, and those of the first scope
      sum[0] = sum[1] = 0;
      reference[0] = reference[1] = -INFINITY;
      const bool more = Item::is(block, items, number_of(turn + 1), turn + 1);
      await(at);
      multiply(scores[0], at, 0);
      device::wgmma_wait<0>();
      // One half of the keys is multiplied while the other's scores become weights.
#pragma unroll 1
      while (true) {
        const int scope = left.y > 0 ? 0 : 1;
        multiply(scores[1], at, 1);
        weigh<0>(scores[0], scope);
        device::wgmma_wait<0>();
        if (--left.x == 0) {
          bad = unrepresentable();  // all keys are there
          if (more && !bad) queries.ask(c, block, item(turn + 1));
          weigh<1>(scores[1], scope);
          at.next();
          break;
        }
        StageTurn<kForm.stages> next = at;
        next.next();
        await(next);
        multiply(scores[0], next, 0);
        weigh<1>(scores[1], scope);
        device::wgmma_wait<0>();
        left.y -= left.y > 0 ? 1 : 0;
        at = next;
      }
      finish(bad);
      // Queries are asked for behind the repetition: there are no registers for both.
      if (bad) repeat();
      if (!more) return;
      if (bad) queries.ask(c, block, item(turn + 1));
    }
  }
};

}  // namespace smla::attention::sm90
