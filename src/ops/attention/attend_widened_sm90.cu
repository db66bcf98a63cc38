#include "device/launch_pdl.cuh"
#include "ops/attention/attend_widened.cuh"
#include "ops/attention/copies_sm90.cuh"
#include "ops/attention/items_sm90.cuh"
#include "ops/attention/scores_sm90.cuh"
#include "ops/attention/values_sm90.cuh"

namespace smla::attention {

namespace {

using namespace sm90;

constexpr Form kCopied{.stages = 2,
                       .held = 2,
                       .score_registers = 160,
                       .value_registers = 160,
                       .key_registers = 32,
                       .weight_stages = 2,
                       .raw_bytes = 0};
static_assert(64 * (AttentionTile::kGroups - kCopied.held) >= HopperSplit::kRotatedQuery);
static_assert(Layout<kCopied>::kBytes <= 227 * 1024);

template <bool kUnitWeights, class Item, bool kQuantised>
__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_copied(const __grid_constant__ TileCall c, std::uint32_t items, const __grid_constant__ NamedRows named) {
  using Place = Layout<kCopied>;
  extern __shared__ __align__(Place::kAlign) std::uint8_t dynamic[];
  const Block<kCopied> block{device::shared_address(dynamic)};
  using Copies = KeyCopies<kCopied, Item>;
  if (threadIdx.x == 0) {
    block.init(Copies::kArrivals);
    device::fence_proxy_async();
  }
  __syncthreads();
  device::pdl_wait();
  if (*named.total > named.capacity) return;
  const int group = __shfl_sync(kAll, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kKeyGroup) {
    device::fewer_registers<kCopied.key_registers>();
    Copies{c, named, block, items}.all_tiles();
  } else if (group == kScoreGroup) {
    device::more_registers<kCopied.score_registers>();
    Scores<kCopied, kUnitWeights, Item, kQuantised> scores(c, block);
    scores.all_items(items);
  } else {
    device::more_registers<kCopied.value_registers>();
    Values<kCopied, Item, kQuantised> values(c, block, group - kValueGroup);
    values.all_items(items);
  }
  device::pdl_trigger();
}

template <bool kUnitWeights, bool kQuantised>
void launch(const TileCall& c, std::uint32_t items, unsigned blocks, const NamedRows& named, cudaStream_t stream) {
  device::launch_pdl<attend_copied<kUnitWeights, AlikeItem, kQuantised>>(
      "sparse_attention attend", blocks, kBlockThreads, Layout<kCopied>::kBytes, stream, c, items, named);
}

}  // namespace

void attend_widened(const TileCall& c, std::uint32_t items, unsigned blocks, const NamedRows& named,
                    cudaStream_t stream) {
  const bool unit = c.weight_scale[0] == 1 && (c.a.scopes == 1 || c.weight_scale[1] == 1);
  if (c.a.o_dtype == DType::kE4M3) {
    unit ? launch<true, true>(c, items, blocks, named, stream) : launch<false, true>(c, items, blocks, named, stream);
  } else {
    unit ? launch<true, false>(c, items, blocks, named, stream) : launch<false, false>(c, items, blocks, named, stream);
  }
}

}  // namespace smla::attention
