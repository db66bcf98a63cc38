// Sparse attention on the tensor cores of any GPU from sm_80 on. A block takes a token, a tile of heads and a run of its key list; keys pass through shared
// memory as bf16, tile by tile, and are scored, weighed and added from there. See docs/kernels/sparse_attention.md.
#include <array>
#include <cmath>

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
  PieceFormat q_format;
  PieceFormat format[SparseAttention::kMaxScopes];
  float score_scale[SparseAttention::kMaxScopes] = {0, 0};   ///< scores to powers of two
  float weight_scale[SparseAttention::kMaxScopes] = {1, 1};  ///< of rows whose numbers have a common scale
  bool pairs = false;                                        ///< two neighbours of o may be stored at once
  std::int64_t part_keys = 0;
  std::int64_t parts = 1;
  std::int64_t first_token = 0;
  float* sums = nullptr;     ///< [tokens of a launch, parts, H, 512]
  float2* states = nullptr;  ///< [tokens of a launch, parts, H]
};

/// A head's state after some keys: the largest score, in powers of two, and the sum of 2^(score - largest). What is left to do with it.
struct Finish {
  float factor;  ///< of the sums
  float lse;
};
__device__ Finish finish(const AttentionCall& c, std::int64_t head, float largest, float sum) {
  if (sum == 0) return {0, c.partial ? -INFINITY : INFINITY};
  const float sink = c.sink == nullptr ? -INFINITY : c.sink[head * c.sink_stride];
  // The sink's term may overflow, and then the answer is 0, as it should be.
  return {1.0F / (sum + exp2f(fmaf(sink, kLog2E, -largest))), fmaf(largest, kLn2, logf(sum))};
}
/// Adding 0 makes one zero of both: sums that went through the workspace have lost the sign.
__device__ float finished(float sum, float factor) { return factor == 0 ? 0 : (sum + 0.0F) * factor; }

__device__ void store_pair(const TileCall& c, std::int64_t at, float x, float y) {
  if (c.a.o_dtype == DType::kBF16) {
    auto* to = static_cast<std::uint16_t*>(c.a.o) + at;
    const std::uint16_t low = device::to_bf16_bits(x);
    const std::uint16_t high = device::to_bf16_bits(y);
    if (c.pairs) {
      *reinterpret_cast<std::uint32_t*>(to) = static_cast<std::uint32_t>(high) << 16 | low;
    } else {
      to[0] = low, to[1] = high;
    }
  } else {
    auto* to = static_cast<float*>(c.a.o) + at;
    if (c.pairs) {
      *reinterpret_cast<float2*>(to) = make_float2(x, y);
    } else {
      to[0] = x, to[1] = y;
    }
  }
}

/// A token's list, both scopes one behind the other: entries [begin, end) of it are this block's.
struct Run {
  std::int64_t token;
  std::int64_t second;  ///< first entry of the second scope
  std::int64_t begin;
  std::int64_t end;

  __device__ Run(const TileCall& c, std::int64_t token_in, std::int64_t part) : token(token_in), second(c.a.keys[0].entries(token_in)) {
    const std::int64_t all = second + (c.a.scopes > 1 ? c.a.keys[1].entries(token) : 0);
    begin = part * c.part_keys;
    end = min(all, begin + c.part_keys);
  }
  __device__ bool has(std::int64_t entry) const { return entry < end; }
  /// First key of the second scope in the `keys` from `base` on.
  __device__ int turn(std::int64_t base, int keys) const {
    return static_cast<int>(min(max(second - base, std::int64_t{0}), static_cast<std::int64_t>(keys)));
  }
  __device__ std::int32_t slot(const TileCall& c, std::int64_t entry) const {
    if (entry >= end) return -1;
    return entry < second ? c.a.keys[0].slot(token, entry) : c.a.keys[1].slot(token, entry - second);
  }
};

/// Running softmax of a tile's rows of scores. A row belongs to kLanes neighbouring threads, which hold its state together.
template <AttentionTile kTile>
struct Softmax {
  static constexpr int kLanes = kThreads / kTile.heads;
  static constexpr int kKeys = kTile.keys / kLanes;  ///< of a thread
  float largest = -INFINITY;
  float sum = 0;  ///< of this thread's keys

  __device__ static int row() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static bool first() { return threadIdx.x % kLanes == 0; }

  /// Turns the scores of a tile into weights, in their place, and returns what older sums fade by. `mask`: keys that count; `second`: first key of the
  /// second scope.
  __device__ float take(const TileCall& c, std::uint8_t* scores, const std::uint32_t* mask, int second) {
    static_assert(kKeys % 2 == 0);
    const int key = static_cast<int>(threadIdx.x) % kLanes * kKeys;
    std::uint8_t* line = scores + row() * kTile.score_row_bytes();
    float s[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) s[i] = 0;
#pragma unroll
    for (int w = 0; w < kTile.dim_warps; ++w) {
      const auto* part = reinterpret_cast<const float2*>(line + w * kTile.heads * kTile.score_row_bytes()) + key / 2;
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const float2 v = part[i];
        s[2 * i] += v.x, s[2 * i + 1] += v.y;
      }
    }
    const std::uint32_t valid = mask[key / 32] >> (key % 32);
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      s[i] = (valid >> i & 1U) != 0U ? s[i] * c.score_scale[key + i < second ? 0 : 1] : -INFINITY;
      top = fmaxf(top, s[i]);
    }
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, i));
    const float next = fmaxf(largest, top);
    const float shift = next == -INFINITY ? 0 : next;
    const float fade = exp2f(largest - shift);
    float mine = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      s[i] = exp2f(s[i] - shift);
      mine += s[i];
    }
    sum = fmaf(sum, fade, mine);
    largest = next;
    // The threads of a row are in one warp: all of them have read their scores before one writes.
    __syncwarp();
    auto* coarse = reinterpret_cast<std::uint32_t*>(line) + key / 2;
    auto* fine = reinterpret_cast<std::uint32_t*>(line + 2 * kTile.keys) + key / 2;
#pragma unroll
    for (int i = 0; i < kKeys; i += 2) {
      const float x = s[i] * c.weight_scale[key + i < second ? 0 : 1];
      const float y = s[i + 1] * c.weight_scale[key + i + 1 < second ? 0 : 1];
      const std::uint16_t x_bits = device::to_bf16_bits(x);
      const std::uint16_t y_bits = device::to_bf16_bits(y);
      coarse[i / 2] = static_cast<std::uint32_t>(y_bits) << 16 | x_bits;
      fine[i / 2] =
          static_cast<std::uint32_t>(device::to_bf16_bits(y - device::from_bf16(y_bits))) << 16 | device::to_bf16_bits(x - device::from_bf16(x_bits));
    }
    return fade;
  }

  /// The row's sum, in every thread of it.
  __device__ float whole_sum() const {
    float all = sum;
#pragma unroll
    for (int i = kLanes / 2; i > 0; i /= 2) all += __shfl_xor_sync(kAll, all, i);
    return all;
  }
};

template <int kIndex>
__global__ void __launch_bounds__(kThreads, kAttentionTiles[kIndex].resident) attend(const __grid_constant__ TileCall c) {
  constexpr AttentionTile kTile = kAttentionTiles[kIndex];
  constexpr int kRows = kTile.keys / AttentionTile::kWarps;  // of a warp
  constexpr int kEarly = kRows < 4 ? kRows : 4;              // that are loaded while the tile before is still in use
  static_assert(kRows % kEarly == 0);
  extern __shared__ __align__(128) std::uint8_t shared[];
  std::uint8_t* const rows = shared + kTile.keys_at();
  std::uint8_t* const scores = shared + kTile.scores_at();
  auto* const key_rows = reinterpret_cast<KeyRow*>(shared + kTile.key_rows_at());
  auto* const masks = reinterpret_cast<std::uint32_t*>(shared + kTile.masks_at());
  auto* const factors = reinterpret_cast<float*>(shared + kTile.factors_at());
  const std::uint32_t shared_at = device::shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;

  const std::int64_t tiles = (c.a.heads + kTile.heads - 1) / kTile.heads;
  const std::int64_t part = blockIdx.x % c.parts;
  const std::int64_t first_head = blockIdx.x / c.parts % tiles * kTile.heads;
  const std::int64_t local = blockIdx.x / c.parts / tiles;
  const int heads = static_cast<int>(min(c.a.heads - first_head, std::int64_t{kTile.heads}));
  const Run run(c, c.first_token + local, part);
  const std::int64_t state = (local * c.parts + part) * c.a.heads + first_head;
  if (c.parts > 1 && run.begin >= run.end) {
    if (thread < heads) c.states[state + thread] = make_float2(-INFINITY, 0);
    return;
  }

  // Where the keys of a tile are, and which of them count; `turn`: its first key of the second scope.
  const auto find = [&](std::int32_t slot, int turn, int buffer) {
    if (thread >= kTile.keys) return;
    const KeyRow row = key_row(c.a.keys[thread < turn ? 0 : 1].cache, slot);
    key_rows[buffer * kTile.keys + thread] = row;
    const unsigned lanes = kTile.keys < 32 ? (1U << kTile.keys % 32) - 1U : kAll;
    const unsigned valid = __ballot_sync(lanes, row.data != nullptr);
    if (lane == 0) masks[2 * buffer + warp] = valid;
  };
  RowsInFlight<kEarly> flight;
  // Rows first..first + kEarly of this warp.
  const auto load = [&](int turn, int buffer, int first) {
#pragma unroll
    for (int r = 0; r < kEarly; ++r) {
      const int at = warp * kRows + first + r;
      flight.load(r, key_rows[buffer * kTile.keys + at], c.format[at < turn ? 0 : 1]);
    }
  };
  const auto store = [&](int turn, int first) {
#pragma unroll
    for (int r = 0; r < kEarly; ++r) {
      const int at = warp * kRows + first + r;
      flight.store(r, rows, at, c.format[at < turn ? 0 : 1]);
    }
  };
  // The rest of them, as far as L2.
  const auto ask = [&](int turn, int buffer) {
#pragma unroll
    for (int r = kEarly; r < kRows; ++r) {
      const int at = warp * kRows + r;
      const std::uint8_t* data = key_rows[buffer * kTile.keys + at].data;
      if (data != nullptr && 64 * lane < c.a.keys[at < turn ? 0 : 1].cache.data_bytes) device::prefetch(data + 64 * lane);
    }
  };

  int turn = run.turn(run.begin, kTile.keys);
  if (run.has(run.begin)) find(thread < kTile.keys ? run.slot(c, run.begin + thread) : -1, turn, 0);
  // The queries; rows past the last head are zeros.
  const auto* q = static_cast<const std::uint8_t*>(c.a.q);
  const std::int64_t q_size = c.a.q_dtype == DType::kBF16 ? 2 : 1;
#pragma unroll 4
  for (int h = warp; h < kTile.heads; h += AttentionTile::kWarps) {
    RowsInFlight<1> row;
    const std::uint8_t* from = q + q_size * (run.token * c.a.q_stride[0] + (first_head + h) * c.a.q_stride[1]);
    row.load(0, {h < heads ? from : nullptr, nullptr}, c.q_format);
    row.store(0, shared, h, c.q_format);
  }
  __syncthreads();
  if (run.has(run.begin)) {
#pragma unroll 1
    for (int first = 0; first < kRows; first += kEarly) {
      load(turn, 0, first);
      store(turn, first);
    }
  }

  Softmax<kTile> softmax;
  OutputTile<kTile> output;
  int buffer = 0;
#pragma unroll 1
  for (std::int64_t base = run.begin; base < run.end; base += kTile.keys) {
    __syncthreads();
    // Scores, and meanwhile the slots of the next tile.
    const std::int64_t next = base + kTile.keys;
    const std::int32_t slot = thread < kTile.keys ? run.slot(c, next + thread) : -1;
    score_tile<kTile>(shared_at, scores);
    const int next_turn = run.turn(next, kTile.keys);
    find(slot, next_turn, buffer ^ 1);
    __syncthreads();
    const float fade = softmax.take(c, scores, masks + 2 * buffer, turn);
    if (softmax.first()) factors[softmax.row()] = fade;
    const int faded = __syncthreads_or(fade != 1.0F);
    // Values, and meanwhile the rows of the next tile.
    buffer ^= 1;
    turn = next_turn;
    const bool more = run.has(next);
    if (more) {
      load(turn, buffer, 0);
      ask(turn, buffer);
    }
    if (faded != 0) output.fade(factors);
    output.add(shared_at);
    __syncthreads();
    if (more) {
      store(turn, 0);
#pragma unroll 1
      for (int first = kEarly; first < kRows; first += kEarly) {
        load(turn, buffer, first);
        store(turn, first);
      }
    }
  }

  const float sum = softmax.whole_sum();
  const std::int64_t head = first_head + softmax.row();
  if (c.parts > 1) {
    if (softmax.first() && softmax.row() < heads) c.states[state + softmax.row()] = make_float2(softmax.largest, sum);
    output.each([&](int h, int column, float x, float y) {
      if (h < heads) *reinterpret_cast<float2*>(c.sums + (state + h) * kDim + column) = make_float2(x, y);
    });
    return;
  }
  if (softmax.first() && softmax.row() < heads) {
    const Finish f = finish(c.a, head, softmax.largest, sum);
    factors[softmax.row()] = f.factor;
    if (c.a.lse != nullptr) c.a.lse[run.token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
  }
  __syncthreads();
  const std::int64_t out = run.token * c.a.o_stride[0] + first_head * c.a.o_stride[1];
  output.each([&](int h, int column, float x, float y) {
    if (h >= heads) return;
    const float factor = factors[h];
    store_pair(c, out + h * c.a.o_stride[1] + column, finished(x, factor), finished(y, factor));
  });
  if (first_head + kTile.heads < c.a.heads) return;
  for (std::int64_t h = c.a.heads + warp; h < c.a.out_heads; h += AttentionTile::kWarps) {
    for (int d = 2 * lane; d < kDim; d += 64) store_pair(c, run.token * c.a.o_stride[0] + h * c.a.o_stride[1] + d, 0, 0);
  }
}

constexpr int kMergeGroups = 4;

/// The parts of a head to its output: a thread for two columns of every fourth part. With one part that has keys it gives the bits that the block of that
/// part would have given without others.
__global__ void __launch_bounds__(kMergeGroups* kDim / 2) merge(const __grid_constant__ TileCall c) {
  __shared__ float2 others[kMergeGroups - 1][kDim / 2];
  const std::int64_t head = blockIdx.x % c.a.out_heads;
  const std::int64_t local = blockIdx.x / c.a.out_heads;
  const std::int64_t token = c.first_token + local;
  const int group = static_cast<int>(threadIdx.x) / (kDim / 2);
  const int pair = static_cast<int>(threadIdx.x) % (kDim / 2);
  const std::int64_t out = token * c.a.o_stride[0] + head * c.a.o_stride[1] + 2 * pair;
  if (head >= c.a.heads) {
    if (group == 0) store_pair(c, out, 0, 0);
    return;
  }
  const std::int64_t state = local * c.parts * c.a.heads + head;
  float largest = -INFINITY;
  for (std::int64_t i = 0; i < c.parts; ++i) largest = fmaxf(largest, c.states[state + i * c.a.heads].x);
  const float shift = largest == -INFINITY ? 0 : largest;
  float sum = 0;
  for (std::int64_t i = 0; i < c.parts; ++i) {
    const float2 part = c.states[state + i * c.a.heads];
    sum = fmaf(part.y, exp2f(part.x - shift), sum);
  }
  float2 total{0, 0};
#pragma unroll 4
  for (std::int64_t i = group; i < c.parts; i += kMergeGroups) {
    const float2 part = c.states[state + i * c.a.heads];
    if (part.y == 0) continue;  // no key: the sums were not written
    const float weight = exp2f(part.x - shift);
    const float2 v = *reinterpret_cast<const float2*>(c.sums + (state + i * c.a.heads) * kDim + 2 * pair);
    total.x = fmaf(v.x, weight, total.x);
    total.y = fmaf(v.y, weight, total.y);
  }
  if (group > 0) others[group - 1][pair] = total;
  __syncthreads();
  if (group > 0) return;
#pragma unroll
  for (int g = 0; g < kMergeGroups - 1; ++g) total.x += others[g][pair].x, total.y += others[g][pair].y;
  const Finish f = finish(c.a, head, largest, sum);
  store_pair(c, out, finished(total.x, f.factor), finished(total.y, f.factor));
  if (pair == 0 && c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
}

template <int kIndex>
void launch(const TileCall& c, unsigned blocks, cudaStream_t stream) {
  constexpr int kShared = kAttentionTiles[kIndex].shared_bytes();
  check_cuda(cudaFuncSetAttribute(attend<kIndex>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), "cudaFuncSetAttribute");
  attend<kIndex><<<blocks, kThreads, kShared, stream>>>(c);
}

using Launch = void (*)(const TileCall&, unsigned, cudaStream_t);
constexpr std::array<Launch, kAttentionTiles.size()> kLaunch{launch<0>, launch<1>, launch<2>, launch<3>, launch<4>};

bool takes(const RowFormat& f) {
  if (f.nope_dim % 64 != 0 || f.dim % 8 != 0) return false;
  const bool rest = f.rope_dim() == 0 || f.rope == Element::kBF16;
  if (f.nope == Element::kBF16) return f.scale == ScaleKind::kNone && rest;
  if (f.nope != Element::kE4M3) return false;
  return f.scale == ScaleKind::kUe8m0 ? f.group == 64 && rest : f.scale == ScaleKind::kPerTensor && f.rope_dim() == 0;
}

PieceFormat format_of(const device::CacheView& cache) {
  const int codes = cache.nope == Element::kE4M3 ? cache.nope_dim / 8 : 0;
  return {.codes = codes,
          .scaled = cache.kind == ScaleKind::kUe8m0 ? codes : 0,
          .word = device::common_word(static_cast<const void*>(cache.base), cache.block_stride, cache.data_bytes)};
}

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
  if (std::string none = needs_gpu(); !none.empty()) return none;
  if (attention_tile(p.heads, device::shared_limit()) >= 0) return "";
  return "shared memory of " + std::to_string(device::shared_limit()) + " bytes a block; it takes " +
         std::to_string(kAttentionTiles[0].shared_bytes());
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
  TileCall c{.a = attention_call(p, a), .part_keys = split.part_keys, .parts = split.parts};
  c.q_format = {.codes = p.q == DType::kE4M3 ? kDim / 8 : 0, .word = device::common_word(c.a.q, q_size * c.a.q_stride[0], q_size * c.a.q_stride[1])};
  c.pairs = device::common_word(static_cast<const void*>(c.a.o), o_size * c.a.o_stride[0], o_size * c.a.o_stride[1]) >= 2 * o_size;
  for (int s = 0; s < p.scopes; ++s) {
    const device::CacheView& cache = c.a.keys[s].cache;
    const float common = cache.kind == ScaleKind::kPerTensor ? cache.scale : 1.0F;
    c.format[s] = format_of(cache);
    c.score_scale[s] = c.a.scale * (p.q == DType::kE4M3 ? p.q_scale : 1.0F) * common * kLog2E;
    c.weight_scale[s] = common;
  }
  c.sums = static_cast<float*>(context.workspace.data);
  c.states = reinterpret_cast<float2*>(c.sums + (split.parts == 1 ? 0 : split.launch_tokens * split.parts * p.heads * kDim));
  const int tile_heads = kAttentionTiles[static_cast<std::size_t>(split.tile)].heads;
  const std::int64_t tiles = (p.heads + tile_heads - 1) / tile_heads;
  const cudaStream_t stream = stream_of(context.stream);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    kLaunch[static_cast<std::size_t>(split.tile)](c, blocks_for(tokens * tiles * split.parts, 1), stream);
    check_launch("sparse_attention attend");
    if (split.parts == 1) continue;
    merge<<<blocks_for(tokens * c.a.out_heads, 1), kMergeGroups * kDim / 2, 0, stream>>>(c);
    check_launch("sparse_attention merge");
  }
}

}  // namespace smla
