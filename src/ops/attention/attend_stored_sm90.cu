#include <type_traits>

#include "device/launch_pdl.cuh"
#include "ops/attention/attend_widened.cuh"
#include "ops/attention/items_sm90.cuh"
#include "ops/attention/scores_sm90.cuh"
#include "ops/attention/stored_keys_sm90.cuh"
#include "ops/attention/values_sm90.cuh"

namespace smla::attention {

namespace {

using namespace sm90;

constexpr Form kStored{.stages = 2,
                       .held = 2,
                       .score_registers = 152,
                       .value_registers = 160,
                       .key_registers = 40,
                       .weight_stages = 1,
                       .raw_bytes = 16 * 584};
static_assert(64 * (AttentionTile::kGroups - kStored.held) >= HopperSplit::kRotatedQuery);
static_assert(Layout<kStored>::kBytes <= 227 * 1024);

template <int kCodeGroups, bool kUnitWeights, class Item, bool kQuantised>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_stored_rows(const __grid_constant__ TileCall c, std::uint32_t items, const __grid_constant__ NamedRows named) {
  using Place = Layout<kStored>;
  extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
  const Block<kStored> block{device::shared_address(dynamic)};
  using Keys = StoredKeys<kStored, Item, kCodeGroups>;
  if (threadIdx.x == 0) {
    block.init(Keys::kArrivals);
    device::fence_proxy_async();
  }
  __syncthreads();
  device::pdl_wait();
  if (named.total != nullptr && *named.total <= named.capacity) return;
  if constexpr (!std::is_same_v<Item, AlikeItem>) {
    if (!Item::find(c, block)) return;
  }
  const int group = __shfl_sync(kAll, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kKeyGroup) {
    device::fewer_registers<kStored.key_registers>();
    Keys{c, block, items}.all_tiles();
  } else if (group == kScoreGroup) {
    device::more_registers<kStored.score_registers>();
    Scores<kStored, kUnitWeights, Item, kQuantised> scores(c, block);
    scores.all_items(items);
  } else {
    device::more_registers<kStored.value_registers>();
    Values<kStored, Item, kQuantised> values(c, block, group - kValueGroup);
    values.all_items(items);
  }
  device::pdl_trigger();
}

template <int kCodeGroups, bool kUnitWeights, class Item, bool kQuantised>
void launch(const TileCall& c, std::uint32_t items, unsigned blocks, const NamedRows& named, cudaStream_t stream) {
  device::launch_pdl<attend_stored_rows<kCodeGroups, kUnitWeights, Item, kQuantised>>(
      "sparse_attention attend", blocks, kBlockThreads, Layout<kStored>::kBytes, stream, c, items, named);
}

}  // namespace

void attend_stored(const TileCall& c, std::uint32_t items, unsigned blocks, const NamedRows& named,
                   cudaStream_t stream) {
  using ByLength = CutItem<Block<kStored>>;
  const bool quantised = c.a.o_dtype == DType::kE4M3;
  const bool by_length = c.cut.extra > 0;
  if (c.layout[0].key.code_groups == 7) {
    by_length    ? launch<7, true, ByLength, false>(c, items, blocks, named, stream)
    : quantised ? launch<7, true, AlikeItem, true>(c, items, blocks, named, stream)
                 : launch<7, true, AlikeItem, false>(c, items, blocks, named, stream);
  } else {
    by_length    ? launch<8, false, ByLength, false>(c, items, blocks, named, stream)
    : quantised ? launch<8, false, AlikeItem, true>(c, items, blocks, named, stream)
                 : launch<8, false, AlikeItem, false>(c, items, blocks, named, stream);
  }
}

}  // namespace smla::attention
