// CompressStore on Hopper for windows of 128 rows: a cluster of eight blocks makes an entry, each block some of its
// channels. For the norm they exchange sums of squares through each other's shared memory.
#include "device/launch_pdl.cuh"
#include "device/ptx/cluster_sm90.cuh"
#include "ops/compressor/pool_call.cuh"
#include "ops/cuda_row.h"

namespace smla {

namespace {

using namespace compressor;

constexpr int kCluster = 8;  ///< blocks of a cluster, which share an entry's channels
using PartC128a = Shape<512, 128, kCluster>;

template <bool kVector, bool kSave>
__global__ void __launch_bounds__(PartC128a::kThreads) compress_by_cluster(const __grid_constant__ Pool c) {
  using S = PartC128a;
  __shared__ Shared<S, kSave> shared;
  c.wait_at_begin();
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x / kCluster) * c.span;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kSave) {
    // Each block loads its channels of every row.
    const int part = 2 * c.save.half / kCluster;
#pragma unroll 1
    for (int i = thread / 32; i < c.span && begin + i < c.tokens; i += S::kThreads / 32)
      save_row<kVector>(c.save, begin + i, rank * part, (rank + 1) * part, thread % 32, 32);
  }
  ClosingTokens<S> tokens(c, begin, c.span);
  const int group = thread / S::kLanes;
  const int channel = 4 * (thread % S::kLanes);
  const int first = rank * S::kChannels;
  device::cluster_arrive();  // waited for below: the other blocks must have started before their shared memory is
                             // written
  bool begun = false;
  int turn = 0;
  int sums = 0;  // turns with the entries that have a barrier of the cluster
  Closing<S> token = tokens.next_or_none();
  // All blocks of the cluster find the same.
  bool found = token.token >= 0 && look_up<S, kSave>(c, token, shared, 0, thread);
#pragma unroll 1
  while (token.token >= 0) {
    const Closing<S> next = tokens.next_or_none();
    // The rows of the next entry are prefetched to L2 while this one is pooled.
    const bool next_found = next.token >= 0 && look_up<S, kSave>(c, next, shared, turn ^ 1, thread);
    if (next_found) fetch_rows(shared, turn ^ 1, first, thread);
    if (found) {
      const Ending ending = Ending::of(c, token, first + channel, thread < S::kFinishing);
      keep(pool_rows<S, kVector, kSave>(c.save, shared, turn, group * S::kRows, first + channel), shared, group,
           channel);
      __syncthreads();
      if (!begun) device::cluster_wait();
      begun = true;
      if (thread < S::kChannels) {
        const float mine = merged_channel(shared, thread);
        shared.row[thread] = mine;
        const float squares = device::sum_of_warp(mine * mine);
        if (const int block = thread % 32; block < kCluster)
          device::st_shared_cluster(&shared.squares[sums][(first + thread) / 32], block, squares);
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
  c.wait_at_end();
}

std::string refusal(const CompressStore::Problem& p, const Machine& machine) {
  if (p.compressors > 1) return std::to_string(p.compressors) + " compressors; it takes one";
  const CompressStore::CompressorShape& shape = p.compressor[0];
  if (shape.dim != PartC128a::kWidth || p.ratio != PartC128a::kTokens) {
    return "dim " + std::to_string(shape.dim) + " and ratio " + std::to_string(p.ratio) + "; it takes " +
           std::to_string(PartC128a::kWidth) + " and " + std::to_string(PartC128a::kTokens);
  }
  if (shape.format->group > PartC128a::kChannels) {
    return std::string(shape.format->name) + " rows, whose scale covers " + std::to_string(shape.format->group) +
           " dims; it takes up to " + std::to_string(PartC128a::kChannels);
  }
  if (std::string reason = entry_refusal(p); !reason.empty()) return reason;
  return needs_sm90(machine);
}

Decision decide(const CompressStore::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  return refused(refusal(p, machine));
}

void run(const CompressStore::Problem& p, const CompressStore::Args& a, const RunContext& context) {
  Pool c = pool_of({p, a, 0});
  const std::int64_t tokens = c.tokens;
  if (tokens == 0) return;
  c.beside = c.beside && by_fours(c);
  with_kind(by_fours(c), c.save.kv_score != nullptr, [&]<bool kVector, bool kSave>() {
    constexpr auto kKernel = compress_by_cluster<kVector, kSave>;
    if (c.beside) device::prefer_shared<kKernel>();
    c.span = span_of(tokens, p.ratio, device::clusters_at_once<kKernel, kCluster>(PartC128a::kThreads));
    device::launch_cluster<kKernel, kCluster>("compress_store, cluster", blocks_for(tokens, c.span),
                                              PartC128a::kThreads, 0, stream_of(context.stream), c);
  });
}

}  // namespace

template <>
Implementation<CompressStore> sm90_row() {
  return hopper_row<CompressStore>(run, decide);
}

}  // namespace smla
