// The compressor's second step on the device. An entry is a block's work; with dim 128 a warp's; of a window of 128
// rows that of eight blocks, each with its own channels, where clusters of blocks can be launched.
#include <algorithm>

#include "device/early_launch.cuh"
#include "device/ptx.cuh"
#include "ops/compressor/implementations.h"
#include "ops/compressor/pooled_entry.cuh"
#include "ops/cuda_op.h"

namespace smla {

namespace {

using namespace compressor;

using MainC4a = Shape<512, 4>;
using IndexC4a = Shape<128, 4>;
using MainC128a = Shape<512, 128>;

constexpr int kIndexWarps = 4;  ///< of a block: each has its own tokens

/// Blocks of a C4A layer's compressor that a multiprocessor has room for: with five a thread has 96 registers, of which
/// sm_80's code spills two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
constexpr int kC4aBlocks = 4;
#else
constexpr int kC4aBlocks = 5;
#endif

template <class S, bool kVector, bool kSave>
__global__ void __launch_bounds__(S::kThreads, S::kThreads <= 128 ? kC4aBlocks : 1)
    compress(const __grid_constant__ Pool c) {
  __shared__ Shared<S, kSave> shared;
  device::take_turn();
  compress_tokens<S, kVector, kSave>(c, static_cast<std::int64_t>(blockIdx.x) * c.span, shared,
                                     static_cast<int>(threadIdx.x));
}

template <bool kVector, bool kSave>
__device__ void compress_index_tokens(const Pool& c, std::int64_t block, Shared<IndexC4a, kSave>* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t begin = (block * kIndexWarps + warp) * c.span;
  if (begin < c.tokens)
    compress_tokens<IndexC4a, kVector, kSave>(c, begin, shared[warp], static_cast<int>(threadIdx.x) % 32);
}

template <bool kVector, bool kSave>
__global__ void __launch_bounds__(32 * kIndexWarps) compress_index(const __grid_constant__ Pool c) {
  __shared__ Shared<IndexC4a, kSave> shared[kIndexWarps];
  device::take_turn();
  compress_index_tokens<kVector, kSave>(c, blockIdx.x, shared);
}

/// The compressors of a layer and of its indexer; the first `blocks` blocks are the layer's.
template <bool kVector, bool kSave>
__global__ void __launch_bounds__(MainC4a::kThreads, kSave ? 4 : kC4aBlocks)
    compress_both(const __grid_constant__ Pool c, const __grid_constant__ Pool index, unsigned blocks) {
  static_assert(MainC4a::kThreads == 32 * kIndexWarps);
  union Both {
    Shared<MainC4a, kSave> main;
    Shared<IndexC4a, kSave> index[kIndexWarps];
  };
  __shared__ alignas(16) unsigned char shared[sizeof(Both)];
  device::take_turn();
  Both& both = *reinterpret_cast<Both*>(shared);
  if (blockIdx.x < blocks) {
    compress_tokens<MainC4a, kVector, kSave>(c, static_cast<std::int64_t>(blockIdx.x) * c.span, both.main,
                                             static_cast<int>(threadIdx.x));
  } else {
    compress_index_tokens<kVector, kSave>(index, blockIdx.x - blocks, both.index);
  }
}

constexpr int kTogether = 8;  ///< blocks of a cluster, which share an entry's channels
using PartC128a = Shape<512, 128, kTogether>;

template <bool kVector, bool kSave>
__global__ void __launch_bounds__(PartC128a::kThreads) compress_together(const __grid_constant__ Pool c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using S = PartC128a;
  __shared__ Shared<S, kSave> shared;
  device::take_turn();
  const int rank = static_cast<int>(blockIdx.x) % kTogether;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x / kTogether) * c.span;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kSave) {
    // Each block has its share of every row.
    const int part = 2 * c.save.half / kTogether;
#pragma unroll 1
    for (int i = thread / 32; i < c.span && begin + i < c.tokens; i += S::kThreads / 32)
      save_row<kVector>(c.save, begin + i, rank * part, (rank + 1) * part, thread % 32, 32);
  }
  ClosingTokens<S> tokens(c, begin, c.span);
  const int group = thread / S::kLanes;
  const int quad = 4 * (thread % S::kLanes);
  const int first = rank * S::kChannels;
  device::cluster_arrive();  // waited for before others' shared memory is written: they must have begun
  bool begun = false;
  int turn = 0;
  int sums = 0;  // turns with the entries that have a barrier of the cluster
  Closing<S> token = tokens.next_or_none();
  // All blocks of the cluster find the same.
  bool found = token.token >= 0 && look_up<S, kSave>(c, token, shared, 0, thread);
#pragma unroll 1
  while (token.token >= 0) {
    const Closing<S> next = tokens.next_or_none();
    // The next one's rows are on their way to L2 while this one's are pooled.
    const bool next_found = next.token >= 0 && look_up<S, kSave>(c, next, shared, turn ^ 1, thread);
    if (next_found) fetch_rows(shared, turn ^ 1, first, thread);
    if (found) {
      const Ending ending = Ending::of(c, token, first + quad, thread < S::kFinishing);
      keep(pool_rows<S, kVector, kSave>(c.save, shared, turn, group * S::kRows, first + quad), shared, group, quad);
      __syncthreads();
      if (!begun) device::cluster_wait();
      begun = true;
      if (thread < S::kChannels) {
        const float mine = merged_channel(shared, thread);
        shared.row[thread] = mine;
        const float squares = device::sum_of_warp(mine * mine);
        if (const int block = thread % 32; block < kTogether)
          device::store_cluster(&shared.squares[sums][(first + thread) / 32], block, squares);
      }
      device::cluster_arrive();
      device::cluster_wait();
      float4 y = make_float4(0, 0, 0, 0);
      if (thread < S::kFinishing) y = reinterpret_cast<const float4*>(shared.row)[thread];
      finish<S, kSave>(c, token, ending, y, shared.squares[sums], shared, first, thread);
      sums ^= 1;
    }
    token = next, found = next_found, turn ^= 1;
    __syncthreads();
  }
  if (!begun) device::cluster_wait();
#endif
}

/// Tokens that a block, or a cluster of them, looks after: of a prefill few close a group. `enough`: as many of them
/// keep a GPU busy.
int span_of(std::int64_t tokens, int ratio, std::int64_t enough = 256) {
  return static_cast<int>(std::clamp<std::int64_t>((tokens + enough - 1) / enough, 1, std::min(ratio, 32)));
}

/// kSave and kVector as the call has them.
template <class F>
void with_kind(bool vector, bool saves, F&& f) {
  if (vector) {
    saves ? f.template operator()<true, true>() : f.template operator()<true, false>();
  } else {
    saves ? f.template operator()<false, true>() : f.template operator()<false, false>();
  }
}

Pool pool_of(const CompressStore::Problem& p, const CompressStore::Args& a) {
  Pool c{.tokens = a.state_slots.size(0),
         .span = span_of(a.state_slots.size(0), p.ratio),
         .positions = static_cast<const std::int64_t*>(a.positions.data),
         .request = static_cast<const std::int32_t*>(a.token_to_req.data),
         .state_slots = static_cast<const std::int64_t*>(a.state_slots.data),
         .entry_slots = static_cast<const std::int64_t*>(a.entry_slots.data),
         .table = static_cast<const std::int32_t*>(a.block_table.data),
         .table_stride = a.block_table.stride[0],
         .requests = a.block_table.size(0),
         .columns = a.block_table.size(1),
         .weight = a.norm_weight.data,
         .weight_bf16 = a.norm_weight.dtype == DType::kBF16,
         .cos_sin = static_cast<const float*>(a.cos_sin.data),
         .cos_sin_stride = a.cos_sin.stride[0],
         .rope_rows = a.cos_sin.size(0),
         .rope_dim = p.rope_dim,
         .eps = p.eps,
         .hadamard = p.hadamard,
         .clamp = p.clamp,
         .state = device::view_of_cache(a.state),
         .state_blocks = a.state.num_blocks,
         .entries = device::view_of_cache(a.entries)};
  if (!a.kv_score.absent()) c.save = save_of(save_problem(p), save_args(a));
  return c;
}

/// Whether its state rows, and those it saves, can be read and written by fours.
bool by_fours(const Pool& c) {
  return device::common_word(c.state.base, c.state.block_stride, c.state.data_bytes) == 16 &&
         (c.save.kv_score == nullptr || by_fours(c.save));
}

unsigned index_blocks(const Pool& c) { return blocks_for(c.tokens, std::int64_t{kIndexWarps} * c.span); }

}  // namespace

template <>
std::string CudaOp<CompressStore>::refuse(const CompressStore::Problem& p, const PlanOptions&) {
  for (const RowFormat* format : {p.format, p.dim2 > 0 ? p.format2 : p.format}) {
    if (std::string refusal = device::encoder_refusal(*format); !refusal.empty()) return refusal;
  }
  return needs_gpu();
}

template <>
std::size_t CudaOp<CompressStore>::workspace_bytes(const CompressStore::Problem&, int) {
  return 0;
}

template <>
void CudaOp<CompressStore>::run(const CompressStore::Problem& p, const CompressStore::Args& a,
                                const RunContext& context) {
  const std::int64_t tokens = a.state_slots.size(0);
  const cudaStream_t stream = stream_of(context.stream);
  const bool both = p.dim2 == 128 && p.dim == 512 && a.state_slots2.size(0) == tokens;
  if (p.dim2 > 0 && !both) {
    run(first_problem(p), a, context);
    run(second_problem(p), second_args(a), context);
    return;
  }
  if (tokens == 0) return;
  const Pool c = pool_of(p, a);
  const bool saves = c.save.kv_score != nullptr;
  constexpr const char* kName = "compress_store";
  if (both) {
    const Pool index = pool_of(second_problem(p), second_args(a));
    with_kind(by_fours(c) && by_fours(index), saves, [&]<bool kVector, bool kSave>() {
      const unsigned blocks = blocks_for(tokens, c.span);
      device::launch_early<compress_both<kVector, kSave>>(kName,
                                                          blocks_for(std::int64_t{blocks} + index_blocks(index), 1),
                                                          MainC4a::kThreads, 0, stream, c, index, blocks);
    });
    return;
  }
  with_kind(by_fours(c), saves, [&]<bool kVector, bool kSave>() {
    if (p.dim == 128) {
      device::launch_early<compress_index<kVector, kSave>>(kName, index_blocks(c), 32 * kIndexWarps, 0, stream, c);
    } else if (p.ratio == 4) {
      device::launch_early<compress<MainC4a, kVector, kSave>>(kName, blocks_for(tokens, c.span), MainC4a::kThreads, 0,
                                                              stream, c);
    } else if (device::has_sm90_code<compress_together<kVector, kSave>>() && p.format->group <= PartC128a::kChannels) {
      Pool apart = c;
      apart.span = span_of(tokens, p.ratio,
                           device::clusters_at_once<compress_together<kVector, kSave>, kTogether>(PartC128a::kThreads));
      device::launch_cluster<compress_together<kVector, kSave>, kTogether>(kName, blocks_for(tokens, apart.span),
                                                                           PartC128a::kThreads, 0, stream, apart);
    } else {
      device::launch_early<compress<MainC128a, kVector, kSave>>(kName, blocks_for(tokens, c.span), MainC128a::kThreads,
                                                                0, stream, c);
    }
  });
}

}  // namespace smla
