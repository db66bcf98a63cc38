// The merge: the second kernel of a call whose key lists are cut into parts. It adds the parts' sums up to the output.
#include <algorithm>
#include <type_traits>

#include "device/launch_pdl.cuh"
#include "ops/attention/merge_parts.cuh"

namespace smla::attention {

namespace {

constexpr int kMergeGroups = 4;
// What fits into the registers that nvcc 13.0 finds: parts whose loads are on their way together, and blocks of a
// multiprocessor at once.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr int kMergeLoads = kMergeGroups;
#else
constexpr int kMergeLoads = kMergeGroups / 2;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kMergeBlocks = 1;
#else
constexpr int kMergeBlocks = 2;
#endif
constexpr int kMergeShared = 8;  ///< from this many parts on the thread groups of a block share the parts of one head

/// The state of a head over all its parts, found by a warp: the largest reference, and the sums that belong to it.
__device__ float2 merged_state(const float2* states, std::int64_t stride, int parts) {
  constexpr int kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const float2 first = lane < parts ? states[lane * stride] : make_float2(-INFINITY, 0);
  float reference = first.x;
#pragma unroll 1
  for (int i = lane + kLanes; i < parts; i += kLanes) reference = fmaxf(reference, states[i * stride].x);
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) reference = fmaxf(reference, __shfl_xor_sync(kAll, reference, i));
  const float shift = reference == -INFINITY ? 0 : reference;
  float sum = fabsf(first.y) * exp2f(first.x - shift);
#pragma unroll 1
  for (int i = lane + kLanes; i < parts; i += kLanes) {
    const float2 part = states[i * stride];
    sum = fmaf(fabsf(part.y), exp2f(part.x - shift), sum);
  }
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(kAll, sum, i);
  return {reference, sum};
}

/// What of a merge a thread does: four columns of a head, of all its parts or, with kShare, of every fourth.
struct MergeThread {
  int group = static_cast<int>(threadIdx.x) / (kDim / 4);
  int vec4 = static_cast<int>(threadIdx.x) % (kDim / 4);
};
using SharedSums = float4 (*)[kDim / 4];

/// Four columns of the sums of one part on their way from memory.
/// @tparam kHalves TileCall::half_sums
template <bool kHalves>
struct PartSums {
  using Bits = std::conditional_t<kHalves, uint2, float4>;
  Bits bits;

  /// The columns of row `row` behind `sums`, which takes 32 bits: a launch's workspace has few more than 64 MiB.
  template <class T>
  __device__ static T columns(const float* sums, std::uint32_t row, int vec4) {
    constexpr std::uint32_t kRow = kDim * sizeof(float) / sizeof(T);
    return reinterpret_cast<const T*>(sums)[row * kRow + static_cast<std::uint32_t>(vec4)];
  }
  /// A part without keys has no sums: its state's is 0.
  __device__ void load(const float2& state, const float* sums, std::uint32_t row, int vec4) {
    if (state.y != 0) bits = columns<Bits>(sums, row, vec4);
  }
  __device__ void add_to(float4& to, const float2& state, float shift, const float* sums, std::uint32_t row,
                         int vec4) const {
    if (state.y == 0) return;
    float weight = exp2f(state.x - shift);
    float4 v;
    if constexpr (kHalves) {
      if (state.y < 0) {
        v = columns<float4>(sums, row, vec4);
      } else {
        const float2 low = device::numbers_of(bits.x);
        const float2 high = device::numbers_of(bits.y);
        v = {low.x, low.y, high.x, high.y};
        weight *= sum_unit(state.y);
      }
    } else {
      v = bits;
    }
    to.x = fmaf(v.x, weight, to.x), to.y = fmaf(v.y, weight, to.y);
    to.z = fmaf(v.z, weight, to.z), to.w = fmaf(v.w, weight, to.w);
  }
};

/// Merges the parts of a head, whose sums begin in row `begin`. The bits are the same with and without kShare, and do
/// not depend on parts without keys; when only one has any, they are, with fp32 sums, those that its block would have
/// written without the others. Warps come here whole, and with kShare whole blocks.
template <bool kShare, bool kHalves, bool kQuantised = false>
__device__ void merge_head(const TileCall& c, std::int64_t token, std::int64_t head, std::int64_t begin, int parts,
                           const MergeThread& me, SharedSums others) {
  const int vec4 = me.vec4;
  if (head >= c.a.heads) {
    if (!kShare || me.group == 0)
      store(c, token * c.a.o_stride[0] + head * c.a.o_stride[1] + 4 * vec4, make_float4(0, 0, 0, 0));
    return;
  }
  const float2* states = c.states + begin * c.a.heads + head;
  const float2 whole = merged_state(states, c.a.heads, parts);
  const float shift = whole.x == -INFINITY ? 0 : whole.x;
  const float* sums = c.sums + (begin * c.a.heads + head) * kDim;
  const auto heads = static_cast<std::uint32_t>(c.a.heads);
  float4 total[kMergeGroups] = {};
  // The loads of kMergeLoads parts, kStep apart, are on their way together.
  constexpr int kStep = kShare ? kMergeGroups : 1;
#pragma unroll 1
  for (int first = kShare ? me.group : 0; first < parts; first += kMergeGroups * kStep) {
    const auto row = [&](int g) { return static_cast<std::uint32_t>(first + g * kStep) * heads; };
#pragma unroll
    for (int from = 0; from < kMergeGroups; from += kMergeLoads) {
      float2 state[kMergeLoads];
      PartSums<kHalves> part[kMergeLoads];
#pragma unroll
      for (int i = 0; i < kMergeLoads; ++i)
        state[i] = first + (from + i) * kStep < parts ? states[row(from + i)] : make_float2(0, 0);
#pragma unroll
      for (int i = 0; i < kMergeLoads; ++i) part[i].load(state[i], sums, row(from + i), vec4);
#pragma unroll
      for (int i = 0; i < kMergeLoads; ++i)
        part[i].add_to(total[kShare ? 0 : from + i], state[i], shift, sums, row(from + i), vec4);
    }
  }
  if constexpr (kShare) {
    if (me.group > 0) others[me.group - 1][vec4] = total[0];
    __syncthreads();
    if (me.group > 0) return;
#pragma unroll
    for (int g = 1; g < kMergeGroups; ++g) total[g] = others[g - 1][vec4];
  }
#pragma unroll
  for (int g = 1; g < kMergeGroups; ++g) {
    total[0].x += total[g].x, total[0].y += total[g].y;
    total[0].z += total[g].z, total[0].w += total[g].w;
  }
  asm volatile("" : "+l"(head));  // what is made of it from here on is not kept during the loop
  const Finish f = finish(c.a, head, whole.x, whole.y);
  if (f.factor == 0) total[0] = make_float4(0, 0, 0, 0);  // infinite sums times 0 would be NaN
  const float* const back = c.back_row(token, head);
  store_columns<kQuantised>(c, token, head, 4 * vec4, back != nullptr,
                            c.rotated_back(back, 4 * vec4, finished(total[0], f.factor * c.unit)));
  if (vec4 == 0 && c.a.lse != nullptr) c.a.lse[token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
}

/// Of lists that are cut alike: a head of a token for each block, or with !kShare for each group of threads.
template <bool kShare, bool kHalves, bool kQuantised>
__global__ void __launch_bounds__(kMergeGroups* kDim / 4, kMergeBlocks)
    merge(const __grid_constant__ TileCall c, std::uint32_t rows) {
  __shared__ float4 others[kShare ? kMergeGroups - 1 : 1][kDim / 4];
  device::pdl_trigger();
  device::pdl_wait();
  const MergeThread me;
  const auto heads = static_cast<std::uint32_t>(c.a.out_heads);
  const std::uint32_t row = kShare ? blockIdx.x : blockIdx.x * kMergeGroups + me.group;
  if (row >= rows) return;
  const std::uint32_t local = row / heads;
  merge_head<kShare, kHalves, kQuantised>(c, c.first_token + local, row % heads, std::int64_t{local} * c.parts,
                                          static_cast<int>(c.parts), me, others);
}

/// Tokens whose lists have several parts, found by all threads of a block at once: read one after the other, their
/// numbers of parts would take longer than the merge. Every block finds the same tokens in the same order.
class CutTokens {
 public:
  /// Whole blocks come here, once.
  __device__ void find(const TileCall& c) {
    const std::uint32_t token = threadIdx.x;
    const uint2 cut = token < c.tokens ? c.cuts[token] : make_uint2(0, 1);
    const unsigned few = __ballot_sync(kAll, cut.y > 1 && cut.y < kMergeShared);
    const unsigned many = __ballot_sync(kAll, cut.y >= kMergeShared);
    const auto warp = static_cast<int>(threadIdx.x / 32);
    if (threadIdx.x % 32 == 0) of_warp_[warp] = make_uint2(__popc(few), __popc(many));
    __syncthreads();
    uint2 before = {0, 0};
    uint2 all = {0, 0};
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp) before = all;
      all.x += of_warp_[w].x, all.y += of_warp_[w].y;
    }
    const unsigned below = (1U << (threadIdx.x % 32)) - 1;
    if (cut.y >= kMergeShared) {
      token_[all.x + before.y + __popc(many & below)] = make_uint3(token, cut.x, cut.y);
    } else if (cut.y > 1) {
      token_[before.x + __popc(few & below)] = make_uint3(token, cut.x, cut.y);
    }
    if (threadIdx.x == 0) few_and_many_ = all;
    __syncthreads();
  }
  __device__ std::uint32_t few() const { return few_and_many_.x; }
  __device__ std::uint32_t many() const { return few_and_many_.y; }
  /// {token, its first part, its parts}: first those with few parts, then those with many.
  __device__ uint3 operator[](std::uint32_t i) const { return token_[i]; }

  static constexpr int kThreads = kMergeGroups * kDim / 4;
  static_assert(LengthCut::kMostTokens <= kThreads);

 private:
  static constexpr int kWarps = kThreads / 32;
  uint2 of_warp_[kWarps];
  uint2 few_and_many_;
  uint3 token_[kThreads];
};

/// Of lists that are cut by their lengths. Lists of one part are finished already; those of few are merged by groups of
/// threads, then those of many by whole blocks.
template <bool kHalves>
__global__ void __launch_bounds__(CutTokens::kThreads, kMergeBlocks)
    merge_by_length(const __grid_constant__ TileCall c, std::uint32_t rows) {
  __shared__ float4 others[kMergeGroups - 1][kDim / 4];
  __shared__ CutTokens cut;
  device::pdl_trigger();
  device::pdl_wait();
  const auto heads = static_cast<std::uint32_t>(c.a.out_heads);
  const uint2 call = c.cuts[c.tokens];  // parts of each list, or 0 where they differ; of the longest
  if (call.y == 1) return;
  if (call.x == 0) cut.find(c);
  const std::uint32_t few = call.x == 0 ? cut.few() * heads : (call.x < kMergeShared ? rows : 0);
  const std::uint32_t many = call.x == 0 ? cut.many() * heads : rows - few;
  // Of a list: its token, its first row of sums and its parts.
  const auto list = [&](std::uint32_t i) { return call.x == 0 ? cut[i] : make_uint3(i, i * call.x, call.x); };
#pragma unroll 1
  for (std::uint32_t i = blockIdx.x * kMergeGroups + MergeThread().group; i < few; i += gridDim.x * kMergeGroups) {
    const uint3 t = list(i / heads);
    merge_head<false, kHalves>(c, t.x, i % heads, t.y, static_cast<int>(t.z), MergeThread(), others);
  }
#pragma unroll 1
  for (std::uint32_t i = blockIdx.x; i < many; i += gridDim.x) {
    const uint3 t = list((few + i) / heads);
    merge_head<true, kHalves>(c, t.x, i % heads, t.y, static_cast<int>(t.z), MergeThread(), others);
    __syncthreads();  // the next head's sums take the place of this one's
  }
}

/// As launch_merge(). Multiprocessors that run a merge have room for a block of wo_a's weights, too.
template <bool kHalves>
void launch_merge_of(const TileCall& c, std::int64_t tokens, cudaStream_t stream) {
  const std::int64_t rows = tokens * c.a.out_heads;
  constexpr int kMergeThreads = kMergeGroups * kDim / 4;
  constexpr const char* kName = "sparse_attention merge";
  if (c.cut.extra > 0) {
    // As many blocks as run at once on the multiprocessors of the attention kernel, twice.
    const std::int64_t most = 2 * std::int64_t{c.cut.alone.at_once};
    device::prefer_shared<merge_by_length<kHalves>>();
    device::launch_pdl<merge_by_length<kHalves>, TileCall, std::uint32_t>(
        kName, blocks_for(std::min(rows, most), 1), kMergeThreads, 0, stream, c, static_cast<std::uint32_t>(rows));
    return;
  }
  if (c.parts == 1) return;
  const bool share = c.parts >= kMergeShared;
  const auto start = [&]<bool kShare, bool kQuantised>() {
    device::prefer_shared<merge<kShare, kHalves, kQuantised>>();
    device::launch_pdl<merge<kShare, kHalves, kQuantised>, TileCall, std::uint32_t>(
        kName, blocks_for(rows, kShare ? 1 : kMergeGroups), kMergeThreads, 0, stream, c,
        static_cast<std::uint32_t>(rows));
  };
  if (c.a.o_dtype == DType::kE4M3) {
    share ? start.template operator()<true, true>() : start.template operator()<false, true>();
  } else {
    share ? start.template operator()<true, false>() : start.template operator()<false, false>();
  }
}

}  // namespace

void launch_merge(const TileCall& c, std::int64_t tokens, cudaStream_t stream) {
  (c.half_sums ? launch_merge_of<true> : launch_merge_of<false>)(c, tokens, stream);
}

}  // namespace smla::attention
