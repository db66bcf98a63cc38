// CompressStore on any GPU: a block makes an entry, for dim 128 a warp does.
#include "device/launch_pdl.cuh"
#include "ops/compressor/pool_call.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace compressor;

using MainC4a = Shape<512, 4>;
using IndexC4a = Shape<128, 4>;
using MainC128a = Shape<512, 128>;

constexpr int kIndexWarps = 4;  ///< warps of a block, each with tokens of its own

/// Blocks of a C4A layer's compressor on one multiprocessor. Five leave 96 registers a thread, too few for sm_80's
/// code.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800
constexpr int kC4aBlocks = 4;
#else
constexpr int kC4aBlocks = 5;
#endif

template <class S, bool kVector, bool kSave>
__global__ void __launch_bounds__(S::kThreads, S::kThreads <= 128 ? kC4aBlocks : 1)
    compress(const __grid_constant__ Pool c) {
  __shared__ Shared<S, kSave> shared;
  device::pdl_wait_and_trigger();
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
  device::pdl_wait_and_trigger();
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
  device::pdl_wait_and_trigger();
  Both& both = *reinterpret_cast<Both*>(shared);
  if (blockIdx.x < blocks) {
    compress_tokens<MainC4a, kVector, kSave>(c, static_cast<std::int64_t>(blockIdx.x) * c.span, both.main,
                                             static_cast<int>(threadIdx.x));
  } else {
    compress_index_tokens<kVector, kSave>(index, blockIdx.x - blocks, both.index);
  }
}

unsigned index_blocks(const Pool& c) { return blocks_for(c.tokens, std::int64_t{kIndexWarps} * c.span); }

Decision decide(const CompressStore::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  std::string reason = entry_refusal(p);
  return refused(reason.empty() ? needs_gpu(machine) : std::move(reason));
}

void run(const CompressStore::Problem& p, const CompressStore::Args& a, const RunContext& context) {
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
      device::launch_pdl<compress_both<kVector, kSave>>(kName,
                                                        blocks_for(std::int64_t{blocks} + index_blocks(index), 1),
                                                        MainC4a::kThreads, 0, stream, c, index, blocks);
    });
    return;
  }
  with_kind(by_fours(c), saves, [&]<bool kVector, bool kSave>() {
    if (p.dim == 128) {
      device::launch_pdl<compress_index<kVector, kSave>>(kName, index_blocks(c), 32 * kIndexWarps, 0, stream, c);
    } else if (p.ratio == 4) {
      device::launch_pdl<compress<MainC4a, kVector, kSave>>(kName, blocks_for(tokens, c.span), MainC4a::kThreads, 0,
                                                            stream, c);
    } else {
      device::launch_pdl<compress<MainC128a, kVector, kSave>>(kName, blocks_for(tokens, c.span), MainC128a::kThreads, 0,
                                                              stream, c);
    }
  });
}

}  // namespace

template <>
Implementation<CompressStore> cuda_row() {
  return any_gpu_row<CompressStore>(run, decide);
}

}  // namespace smla
