#pragma once

// A block of the tensor-core kernel: a token, a tile of its heads and a part of its key list. Keys go tile by tile
// through shared memory, as their cache stores them, and are widened to fp16 in registers.

#include <type_traits>

#include "device/copy.cuh"
#include "device/launch_pdl.cuh"
#include "device/numbers.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/exact_head.cuh"
#include "ops/attention/query_tile.cuh"
#include "ops/attention/softmax_tile.cuh"
#include "ops/attention/tile_math.cuh"

namespace smla::attention {

/// Two blocks of 32 heads fit only the shared memory of sm_90 and sm_100; elsewhere one block may use more registers.
template <AttentionTile kTile>
constexpr int resident() {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1100)
  return kTile.heads == 32 ? 1 : kTile.resident;
#else
  return kTile.resident;
#endif
}

constexpr int kRopeColumns = AttentionTile::kGroup;              ///< the last columns of o, which one warp holds
constexpr int kRopeWarp = (kDim - kRopeColumns) / kRopeColumns;  ///< that warp

/// The kernel of a block. `c` is the kernel's own parameter. `Merge`: how the blocks that compute the parts of a list
/// add them up themselves (ClusterMerge); void: they leave their sums to another kernel.
template <AttentionTile kTile, class Merge>
__device__ __forceinline__ void attend_tile(const TileCall& c, int key_bytes) {
  constexpr bool kCluster = !std::is_void_v<Merge>;
  constexpr int kAhead = kTile.buffers - 1;                  // tiles of keys on their way
  constexpr int kHeadThreads = kThreads / kTile.head_warps;  // threads that share heads in scores and softmax
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ int unrepresentable;  // fp16 cannot represent a number that was read
  std::uint8_t* const scores = shared + kTile.scores_at();
  auto* const factors = reinterpret_cast<float*>(shared + kTile.factors_at());
  const std::uint32_t shared_at = device::shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);

  device::pdl_wait();
  const BlockWork place = BlockWork::of<kTile>(c);
  const Run<kTile> run(c, c.first_token + place.token, place.part);
  if (!kCluster && c.parts > 1 && run.begin >= run.end) {
    if (thread < place.heads<kTile>(c)) c.states[place.state(c) + thread] = make_float2(-INFINITY, 0);
    return;
  }
  if (thread == 0) unrepresentable = c.exact ? 1 : 0;

  RowCopy<kTile> copy;
  const auto buffer_of = [&](int base) {
    const int which = (base - run.begin) / kTile.keys % kTile.buffers;
    return KeyBuffer<kTile>{.at = shared_at + kTile.buffers_at() + which * kTile.buffer_bytes(key_bytes),
                            .layout = c.layout[run.scope(base)].key};
  };
  const auto start = [&](int base, std::int32_t listed) {
    const int scope = run.scope(base);
    if (kTile.buffers == 2 || base < run.end) {
      copy.start(buffer_of(base), c.layout[scope], run.slot(c, base, RowCopy<kTile>::row(), listed));
    } else {
      copy.skip();
    }
    device::cp_async_commit();
  };
  const auto listed_at = [&](int base) { return run.listed(c, base, RowCopy<kTile>::row()); };
  const Queries<kTile> queries(c, shared_at, run.token, place.first_head, place.heads<kTile>(c));
  std::int32_t listed = -1;
  if (run.begin < run.end) {
    std::int32_t early[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) early[i] = listed_at(run.begin + i * kTile.keys);
    start(run.begin, early[0]);
    listed = listed_at(run.begin + kAhead * kTile.keys);
    queries.start();
    device::cp_async_commit();
#pragma unroll
    for (int i = 1; i < kAhead; ++i) start(run.begin + i * kTile.keys, early[i]);
    if (run.token + c.tokens_ahead < c.tokens) {
      queries.fetch_later(c.tokens_ahead);
      c.fetch_lists(run.token + c.tokens_ahead, thread);
    }
    c.fetch_back_row(run.token, thread);
    const float* const q_row = c.a.q_row(run.token);
    device::cp_async_wait<kAhead - 1>();
    __syncthreads();
    if (q_row != nullptr) {
      queries.norm_and_rotate(q_row);
      __syncthreads();
    }
    if (queries.finish()) unrepresentable = 1;
  }

  Softmax<kTile> softmax;
  OutputTile<kTile> output;
#pragma unroll 1
  for (int base = run.begin; base < run.end; base += kTile.keys) {
    const KeyBuffer<kTile> keys = buffer_of(base);
    device::cp_async_wait<kAhead - 1>();
    if (copy.finish(keys, c.layout[run.scope(base)].scaled)) unrepresentable = 1;
    __syncthreads();
    const int next = base + kAhead * kTile.keys;
    if (kTile.buffers > 2 || next < run.end) start(next, listed);
    listed = listed_at(next + kTile.keys);
    if (score_tile<kTile>(shared_at, scores, keys)) unrepresentable = 1;
    device::bar_sync(1 + thread / kHeadThreads, kHeadThreads);
    const float rescale = softmax.take(c, scores, shared + (keys.valid() - shared_at), run.scope(base));
    if (softmax.first()) factors[softmax.row()] = rescale;
    if (__syncthreads_or(rescale != 1.0F) != 0) output.rescale(factors);
    output.add(shared_at + kTile.scores_at(), keys);
  }

  device::pdl_trigger();
  __syncthreads();
  const BlockWork at = BlockWork::of<kTile>(c);
  const std::int64_t token = c.first_token + at.token;
  const int heads = at.heads<kTile>(c);
  const int warp = thread / 32;
  const auto compute_exactly = [&] {
    const Run<kTile> again(c, token, at.part);
    for (int h = warp; h < heads; h += AttentionTile::kWarps) {
      attend_exactly<kTile>(c, again, at.first_head + h, at.state(c) + h, reinterpret_cast<float*>(shared));
    }
  };
  if constexpr (kCluster) {
    if (unrepresentable != 0) compute_exactly();
    if (unrepresentable == 0 || c.parts > 1) {  // a whole list is finished by compute_exactly()
      Merge merge(shared);
      if (unrepresentable != 0) {
        __syncthreads();
        merge.take(c, at.state(c), heads);
      } else {
        const float sum = softmax.whole_sum();
        if (softmax.first()) merge.put_state(softmax.row(), softmax.reference, sum);
        output.each([&](int h, int column, const float4& v) { merge.put(h, column, v); });
      }
      merge.finish(c, token, at);
    }
    if (at.part > 0) return;
  } else if (unrepresentable != 0) {
    compute_exactly();
  } else {
    const float sum = softmax.whole_sum();
    const int row = softmax.row();
    if (c.parts > 1) {
      const std::int64_t state = at.state(c);
      if (softmax.first() && row < heads) c.states[state + row] = make_float2(softmax.reference, sum);
      output.each([&](int h, int column, const float4& v) {
        if (h < heads) *reinterpret_cast<float4*>(c.sums + (state + h) * kDim + column) = v;
      });
      return;
    }
    if (softmax.first() && row < heads) {
      const std::int64_t head = at.first_head + row;
      const Finish f = finish(c.a, head, softmax.reference, sum);
      factors[row] = f.factor * c.unit;
      if (c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
    }
    const float* const back = c.back_row(token);
    __syncthreads();
    const std::int64_t out = token * c.a.o_stride[0] + at.first_head * c.a.o_stride[1];
    // Numbers to rotate go through shared memory, so that the code for it exists once, not once for every vec4 of a
    // thread.
    auto* const rope_columns = reinterpret_cast<float*>(shared);
    if (back != nullptr && warp == kRopeWarp) {
      output.each([&](int h, int column, const float4& v) {
        if (h < heads)
          *reinterpret_cast<float4*>(rope_columns + h * kRopeColumns + column - (kDim - kRopeColumns)) =
              finished(v, factors[h]);
      });
    } else if (c.a.o_dtype == DType::kBF16 && c.word >= 8) {
      auto* o = static_cast<std::uint16_t*>(c.a.o) + out;
      output.each([&](int h, int column, const float4& v) {
        if (h < heads)
          *reinterpret_cast<uint2*>(o + h * c.a.o_stride[1] + column) = device::computed<BF16>(finished(v, factors[h]));
      });
    } else {
      output.each([&](int h, int column, const float4& v) {
        if (h < heads) store(c, out + h * c.a.o_stride[1] + column, finished(v, factors[h]));
      });
    }
    if (back != nullptr) {
      __syncthreads();
#pragma unroll 1
      for (int i = 4 * thread; i < heads * kRopeColumns; i += 4 * kThreads) {
        const int column = kDim - kRopeColumns + i % kRopeColumns;
        store(c, out + i / kRopeColumns * c.a.o_stride[1] + column,
              c.rotated_back(back, column, *reinterpret_cast<const float4*>(rope_columns + i)));
      }
    }
  }
  if ((!kCluster && c.parts > 1) || at.first_head + kTile.heads < c.a.heads) return;
  for (std::int64_t h = c.a.heads + warp; h < c.a.out_heads; h += AttentionTile::kWarps) {
    for (int d = 4 * (thread % 32); d < kDim; d += 128)
      store(c, token * c.a.o_stride[0] + h * c.a.o_stride[1] + d, make_float4(0, 0, 0, 0));
  }
}

}  // namespace smla::attention
