// Sparse attention on Hopper's warpgroup products (wgmma). A block stays on its multiprocessor and takes one item after
// the other: a token, 64 of its heads, a part of its key list. One warpgroup widens keys to fp16 in shared memory, two
// compute. See docs/kernels/sparse_attention_sm90.md.
#include <algorithm>
#include <cmath>

#include "device/copy.cuh"
#include "device/launch_pdl.cuh"
#include "ops/attention/compute_sm90.cuh"
#include "ops/attention/hopper_split.h"
#include "ops/attention/implementations.h"
#include "ops/attention/keys_sm90.cuh"
#include "ops/attention/lists_sm90.cuh"
#include "ops/attention/merge_parts.cuh"
#include "ops/attention/tile_call.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace attention;
using namespace attention::sm90;

template <int kCodeGroups>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_hopper(const __grid_constant__ TileCall c, std::uint32_t items) {
  extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
  const Shared shared{device::shared_address(dynamic)};
  if (threadIdx.x == 0) {
    shared.init();
    device::fence_proxy_async();
  }
  __syncthreads();
  device::pdl_wait();
  const int group = __shfl_sync(kAll, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == 3) {
    device::fewer_registers<list_registers(kCodeGroups)>();
    const int warp = __shfl_sync(kAll, Lane::fresh().warp, 0);
    if (warp == 0) {
      ListWalker{c, shared, items}.all_tiles();
    } else {
      bring_queries(c, shared, items, warp - 1);
    }
  } else if (group == 2) {
    device::fewer_registers<key_registers(kCodeGroups)>();
    KeyLoader<kCodeGroups>(shared).all_tiles();
  } else {
    device::more_registers<kComputeRegisters>();
    Compute<kCodeGroups == 7> compute(c, shared);
    compute.scratch = dynamic + Place::kScratch;
    compute.all_items(items);
  }
  device::pdl_trigger();
}

template <int kCodeGroups>
void launch(const TileCall& c, std::uint32_t items, unsigned blocks, cudaStream_t stream) {
  device::launch_pdl<attend_hopper<kCodeGroups>>("sparse_attention attend", blocks, kBlockThreads, Place::kBytes,
                                                 stream, c, items);
}

/// What a plan decides: also how the kernel for any GPU computes the call, for tensors that lie in memory as this one
/// cannot read them.
struct Choice {
  HopperSplit split;
  AttentionSplit portable;
  std::int64_t multiprocessors = 1;
};

std::string refusal(const SparseAttention::Problem& p) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return reason;
  const auto groups = [&](int s) { return key_layout(*p.scope[static_cast<std::size_t>(s)].format).code_groups; };
  if (p.scopes > 1 && groups(0) != groups(1)) {
    return std::string(p.scope[0].format->name) + " and " + std::string(p.scope[1].format->name) +
           " rows; it takes one kind of rows";
  }
  const int all = groups(0);
  if (all != 7 && all != 8) {
    return std::string(p.scope[0].format->name) + " rows, " + std::to_string(64 * all) +
           " numbers of which are e4m3; it takes 448 and 512";
  }
  return "";
}

Decision decide(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = refusal(p); !reason.empty()) return refused(std::move(reason));
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  // Its first complete version; the kernel for any GPU keeps the choice until this one has passed every test on a card.
  if (options.implementation != "sm90") return refused("not chosen by itself yet; it runs where it is named");
  if (machine.gpu.shared_bytes < Place::kBytes) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(Place::kBytes));
  }
  Choice choice{.split = split_for_hopper(p, machine.gpu, options.deterministic),
                .portable = split_attention(p, machine.gpu, options.deterministic),
                .multiprocessors = machine.gpu.multiprocessors};
  Decision decision;
  decision.workspace_bytes = static_cast<std::size_t>(
      std::max(choice.split.workspace_bytes(p.heads), choice.portable.workspace_bytes(p.heads)));
  decision.words = describe(choice.split, p);
  decision.choice = choice;
  return decision;
}

/// Whether all tensors lie as this kernel reads them, and larger products are larger scores.
bool readable(const SparseAttention::Problem& p, const TileCall& c) {
  const auto q = reinterpret_cast<std::uintptr_t>(c.a.q);
  bool all = c.q_aligned && q % 16 == 0;
  for (int s = 0; s < p.scopes; ++s) {
    const RowLayout& l = c.layout[s];
    all = all && c.score_scale[s] > 0 && l.block_bits >= 0 && l.aligned &&
          (!l.scaled || (l.scales % 8 == 0 && l.scale_bytes % 8 == 0));
  }
  return all;
}

void run(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const auto& choice = context.choice<Choice>();
  TileCall c = tile_call(p, a);
  if (!readable(p, c)) {
    attend_with_tiles(p, a, choice.portable, context.workspace, context.stream);
    return;
  }
  const HopperSplit& split = choice.split;
  c.part_keys = split.part_keys;
  c.parts = static_cast<std::uint32_t>(split.parts);
  place_sums(c, context.workspace.data, split.launch_tokens);
  const std::int64_t head_tiles = (p.heads + kTileHeads - 1) / kTileHeads;
  c.head_tiles = static_cast<std::uint32_t>(head_tiles);
  const int groups = c.layout[0].key.code_groups;
  const cudaStream_t stream = stream_of(context.stream);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    const unsigned items = blocks_for(tokens * head_tiles * split.parts, 1);
    const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>(items, choice.multiprocessors));
    (groups == 7 ? launch<7> : launch<8>)(c, items, blocks, stream);
    if (split.parts > 1) launch_merge(c, tokens, stream);
  }
}

}  // namespace

template <>
Implementation<SparseAttention> sm90_row() {
  return hopper_row<SparseAttention>(run, decide);
}

}  // namespace smla
