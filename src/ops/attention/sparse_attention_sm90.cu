// Sparse attention on Hopper's warpgroup products (wgmma). A block stays on its multiprocessor and takes one item after
// the other: a token, 64 of its heads, a part of its key list. One warpgroup widens keys to fp16 in shared memory, two
// compute. See docs/kernels/sparse_attention_sm90.md.
#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "device/launch_pdl.cuh"
#include "ops/attention/compute_sm90.cuh"
#include "ops/attention/hopper_split.h"
#include "ops/attention/implementations.h"
#include "ops/attention/keys_sm90.cuh"
#include "ops/attention/lists_sm90.cuh"
#include "ops/attention/merge_parts.cuh"
#include "ops/attention/small_split.h"
#include "ops/attention/tile_call.cuh"
#include "ops/attention/widen_rows.cuh"
#include "ops/cuda_row.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

using namespace attention;
using namespace attention::sm90;

constexpr std::string_view kWidenedName = "sm90_widened";
constexpr int kRotatedE4M3 = 64;  ///< numbers of a head that are rotated back where o is E4M3

/// kCodeGroups: of the rows as their caches store them, or kWidened for rows that `named` has; kUnitWeights: see
/// Compute; Item: AlikeItem, or CutItem for lists that are cut by their lengths, or PackedItem of either,
/// or AloneItem; kQuantised: o
/// is E4M3. Where `named`
/// has the rows of a call that was to be computed from them, the kernel for rows as they are stored returns, and where
/// they did not fit, the other.
template <int kCodeGroups, bool kUnitWeights, class Item, bool kQuantised>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_hopper(const __grid_constant__ TileCall c, std::uint32_t items, const __grid_constant__ NamedRows named) {
  constexpr bool kByCopies = kCodeGroups == kWidened;
  extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
  const Shared shared{device::shared_address(dynamic)};
  if (threadIdx.x == 0) {
    shared.init(kByCopies);
    device::fence_proxy_async();
  }
  __syncthreads();
  // Where they need nothing of earlier kernels for it, a warp that widens keys and one that computes rehearse while
  // those still run. Everything that these warps read of memory later is told by warps that have waited.
  if (named.total != nullptr) {
    device::pdl_wait();
    if ((*named.total <= named.capacity) != kByCopies) return;
  }
  const int group = __shfl_sync(kAll, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == 3) {
    device::fewer_registers<list_registers(kCodeGroups)>();
    device::pdl_wait();
    if constexpr (Item::kByLength) Item::template find<Item::kLists>(c, shared);
    const int warp = __shfl_sync(kAll, Lane::fresh().warp, 0);
    if (warp == 0) {
      ListWalker<kCodeGroups, Item>{c, named, shared, items}.all_tiles();
    } else {
      bring_queries<Item>(c, shared, items, warp - 1);
    }
  } else if (group == 2) {
    device::fewer_registers<key_registers(kCodeGroups)>();
    if constexpr (kByCopies) {
      KeyCopier{shared}.all_tiles();
    } else {
      KeyLoader<kCodeGroups>(shared).all_tiles();
    }
  } else {
    device::more_registers<kComputeRegisters>();
    Compute<kUnitWeights, Item, kQuantised> compute(c, shared);
    compute.all_items(items);
  }
  device::pdl_trigger();
}

struct Attend {
  const TileCall& c;
  std::uint32_t items;
  unsigned blocks;
  NamedRows named;
  cudaStream_t stream;

  template <int kCodeGroups, bool kUnitWeights, class Item, bool kQuantised>
  void launch() const {
    device::launch_pdl<attend_hopper<kCodeGroups, kUnitWeights, Item, kQuantised>>(
        "sparse_attention attend", blocks, kBlockThreads, Place::kBytes, stream, c, items, named);
  }
  template <int kCodeGroups, bool kUnitWeights>
  void launch() const {
    if (c.a.o_dtype == DType::kE4M3) {
      launch<kCodeGroups, kUnitWeights, AlikeItem, true>();
    } else {
      launch<kCodeGroups, kUnitWeights, AlikeItem, false>();
    }
  }
  template <int kCodeGroups, bool kUnitWeights>
  void launch_cut() const {
    const bool by_length = c.cut.extra > 0;
    if (c.a.packed > 1) {
      by_length ? launch<kCodeGroups, kUnitWeights, PackedItem<CutItem>, false>()
                : launch<kCodeGroups, kUnitWeights, PackedItem<AlikeItem>, false>();
    } else if (c.a.keys[0].sharing > 1) {
      launch<kCodeGroups, kUnitWeights, AloneItem, false>();
    } else {
      by_length ? launch<kCodeGroups, kUnitWeights, CutItem, false>() : launch<kCodeGroups, kUnitWeights>();
    }
  }
  /// Of rows as their caches store them.
  void launch_stored() const {
    switch (c.layout[0].key.code_groups) {
      case 0: return launch_cut<0, true>();
      case 7: return launch_cut<7, true>();
      default: return launch_cut<8, false>();
    }
  }
  void launch_widened() const {
    if (c.weight_scale[0] == 1 && (c.a.scopes == 1 || c.weight_scale[1] == 1)) {
      launch<kWidened, true>();
    } else {
      launch<kWidened, false>();
    }
  }
};

/// What a plan decides: also how the kernel for any GPU computes the call, for tensors that lie in memory as this one
/// cannot read them.
struct Choice {
  HopperSplit split;
  AttentionSplit portable;
  std::int64_t multiprocessors = 1;
  std::shared_ptr<const Decision> quantised;  ///< where o is E4M3: how the call is computed in BF16 and then quantised
  std::size_t named_bytes = 0;  ///< of the workspace, behind the split's, for rows that are widened first; 0: none are
};

/// Groups of codes of a scope's rows.
int code_groups(const SparseAttention::Problem& p, int scope) {
  return key_layout(*p.scope[static_cast<std::size_t>(scope)].format).code_groups;
}
/// Whether the kernel reads all rows as their caches store them.
bool reads_stored(const SparseAttention::Problem& p) {
  const int groups = code_groups(p, 0);
  return (groups == 0 || groups == 7 || groups == 8) && (p.scopes == 1 || code_groups(p, 1) == groups);
}

std::string refusal(const SparseAttention::Problem& p) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return reason;
  if (reads_stored(p)) return "";
  if (p.scopes > 1 && code_groups(p, 0) != code_groups(p, 1)) {
    return std::string(p.scope[0].format->name) + " and " + std::string(p.scope[1].format->name) +
           " rows; it takes one kind of rows";
  }
  return std::string(p.scope[0].format->name) + " rows, " + std::to_string(64 * code_groups(p, 0)) +
         " numbers of which are e4m3; it takes 0, 448 and 512";
}

/// Why a call that names no implementation is not computed here; empty where this is estimated to be the shortest way.
std::string shorter_way(bool widens, const SparseAttention::Problem& p, const Choice& choice, const Machine& machine) {
  if (!reads_stored(p) || (widens && code_groups(p, 0) == 0))
    return "not measured with these rows; it runs where it is named";
  const std::int64_t portable = choice.portable.cost;
  if (!widens) {
    if (choice.split.cost >= portable) return "estimated at " + compare_costs(choice.split.cost, portable, "cuda");
    const SmallSplit small = split_small(p, machine.gpu);
    if (!small.fits() || small.cost >= choice.split.cost || !small_refusal(p).empty()) return "";
    return "estimated at " + compare_costs(choice.split.cost, small.cost, "sm90_small");
  }
  if (p.tokens < HopperCost::kWidenedTokens) {
    return std::to_string(p.tokens) + " tokens, whose lists may share no rows; from " +
           std::to_string(HopperCost::kWidenedTokens) + " on it is chosen by estimates";
  }
  const std::int64_t stored = split_for_hopper(p, machine.gpu, false).cost;
  // How many rows are named, the device finds out. Where they do not fit, widening them was in vain.
  const std::int64_t cost = choice.split.cost + choice.split.cost / 32;
  if (cost < std::min(stored, portable)) return "";
  return "estimated at " +
         (stored < portable ? compare_costs(cost, stored, "sm90") : compare_costs(cost, portable, "cuda"));
}

Decision decide_as(std::string_view name, bool widens, const SparseAttention::Problem& p, const PlanOptions& options,
                   const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (machine.gpu.shared_bytes < Place::kBytes) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(Place::kBytes));
  }
  // What E4M3 o is made of has the bits of BF16 o, so it is cut like it.
  SparseAttention::Problem cut_as = p;
  if (is_quantised(p)) {
    cut_as.o = DType::kBF16;
    cut_as.output_epilogue.reset();
  }
  Choice choice{.split = split_for_hopper(cut_as, machine.gpu, options.deterministic, widens),
                .portable = split_attention(cut_as, machine.gpu, options.deterministic),
                .multiprocessors = machine.gpu.multiprocessors};
  if (is_quantised(p)) {
    if (p.output_epilogue->rope_dim != kRotatedE4M3) {
      return refused("F8_E4M3 o with " + std::to_string(p.output_epilogue->rope_dim) +
                     " numbers of a head to rotate back; it writes those with " + std::to_string(kRotatedE4M3));
    }
    choice.split.cut.extra = 0;  // its kernels know only lists that are cut alike
  }
  if (options.implementation != name) {
    // The choice depends on the number of tokens, and a token's bits on the choice.
    if (options.deterministic) return refused("deterministic results; it gives them where it is named");
    if (std::string way = shorter_way(widens, p, choice, machine); !way.empty()) return refused(std::move(way));
  }
  std::size_t bytes = static_cast<std::size_t>(choice.split.workspace_bytes());
  Decision decision;
  decision.words = describe(choice.split);
  if (widens) {
    // Together at most NamedRows::kBytes, unless the parts' sums take most of that.
    static_assert(AttentionSplit::kScratchBytes + NamedRows::kBytes / 4 <= AttentionSplit::kMostBytes);
    bytes = (bytes + 1023) / 1024 * 1024;
    choice.named_bytes = std::max(NamedRows::kBytes / 4, NamedRows::kBytes - std::min(bytes, NamedRows::kBytes));
    bytes += choice.named_bytes;
    decision.words += ", rows that the lists name widened first, up to " +
                      std::to_string(choice.named_bytes / (NamedRows::kRowBytes + 4)) + " of them";
  }
  decision.workspace_bytes = std::max(bytes, static_cast<std::size_t>(choice.portable.workspace_bytes()));
  if (is_quantised(p)) {
    PlanOptions portable = options;
    portable.implementation = "cuda";
    static const Implementation<SparseAttention> kPortable = cuda_row<SparseAttention>();
    choice.quantised = std::make_shared<const Decision>(decide_quantised_pieces(kPortable, p, portable, machine));
    if (!choice.quantised->refusal.empty()) return refused(choice.quantised->refusal);
    decision.workspace_bytes = std::max(decision.workspace_bytes, choice.quantised->workspace_bytes);
  }
  decision.choice = choice;
  return decision;
}

Decision decide(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = refusal(p); !reason.empty()) return refused(std::move(reason));
  return decide_as("sm90", false, p, options, machine);
}
Decision decide_widened(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = tensor_core_refusal(p); !reason.empty()) return refused(std::move(reason));
  if (p.tokens_per_list > 1) return refused("tokens that share rows of indices; it takes rows of their own");
  return decide_as(kWidenedName, true, p, options, machine);
}

/// Whether all tensors lie as this kernel reads them, and larger products are larger scores.
bool readable(const SparseAttention::Problem& p, const TileCall& c) {
  const auto q = reinterpret_cast<std::uintptr_t>(c.a.q);
  bool all = c.q_aligned && q % 16 == 0 && (p.o != DType::kE4M3 || c.word == 16);
  for (int s = 0; s < p.scopes; ++s) {
    const RowLayout& l = c.layout[s];
    all = all && c.score_scale[s] > 0 && l.block_bits >= 0 && l.aligned &&
          (!l.scaled || (l.scales % 8 == 0 && l.scale_bytes % 8 == 0));
  }
  return all;
}

/// Where the rows of a call are to be widened, and whether they fit for certain.
struct Widening {
  NamedRows rows;
  bool certain = false;
};
Widening widening(const SparseAttention::Problem& p, const TileCall& c, const Choice& choice, std::uint8_t* workspace) {
  if (choice.named_bytes == 0) return {};
  const auto sums = static_cast<std::size_t>(choice.split.workspace_bytes() + 1023) / 1024 * 1024;
  const std::int64_t slots[] = {c.layout[0].num_slots, c.layout[1].num_slots};
  Widening w{.rows = NamedRows::in(workspace + sums, choice.named_bytes, slots, p.scopes)};
  const std::int64_t most = std::min(p.tokens * listed_entries(p), slots[0] + (p.scopes > 1 ? slots[1] : 0));
  w.certain = most <= std::int64_t{w.rows.capacity};
  return w;
}

/// The call by the kernel for any GPU.
void attend_elsewhere(const SparseAttention::Problem& p, const SparseAttention::Args& a, const Choice& choice,
                      const RunContext& context) {
  if (!is_quantised(p)) return attend_with_tiles(p, a, choice.portable, context.workspace, context.stream);
  const std::size_t bytes = choice.quantised->workspace_bytes;
  if (context.workspace.bytes < bytes) {
    throw InvalidArgument("sparse_attention: workspace: got " + std::to_string(context.workspace.bytes) +
                          " bytes, expected " + std::to_string(bytes) +
                          " for F8_E4M3 o and tensors that sm90 cannot read");
  }
  RunContext of_pieces = context;
  of_pieces.decision = choice.quantised.get();
  run_quantised_pieces(p, a, of_pieces);
}

void run(const SparseAttention::Problem& of_tokens, const SparseAttention::Args& a, const RunContext& context) {
  if (of_tokens.tokens == 0) return;
  const auto& choice = context.choice<Choice>();
  const SparseAttention::Problem p = choice.split.packs ? packed(of_tokens) : of_tokens;
  TileCall c = tile_call(of_tokens, a, choice.split.packs);
  const Widening wide = widening(p, c, choice, static_cast<std::uint8_t*>(context.workspace.data));
  const bool widens = wide.rows.capacity > 0 && wide.rows.words > 0 && (wide.certain || reads_stored(p));
  if (!readable(p, c) || (!widens && !reads_stored(p))) {
    attend_elsewhere(of_tokens, a, choice, context);
    return;
  }
  const HopperSplit& split = choice.split;
  c.part_keys = split.part_keys;
  const std::int64_t head_tiles = (p.heads + kTileHeads - 1) / kTileHeads;
  c.divide(split.parts, head_tiles);
  c.cut = cut_of(c, split.cut);
  c.half_sums = split.half_sums;
  place_sums(c, context.workspace.data, split.launch_tokens);
  const cudaStream_t stream = stream_of(context.stream);
  for (c.first_token = 0; c.first_token < p.tokens; c.first_token += split.launch_tokens) {
    const std::int64_t tokens = std::min(split.launch_tokens, p.tokens - c.first_token);
    const std::int64_t parts = c.cut.extra > 0 ? tokens + c.cut.extra : tokens * split.parts;
    const unsigned items = blocks_for(head_tiles * parts, 1);
    const Attend attend{.c = c,
                        .items = items,
                        .blocks = static_cast<unsigned>(std::min<std::int64_t>(items, choice.multiprocessors)),
                        .named = widens ? wide.rows : NamedRows{},
                        .stream = stream};
    if (widens) {
      widen_named_rows(c, wide.rows, tokens, choice.multiprocessors, stream);
      attend.launch_widened();
    }
    if (!widens || !wide.certain) attend.launch_stored();
    launch_merge(c, tokens, stream);
  }
}

}  // namespace

template <>
Implementation<SparseAttention> sm90_row() {
  return hopper_row<SparseAttention>(run, decide);
}

Implementation<SparseAttention> sparse_attention_widened_row() {
  Implementation<SparseAttention> row = hopper_row<SparseAttention>(run, decide_widened);
  row.name = kWidenedName;
  return row;
}

}  // namespace smla
