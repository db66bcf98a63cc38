// Sparse attention on the tensor cores of any GPU from sm_80 on. A block computes a token, a tile of its heads and
// a part of its key list. Tokens that share a list may be packed: their heads are those of one token then.
// Keys go tile by tile through shared memory, as their cache stores them, and are widened to
// fp16 in registers. See docs/kernels/sparse_attention.md.
#include <array>
#include <utility>

#include "device/launch.cuh"
#include "device/launch_pdl.cuh"
#include "device/numbers.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/ptx/shared.cuh"
#include "device/row_views.cuh"
#include "ops/attention/exact_head.cuh"
#include "ops/attention/implementations.h"
#include "ops/attention/length_cut.cuh"
#include "ops/attention/merge_parts.cuh"
#include "ops/attention/query_tile.cuh"
#include "ops/attention/softmax_tile.cuh"
#include "ops/attention/tile_call.cuh"
#include "ops/attention/tile_math.cuh"
#include "ops/cuda_row.h"
#include "ops/head_rows.cuh"

namespace smla {

namespace {

using namespace attention;

template <AttentionTile kTile>
constexpr bool cuts_by_length() {
#if defined(__CUDA_ARCH__)
  return kTile.cuts_by_length(__CUDA_ARCH__ / 10);
#else
  return true;
#endif
}

constexpr int kRopeColumns = AttentionTile::kGroup;              ///< the last columns of o, which one warp holds
constexpr int kRopeWarp = (kDim - kRopeColumns) / kRopeColumns;  ///< that warp

/// What a block computes: a part of a token's list, and which heads. Blocks behind TileCall::blocks have no heads.
struct BlockWork {
  ListPart list;
  std::uint32_t first_head = 0;

  /// Of lists that are cut alike. Computed anew at each use rather than kept: the loop over keys needs every register.
  template <AttentionTile kTile>
  __device__ static BlockWork of(const TileCall& c) {
    const std::uint32_t block = fresh_block();
    if (block >= c.blocks) return none(c);
    const std::uint32_t tile = c.by_parts.quotient(block);
    const std::uint32_t token = c.by_head_tiles.quotient(tile);
    return {.list = ListPart::alike(c, token, block - tile * c.parts),
            .first_head = (tile - token * c.head_tiles) * kTile.heads};
  }
  /// Of lists that are cut by their lengths; tells the merge of them.
  template <AttentionTile kTile, Lists kLists>
  __device__ static BlockWork by_length(const TileCall& c) {
    const std::uint32_t block = fresh_block();
    if (block >= c.blocks) return none(c);
    const LengthCutter<kTile.keys, kLists> cutter{c};
    CutParts parts{};
    const std::uint32_t part = c.by_head_tiles.quotient(block);
    const BlockWork work{.list = cutter.find(part, parts), .first_head = (block - part * c.head_tiles) * kTile.heads};
    if (threadIdx.x == 0 && work.first_head == 0) cutter.tell(work.list, parts);
    return work;
  }
  template <AttentionTile kTile>
  __device__ int heads(const TileCall& c) const {
    return static_cast<int>(min(c.a.heads - first_head, std::int64_t{kTile.heads}));
  }

 private:
  __device__ static BlockWork none(const TileCall& c) {
    return {.list = ListPart::alike(c, 0, 0), .first_head = static_cast<std::uint32_t>(c.a.heads)};
  }
  __device__ static std::uint32_t fresh_block() {
    std::uint32_t block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
  }
};

template <int kIndex, Lists kLists>
__global__ void __launch_bounds__(kThreads, kAttentionTiles[kIndex].resident)
    attend(const __grid_constant__ TileCall c, int key_bytes) {
  constexpr AttentionTile kTile = kAttentionTiles[kIndex];
  constexpr int kHeadThreads = kThreads / kTile.head_warps;  // threads that share heads in scores and softmax
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ int unrepresentable;  // fp16 cannot represent a number that was read
  __shared__ BlockWork kept;       // of lists that are cut by their lengths
  std::uint8_t* const scores = shared + kTile.scores_at();
  auto* const factors = reinterpret_cast<float*>(shared + kTile.factors_at());
  const std::uint32_t shared_at = device::shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);

  // A block without work reads nothing that other kernels write, so it does not wait for them.
  const bool works = blockIdx.x < c.blocks;
  if (works) device::pdl_wait();
  if (c.merge_follows()) device::pdl_trigger();
  const bool by_length = cuts_by_length<kTile>() && c.cut.extra > 0;
  const BlockWork place = by_length ? BlockWork::by_length<kTile, kLists>(c) : BlockWork::of<kTile>(c);
  if (place.list.parts == 0) return;
  constexpr bool kPacked = kLists == Lists::kPacked;
  using ListRun = Run<kTile, kLists>;
  // A tile of packed tokens needs to know which of its keys count.
  const ListRun run = works ? ListRun(c, place.list) : ListRun(c, kPacked ? 0 : static_cast<int>(blockIdx.x & 1));
  if (works && place.list.parts > 1 && run.begin >= run.end) {
    if (thread < place.heads<kTile>(c))
      c.states[place.list.state(c, place.first_head) + thread] = make_float2(-INFINITY, 0);
    return;
  }
  if (thread == 0) {
    unrepresentable = c.exact ? 1 : 0;
    if (by_length) kept = place;
  }

  RowCopy<kTile> copy;
  const auto buffer_of = [&](int base) {
    const int which = (base - run.begin) / kTile.keys % AttentionTile::kBuffers;
    return KeyBuffer<kTile>{.at = shared_at + kTile.buffers_at() + which * kTile.buffer_bytes(key_bytes),
                            .layout = c.layout[run.scope(base)].key};
  };
  const auto start = [&](int base, std::int32_t listed) {
    const int scope = run.scope(base);
    copy.start(buffer_of(base), c.layout[scope], run.slot(c, base, RowCopy<kTile>::row(), listed));
    device::cp_async_commit();
  };
  const auto listed_at = [&](int base) { return run.listed(c, base, RowCopy<kTile>::row()); };
  const Queries<kTile> queries(c, shared_at, run.token, place.first_head, place.heads<kTile>(c));
  std::int32_t listed = -1;
  if (run.begin < run.end) {
    start(run.begin, listed_at(run.begin));
    listed = listed_at(run.begin + kTile.keys);
    queries.start();
    device::cp_async_commit();
    if (works && run.token + c.tokens_ahead < c.tokens) {
      queries.fetch_later(c.tokens_ahead);
      c.fetch_lists(run.token + c.tokens_ahead, thread);
    }
    if (works) c.fetch_back_row(run.token, thread);
    const float* const q_row = works ? c.a.q_row(run.token, place.first_head) : nullptr;
    device::cp_async_wait<0>();
    __syncthreads();
    if (q_row != nullptr || (kPacked && c.a.q_positions != nullptr)) {
      queries.template norm_and_rotate<kLists>(q_row);
      __syncthreads();
    }
    if (queries.finish()) unrepresentable = 1;
  }

  Softmax<kTile> softmax;
  OutputTile<kTile> output;
#pragma unroll 1
  for (int base = run.begin; base < run.end; base += kTile.keys) {
    const KeyBuffer<kTile> keys = buffer_of(base);
    device::cp_async_wait<0>();
    if (copy.finish(keys, c.layout[run.scope(base)].scaled)) unrepresentable = 1;
    __syncthreads();
    const int next = base + kTile.keys;
    if (next < run.end) start(next, listed);
    listed = listed_at(next + kTile.keys);
    if (score_tile<kTile>(shared_at, scores, keys)) unrepresentable = 1;
    device::bar_sync(1 + thread / kHeadThreads, kHeadThreads);
    const auto counting = [&] {
      const BlockWork at = by_length ? kept : BlockWork::of<kTile>(c);
      return run.counting(c, base, c.a.token_of(run.token, at.first_head + softmax.row()));
    };
    const float rescale =
        softmax.template take<kLists>(c, scores, shared + (keys.valid() - shared_at), run.scope(base), counting);
    if (softmax.first()) factors[softmax.row()] = rescale;
    if (__syncthreads_or(rescale != 1.0F) != 0) output.rescale(factors);
    output.add(shared_at + kTile.scores_at(), keys);
  }

  device::pdl_trigger();
  // A key that is no number makes NaN of all packed rows, also of those for which it does not count.
  if (kPacked && !output.finite()) unrepresentable = 1;
  __syncthreads();
  const BlockWork at = by_length ? kept : BlockWork::of<kTile>(c);
  const std::int64_t token = c.first_token + at.list.token;
  const int heads = at.heads<kTile>(c);
  const int warp = thread / 32;
  if (unrepresentable != 0) {
    for (int h = warp; h < heads; h += AttentionTile::kWarps)
      attend_exactly<kTile>(c, at.list, at.first_head + h, reinterpret_cast<float*>(shared));
  } else {
    const float sum = softmax.whole_sum();
    const int row = softmax.row();
    if (at.list.parts > 1) {
      const std::int64_t state = at.list.state(c, at.first_head);
      if (softmax.first() && row < heads) {
        c.states[state + row] = make_float2(softmax.reference, sum);
        factors[row] = per_sum_unit(sum);
      }
      if (!c.half_sums) {
        output.each([&](int h, int column, const float4& v) {
          if (h < heads) *reinterpret_cast<float4*>(c.sums + (state + h) * kDim + column) = v;
        });
        return;
      }
      __syncthreads();
      output.each([&](int h, int column, const float4& v) {
        if (h >= heads) return;
        const float f = factors[h];
        *reinterpret_cast<uint2*>(c.halves(state + h) + column) =
            make_uint2(device::halves_of(v.x * f, v.y * f), device::halves_of(v.z * f, v.w * f));
      });
      return;
    }
    if (softmax.first() && row < heads) {
      const std::int64_t head = at.first_head + row;
      const Finish f = finish(c.a, head, softmax.reference, sum);
      factors[row] = f.factor * c.unit;
      if (c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
    }
    const float* const back = heads > 0 ? c.back_row(token, at.first_head) : nullptr;
    const bool rotates = kPacked ? c.positions != nullptr : back != nullptr;
    __syncthreads();
    const std::int64_t out = token * c.a.o_stride[0] + at.first_head * c.a.o_stride[1];
    // Numbers to rotate go through shared memory, so that the code for it exists once, not once for every vec4 of a
    // thread.
    auto* const rope_columns = reinterpret_cast<float*>(shared);
    if (rotates && warp == kRopeWarp) {
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
    if (rotates) {
      __syncthreads();
#pragma unroll 1
      for (int i = 4 * thread; i < heads * kRopeColumns; i += 4 * kThreads) {
        const int column = kDim - kRopeColumns + i % kRopeColumns;
        const int head = i / kRopeColumns;
        const float* const row = kPacked ? c.back_row(token, at.first_head + head) : back;
        store(c, out + head * c.a.o_stride[1] + column,
              c.rotated_back(row, column, *reinterpret_cast<const float4*>(rope_columns + i)));
      }
    }
  }
  if (at.list.parts > 1 || at.first_head + kTile.heads < c.a.heads || heads == 0) return;
  for (std::int64_t h = c.a.heads + warp; h < c.a.out_heads; h += AttentionTile::kWarps) {
    for (int d = 4 * (thread % 32); d < kDim; d += 128)
      store(c, token * c.a.o_stride[0] + h * c.a.o_stride[1] + d, make_float4(0, 0, 0, 0));
  }
}

template <int kIndex>
void launch(const TileCall& c, int key_bytes, unsigned blocks, cudaStream_t stream) {
  const int shared = kAttentionTiles[kIndex].shared_bytes(key_bytes) - AttentionTile::kOwnBytes;
  const auto start = [&]<Lists kLists>() {
    device::launch_pdl<attend<kIndex, kLists>>("sparse_attention attend", blocks, kThreads, shared, stream, c,
                                               key_bytes);
  };
  if (c.a.packed > 1) return start.template operator()<Lists::kPacked>();
  c.a.keys[0].sharing > 1 ? start.template operator()<Lists::kAlone>() : start.template operator()<Lists::kOwnRows>();
}

using Launch = void (*)(const TileCall&, int, unsigned, cudaStream_t);
template <int... kIndex>
constexpr std::array<Launch, sizeof...(kIndex)> launches(std::integer_sequence<int, kIndex...>) {
  return {launch<kIndex>...};
}
constexpr auto kLaunch = launches(std::make_integer_sequence<int, static_cast<int>(kAttentionTiles.size())>());

Decision decide(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return refused(std::move(reason));
  if (std::string missing = needs_gpu(machine); !missing.empty()) return refused(std::move(missing));
  const AttentionSplit split = split_attention(p, machine.gpu, options.deterministic);
  if (split.tile < 0) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(kAttentionTiles[1].shared_bytes(key_bytes(p))));
  }
  Decision decision;
  decision.workspace_bytes = static_cast<std::size_t>(split.workspace_bytes());
  decision.words = describe(split);
  decision.choice = split;
  return decision;
}

void run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  attend_with_tiles(p, a, context.choice<AttentionSplit>(), context.workspace, context.stream);
}

}  // namespace

void attend_with_tiles(const SparseAttention::Problem& of_tokens, const SparseAttention::Args& a,
                       const AttentionSplit& split, const Workspace& workspace, const Stream& on) {
  if (of_tokens.tokens == 0) return;
  const SparseAttention::Problem p = split.packs ? packed(of_tokens) : of_tokens;
  TileCall c = tile_call(of_tokens, a, split.packs);
  c.part_keys = split.part_keys;
  const int tile_heads = kAttentionTiles[static_cast<std::size_t>(split.tile)].heads;
  const std::int64_t tiles = (p.heads + tile_heads - 1) / tile_heads;
  c.divide(split.parts, tiles);
  c.cut = cut_of(c, split.cut);
  c.half_sums = split.half_sums;
  place_sums(c, workspace.data, split.launch_tokens);
  const cudaStream_t stream = stream_of(on);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    // The block that follows on a multiprocessor is as many blocks further on as run at once.
    c.tokens_ahead = split.parts == 1 && tokens > split.wave_tokens ? split.wave_tokens : c.tokens;
    const std::int64_t parts = c.cut.extra > 0 ? tokens + c.cut.extra : tokens * split.parts;
    c.blocks = blocks_for(tiles * parts, 1);
    const unsigned blocks = blocks_for(c.blocks + split.code_blocks(c.blocks), 1);
    kLaunch[static_cast<std::size_t>(split.tile)](c, key_bytes(p), blocks, stream);
    launch_merge(c, tokens, stream);
  }
}

template <>
Implementation<SparseAttention> cuda_row() {
  return any_gpu_row<SparseAttention>(run, decide);
}

}  // namespace smla
