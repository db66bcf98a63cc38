// Sparse attention of few queries on Hopper, in one launch without a merge (docs/kernels/sparse_attention_small.md).
#include "device/launch_pdl.cuh"
#include "ops/attention/implementations.h"
#include "ops/attention/small_compute_sm90.cuh"
#include "ops/attention/tile_call.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace attention;
using attention::small::Place;

constexpr std::string_view kSmallName = "sm90_small";

template <int kBlocks>
__global__ void __launch_bounds__(small::kThreads, 1) attend_small(const __grid_constant__ TileCall c) {
  extern __shared__ __align__(128) std::uint8_t dynamic[];
  const std::uint32_t shared = device::shared_address(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(kAll, thread / 32, 0);
  const std::uint32_t cluster = blockIdx.x / kBlocks;
  const std::uint32_t token = c.by_head_tiles.quotient(cluster);
  const int first_head = static_cast<int>(cluster - token * c.head_tiles) * small::kHeads;
  using Compute = small::Compute<kBlocks>;
  const small::Work<kBlocks> w{.c = c,
                               .shared = shared,
                               .token = token,
                               .first_head = first_head,
                               .heads = min(max(static_cast<int>(c.a.heads) - first_head, 0), small::kHeads),
                               .rank = device::cluster_rank()};
  if (thread == 0) {
#pragma unroll
    for (int s = 0; s < small::kStages; ++s) {
      device::mbarrier_init(shared + Place::kFull + 8 * s, small::kKeys);
      device::mbarrier_init(shared + Place::kFree + 8 * s, small::kGroups);
    }
    device::mbarrier_init(shared + Place::kInbox, 1);
    device::mbarrier_arrive_expect(shared + Place::kInbox, w.sent());
    device::fence_proxy_async();
  }
  __syncthreads();
  device::cluster_arrive();  // before one block writes to another, all run
  // The kernel behind this one may begin: it has weights to bring, and few multiprocessors are taken here.
  device::pdl_wait_and_trigger();
  if (warp >= small::kGroups) {
    small::Rows<kBlocks>{w}.all_tiles();
    __syncwarp();
    device::cluster_wait();
    return;
  }
  Compute compute(w, warp);
  compute.copy_queries();
  const float* const q_row = c.a.q_row(w.token, 0);
  if (thread < small::kHeads)
    device::st_shared_f32(shared + Place::kSinks + 4 * thread, thread < w.heads ? c.a.sink_of(first_head + thread) : 0);
  const float* const back = c.back_row(w.token, 0);
  if (back != nullptr && thread < 2 * c.rope.pairs)
    device::st_shared_f32(shared + Place::kBack + 4 * thread, __ldg(back + thread));
  compute.make_queries(q_row);
  Compute::meet();
  int entries = 1;  // at least; the first tile's barrier tells how many
#pragma unroll 1
  for (int first = 0; first < entries; first += small::kKeys) {
    const int stage = first / small::kKeys % small::kStages;
    device::mbarrier_wait(shared + Place::kFull + 8 * stage, first / small::kKeys / small::kStages & 1);
    entries = static_cast<int>(device::ld_shared_u32(shared + Place::kEntries));
    const int steps = (min(entries - first, small::kKeys) + small::kStep - 1) / small::kStep;
    if (steps <= 0) break;
    compute.score(stage, small::kStep * steps);
    Compute::meet();
    compute.weigh(stage, steps);
    Compute::meet();
    compute.add_values(stage, small::kStep * steps);
    __syncwarp();
    if (compute.lane == 0) device::mbarrier_arrive(shared + Place::kFree + 8 * stage);
  }
  compute.send();
  device::mbarrier_wait_cluster(shared + Place::kInbox, 0);
  const float* const row = back == nullptr ? nullptr : reinterpret_cast<float*>(dynamic + Place::kBack);
  constexpr int kWarps = kDim / 128;  // of a head
#pragma unroll 1
  for (int own = warp / kWarps; own < compute.kOwnHeads; own += small::kGroups / kWarps) compute.finish_head(own, row);
}

template <int kBlocks>
void launch(const TileCall& c, unsigned clusters, cudaStream_t stream) {
  device::launch_cluster<attend_small<kBlocks>, kBlocks>("sparse_attention attend", clusters, small::kThreads,
                                                         Place::kBytes, stream, c);
}

/// How the kernel for any GPU computes the call, for tensors that lie in memory as this one cannot read them.
struct Choice {
  int blocks = SmallSplit::kMostBlocks;  ///< of a cluster
  AttentionSplit portable;
};

Decision decide(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return refused(std::move(reason));
  if (std::string reason = small_refusal(p); !reason.empty()) return refused(std::move(reason));
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (machine.gpu.shared_bytes < Place::kBytes) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(Place::kBytes));
  }
  // Which entries share a tile, and so a token's bits, depends on how many tokens there are and how wide index
  // matrices.
  if (options.deterministic) return refused("deterministic results, which cuda gives");
  const SmallSplit split = split_small(p, machine.gpu);
  const Choice choice{.blocks = split.blocks, .portable = split_attention(p, machine.gpu, false)};
  if (options.implementation != kSmallName) {
    if (!split.fits()) {
      return refused(std::to_string(split.clusters) + " clusters of blocks, of which " + std::to_string(split.at_once) +
                     " find room at once; it takes more where it is named");
    }
    const std::int64_t portable = choice.portable.cost;
    const std::int64_t stored = split_for_hopper(p, machine.gpu, false).cost;
    if (split.cost >= std::min(portable, stored)) {
      return refused("estimated at " + (stored < portable ? compare_costs(split.cost, stored, "sm90")
                                                          : compare_costs(split.cost, portable, "cuda")));
    }
  }
  Decision decision;
  decision.words = describe(split);
  decision.workspace_bytes = static_cast<std::size_t>(choice.portable.workspace_bytes());
  decision.choice = choice;
  return decision;
}

/// Whether all tensors lie as this kernel reads them.
bool readable(const SparseAttention::Problem& p, const TileCall& c) {
  bool all = c.q_aligned;
  for (int s = 0; s < p.scopes; ++s) {
    const RowLayout& l = c.layout[s];
    all = all && l.aligned && l.block_bits >= 0 && l.row_bytes <= Place::kMostRowBytes &&
          (!l.scaled || (l.scales % 8 == 0 && l.scale_bytes % 8 == 0));
  }
  return all;
}

/// Factors of scores and weights for rows whose numbers are not multiplied by kHalfUnit.
void set_factors(const SparseAttention::Problem& p, TileCall& c) {
  float unit[SparseAttention::kMaxScopes] = {0, 0};
  c.unit = 0;
  for (int s = 0; s < p.scopes; ++s) {
    const device::CacheView& cache = c.a.keys[s].cache;
    unit[s] = cache.kind == ScaleKind::kPerTensor ? cache.scale : 1.0F;
    c.score_scale[s] = c.a.scale * (p.q == DType::kE4M3 ? p.q_scale : 1.0F) * unit[s] * kLog2E;
    c.unit = std::max(c.unit, std::abs(unit[s]));
  }
  if (c.unit == 0) c.unit = 1;
  for (int s = 0; s < p.scopes; ++s) c.weight_scale[s] = unit[s] / c.unit;
}

void run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  TileCall c = tile_call(p, a);
  if (!readable(p, c)) {
    attend_with_tiles(p, a, context.choice<Choice>().portable, context.workspace, context.stream);
    return;
  }
  set_factors(p, c);
  c.divide(1, (p.padded_heads() + small::kHeads - 1) / small::kHeads);
  const unsigned clusters = blocks_for(p.tokens * c.head_tiles, 1);
  const cudaStream_t stream = stream_of(context.stream);
  switch (context.choice<Choice>().blocks) {
    case 8: return launch<8>(c, clusters, stream);
    case 6: return launch<6>(c, clusters, stream);
    case 4: return launch<4>(c, clusters, stream);
    case 3: return launch<3>(c, clusters, stream);
    default: return launch<2>(c, clusters, stream);
  }
}

}  // namespace

Implementation<SparseAttention> sparse_attention_small_row() {
  Implementation<SparseAttention> row = hopper_row<SparseAttention>(run, decide);
  row.name = kSmallName;
  return row;
}

}  // namespace smla
