#pragma once

#include "device/launch.cuh"
#include "ops/index/index_rows.cuh"

namespace smla::index_rows {

// The owner of a token is the request that it belongs to: the last one whose range in query_start_loc contains it, for
// any contents of that tensor.

constexpr std::int64_t kSearched = 1024;  ///< up to this many requests, a block searches the owners of its tokens
                                          ///< itself, without a launch that lists them

/// Sets owner[i], i < kTokens, to the last request whose range in query_start_loc, less `origin`, contains token first
/// + i; -1 for none. Needs a barrier before and after.
template <int kTokens>
__device__ void find_owners(const std::int32_t* start, std::int64_t requests, std::int64_t origin, std::int64_t first,
                            std::int64_t tokens, std::int32_t (&owner)[kTokens]) {
  constexpr std::int64_t kFew = 32;
  if (requests <= kFew) {
    // Few requests: each token searches for itself, because the ranges may be long.
    for (int i = static_cast<int>(threadIdx.x); i < kTokens; i += kThreads) {
      const std::int64_t t = first + i;
      std::int32_t last = -1;
#pragma unroll 8
      for (std::int32_t r = 0; r < static_cast<std::int32_t>(requests); ++r) {
        if (t < tokens && start[r] - origin <= t && t < start[r + 1] - origin) last = r;
      }
      owner[i] = last;
    }
    __syncthreads();
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTokens; i += kThreads) owner[i] = -1;
  __syncthreads();
  for (std::int64_t r = threadIdx.x; r < requests; r += kThreads) {
    const std::int64_t begin = max(start[r] - origin, first);
    const std::int64_t end = min(min(start[r + 1] - origin, tokens), first + kTokens);
    for (std::int64_t t = begin; t < end; ++t) atomicMax(owner + (t - first), static_cast<std::int32_t>(r));
  }
  __syncthreads();
}

/// Sets owner[t] to the last request whose range in query_start_loc, less *from unless that is null, contains token t;
/// leaves it where there is none.
static __global__ void owners(const std::int32_t* start, const std::int32_t* from, std::int64_t requests,
                              std::int64_t tokens, std::int32_t* owner) {
  const std::int64_t origin = from == nullptr ? 0 : *from;
  for (std::int64_t r = blockIdx.x; r < requests; r += gridDim.x) {
    const std::int64_t first = max(start[r] - origin, std::int64_t{0});
    const std::int64_t last = min(start[r + 1] - origin, tokens);
    for (std::int64_t t = first + threadIdx.x; t < last; t += blockDim.x)
      atomicMax(owner + t, static_cast<std::int32_t>(r));
  }
}

static __global__ void fill(std::int32_t* out, std::int64_t n, std::int32_t value) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    out[i] = value;
}

/// Lists the owners of all tokens; `none` for those without one. `relative`: query_start_loc is that of a chunk, which
/// need not begin at 0.
inline void list_owners(const ConstTensorView& start, bool relative, std::int64_t requests, std::int64_t tokens,
                        std::int32_t* owner, std::int32_t none, cudaStream_t stream) {
  if (tokens == 0) return;
  fill<<<min(blocks_for(tokens, kThreads), 1024U), kThreads, 0, stream>>>(owner, tokens, none);
  check_launch("fill");
  if (requests == 0) return;
  const auto* first = static_cast<const std::int32_t*>(start.data);
  owners<<<min(blocks_for(requests, 1), 4096U), kThreads, 0, stream>>>(first, relative ? first : nullptr, requests,
                                                                       tokens, owner);
  check_launch("owners");
}

}  // namespace smla::index_rows
