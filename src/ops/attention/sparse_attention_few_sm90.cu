// Sparse attention on Hopper for tiles of 8, 16 or 32 heads: keys are the rows of wgmma's products, heads the columns.
// Blocks, items and key lists are those of sparse_attention_sm90.cu, but two warpgroups widen keys and one computes.
// See docs/kernels/sparse_attention_sm90.md.
#include <algorithm>

#include "device/launch_pdl.cuh"
#include "ops/attention/compute_few_sm90.cuh"
#include "ops/attention/hopper_call.h"
#include "ops/attention/implementations.h"
#include "ops/attention/keys_sm90.cuh"
#include "ops/attention/lists_sm90.cuh"
#include "ops/attention/merge_parts.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace attention;
using namespace attention::sm90;

constexpr std::string_view kName = "sm90_few";

// Registers of a thread, at the beginning and by what its warpgroup does: computes, widens (two do), or lists.
constexpr int kBeginRegisters = 128;
constexpr int computing_registers(int heads) { return heads == 32 ? 224 : 152; }
constexpr int widening_registers(int heads) { return heads == 32 ? 128 : 152; }
constexpr int listing_registers(int heads) { return heads == 32 ? 32 : 40; }

/// kCodeGroups: of the rows as their caches store them; kUnitWeights: see ComputeFew; Item: AlikeItem, or CutItem for
/// lists that are cut by their lengths.
template <int kCodeGroups, bool kUnitWeights, class Item>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_few(const __grid_constant__ TileCall c, std::uint32_t items) {
  static_assert(computing_registers(Item::kHeads) + 2 * widening_registers(Item::kHeads) +
                    listing_registers(Item::kHeads) <=
                4 * kBeginRegisters);
  extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
  const Shared shared{device::shared_address(dynamic)};
  if (threadIdx.x == 0) {
    shared.init(1, 2, false);
    device::fence_proxy_async();
  }
  __syncthreads();
  device::pdl_wait();
  if constexpr (Item::kByLength) {
    if (!Item::find(c, shared)) return;
  }
  const int group = __shfl_sync(kAll, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == 3) {
    device::set_registers<listing_registers(Item::kHeads), kBeginRegisters>();
    const int warp = __shfl_sync(kAll, Lane::fresh().warp, 0);
    if (warp == 0) {
      ListWalker<kCodeGroups, Item, true>{c, NamedRows{}, shared, items}.all_tiles();
    } else {
      bring_queries<Item>(c, shared, items, warp - 1);
    }
  } else if (group > 0) {
    device::set_registers<widening_registers(Item::kHeads), kBeginRegisters>();
    if (group == 1) {
      KeyLoader < kCodeGroups, 0, 1, Item::kHeads<32>(shared).all_tiles();
    } else {
      KeyLoader < kCodeGroups, 1, 1, Item::kHeads<32>(shared).all_tiles();
    }
  } else {
    device::set_registers<computing_registers(Item::kHeads), kBeginRegisters>();
    ComputeFew<kUnitWeights, Item>(c, shared, dynamic).all_items(items);
  }
  device::pdl_trigger();
}

struct Attend {
  const TileCall& c;
  std::uint32_t items;
  unsigned blocks;
  cudaStream_t stream;

  template <int kCodeGroups, bool kUnitWeights, class Item>
  void launch() const {
    device::launch_pdl<attend_few<kCodeGroups, kUnitWeights, Item>>("sparse_attention attend", blocks, kBlockThreads,
                                                                    Place::kBytes, stream, c, items);
  }
  template <int kHeads>
  void launch_tile() const {
    const bool by_length = c.cut.extra > 0;
    if (c.layout[0].key.code_groups == 7) {
      by_length ? launch<7, true, CutItem<kHeads>>() : launch<7, true, AlikeItem<kHeads>>();
    } else {
      by_length ? launch<8, false, CutItem<kHeads>>() : launch<8, false, AlikeItem<kHeads>>();
    }
  }
};

/// Why a call that names no implementation is not computed here; empty where this is estimated to be the shortest way.
std::string shorter_way(const SparseAttention::Problem& p, const Choice& choice, const Machine& machine) {
  const std::int64_t portable = choice.portable.cost;
  const std::int64_t stored = split_for_hopper(p, machine.gpu, false, HopperKind::kStored).cost;
  const std::int64_t cost = choice.split.cost;
  if (p.tokens >= HopperCost::kWidenedTokens) {
    const std::int64_t widened = split_for_hopper(p, machine.gpu, false, HopperKind::kWidened).cost;
    if (widened + widened / 32 < std::min(cost, std::min(stored, portable)))
      return "estimated at " + compare_costs(cost, widened, "sm90_widened");
  }
  if (cost < std::min(stored, portable)) return "";
  return "estimated at " +
         (stored < portable ? compare_costs(cost, stored, "sm90") : compare_costs(cost, portable, "cuda"));
}

Decision decide(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = refusal(p); !reason.empty()) return refused(std::move(reason));
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (machine.gpu.shared_bytes < Place::kBytes) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(Place::kBytes));
  }
  const Choice choice{.split = split_for_hopper(p, machine.gpu, options.deterministic, HopperKind::kFew),
                      .portable = split_attention(p, machine.gpu, options.deterministic),
                      .multiprocessors = machine.gpu.multiprocessors};
  if (options.implementation != kName) {
    if (options.deterministic) return refused("deterministic results; it gives them where it is named");
    if (std::string way = shorter_way(p, choice, machine); !way.empty()) return refused(std::move(way));
  }
  Decision decision;
  decision.words = describe(choice.split, p);
  decision.workspace_bytes = static_cast<std::size_t>(
      std::max(choice.split.workspace_bytes(p.heads), choice.portable.workspace_bytes(p.heads)));
  decision.choice = choice;
  return decision;
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
  cut_call(c, split, context.workspace.data);
  const cudaStream_t stream = stream_of(context.stream);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    const unsigned items = blocks_for(items_of(c, tokens), 1);
    const Attend attend{.c = c,
                        .items = items,
                        .blocks = static_cast<unsigned>(std::min<std::int64_t>(items, choice.multiprocessors)),
                        .stream = stream};
    if (split.tile_heads == 8) {
      attend.launch_tile<8>();
    } else if (split.tile_heads == 16) {
      attend.launch_tile<16>();
    } else {
      attend.launch_tile<32>();
    }
    launch_merge(c, tokens, stream);
  }
}

}  // namespace

Implementation<SparseAttention> sparse_attention_few_row() {
  Implementation<SparseAttention> row = hopper_row<SparseAttention>(run, decide);
  row.name = kName;
  return row;
}

}  // namespace smla
