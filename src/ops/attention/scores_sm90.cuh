#pragma once

#include <algorithm>

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
  float reference[2];
  float sum[2];

  __device__ Scores(const TileCall& call, const Block<kForm>& b) : c(call), block(b) {}

  // Computed anew at each use: kept, it would take registers from the loop over tiles.
  __device__ static std::uint32_t number_of(std::uint32_t turn) {
    asm volatile("" : "+r"(turn));
    return blockIdx.x + turn * gridDim.x;
  }
  __device__ Item item(std::uint32_t of) const { return Item(c, block, number_of(of), of); }

  /// Starts multiplying the queries with the keys of a tile that is there: first the part that is in registers, whose
  /// products keep the warp until they have read it.
  __device__ void multiply(float (&of)[32], const StageTurn<kForm.stages>& tile) const {
    device::wgmma_fence();
#pragma unroll
    for (int group = 0; group < AttentionTile::kGroups; ++group) {
      const std::uint64_t k =
          device::wgmma_matrix(block.keys(tile.stage(), group / Place::kPieceGroups), 16, 1024);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const std::uint64_t step = (group % Place::kPieceGroups * Place::kGroupBytes + s * 32) >> 4;
#ifdef X_NOQK
        if (group + s > 0) continue;
#endif
        if (group < kForm.held) {
          const auto& w = queries.words[group < kForm.held ? group : 0];
          const std::uint32_t a[4] = {w[4 * s], w[4 * s + 1], w[4 * s + 2], w[4 * s + 3]};
          device::wgmma_rs_n64(of, a, k + step, group + s > 0);
        } else {
          const std::uint64_t q = device::wgmma_matrix(block.queries(group), 16, 1024);
          device::wgmma_ss_n64(of, q + (s * 32 >> 4), k + step, group + s > 0);
        }
      }
    }
    device::wgmma_commit();
  }
  /// Waits for a tile.
  __device__ void await(const StageTurn<kForm.stages>& tile) const {
#pragma unroll
    for (int piece = 0; piece < Place::kPieces; ++piece)
      device::mbarrier_wait(block.full(tile.stage(), piece), tile.parity());
    device::fence_proxy_async();
  }
  __device__ bool there(const StageTurn<kForm.stages>& tile) const {
    bool all = true;
#pragma unroll
    for (int piece = 0; piece < Place::kPieces; ++piece)
      all = all && device::mbarrier_try(block.full(tile.stage(), piece), tile.parity());
    std::uint32_t everybody;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.u32 p, %1, 0;\n"
        "barrier.cta.red.and.pred.aligned q, 2, 128, p;\n"
        "selp.b32 %0, 1, 0, q; }"
        : "=r"(everybody)
        : "r"(all ? 1 : 0)
        : "memory");
    return everybody != 0;
  }

  /// Makes weights of the present tile's scores and tells the value warpgroups of them.
  __device__ void weigh(float (&scores)[32], int scope) {
    const float scale = c.score_scale[scope];
    const uint2 named = device::ld_shared_v2(block.names(at.tile));
    if ((named.x & named.y) != ~0U) {
      uint2 own = named;
      const int first = 2 * Lane::fresh().part();
      own.x >>= first, own.y >>= first;
      asm volatile("" : "+r"(own.x), "+r"(own.y));  // or else 16 masks would be kept
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = i / 4 * 8 + i % 2;
        if (((key < 32 ? own.x : own.y) >> (key % 32) & 1U) == 0) scores[i] = -INFINITY;
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
    float factor[2] = {1, 1};
    if (changed) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAll, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAll, top[r], 2));
        if (grown(r)) {
          const float next = top[r] - kRoom;
          factor[r] = exp2_approx(reference[r] - next);
          reference[r] = next;
        }
        sum[r] *= factor[r];
      }
    }
    const float shift[2] = {reference[0] == -INFINITY ? 0 : reference[0], reference[1] == -INFINITY ? 0 : reference[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = exp2_approx(fmaf(scores[i], scale, -shift[i / 2 % 2]));
    const std::uint32_t stage = Place::weight_stage(at.tile);
    device::mbarrier_wait(block.added(stage), Place::weight_parity(at.tile) ^ 1);
    const Lane me = Lane::fresh();
    if (changed && me.part() < 2) {
      device::st_shared_f32(block.fades(stage) + 4 * (me.row() + 8 * me.part()),
                            me.part() == 0 ? factor[0] : factor[1]);
    }
    if (me.lane == 0) device::st_shared_u32(block.changed(stage) + 4 * me.warp, changed ? 1 : 0);
    const float weight = c.weight_scale[scope];
    const std::uint32_t place =
        block.weights(stage) + (me.warp * 16 + me.lane % 16) * 128 + (((me.lane / 16) ^ (me.lane % 8)) << 4);
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
    device::mbarrier_arrive_warp(block.weighed(stage));
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

  static constexpr int kScratchWarps = std::min<int>(
      kGroupWarps, (AttentionTile::kGroups - kForm.held) * Place::kGroupBytes / (3 * kDim * 4));
  static_assert(kScratchWarps > 0);

  /// Computes the item once more, in fp32, where the queries are, once nobody reads them.
  __device__ void repeat() {
    extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
    device::bar_sync(kScoreBarrier, kGroupThreads);
    const int warp = fresh_thread() / 32;
    if (warp < kScratchWarps) {
      const int heads = item(turn).heads();
#pragma unroll 1
      for (int h = warp; h < heads; h += kScratchWarps) {
        const Item of = item(turn);  // anew for each: kept, it would take too many registers
        attend_exactly<kListTile, kQuantised>(c, of.list(), of.first_head() + h,
                                              reinterpret_cast<float*>(dynamic + Place::kQueries));
      }
    }
    device::bar_sync(kScoreBarrier, kGroupThreads);
  }

  __device__ __forceinline__ void all_items(std::uint32_t items) {
    if (!Item::is(block, items, number_of(0), 0)) return;
    queries.ask(c, block, item(0));
#pragma unroll 1
    for (;; ++turn) {
      const bool unfit = __any_sync(kAll, queries.convert(c, block, item(turn)));
      if (const Lane me = Lane::fresh(); me.lane == 0)
        device::st_shared_u32(block.bad_queries(turn) + 4 * me.warp, unfit ? 1 : 0);
      device::bar_sync(kScoreBarrier, kGroupThreads);
      device::mbarrier_wait(block.item_ready(turn), turn / kInfos & 1);
      uint2 left = device::ld_shared_v2(block.info(turn));  // tiles, and those of the first scope
      sum[0] = sum[1] = 0;
      reference[0] = reference[1] = -INFINITY;
      float scores[32];
      await(at);
      multiply(scores, at);
      device::wgmma_wait<0>();
#pragma unroll 1
      while (--left.x > 0) {
        const int scope = left.y > 0 ? 0 : 1;
        left.y -= left.y > 0 ? 1 : 0;
        StageTurn<kForm.stages> next = at;
        next.next();
        if (there(next)) {
          // The next tile is multiplied while this one's scores become weights.
          float ahead[32];
          device::fence_proxy_async();
          multiply(ahead, next);
          weigh(scores, scope);
          device::wgmma_wait<0>();
#pragma unroll
          for (int i = 0; i < 32; ++i) scores[i] = ahead[i];
        } else {
          weigh(scores, scope);
          await(next);
          multiply(scores, next);
          device::wgmma_wait<0>();
        }
        at = next;
      }
      const bool bad = unrepresentable();  // all keys are there
      const bool more = Item::is(block, items, number_of(turn + 1), turn + 1);
      if (more && !bad) queries.ask(c, block, item(turn + 1));
      weigh(scores, left.y > 0 ? 0 : 1);
      at.next();
      finish(bad);
      // Queries are asked for behind the repetition: there are no registers for both.
      if (bad) repeat();
      if (!more) return;
      if (bad) queries.ask(c, block, item(turn + 1));
    }
  }
};

}  // namespace smla::attention::sm90
