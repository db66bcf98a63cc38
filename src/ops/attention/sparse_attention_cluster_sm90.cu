// Sparse attention for calls of few tokens on Hopper: the blocks of sparse_attention_cuda.cu, in clusters. The parts of
// a token's list are the blocks of a cluster, which adds them up in shared memory (merge_cluster_sm90.cuh) where the
// portable kernel writes them to the workspace for a second one.
#include <array>
#include <utility>

#include "device/launch.cuh"
#include "device/launch_pdl.cuh"
#include "ops/attention/attend_tile.cuh"
#include "ops/attention/cluster_split.h"
#include "ops/attention/implementations.h"
#include "ops/attention/merge_cluster_sm90.cuh"
#include "ops/attention/tile_call.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace attention;

constexpr std::string_view kName = "sm90_cluster";

template <int kIndex>
__global__ void __launch_bounds__(kThreads, kClusterTiles[kIndex].resident)
    attend_in_cluster(const __grid_constant__ TileCall c, int key_bytes) {
  constexpr AttentionTile kTile = kClusterTiles[kIndex];
  static_assert(ClusterMerge<kTile>::kBytes <= kTile.buffers_at() + 2 * kTile.keys * AttentionTile::kDim,
                "what a cluster adds up fits what rows of codes take");
  attend_tile<kTile, ClusterMerge<kTile>>(c, key_bytes);
}

template <int kIndex>
void launch(const TileCall& c, int key_bytes, unsigned clusters, cudaStream_t stream) {
  const int shared = kClusterTiles[kIndex].shared_bytes(key_bytes) - AttentionTile::kOwnBytes;
  device::launch_clusters<attend_in_cluster<kIndex>>("sparse_attention attend, cluster", clusters, c.parts, kThreads,
                                                     shared, stream, c, key_bytes);
}

using Launch = void (*)(const TileCall&, int, unsigned, cudaStream_t);
template <int... kIndex>
constexpr std::array<Launch, sizeof...(kIndex)> launches(std::integer_sequence<int, kIndex...>) {
  return {launch<kIndex>...};
}
constexpr auto kLaunch = launches(std::make_integer_sequence<int, static_cast<int>(kClusterTiles.size())>());

struct Choice {
  AttentionSplit clusters{.tile = -1};
  AttentionSplit portable;
};

Decision decide(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return refused(std::move(reason));
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  // The kernel with a merge of its own keeps the choice until this one has passed every test on a card.
  if (options.implementation != kName) return refused("not chosen by itself yet; it runs where it is named");
  Choice choice{.portable = split_attention(p, machine.gpu, options.deterministic)};
  if (choice.portable.tile < 0)
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block");
  // A token's bits are the same in any batch where a call is cut in one way only.
  if (!options.deterministic) choice.clusters = split_into_clusters(p, machine.gpu, choice.portable);
  Decision decision;
  decision.words = choice.clusters.tile >= 0 ? describe_clusters(choice.clusters) : describe(choice.portable, p);
  decision.workspace_bytes = static_cast<std::size_t>(
      std::max(choice.portable.workspace_bytes(p.heads), choice.clusters.workspace_bytes(p.heads)));
  decision.choice = choice;
  return decision;
}

void run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  const auto& choice = context.choice<Choice>();
  const AttentionSplit& split = choice.clusters;
  if (p.tokens == 0) return;
  if (split.tile < 0) {
    attend_with_tiles(p, a, choice.portable, context.workspace, context.stream);
    return;
  }
  TileCall c = tile_call(p, a);
  c.part_keys = split.part_keys;
  c.parts = static_cast<std::uint32_t>(split.parts);
  place_sums(c, context.workspace.data, split.launch_tokens);  // of heads that are computed in fp32
  const int tile_heads = kClusterTiles[static_cast<std::size_t>(split.tile)].heads;
  const std::int64_t tiles = (p.heads + tile_heads - 1) / tile_heads;
  c.head_tiles = static_cast<std::uint32_t>(tiles);
  c.tokens_ahead = c.tokens;
  const cudaStream_t stream = stream_of(context.stream);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    kLaunch[static_cast<std::size_t>(split.tile)](c, key_bytes(p), blocks_for(tokens * tiles, 1), stream);
  }
}

}  // namespace

Implementation<SparseAttention> sparse_attention_cluster_row() {
  Implementation<SparseAttention> row = hopper_row<SparseAttention>(run, decide);
  row.name = kName;
  return row;
}

}  // namespace smla
