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
  c.wait_at_begin();
  compress_tokens<S, kVector, kSave>(c, static_cast<std::int64_t>(blockIdx.x) * c.span, shared,
                                     static_cast<int>(threadIdx.x));
  c.wait_at_end();
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
  c.wait_at_begin();
  compress_index_tokens<kVector, kSave>(c, blockIdx.x, shared);
  c.wait_at_end();
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
  c.wait_at_begin();
  Both& both = *reinterpret_cast<Both*>(shared);
  if (blockIdx.x < blocks) {
    compress_tokens<MainC4a, kVector, kSave>(c, static_cast<std::int64_t>(blockIdx.x) * c.span, both.main,
                                             static_cast<int>(threadIdx.x));
  } else {
    compress_index_tokens<kVector, kSave>(index, blockIdx.x - blocks, both.index);
  }
  c.wait_at_end();
}

unsigned index_blocks(const Pool& c) { return blocks_for(c.tokens, std::int64_t{kIndexWarps} * c.span); }

Decision decide(const CompressStore::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  std::string reason = entry_refusal(p);
  return refused(reason.empty() ? needs_gpu(machine) : std::move(reason));
}

constexpr const char* kLaunchName = "compress_store";

void launch(const CompressorCall& call, cudaStream_t stream) {
  Pool c = pool_of(call);
  if (c.tokens == 0) return;
  c.beside = c.beside && by_fours(c);
  with_kind(by_fours(c), call.saves(), [&]<bool kVector, bool kSave>() {
    if (call.shape.dim == 128) {
      device::launch_pdl<compress_index<kVector, kSave>>(kLaunchName, index_blocks(c), 32 * kIndexWarps, 0, stream, c);
    } else if (call.problem.ratio == 4) {
      device::launch_pdl<compress<MainC4a, kVector, kSave>>(kLaunchName, blocks_for(c.tokens, c.span),
                                                            MainC4a::kThreads, 0, stream, c);
    } else {
      if (c.beside) device::prefer_shared<compress<MainC128a, kVector, kSave>>();
      device::launch_pdl<compress<MainC128a, kVector, kSave>>(kLaunchName, blocks_for(c.tokens, c.span),
                                                              MainC128a::kThreads, 0, stream, c);
    }
  });
}

/// A layer's compressor and its indexer's in one launch.
void launch_both(const CompressorCall& layer, const CompressorCall& indexer, cudaStream_t stream) {
  Pool c = pool_of(layer);
  const Pool index = pool_of(indexer);
  if (c.tokens == 0) return;
  c.beside = c.beside && by_fours(c) && by_fours(index);
  with_kind(by_fours(c) && by_fours(index), layer.saves(), [&]<bool kVector, bool kSave>() {
    const unsigned blocks = blocks_for(c.tokens, c.span);
    if (c.beside) device::prefer_shared<compress_both<kVector, kSave>>();
    device::launch_pdl<compress_both<kVector, kSave>>(kLaunchName,
                                                      blocks_for(std::int64_t{blocks} + index_blocks(index), 1),
                                                      MainC4a::kThreads, 0, stream, c, index, blocks);
  });
}

void run(const CompressStore::Problem& p, const CompressStore::Args& a, const RunContext& context) {
  const cudaStream_t stream = stream_of(context.stream);
  if (p.compressors == 2 && p.compressor[0].dim == 512 && p.compressor[1].dim == 128) {
    launch_both({p, a, 0}, {p, a, 1}, stream);
    return;
  }
  for (int i = 0; i < p.compressors; ++i) launch({p, a, i}, stream);
}

}  // namespace

template <>
Implementation<CompressStore> cuda_row() {
  return any_gpu_row<CompressStore>(run, decide);
}

}  // namespace smla
