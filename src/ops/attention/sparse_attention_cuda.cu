// Sparse attention on the tensor cores of any GPU from sm_80 on: a launch of blocks (attend_tile.cuh), and one that
// merges the parts of lists where they are cut. See docs/kernels/sparse_attention.md.
#include <array>
#include <utility>

#include "device/launch.cuh"
#include "device/launch_pdl.cuh"
#include "ops/attention/attend_tile.cuh"
#include "ops/attention/implementations.h"
#include "ops/attention/merge_parts.cuh"
#include "ops/attention/tile_call.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace attention;

template <int kIndex>
__global__ void __launch_bounds__(kThreads, resident<kAttentionTiles[kIndex]>())
    attend(const __grid_constant__ TileCall c, int key_bytes) {
  attend_tile<kAttentionTiles[kIndex], void>(c, key_bytes);
}

template <int kIndex>
void launch(const TileCall& c, int key_bytes, unsigned blocks, cudaStream_t stream) {
  const int shared = kAttentionTiles[kIndex].shared_bytes(key_bytes) - AttentionTile::kOwnBytes;
  device::launch_pdl<attend<kIndex>>("sparse_attention attend", blocks, kThreads, shared, stream, c, key_bytes);
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
  decision.workspace_bytes = static_cast<std::size_t>(split.workspace_bytes(p.heads));
  decision.words = describe(split, p);
  decision.choice = split;
  return decision;
}

void run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  attend_with_tiles(p, a, context.choice<AttentionSplit>(), context.workspace, context.stream);
}

}  // namespace

void attend_with_tiles(const SparseAttention::Problem& p, const SparseAttention::Args& a, const AttentionSplit& split,
                       const Workspace& workspace, const Stream& on) {
  if (p.tokens == 0) return;
  TileCall c = tile_call(p, a);
  c.part_keys = split.part_keys;
  c.parts = static_cast<std::uint32_t>(split.parts);
  place_sums(c, workspace.data, split.launch_tokens);
  const int tile_heads = kAttentionTiles[static_cast<std::size_t>(split.tile)].heads;
  const std::int64_t tiles = (p.heads + tile_heads - 1) / tile_heads;
  c.head_tiles = static_cast<std::uint32_t>(tiles);
  const cudaStream_t stream = stream_of(on);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    // The block that follows on a multiprocessor is as many blocks further on as run at once.
    c.tokens_ahead = split.parts == 1 && tokens > split.wave_tokens ? split.wave_tokens : c.tokens;
    kLaunch[static_cast<std::size_t>(split.tile)](c, key_bytes(p), blocks_for(tokens * tiles * split.parts, 1), stream);
    if (split.parts == 1) continue;
    launch_merge(c, tokens, stream);
  }
}

template <>
Implementation<SparseAttention> cuda_row() {
  return any_gpu_row<SparseAttention>(run, decide);
}

}  // namespace smla
