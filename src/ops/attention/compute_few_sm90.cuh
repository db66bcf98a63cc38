#pragma once

#include "device/ptx/wgmma_sm90.cuh"
#include "ops/attention/exact_head.cuh"
#include "ops/attention/output_sm90.cuh"
#include "ops/attention/queries_sm90.cuh"

namespace smla::attention::sm90 {

/// The warpgroup that computes Item::kHeads heads, 8, 16 or 32: S^T = K Q^T and O^T = V^T P^T, so that keys and columns
/// of the output are the 64 rows of a product and heads its columns. Of scores a thread has the keys l/4 and l/4 + 8 of
/// its warp's 16, of the output those columns of each group of 64, and of both the heads 2 (l % 4) and the next of
/// every
/// 8. kUnitWeights: the scopes' weight_scale is 1.
template <bool kUnitWeights, class Item>
struct ComputeFew {
  static constexpr int kHeads = Item::kHeads;
  static_assert(kHeads == 8 || kHeads == 16 || kHeads == 32);
  static constexpr int kGroups = AttentionTile::kGroups;
  static constexpr int kOwnHeads = kHeads / 4;  ///< of a thread
  static constexpr int kNumbers = kHeads / 2;   ///< of a product that a thread has
  static constexpr float kRoom = 10;            ///< see Softmax (softmax_tile.cuh)
  static constexpr float kSlack = 4;
  // In shared memory. Outputs wait behind the rows of a matrix of queries that so few heads leave free.
  static constexpr std::uint32_t kTops = Place::kFades;             ///< float [4][kHeads]: largest scores by warp
  static constexpr std::uint32_t kSums = Place::kSums;              ///< float [4][kHeads]: sums of weights by warp
  static constexpr std::uint32_t kReferences = Place::kReferences;  ///< float [kHeads]
  static constexpr std::uint32_t kStaged = Place::kQueries + 32 * 128;
  static_assert(4 * kGroupWarps * kHeads <= 512);

  const TileCall& c;
  Shared shared;
  float* scratch;                  ///< Place::kScratch
  std::uint32_t tiles_so_far = 0;  ///< their stages and buffers for weights take turns
  float output[kGroups][kNumbers];
  float scores[kNumbers];
  uint2 named;  ///< which of the present tile's keys the list names
  float reference[kOwnHeads];
  float sum[kOwnHeads];

  __device__ ComputeFew(const TileCall& call, const Shared& s, std::uint8_t* dynamic)
      : c(call), shared(s), scratch(reinterpret_cast<float*>(dynamic + Place::kScratch)) {}

  /// Of a thread's k-th number of a product: which of its heads it belongs to, and which of its two rows.
  static constexpr int head_of(int k) { return k / 4 * 2 + k % 2; }
  static constexpr int row_of(int k) { return k / 2 % 2; }
  /// Number of a thread's head `own`, of the item.
  __device__ static int head(int own, const Lane& me) { return own / 2 * 8 + 2 * me.part() + own % 2; }

  __device__ std::uint32_t stage() const { return tiles_so_far & 1; }
  __device__ static void sync() { device::bar_sync(kComputeBarrier, kGroupThreads); }

  /// Starts the products of the present tile with the queries, once its keys are there.
  __device__ void start_scores() {
    const auto at = static_cast<int>(stage());
    const std::uint64_t k = device::wgmma_matrix(shared.keys(at), 16, 1024);
    const std::uint64_t q = device::wgmma_matrix(shared.at + Place::kQueries, 16, 1024);
    // The pieces arrive together, and a fence costs more than the second one would be waited for.
#pragma unroll
    for (int piece = 0; piece < kKeyPieces; ++piece)
      device::mbarrier_wait(shared.full(at, piece), tiles_so_far >> 1 & 1);
    named = device::ld_shared_v2(shared.at + Place::kValid + 8 * stage());
    device::fence_proxy_async();
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      const std::uint64_t step = (i / 4 * Place::kGroupBytes + i % 4 * 32) >> 4;
      device::wgmma_ss<false>(scores, k + step, q + step, i > 0);
    }
    device::wgmma_commit();
  }

  /// Starts adding the present tile's values: a group of products for each piece.
  __device__ void start_values() {
    const std::uint64_t v = device::wgmma_matrix(shared.keys(static_cast<int>(stage())), 16, 1024);
    const std::uint64_t p = device::wgmma_matrix(shared.weights(static_cast<int>(stage())), 16, 1024);
    device::wgmma_fence();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        device::wgmma_ss<true>(output[group], v + ((group * Place::kGroupBytes + i * 2048) >> 4), p + (i * 32 >> 4),
                               true);
      }
      if (group % kPieceGroups == kPieceGroups - 1) device::wgmma_commit();
    }
  }
  /// Frees a piece of the present tile, whose values are added.
  __device__ void free_piece(int piece) const {
    device::mbarrier_arrive_warp(shared.free(static_cast<int>(stage()), piece));
  }

  /// Rounds weights and writes them to shared memory, a row a head.
  __device__ void store_weights(const float (&weights)[kNumbers], int scope, const Lane& me) const {
    const float unit = c.weight_scale[scope];
    std::uint32_t pairs[kNumbers / 2];
#pragma unroll
    for (int k = 0; k < kNumbers; k += 2) {
      pairs[k / 2] =
          kUnitWeights ? halves_of(weights[k], weights[k + 1]) : halves_of(weights[k] * unit, weights[k + 1] * unit);
    }
    // A lane has the place of a row of a tile of 8 heads x 8 keys: of two tiles beside each other, or of four.
    const int in_tile = me.lane % 8;
    const std::uint32_t place =
        shared.weights(static_cast<int>(stage())) + in_tile * 128 + ((2 * me.warp + me.lane / 8 % 2 ^ in_tile) << 4);
    if constexpr (kHeads == 8) {
      device::stmatrix_x2_trans(place, pairs[0], pairs[1]);
    } else {
#pragma unroll
      for (int k = 0; k < kNumbers / 2; k += 4) {
        device::stmatrix_x4_trans(place + (k / 2 + me.lane / 16) * 1024, pairs[k], pairs[k + 1], pairs[k + 2],
                                  pairs[k + 3]);
      }
    }
    device::fence_proxy_async();
  }

  /// Weights of scaled scores, by the present references.
  __device__ void exponentiate(float (&weights)[kNumbers]) const {
#pragma unroll
    for (int k = 0; k < kNumbers; ++k) {
      const float at = reference[head_of(k)];
      weights[k] = exp2_approx(scores[k] - (at == -INFINITY ? 0 : at));
    }
  }

  /// Moves the references up to the largest scores so far, and rescales what older ones have summed up.
  __device__ void move_references(const Lane& me) {
    float top[kOwnHeads];
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) top[h] = fmaxf(scores[h / 2 * 4 + h % 2], scores[h / 2 * 4 + 2 + h % 2]);
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) {
#pragma unroll
      for (int i = 4; i < 32; i *= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(kAll, top[h], i));
      if (me.lane < 4) device::st_shared_f32(shared.at + kTops + 4 * (me.warp * kHeads + head(h, me)), top[h]);
    }
    sync();
    float factor[kOwnHeads];
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) {
#pragma unroll
      for (int w = 0; w < kGroupWarps; ++w)
        top[h] = fmaxf(top[h], device::ld_shared_f32(shared.at + kTops + 4 * (w * kHeads + head(h, me))));
      factor[h] = 1;
      if (top[h] > reference[h] + (kRoom + kSlack)) {
        const float next = top[h] - kRoom;
        factor[h] = exp2_approx(reference[h] - next);
        reference[h] = next;
      }
      sum[h] *= factor[h];
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int k = 0; k < kNumbers; ++k) output[group][k] *= factor[head_of(k)];
    }
  }

  /// Makes weights of the present tile's scores, which are scaled in place. No product may be running.
  __device__ void weigh(int scope) {
    const Lane me = Lane::fresh();
    const float scale = c.score_scale[scope];
    const std::uint32_t keys = (me.warp < 2 ? named.x : named.y) >> (me.warp % 2 * 16 + me.lane / 4);
    bool grown = false;
#pragma unroll
    for (int k = 0; k < kNumbers; ++k) {
      scores[k] = (keys >> 8 * row_of(k) & 1) != 0 ? scores[k] * scale : -INFINITY;
      grown = grown || scores[k] > reference[head_of(k)] + (kRoom + kSlack);
    }
    float weights[kNumbers];
    exponentiate(weights);
    store_weights(weights, scope, me);
    // References seldom move, so weights are made before it is known whether they have to.
    if (device::bar_any(kComputeBarrier, kGroupThreads, grown)) {
      move_references(me);
      exponentiate(weights);
      store_weights(weights, scope, me);
      sync();
    }
#pragma unroll
    for (int k = 0; k < kNumbers; ++k) sum[head_of(k)] += weights[k];
  }

  /// Computes a list of `tiles` tiles, at least one, of which the first `first` are of the first scope.
  __device__ void all_tiles(int tiles, int first) {
    const auto scope = [&](int tile) { return tile < first ? 0 : 1; };
    start_scores();
    device::wgmma_wait<0>();
#pragma unroll 1
    for (int tile = 0; tile + 1 < tiles; ++tile) {
      weigh(scope(tile));
      start_values();
      // Freed before the next tile is waited for: its stage is what the tile after that is waiting for.
      device::wgmma_wait<1>();
      free_piece(0);
      device::wgmma_wait<0>();
      free_piece(1);
      ++tiles_so_far;
      start_scores();
      device::wgmma_wait<0>();
    }
    device::mbarrier_arrive_warp(shared.queries_read());
    weigh(scope(tiles - 1));
    start_values();
    device::wgmma_wait<1>();
    free_piece(0);
    device::wgmma_wait<0>();
    free_piece(1);
    ++tiles_so_far;
  }

  /// Lane h has the state of head h.
  struct State {
    float reference;
    float sum;
  };
  __device__ State states(const Lane& me) {
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) {
#pragma unroll
      for (int i = 4; i < 32; i *= 2) sum[h] += __shfl_xor_sync(kAll, sum[h], i);
      if (me.lane >= 4) continue;
      device::st_shared_f32(shared.at + kSums + 4 * (me.warp * kHeads + head(h, me)), sum[h]);
      if (me.warp == 0) device::st_shared_f32(shared.at + kReferences + 4 * head(h, me), reference[h]);
    }
    sync();
    const int mine = min(me.lane, kHeads - 1);
    float all = 0;
#pragma unroll
    for (int w = 0; w < kGroupWarps; ++w) all += device::ld_shared_f32(shared.at + kSums + 4 * (w * kHeads + mine));
    return {device::ld_shared_f32(shared.at + kReferences + 4 * mine), all};
  }

  /// Rotates the last 64 columns, which are finished, as the epilogue names them.
  __device__ void rotate_back(const float* back, const Lane& me) {
    float(&last)[kNumbers] = output[kGroups - 1];
#pragma unroll
    for (int k = 0; k < kNumbers; ++k) {
      const int column = kDim - AttentionTile::kGroup + me.row() + 8 * row_of(k);
      if (c.a.o_dtype == DType::kBF16) last[k] = device::from_bf16(device::to_bf16_bits(last[k]));
      const float other = __shfl_xor_sync(kAll, last[k], 4);  // of the pair's other column
      if (column < c.rope.nope) continue;
      const int pair = (column - c.rope.nope) / 2;
      const bool second = column % 2 != 0;
      float x = second ? other : last[k];
      float y = second ? last[k] : other;
      Rope::rotate(x, y, back[pair], -back[pair + c.rope.pairs]);
      last[k] = second ? y : x;
    }
  }

  /// Writes the columns as 16-bit numbers that `pair` rounds. `o`: the first head's first column; `stride`: numbers
  /// from a head to the next.
  template <class Pair>
  __device__ void store_pairs(std::uint16_t* o, std::int64_t stride, int heads, const Lane& me,
                              const Pair& pair) const {
    const int in_tile = me.lane % 8;
    const std::uint32_t place = shared.at + kStaged + in_tile * 128 + ((2 * me.warp + me.lane / 8 % 2 ^ in_tile) << 4);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const std::uint32_t to = place + group * Place::kGroupBytes;
      const float(&of)[kNumbers] = output[group];
      if constexpr (kHeads == 8) {
        device::stmatrix_x2_trans(to, pair(of[0], of[1]), pair(of[2], of[3]));
      } else {
#pragma unroll
        for (int k = 0; k < kNumbers; k += 8) {
          device::stmatrix_x4_trans(to + (k / 4 + me.lane / 16) * 1024, pair(of[k], of[k + 1]),
                                    pair(of[k + 2], of[k + 3]), pair(of[k + 4], of[k + 5]), pair(of[k + 6], of[k + 7]));
        }
      }
    }
    sync();
    // A warp writes half a head at a time, 16 bytes a lane.
#pragma unroll 1
    for (int head = me.warp; head < heads; head += kGroupWarps) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int group = half * kGroups / 2 + me.lane / 8;
        const uint4 v = device::ld_shared_v4(shared.at + kStaged + group * Place::kGroupBytes + head * 128 +
                                             ((in_tile ^ head % 8) << 4));
        *reinterpret_cast<uint4*>(o + head * stride + half * kDim / 2 + 8 * me.lane) = v;
      }
    }
  }

  /// Writes the columns number by number: fp32 ones, of which eight lanes write 32 bytes, and what is aligned to less
  /// than 16 bytes.
  template <class T, class Round>
  __device__ void store_singly(T* o, std::int64_t stride, int heads, const Lane& me, const Round& round) const {
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) {
      if (head(h, me) >= heads) continue;
      T* const to = o + head(h, me) * stride + me.row();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        to[64 * group] = round(output[group][h / 2 * 4 + h % 2]);
        to[64 * group + 8] = round(output[group][h / 2 * 4 + 2 + h % 2]);
      }
    }
  }

  /// Finishes an item: its output, or its sums for the merge.
  __device__ void finish_item(const Item& item) {
    const Lane me = Lane::fresh();
    const int heads = item.heads();
    const State state = states(me);
    const bool split = item.split();
    float mine = 1;
    if (split) {
      if (me.warp == 0 && me.lane < heads) c.states[item.state() + me.lane] = make_float2(state.reference, state.sum);
      if (c.half_sums) mine = per_sum_unit(state.sum);
    } else {
      const std::int64_t of = item.first_head() + min(me.lane, heads - 1);
      const Finish f = finish(c.a, of, state.reference, state.sum);
      if (me.warp == 0 && me.lane < heads && c.a.lse != nullptr)
        c.a.lse[item.token() * c.a.lse_stride[0] + of * c.a.lse_stride[1]] = f.lse;
      mine = f.factor * c.unit;
    }
    float factor[kOwnHeads];
#pragma unroll
    for (int h = 0; h < kOwnHeads; ++h) factor[h] = __shfl_sync(kAll, mine, head(h, me));
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int k = 0; k < kNumbers; ++k) output[group][k] = finished(output[group][k], factor[head_of(k)]);
    }
    if (split) {
      const std::int64_t first = item.state();
      if (c.half_sums) {
        store_pairs(c.halves(first), 2 * kDim, heads, me, HalfPair{});
      } else {
        store_singly(c.sums + first * kDim, kDim, heads, me, [](float x) { return x; });
      }
      return;
    }
    if (const float* back = c.back_row(item.token()); back != nullptr) rotate_back(back, me);
    const std::int64_t first = item.token() * c.a.o_stride[0] + item.first_head() * c.a.o_stride[1];
    if (c.a.o_dtype != DType::kBF16) {
      store_singly(static_cast<float*>(c.a.o) + first, c.a.o_stride[1], heads, me, [](float x) { return x; });
      return;
    }
    auto* const o = static_cast<std::uint16_t*>(c.a.o) + first;
    if (c.word < 16) {
      store_singly(o, c.a.o_stride[1], heads, me, [](float x) { return device::to_bf16_bits(x); });
    } else {
      store_pairs(o, c.a.o_stride[1], heads, me, Bf16Pair{});
    }
  }

  /// Computes the item once more, in fp32, because fp16 could not represent a number.
  __device__ void repeat(const Item& item) {
    static_assert(kScratchWarps >= kGroupWarps);
    sync();  // weights are where it works
    for (int h = fresh_thread() / 32; h < item.heads(); h += kGroupWarps)
      attend_exactly<kListTile>(c, item.list(), item.first_head() + h, scratch);
    sync();
  }

  /// The item of a turn, computed anew at each use: kept across a list it would take registers.
  __device__ Item item(std::uint32_t turn) const {
    asm volatile("" : "+r"(turn));
    return Item(c, shared, blockIdx.x + turn * gridDim.x, turn);
  }

  /// Waits for an item's queries. Those that are normed and rotated become fp16 numbers here.
  __device__ void prepare(std::uint32_t turn) {
    device::mbarrier_wait(shared.item_ready(turn), Shared::item_parity(turn));
    const ItemQueries<Item> queries{c, shared.at + Place::kQueries, item(turn)};
    if (!queries.rotated()) return;
    if (queries.finish(fresh_thread() / 32, kGroupWarps)) device::st_shared_u32(shared.info(turn) + 12, 1);
    device::fence_proxy_async();
    sync();
  }

  __device__ void all_items(std::uint32_t items) {
#pragma unroll 1
    for (std::uint32_t turn = 0; Item::is(shared, items, blockIdx.x + turn * gridDim.x, turn); ++turn) {
      prepare(turn);
      const uint2 tiles = device::ld_shared_v2(shared.info(turn));
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int k = 0; k < kNumbers; ++k) output[group][k] = 0;
      }
#pragma unroll
      for (int h = 0; h < kOwnHeads; ++h) sum[h] = 0, reference[h] = -INFINITY;
      all_tiles(__shfl_sync(kAll, static_cast<int>(tiles.x), 0), __shfl_sync(kAll, static_cast<int>(tiles.y), 0));
      const Item of = item(turn);
      if (unrepresentable(shared, turn)) {
        repeat(of);
      } else {
        finish_item(of);
      }
      if (!of.split() && of.first_head() + kHeads >= c.a.heads) clear_padding(c, of.token(), kGroupWarps);
    }
  }
};

}  // namespace smla::attention::sm90
