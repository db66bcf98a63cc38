#pragma once

// Makes an entry of a compressed cache: pools a window of state rows in one pass, norms, rotates and encodes the
// result.

#include <cmath>

#include "cache/row_encoder.cuh"
#include "device/hadamard.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/prefetch.cuh"
#include "ops/compressor/state_row.cuh"
#include "ops/head_rows.cuh"

namespace smla::compressor {

constexpr unsigned kAll = 0xFFFF'FFFFU;

/// The arguments of a CompressStore kernel.
struct Pool {
  std::int64_t tokens = 0;
  int span = 1;  ///< tokens of a block, or of a warp of it: up to 32
  const std::int64_t* positions = nullptr;
  const std::int32_t* request = nullptr;
  const std::int64_t* state_slots = nullptr;
  const std::int64_t* entry_slots = nullptr;
  const std::int32_t* table = nullptr;
  std::int64_t table_stride = 0;
  std::int64_t requests = 0;
  std::int64_t columns = 0;
  const void* weight = nullptr;
  bool weight_bf16 = false;
  const float* cos_sin = nullptr;
  std::int64_t cos_sin_stride = 0;
  std::int64_t rope_rows = 0;
  int rope_dim = 0;
  float eps = 0;
  bool hadamard = false;
  ClampRule clamp = ClampRule::kAmax;
  device::CacheView state;
  std::int64_t state_blocks = 0;
  device::CacheView entries;
  Save save;            ///< with kSave: the state rows that this call saves
  bool beside = false;  ///< CompressStore::Args::beside_previous

  /// Waits for the kernels ahead, unless the one just ahead let this one start when its own wait had ended. Then all
  /// others ahead are done, and wait_at_end() waits for that one.
  __device__ void wait_at_begin() const {
    if (!beside) device::pdl_wait();
    device::pdl_trigger();
  }
  __device__ void wait_at_end() const {
    if (beside) device::pdl_wait();
  }
};

/// How threads share an entry. kBlocks blocks divide its channels; in each a thread has four channels, and groups of
/// threads divide the rows of a long window.
template <int kDim, int kRatio, int kBlocks = 1>
struct Shape {
  static constexpr int kWidth = kDim;
  static constexpr int kTokens = kRatio;
  static constexpr int kCoff = kRatio == 4 ? 2 : 1;
  static constexpr int kWindow = kCoff * kRatio;
  static constexpr int kChannels = kDim / kBlocks;  ///< channels of a block
  static constexpr int kLanes = kChannels / 4;
  static constexpr int kGroups = kWindow <= 32 ? 1 : (kBlocks == 1 ? 4 : 16);
  static constexpr int kRows = kWindow / kGroups;  ///< rows of a group of threads
  static constexpr int kThreads = kLanes * kGroups;
  static constexpr int kFinishing = kLanes;           ///< threads that norm and rotate
  static constexpr int kTurns = kBlocks > 1 ? 2 : 1;  ///< entries in flight: two, where a cluster loads the next window
  static constexpr int kSums = kGroups == 1 ? kLanes / 32 : kDim / 32;  ///< parts of the sum of squares
  static_assert(kThreads >= kFinishing);
};

/// Shared memory of an entry's threads.
template <class S, bool kSave>
struct Shared {
  alignas(16) float row[S::kChannels];
  const float* rows[S::kTurns][S::kWindow];
  int bias[S::kTurns]
          [kSave ? S::kWindow : 1];  ///< for each row the offset in the ape of what is added to its logits; -1: nothing
  float merged[S::kGroups][3][S::kGroups > 1 ? S::kChannels : 1];
  float squares[S::kTurns][S::kSums];
};

/// A barrier of an entry's threads, which are a warp or the whole block.
template <class S>
__device__ void wait_for_all() {
  if constexpr (S::kThreads == 32) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}
template <class S>
__device__ bool any_of_all(bool v) {
  if constexpr (S::kThreads == 32) {
    __syncwarp();  // a vote does not order memory accesses
    return __any_sync(kAll, v ? 1 : 0) != 0;
  } else {
    return __syncthreads_or(v ? 1 : 0) != 0;
  }
}

/// A token, and whether it closes a group.
template <class S>
struct Closing {
  std::int64_t token = 0;
  std::int64_t pos = 0;
  std::int64_t entry = 0;
  std::int32_t request = 0;

  /// The position of the group's first token.
  __device__ std::int64_t first() const { return pos - (S::kTokens - 1); }
};

/// The tokens of a block, or of a warp of it, that close a group. There are at most 32; each lane looks up one.
template <class S>
struct ClosingTokens {
  std::int64_t begin;
  std::int64_t pos = 0;  ///< position of this lane's token
  std::int64_t entry = 0;
  std::int32_t request = 0;
  unsigned waiting;

  __device__ ClosingTokens(const Pool& c, std::int64_t first, int count) : begin(first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    bool acts = false;
    if (lane < count && begin + lane < c.tokens) {
      const std::int64_t t = begin + lane;
      pos = c.positions[t], entry = c.entry_slots[t], request = c.request[t];
      acts = c.state_slots[t] >= 0 && pos >= 0 && pos % S::kTokens == S::kTokens - 1 && entry >= 0 &&
             entry < c.entries.num_slots && request >= 0 && request < c.requests &&
             pos - (S::kTokens - 1) < c.rope_rows;
    }
    waiting = __ballot_sync(kAll, acts);
  }
  /// Takes the next token, the same one in every lane. Requires waiting != 0.
  __device__ Closing<S> next() {
    const int lane = __ffs(static_cast<int>(waiting)) - 1;
    waiting &= waiting - 1;
    return {.token = begin + lane,
            .pos = __shfl_sync(kAll, pos, lane),
            .entry = __shfl_sync(kAll, entry, lane),
            .request = __shfl_sync(kAll, request, lane)};
  }
  /// Takes the next token, or returns token -1 when none is left.
  __device__ Closing<S> next_or_none() {
    if (waiting == 0) return {.token = -1};
    return next();
  }
};

/// Norm weights and rotation of a finishing thread's four channels, loaded before the rows.
struct Ending {
  float weight[4];
  float cosine[2];
  float sine[2];

  template <class S>
  __device__ static Ending of(const Pool& c, const Closing<S>& token, int channel, bool finishes) {
    Ending e{};
    if (!finishes) return e;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      e.weight[k] = c.weight_bf16 ? device::from_bf16(static_cast<const std::uint16_t*>(c.weight)[channel + k])
                                  : static_cast<const float*>(c.weight)[channel + k];
    }
    const int rope = channel - (S::kWidth - c.rope_dim);
    const float* row = c.cos_sin + token.first() * c.cos_sin_stride;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      e.cosine[k] = 1, e.sine[k] = 0;
      if (rope + 2 * k < 0) continue;
      e.cosine[k] = row[rope / 2 + k];
      e.sine[k] = row[c.rope_dim / 2 + rope / 2 + k];
    }
    return e;
  }
};

/// Looks up the rows of a window, one thread for each; false when there is none. `turn`: which of the windows in
/// flight.
template <class S, bool kSave>
__device__ bool look_up(const Pool& c, const Closing<S>& token, Shared<S, kSave>& shared, int turn, int thread) {
  bool found = false;
  if (thread < S::kWindow) {
    const std::int64_t at = token.pos - (S::kWindow - 1) + thread;
    const std::int64_t column = c.state.block_of(at);
    const float* row = nullptr;
    int bias = -1;
    if (at >= 0 && column < c.columns) {
      const std::int64_t block = max(c.table[token.request * c.table_stride + column], 0);
      found = block < c.state_blocks;
      // Overlap: the first half of a row's channels belongs to the next group's entry, the second half to its own.
      const std::int64_t slot = block * c.state.block_size + (at - column * c.state.block_size);
      const int half = thread / S::kTokens * S::kWidth;
      if (found) row = reinterpret_cast<const float*>(c.state.data(slot)) + half;
      if constexpr (kSave) {
        const std::int64_t own = token.token - (token.pos - at);  // the token of that position, if it is in this call
        if (found && own >= 0 && c.positions[own] == at && c.request[own] == token.request &&
            c.state_slots[own] == slot) {
          row = c.save.kv_score + own * c.save.kv_score_stride + half;
          bias = static_cast<int>(at % S::kTokens * c.save.ape_stride) + half;
        }
      }
    }
    shared.rows[turn][thread] = row;
    if constexpr (kSave) shared.bias[turn][thread] = bias;
  }
  return any_of_all<S>(found);
}

/// Online softmax of four channels: m is the largest logit so far, l the sum of exp(logit - m), acc the sum of
/// exp(logit - m) * value.
struct Running {
  float m[4];
  float l[4];
  float acc[4];
};

/// The number that is subtracted from logits: finite even where all were -inf, so that their weights are 0.
__device__ inline float pivot(float largest) { return largest == -INFINITY ? 0 : largest; }
/// exp(x) for x <= 0. Its error, relative to the sum of such weights, is one rounding and that of the 2^x instruction.
__device__ inline float weight_of(float below) { return __expf(below); }

/// Prefetches the block's channels, from `channel` on, of a window's rows.
template <class S, bool kSave>
__device__ void fetch_rows(const Shared<S, kSave>& shared, int turn, int channel, int thread) {
  constexpr int kLine = 32;
  constexpr int kLines = S::kChannels / kLine;
#pragma unroll 1
  for (int i = thread; i < 2 * kLines * S::kWindow; i += S::kThreads) {
    const float* row = shared.rows[turn][i / (2 * kLines)];
    const int line = i % (2 * kLines);
    if (row != nullptr)
      device::prefetch(row + line / kLines * (S::kCoff * S::kWidth) + channel + line % kLines * kLine);
  }
}

/// Pools the rows of a group of threads for four channels.
template <class S, bool kVector, bool kSave>
__device__ Running pool_rows(const Save& save, const Shared<S, kSave>& shared, int turn, int first, int channel) {
  constexpr int kBatch = 8;  // rows in flight
  constexpr bool kOnce = S::kRows == kBatch;
  Running run;
#pragma unroll
  for (int k = 0; k < 4; ++k) run.m[k] = -INFINITY, run.l[k] = 0, run.acc[k] = 0;
#pragma unroll 1
  for (int base = first; base < first + S::kRows; base += kBatch) {
    Vec4 value[kBatch];
    Vec4 logit[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float* row = shared.rows[turn][base + i];
      logit[i] = row == nullptr ? Vec4{{-INFINITY, -INFINITY, -INFINITY, -INFINITY}}
                                : load_row<kVector>(row + S::kCoff * S::kWidth + channel);
      value[i] = row == nullptr ? Vec4{{0, 0, 0, 0}} : load_row<kVector>(row + channel);
      if constexpr (kSave) {
        if (shared.bias[turn][base + i] >= 0) {
          const Vec4 a = save.bias<kVector>(shared.bias[turn][base + i] + channel);
#pragma unroll
          for (int k = 0; k < 4; ++k) logit[i].v[k] += a.v[k];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float largest = run.m[k];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) largest = fmaxf(largest, logit[i].v[k]);
      if constexpr (!kOnce) {
        const float old = weight_of(run.m[k] - pivot(largest));
        run.l[k] *= old;
        run.acc[k] *= old;
      }
      run.m[k] = largest;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float weight = weight_of(logit[i].v[k] - pivot(largest));
        run.l[k] += weight;
        run.acc[k] += weight * value[i].v[k];
      }
    }
  }
  return run;
}
__device__ inline float pooled(float l, float acc) { return l == 0 ? 0 : acc / l; }

/// Merges what the groups of a block pooled for a channel. Needs a barrier before.
template <class S, bool kSave>
__device__ float merged_channel(const Shared<S, kSave>& shared, int channel) {
  float largest = -INFINITY;
  float l = 0;
  float acc = 0;
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) largest = fmaxf(largest, shared.merged[g][0][channel]);
#pragma unroll
  for (int g = 0; g < S::kGroups; ++g) {
    const float old = weight_of(shared.merged[g][0][channel] - pivot(largest));
    l += shared.merged[g][1][channel] * old;
    acc += shared.merged[g][2][channel] * old;
  }
  return pooled(l, acc);
}
template <class S, bool kSave>
__device__ void keep(const Running& run, Shared<S, kSave>& shared, int group, int channel) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    shared.merged[group][0][channel + k] = run.m[k];
    shared.merged[group][1][channel + k] = run.l[k];
    shared.merged[group][2][channel + k] = run.acc[k];
  }
}

/// Norms, rotates and encodes the block's channels from `first` on. A finishing thread has four of them; `squares` must
/// be complete. Called by all threads of an entry in a block.
template <class S, bool kSave>
__device__ void finish(const Pool& c, const Closing<S>& token, const Ending& e, float4 pooled,
                       const float (&squares)[S::kSums], Shared<S, kSave>& shared, int first, int thread) {
  if (thread < S::kFinishing) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < S::kSums; ++w) total += squares[w];
    const float inverse = inverse_root(total, S::kWidth, c.eps);
    float4 y = device::product(device::scaled(pooled, inverse),
                               make_float4(e.weight[0], e.weight[1], e.weight[2], e.weight[3]));
    const int rope = first + 4 * thread - (S::kWidth - c.rope_dim);
    if (rope >= 0) Rope::rotate(y.x, y.y, e.cosine[0], e.sine[0]);
    if (rope + 2 >= 0) Rope::rotate(y.z, y.w, e.cosine[1], e.sine[1]);
    const bool exact = c.entries.nope == Element::kF32;
    if (!exact) y = device::rounded_to_bf16(y);
    if constexpr (S::kWidth == 128) {
      if (c.hadamard) {
        float4 x[1] = {y};
        device::hadamard(x, S::kWidth);
        y = exact ? x[0] : device::rounded_to_bf16(x[0]);
      }
    }
    reinterpret_cast<float4*>(shared.row)[thread] = y;
  }
  wait_for_all<S>();
  device::encode_part_of(
      c.entries, token.entry, c.clamp, thread / 32, S::kThreads / 32,
      [&](int q) { return reinterpret_cast<const float4*>(shared.row)[q - first / 4]; }, first / 4,
      (first + S::kChannels) / 4);
}

/// Saves this call's state rows of up to 32 tokens; `warps` warps share them.
template <bool kVector>
__device__ void save_rows(const Pool& c, std::int64_t begin, int thread, int warps) {
  const int size = 2 * c.save.half;
  if (c.span == 1) return save_row<kVector>(c.save, begin, 0, size, thread, 32 * warps);
#pragma unroll 1
  for (int i = thread / 32; i < c.span && begin + i < c.tokens; i += warps)
    save_row<kVector>(c.save, begin + i, 0, size, thread % 32, 32);
}

/// Makes the entries of some tokens, by a block or by one warp of it. Only rows of their windows are read. kSave: first
/// saves the tokens' state rows. Rows of tokens of this call are then read from the call's input, because other threads
/// may not have written them to the state yet.
template <class S, bool kVector, bool kSave>
__device__ void compress_tokens(const Pool& c, std::int64_t begin, Shared<S, kSave>& shared, int thread) {
  if constexpr (kSave) save_rows<kVector>(c, begin, thread, S::kThreads / 32);
  ClosingTokens<S> tokens(c, begin, c.span);
  const int group = thread / S::kLanes;
  const int channel = 4 * (thread % S::kLanes);
#pragma unroll 1
  while (tokens.waiting != 0) {
    const Closing<S> token = tokens.next();
    const Ending ending = Ending::of(c, token, channel, thread < S::kFinishing);
    if (look_up<S, kSave>(c, token, shared, 0, thread)) {
      const Running run = pool_rows<S, kVector, kSave>(c.save, shared, 0, group * S::kRows, channel);
      float4 y = make_float4(0, 0, 0, 0);
      float squares;
      if constexpr (S::kGroups == 1) {
        y = make_float4(pooled(run.l[0], run.acc[0]), pooled(run.l[1], run.acc[1]), pooled(run.l[2], run.acc[2]),
                        pooled(run.l[3], run.acc[3]));
        squares = y.x * y.x + y.y * y.y + y.z * y.z + y.w * y.w;
      } else {
        static_assert(S::kThreads == S::kWidth);
        keep(run, shared, group, channel);
        __syncthreads();
        const float mine = merged_channel(shared, thread);
        shared.row[thread] = mine;
        squares = mine * mine;
      }
      squares = device::sum_of_warp(squares);
      if (thread % 32 == 0) shared.squares[0][thread / 32] = squares;
      wait_for_all<S>();
      if constexpr (S::kGroups > 1) {
        if (thread < S::kFinishing) y = reinterpret_cast<const float4*>(shared.row)[thread];
      }
      finish<S, kSave>(c, token, ending, y, shared.squares[0], shared, 0, thread);
    }
    if (tokens.waiting != 0) wait_for_all<S>();
  }
}

}  // namespace smla::compressor
