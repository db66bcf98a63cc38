// Sparse attention on the tensor cores of any GPU from sm_80 on. A block takes a token, a tile of heads and a run of its key list; keys pass through shared
// memory as their cache stores them, tile by tile, and are widened to half precision on their way into the products. See docs/kernels/sparse_attention.md.
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "device/copy.cuh"
#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "device/shared_limit.h"
#include "ops/attention/attention_split.h"
#include "ops/attention/key_rows.cuh"
#include "ops/attention/tile_math.cuh"
#include "ops/cuda_op.h"

namespace smla {

namespace {

constexpr int kThreads = 32 * AttentionTile::kWarps;
constexpr int kDim = AttentionTile::kDim;
constexpr unsigned kAll = 0xFFFF'FFFFU;
constexpr float kLog2E = 1.44269504F;
constexpr float kLn2 = 0.693147181F;

struct TileCall {
  AttentionCall a;
  RowLayout layout[SparseAttention::kMaxScopes];
  float score_scale[SparseAttention::kMaxScopes] = {0, 0};   ///< scores to powers of two
  float weight_scale[SparseAttention::kMaxScopes] = {1, 1};  ///< a scope's unit of numbers, in units of the largest
  float unit = 1;                                            ///< that largest
  bool exact = false;                                        ///< half precision does not hold the units
  int word = 2;                                              ///< what divides the address of any four neighbours of o
  bool q_aligned = false;                                    ///< heads of q to 16 bytes
  std::int64_t part_keys = 0;
  std::uint32_t parts = 1;
  std::uint32_t head_tiles = 1;
  std::int64_t first_token = 0;
  float* sums = nullptr;     ///< [tokens of a launch, parts, H, 512]
  float2* states = nullptr;  ///< [tokens of a launch, parts, H]
};

/// A head's state after some keys: a reference score, in powers of two, and the sum of 2^(score - reference). What is left to do with it.
struct Finish {
  float factor;  ///< of the sums
  float lse;
};
__device__ Finish finish(const AttentionCall& c, std::int64_t head, float reference, float sum) {
  if (sum == 0) return {0, c.partial ? -INFINITY : INFINITY};
  const float sink = c.sink == nullptr ? -INFINITY : c.sink[head * c.sink_stride];
  // The sink's term may overflow, and then the answer is 0, as it should be.
  return {1.0F / (sum + exp2f(fmaf(sink, kLog2E, -reference))), fmaf(reference, kLn2, logf(sum))};
}
/// Adding 0 makes one zero of both: sums that went through the workspace have lost the sign.
__device__ float finished(float sum, float factor) { return fmaf(sum, factor, 0.0F); }

__device__ uint2 bf16_of(const float4& v) {
  const auto pair = [](float x, float y) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    std::uint32_t bits;
    memcpy(&bits, &both, 4);
    return bits;
  };
  return make_uint2(pair(v.x, v.y), pair(v.z, v.w));
}
/// Four neighbours of o.
__device__ void store(const TileCall& c, std::int64_t at, const float4& v) {
  if (c.a.o_dtype == DType::kBF16) {
    auto* to = static_cast<std::uint16_t*>(c.a.o) + at;
    const uint2 bits = bf16_of(v);
    if (c.word >= 8) {
      *reinterpret_cast<uint2*>(to) = bits;
    } else {
      to[0] = static_cast<std::uint16_t>(bits.x), to[1] = static_cast<std::uint16_t>(bits.x >> 16);
      to[2] = static_cast<std::uint16_t>(bits.y), to[3] = static_cast<std::uint16_t>(bits.y >> 16);
    }
  } else {
    auto* to = static_cast<float*>(c.a.o) + at;
    if (c.word == 16) {
      *reinterpret_cast<float4*>(to) = v;
    } else {
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
  }
}
__device__ float4 finished(const float4& v, float f) { return make_float4(finished(v.x, f), finished(v.y, f), finished(v.z, f), finished(v.w, f)); }

/// A token's list, both scopes filled up to whole tiles and one behind the other: entries [begin, end) of it are this block's.
template <AttentionTile kTile>
struct Run {
  std::int64_t token;
  int first;   ///< entries of the first scope
  int second;  ///< first entry of the second scope
  int begin;
  int end;

  __device__ Run(const TileCall& c, std::int64_t token_in, std::int64_t part)
      : token(token_in), first(static_cast<int>(c.a.keys[0].entries(token_in))) {
    second = (first + kTile.keys - 1) / kTile.keys * kTile.keys;
    const int all = c.a.scopes > 1 ? second + static_cast<int>(c.a.keys[1].entries(token)) : first;
    begin = static_cast<int>(min(part * c.part_keys, static_cast<std::int64_t>(all)));
    end = static_cast<int>(min(begin + c.part_keys, static_cast<std::int64_t>(all)));
  }
  /// Of the tile that begins at an entry.
  __device__ int scope(int base) const { return base < second ? 0 : 1; }
  /// Whether the tile that begins at `base` has an entry.
  __device__ bool has(int base, int entry) const { return entry < (base < second ? min(first, end) : end); }
  /// What the list says at an entry, and the slot it means: -1 for none. Apart, so that nobody waits for the first until it is needed.
  __device__ std::int32_t listed(const TileCall& c, int base, int row) const {
    const bool there = has(base, base + row);
    const int tile = there ? base : begin;
    const int entry = there ? base + row : begin;
    const KeyList& list = c.a.keys[scope(tile)];
    return __ldg(list.indices + token * list.index_stride + (tile < second ? entry : entry - second));
  }
  __device__ std::int32_t slot(const TileCall& c, int base, int row, std::int32_t listed) const {
    return has(base, base + row) && static_cast<std::uint32_t>(listed) < c.layout[scope(base)].num_slots ? listed : -1;
  }
};

/// Running softmax of a tile's rows of scores. A row belongs to kLanes threads of a warp, which hold its state together. Sums and weights are those of
/// scores less a reference, which the largest score so far exceeds by kRoom - kSlack to kRoom: only when it grows by more than kSlack must older
/// sums fade, and small weights keep their bits in half precision.
template <AttentionTile kTile>
struct Softmax {
  static constexpr int kLanes = kThreads / kTile.heads;
  static constexpr int kRows = 32 / kLanes;          ///< of a warp
  static constexpr int kKeys = kTile.keys / kLanes;  ///< of a thread
  static constexpr float kRoom = 10;
  static constexpr float kSlack = 4;
  float reference = -INFINITY;
  float sum = 0;  ///< of this thread's keys

  __device__ static int row() { return static_cast<int>(threadIdx.x) / 32 * kRows + static_cast<int>(threadIdx.x) % kRows; }
  __device__ static bool first() { return threadIdx.x % 32 < kRows; }

  /// Turns the scores of a tile into weights, in their place, and returns what older sums fade by.
  __device__ float take(const TileCall& c, std::uint8_t* scores, const std::uint8_t* valid, int scope) {
    static_assert(kKeys % 2 == 0 && kKeys <= 16);
    const int key = static_cast<int>(threadIdx.x) % 32 / kRows * kKeys;
    std::uint8_t* line = scores + row() * kTile.score_row_bytes();
    float s[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) s[i] = 0;
#pragma unroll
    for (int w = 0; w < kTile.dim_warps; ++w) {
      const std::uint8_t* part = line + w * kTile.heads * kTile.score_row_bytes() + 4 * key;
      if constexpr (kKeys % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kKeys; i += 4) {
          const float4 v = reinterpret_cast<const float4*>(part)[i / 4];
          s[i] += v.x, s[i + 1] += v.y, s[i + 2] += v.z, s[i + 3] += v.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kKeys; i += 2) {
          const float2 v = reinterpret_cast<const float2*>(part)[i / 2];
          s[i] += v.x, s[i + 1] += v.y;
        }
      }
    }
    const float scale = c.score_scale[scope];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kKeys; i += 2) {
      const std::uint16_t pair = *reinterpret_cast<const std::uint16_t*>(valid + key + i);
      s[i] = (pair & 1U) != 0U ? s[i] * scale : -INFINITY;
      s[i + 1] = (pair & 0x100U) != 0U ? s[i + 1] * scale : -INFINITY;
      top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    }
#pragma unroll
    for (int i = kRows; i < 32; i *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, i));
    float fade = 1;
    if (top > reference + (kRoom + kSlack)) {
      const float next = top - kRoom;
      fade = exp2f(reference - next);
      reference = next;
    }
    const float shift = reference == -INFINITY ? 0 : reference;
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      s[i] = exp2f(s[i] - shift);
      mine += s[i];
    }
    sum = fmaf(sum, fade, mine);
    // The threads of a row are in one warp: all of them have read their scores before one writes.
    __syncwarp();
    auto* weights = reinterpret_cast<std::uint32_t*>(line) + key / 2;
    const float weight = c.weight_scale[scope];
    std::uint32_t pairs[kKeys / 2];
#pragma unroll
    for (int i = 0; i < kKeys; i += 2) pairs[i / 2] = halves_of(s[i] * weight, s[i + 1] * weight);
    if constexpr (kKeys % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; i += 4) *reinterpret_cast<uint4*>(weights + i) = make_uint4(pairs[i], pairs[i + 1], pairs[i + 2], pairs[i + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) weights[i] = pairs[i];
    }
    return fade;
  }

  /// The row's sum, in every thread of it.
  __device__ float whole_sum() const {
    float all = sum;
#pragma unroll
    for (int i = kRows; i < 32; i *= 2) all += __shfl_xor_sync(kAll, all, i);
    return all;
  }
};

/// A head of a block in fp32, number by number, for rows that half precision does not hold: a warp's work, slow and rare. Results as those of a block;
/// `lent`: shared memory, 3 x 512 numbers a warp.
template <AttentionTile kTile>
__device__ void attend_exactly(const TileCall& c, const Run<kTile>& run, std::int64_t head, std::int64_t state, float* lent) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const q = lent + static_cast<int>(threadIdx.x) / 32 * 3 * kDim;
  float* const row = q + kDim;
  float* const sums = row + kDim;
  const auto each = [&](auto&& f) {
#pragma unroll 1
    for (int d = lane; d < kDim; d += 32) f(d);
  };
  each([&](int d) { q[d] = c.a.query(run.token, head, d) * c.a.scale * kLog2E, sums[d] = 0; });
  float largest = -INFINITY;
  float sum = 0;
#pragma unroll 1
  for (int entry = run.begin; entry < run.end; ++entry) {
    const int base = run.begin + (entry - run.begin) / kTile.keys * kTile.keys;
    const std::int32_t slot = run.slot(c, base, entry - base, run.listed(c, base, entry - base));
    if (slot < 0) continue;
    const device::CacheView& cache = c.a.keys[run.scope(base)].cache;
    float score = 0;
    each([&](int d) {
      row[d] = cache.number(slot, d);
      score += q[d] * row[d];
    });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) score += __shfl_xor_sync(kAll, score, i);
    const float next = fmaxf(largest, score);
    const float fade = exp2f(largest - next);
    const float weight = exp2f(score - next);
    sum = sum * fade + weight;
    largest = next;
    each([&](int d) { sums[d] = sums[d] * fade + weight * row[d]; });
  }
  if (c.parts > 1) {
    if (lane == 0) c.states[state] = make_float2(largest, sum);
    each([&](int d) { c.sums[state * kDim + d] = sums[d] / c.unit; });
    return;
  }
  const Finish f = finish(c.a, head, largest, sum);
  if (lane == 0 && c.a.lse != nullptr) c.a.lse[run.token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
  each([&](int d) { c.a.store(run.token, head, d, f.factor == 0 ? 0 : finished(sums[d], f.factor)); });
}

/// The queries of a block, in half precision in shared memory; rows past the last head are zeros.
template <AttentionTile kTile>
struct Queries {
  const TileCall& c;
  std::uint32_t shared;
  std::int64_t first;  ///< number of q
  int heads;
  bool codes;

  __device__ Queries(const TileCall& call, std::uint32_t shared_at, std::int64_t token, std::int64_t first_head, int heads_in)
      : c(call),
        shared(shared_at),
        first(token * call.a.q_stride[0] + first_head * call.a.q_stride[1]),
        heads(heads_in),
        codes(call.a.q_dtype == DType::kE4M3) {}

  /// Starts copying them as they are, a group's pieces to the group's places.
  __device__ void start() const {
    if (codes) {
      start_pieces<1>();
    } else {
      start_pieces<2>();
    }
  }

  /// Widens them where they lie: a thread takes a head's group. A barrier came before and must follow. Returns whether a number does not fit.
  __device__ bool finish() const {
    std::uint32_t unbounded = 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kTile.heads * AttentionTile::kGroups; i += kThreads) {
      const int head = i % kTile.heads;
      const int group = i / kTile.heads;
      std::uint32_t pairs[32];
      if (codes) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const uint4 v = device::load_shared(shared + q_at(head, 8 * group + p));
          const std::uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            std::uint32_t(&low) = pairs[8 * p + 2 * w];
            std::uint32_t(&high) = pairs[8 * p + 2 * w + 1];
            if (lost_nan(word[w])) unbounded = ~0U;
            widen_codes(word[w], low, high);
            constexpr std::uint32_t kRest = ((15U + kCodeShift) << 10) * 0x1'0001U;
            if constexpr (kCodeShift != 0) low = multiply_halves(low, kRest), high = multiply_halves(high, kRest);
          }
        }
      } else {
#pragma unroll
        for (int p = 0; p < 8; ++p) {
          const uint4 v = device::load_shared(shared + q_at(head, 8 * group + p));
          const std::uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            pairs[4 * p + w] = halves_of(__uint_as_float(word[w] << 16), __uint_as_float(word[w] & 0xFFFF'0000U));
            unbounded |= carries(pairs[4 * p + w]);
          }
        }
      }
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        device::store_shared(shared + q_at(head, 8 * group + p), make_uint4(pairs[p], pairs[8 + p], pairs[16 + p], pairs[24 + p]));
      }
    }
    return (unbounded & 0x8000'8000U) != 0U;
  }

 private:
  /// With numbers of so many bytes. A thread takes the same piece of every few heads.
  template <int kBytes>
  __device__ void start_pieces() const {
    constexpr int kPieces = kBytes * AttentionTile::kGroup / 16;  // of a group
    constexpr int kRow = kPieces * AttentionTile::kGroups;
    constexpr int kStep = kThreads / kRow;  // heads at once
    const int piece = static_cast<int>(threadIdx.x) % kRow;
    const int head = static_cast<int>(threadIdx.x) / kRow;
    const int place = piece / kPieces * 8 + piece % kPieces;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(c.a.q) + kBytes * (first + head * c.a.q_stride[1]) + 16 * piece;
    const std::int64_t step = kBytes * kStep * c.a.q_stride[1];
    const auto each = [&](auto&& copy) {
#pragma unroll
      for (int i = 0; i < kTile.heads / kStep; ++i) {
        copy(shared + q_at(head + i * kStep, place), head + i * kStep < heads);
        from += step;
      }
    };
    if (c.q_aligned) {
      each([&](std::uint32_t to, bool there) { device::copy_async<16>(to, from, there); });
    } else {
#pragma unroll 1
      for (int i = 0; i < kTile.heads / kStep; ++i, from += step) {
        copy_piece(shared + q_at(head + i * kStep, place), from, head + i * kStep < heads);
      }
    }
  }
};

/// Which token of a launch, which heads and which part of the list a block has.
struct Place {
  std::uint32_t token;
  std::uint32_t part;
  std::uint32_t first_head;

  /// Asked for again rather than kept: the loop over keys needs every register.
  template <AttentionTile kTile>
  __device__ static Place of(const TileCall& c) {
    std::uint32_t block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const std::uint32_t tile = block / c.parts;
    return {.token = tile / c.head_tiles, .part = block % c.parts, .first_head = tile % c.head_tiles * kTile.heads};
  }
  template <AttentionTile kTile>
  __device__ int heads(const TileCall& c) const {
    return static_cast<int>(min(c.a.heads - first_head, std::int64_t{kTile.heads}));
  }
  /// The first head's place among the states.
  __device__ std::int64_t state(const TileCall& c) const { return (std::int64_t{token} * c.parts + part) * c.a.heads + first_head; }
};

/// Two blocks of 32 heads fit the shared memory of sm_90 and sm_100 only; elsewhere their registers are better spent.
template <AttentionTile kTile>
constexpr int resident() {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1100)
  return kTile.heads == 32 ? 1 : kTile.resident;
#else
  return kTile.resident;
#endif
}

template <int kIndex>
__global__ void __launch_bounds__(kThreads, resident<kAttentionTiles[kIndex]>()) attend(const __grid_constant__ TileCall c, int key_bytes) {
  constexpr AttentionTile kTile = kAttentionTiles[kIndex];
  constexpr int kHeadThreads = kThreads / kTile.head_warps;  // that share heads, in scores and softmax
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ int odd;  // a number was met that half precision does not hold
  std::uint8_t* const scores = shared + kTile.scores_at();
  auto* const factors = reinterpret_cast<float*>(shared + kTile.factors_at());
  const std::uint32_t shared_at = device::shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);

  const Place place = Place::of<kTile>(c);
  const Run<kTile> run(c, c.first_token + place.token, place.part);
  if (c.parts > 1 && run.begin >= run.end) {
    if (thread < place.heads<kTile>(c)) c.states[place.state(c) + thread] = make_float2(-INFINITY, 0);
    return;
  }
  if (thread == 0) odd = c.exact ? 1 : 0;

  RowCopy<kTile> copy;
  const auto buffer_of = [&](int base) {
    const int which = (base - run.begin) / kTile.keys % AttentionTile::kBuffers;
    return KeyBuffer<kTile>{.at = shared_at + kTile.buffers_at() + which * kTile.buffer_bytes(key_bytes), .layout = c.layout[run.scope(base)].key};
  };
  const auto start = [&](int base, std::int32_t listed) {
    const int scope = run.scope(base);
    copy.start(buffer_of(base), c.layout[scope], run.slot(c, base, RowCopy<kTile>::row(), listed));
    device::close_copies();
  };
  const auto listed_at = [&](int base) { return run.listed(c, base, RowCopy<kTile>::row()); };
  const Queries<kTile> queries(c, shared_at, run.token, place.first_head, place.heads<kTile>(c));
  std::int32_t listed = -1;
  if (run.begin < run.end) {
    start(run.begin, listed_at(run.begin));
    listed = listed_at(run.begin + kTile.keys);
    queries.start();
    device::close_copies();
    device::wait_copies<0>();
    __syncthreads();
    if (queries.finish()) odd = 1;
  }

  Softmax<kTile> softmax;
  OutputTile<kTile> output;
#pragma unroll 1
  for (int base = run.begin; base < run.end; base += kTile.keys) {
    const KeyBuffer<kTile> keys = buffer_of(base);
    device::wait_copies<0>();
    if (copy.finish(keys, c.layout[run.scope(base)].scaled)) odd = 1;
    __syncthreads();
    const int next = base + kTile.keys;
    if (next < run.end) start(next, listed);
    listed = listed_at(next + kTile.keys);
    if (score_tile<kTile>(shared_at, scores, keys)) odd = 1;
    device::barrier(1 + thread / kHeadThreads, kHeadThreads);
    const float fade = softmax.take(c, scores, shared + (keys.valid() - shared_at), run.scope(base));
    if (softmax.first()) factors[softmax.row()] = fade;
    if (__syncthreads_or(fade != 1.0F) != 0) output.fade(factors);
    output.add(shared_at + kTile.scores_at(), keys);
  }

  __syncthreads();
  const Place at = Place::of<kTile>(c);
  const std::int64_t token = c.first_token + at.token;
  const int heads = at.heads<kTile>(c);
  const int warp = thread / 32;
  if (odd != 0) {
    const Run<kTile> again(c, token, at.part);
    for (int h = warp; h < heads; h += AttentionTile::kWarps) {
      attend_exactly<kTile>(c, again, at.first_head + h, at.state(c) + h, reinterpret_cast<float*>(shared));
    }
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
    __syncthreads();
    const std::int64_t out = token * c.a.o_stride[0] + at.first_head * c.a.o_stride[1];
    if (c.a.o_dtype == DType::kBF16 && c.word >= 8) {
      auto* o = static_cast<std::uint16_t*>(c.a.o) + out;
      output.each([&](int h, int column, const float4& v) {
        if (h < heads) *reinterpret_cast<uint2*>(o + h * c.a.o_stride[1] + column) = bf16_of(finished(v, factors[h]));
      });
    } else {
      output.each([&](int h, int column, const float4& v) {
        if (h < heads) store(c, out + h * c.a.o_stride[1] + column, finished(v, factors[h]));
      });
    }
  }
  if (c.parts > 1 || at.first_head + kTile.heads < c.a.heads) return;
  for (std::int64_t h = c.a.heads + warp; h < c.a.out_heads; h += AttentionTile::kWarps) {
    for (int d = 4 * (thread % 32); d < kDim; d += 128) store(c, token * c.a.o_stride[0] + h * c.a.o_stride[1] + d, make_float4(0, 0, 0, 0));
  }
}

constexpr int kMergeGroups = 4;
constexpr int kMergeShared = 8;  ///< from so many parts on the groups of a block share a head's

/// The parts of a head to its output: a thread for four columns, and with kShare for every fourth part. With one part that has keys it gives the bits that
/// the block of that part would have given without others.
template <bool kShare>
__global__ void __launch_bounds__(kMergeGroups* kDim / 4, 2) merge(const __grid_constant__ TileCall c, std::int64_t rows) {
  __shared__ float4 others[kShare ? kMergeGroups - 1 : 1][kDim / 4];
  const int group = static_cast<int>(threadIdx.x) / (kDim / 4);
  const int quad = static_cast<int>(threadIdx.x) % (kDim / 4);
  const std::int64_t row = kShare ? blockIdx.x : static_cast<std::int64_t>(blockIdx.x) * kMergeGroups + group;
  const int first = kShare ? group : 0;
  constexpr int kStep = kShare ? kMergeGroups : 1;
  if (row >= rows) return;
  const std::int64_t head = row % c.a.out_heads;
  const std::int64_t local = row / c.a.out_heads;
  const std::int64_t token = c.first_token + local;
  const std::int64_t out = token * c.a.o_stride[0] + head * c.a.o_stride[1] + 4 * quad;
  if (head >= c.a.heads) {
    if (first == 0) store(c, out, make_float4(0, 0, 0, 0));
    return;
  }
  const int parts = static_cast<int>(c.parts);
  const float2* states = c.states + local * c.parts * c.a.heads + head;
  float reference = -INFINITY;
#pragma unroll 4
  for (int i = 0; i < parts; ++i) reference = fmaxf(reference, states[i * c.a.heads].x);
  const float shift = reference == -INFINITY ? 0 : reference;
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < parts; ++i) {
    const float2 part = states[i * c.a.heads];
    sum = fmaf(part.y, exp2f(part.x - shift), sum);
  }
  const float* sums = c.sums + (local * c.parts * c.a.heads + head) * kDim + 4 * quad;
  float4 total{0, 0, 0, 0};
#pragma unroll 4
  for (int i = first; i < parts; i += kStep) {
    const float2 part = states[i * c.a.heads];
    if (part.y == 0) continue;  // no key: the sums were not written
    const float weight = exp2f(part.x - shift);
    const float4 v = *reinterpret_cast<const float4*>(sums + i * c.a.heads * kDim);
    total.x = fmaf(v.x, weight, total.x), total.y = fmaf(v.y, weight, total.y);
    total.z = fmaf(v.z, weight, total.z), total.w = fmaf(v.w, weight, total.w);
  }
  if constexpr (kShare) {
    if (group > 0) others[group - 1][quad] = total;
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int g = 0; g < kMergeGroups - 1; ++g) {
      const float4 v = others[g][quad];
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
  }
  const Finish f = finish(c.a, head, reference, sum);
  if (f.factor == 0) total = make_float4(0, 0, 0, 0);  // sums may be infinite
  store(c, out, finished(total, f.factor * c.unit));
  if (quad == 0 && c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
}

template <int kIndex>
void launch(const TileCall& c, int key_bytes, unsigned blocks, cudaStream_t stream) {
  const int shared = kAttentionTiles[kIndex].shared_bytes(key_bytes) - AttentionTile::kOwnBytes;
  check_cuda(cudaFuncSetAttribute(attend<kIndex>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "cudaFuncSetAttribute");
  attend<kIndex><<<blocks, kThreads, shared, stream>>>(c, key_bytes);
}

using Launch = void (*)(const TileCall&, int, unsigned, cudaStream_t);
template <int... kIndex>
constexpr std::array<Launch, sizeof...(kIndex)> launches(std::integer_sequence<int, kIndex...>) {
  return {launch<kIndex>...};
}
constexpr auto kLaunch = launches(std::make_integer_sequence<int, static_cast<int>(kAttentionTiles.size())>());

bool takes(const RowFormat& f) {
  if (f.nope_dim % AttentionTile::kGroup != 0 || f.dim != kDim) return false;
  const bool rest = f.rope_dim() == 0 || f.rope == Element::kBF16;
  if (f.nope == Element::kBF16) return f.scale == ScaleKind::kNone && rest;
  if (f.nope != Element::kE4M3) return false;
  return f.scale == ScaleKind::kUe8m0 ? f.group == AttentionTile::kGroup && rest : f.scale == ScaleKind::kPerTensor && f.rope_dim() == 0;
}

RowLayout layout_of(const RowFormat& f, const device::CacheView& cache) {
  // A slot has 31 bits; a block longer than that holds them all.
  const auto block_size = static_cast<std::uint32_t>(std::min<std::int64_t>(cache.block_size, std::int64_t{1} << 31));
  return {
      .key = key_layout(f),
      .base = cache.base,
      .block_stride = cache.block_stride,
      .scales = cache.block_size * cache.data_bytes,
      .num_slots = static_cast<std::uint32_t>(std::min<std::int64_t>(cache.num_slots, std::int64_t{1} << 31)),
      .block_size = block_size,
      .block_bits = std::has_single_bit(block_size) ? std::countr_zero(block_size) : -1,
      .row_bytes = static_cast<std::uint32_t>(cache.data_bytes),
      .scale_bytes = static_cast<std::uint32_t>(cache.scale_bytes),
      .scaled = f.scale == ScaleKind::kUe8m0,
      .aligned = device::common_word(static_cast<const void*>(cache.base), cache.block_stride, cache.data_bytes) == 16 && cache.scale_bytes % 4 == 0};
}

constexpr std::int64_t kMostEntries = std::int64_t{1} << 30;
std::int64_t listed_entries(const SparseAttention::Problem& p) { return p.scope[0].width + (p.scopes > 1 ? p.scope[1].width : 0); }

AttentionSplit split_of(const SparseAttention::Problem& p, bool fixed) {
  return split_attention(p, device::multiprocessors(), device::shared_limit(), fixed);
}

}  // namespace

template <>
std::string CudaOp<SparseAttention>::refuse(const SparseAttention::Problem& p, const PlanOptions&) {
  if (p.dim != kDim) return "rows of " + std::to_string(p.dim) + " numbers; it takes " + std::to_string(kDim);
  if (p.q == DType::kF32) return "q in F32; it takes BF16 and F8_E4M3";
  for (int s = 0; s < p.scopes; ++s) {
    const RowFormat& f = *p.scope[static_cast<std::size_t>(s)].format;
    if (!takes(f)) return std::string(f.name) + " rows, which bf16 does not hold exactly";
  }
  if (listed_entries(p) > kMostEntries) return "lists of " + std::to_string(listed_entries(p)) + " entries; it takes 2^30";
  if (std::string none = needs_gpu(); !none.empty()) return none;
  if (attention_tile(p.heads, key_bytes(p), device::shared_limit()) >= 0) return "";
  return "shared memory of " + std::to_string(device::shared_limit()) + " bytes a block; it takes " +
         std::to_string(kAttentionTiles[1].shared_bytes(key_bytes(p)));
}

template <>
std::size_t CudaOp<SparseAttention>::workspace_bytes(const SparseAttention::Problem& p, int) {
  return static_cast<std::size_t>(std::max(split_of(p, false).workspace_bytes(p.heads), split_of(p, true).workspace_bytes(p.heads)));
}

template <>
void CudaOp<SparseAttention>::run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const AttentionSplit split = split_of(p, context.deterministic);
  const std::int64_t o_size = size_of(p.o);
  const std::int64_t q_size = size_of(p.q);
  TileCall c{.a = attention_call(p, a), .part_keys = split.part_keys, .parts = static_cast<std::uint32_t>(split.parts)};
  c.q_aligned = device::common_word(c.a.q, q_size * c.a.q_stride[0], q_size * c.a.q_stride[1]) == 16;
  c.word = device::common_word(static_cast<const void*>(c.a.o), o_size * c.a.o_stride[0], o_size * c.a.o_stride[1]);
  float unit[SparseAttention::kMaxScopes] = {0, 0};
  for (int s = 0; s < p.scopes; ++s) {
    const device::CacheView& cache = c.a.keys[s].cache;
    unit[s] = cache.kind == ScaleKind::kPerTensor ? cache.scale : 1 / kHalfUnit;
    c.layout[s] = layout_of(*p.scope[static_cast<std::size_t>(s)].format, cache);
    c.score_scale[s] = c.a.scale * (p.q == DType::kE4M3 ? p.q_scale : 1.0F) * unit[s] * kLog2E;
  }
  c.unit = std::max(std::abs(unit[0]), std::abs(unit[1]));
  for (int s = 0; s < p.scopes; ++s) {
    c.weight_scale[s] = unit[s] / c.unit;
    c.exact = c.exact || !(std::abs(c.weight_scale[s]) >= 0x1p-10F);
  }
  c.sums = static_cast<float*>(context.workspace.data);
  c.states = reinterpret_cast<float2*>(c.sums + (split.parts == 1 ? 0 : split.launch_tokens * split.parts * p.heads * kDim));
  const int tile_heads = kAttentionTiles[static_cast<std::size_t>(split.tile)].heads;
  const std::int64_t tiles = (p.heads + tile_heads - 1) / tile_heads;
  c.head_tiles = static_cast<std::uint32_t>(tiles);
  const cudaStream_t stream = stream_of(context.stream);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    kLaunch[static_cast<std::size_t>(split.tile)](c, key_bytes(p), blocks_for(tokens * tiles * split.parts, 1), stream);
    check_launch("sparse_attention attend");
    if (split.parts == 1) continue;
    const std::int64_t rows = tokens * c.a.out_heads;
    const bool share = split.parts >= kMergeShared;
    (share ? merge<true> : merge<false>)<<<blocks_for(rows, share ? 1 : kMergeGroups), kMergeGroups * kDim / 4, 0, stream>>>(c, rows);
    check_launch("sparse_attention merge");
  }
}

}  // namespace smla
