// Index scores on any GPU, straight from the pages. Rows of 128 e4m3 or e2m1 numbers go through fp16 tensor cores: every code of both is an fp16 number, so
// products are exact and sums are fp32. A warp keeps 32 keys in registers as the columns of its products; heads are their rows, and come from shared
// memory where the block has laid them out as fragments. Other rows take fp32 arithmetic.
#include <algorithm>
#include <cmath>

#include "device/halves.cuh"
#include "device/launch.cuh"
#include "device/numbers.cuh"
#include "device/shared_limit.h"
#include "ops/cuda_op.h"
#include "sparsemla/ops/indexer.h"

namespace smla {

namespace {

constexpr int kTensorDim = 128;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTile = 32;                 ///< keys of a warp at once
constexpr int kSteps = kTensorDim / 16;   ///< products of 16 dims in a dot product
constexpr int kGroups = kTensorDim / 32;  ///< scales of an e2m1 row
constexpr int kMaxRows = 8;               ///< rows of a block
constexpr int kResident = 3;              ///< blocks of a multiprocessor
constexpr int kWaves = 2;                 ///< of them, to aim at: rows are of unequal length, but each block lays queries out anew
constexpr int kBlocks = 2048;             ///< blocks to aim at without tensor cores

/// Where entry j stands: in a row of a block of the cache, or (not paged) in row j of an array. Negative blocks do not exist.
struct Place {
  std::int32_t block = -1;
  std::int32_t offset = 0;
};

struct Keys {
  const std::uint8_t* data = nullptr;
  std::int64_t data_stride = 0;  ///< from block to block
  std::int64_t data_bytes = 0;   ///< from row to row
  int data_align = 1;
  const std::uint8_t* scales = nullptr;
  std::int64_t scale_stride = 0;
  std::int64_t scale_bytes = 0;
  int scale_align = 1;
  std::int64_t blocks = 0;
  std::uint32_t block_size = 1;
  bool paged = false;
  const std::int32_t* table = nullptr;
  std::int64_t table_stride = 0;
  std::int64_t requests = 0;
  std::int64_t columns = 0;

  __device__ Place find(std::int64_t request, std::int64_t j) const {
    if (!paged) return {static_cast<std::int32_t>(j), 0};
    const std::uint32_t column = static_cast<std::uint32_t>(j) / block_size;
    if (request < 0 || request >= requests || column >= columns) return {};
    const std::int32_t block = table[request * table_stride + column];
    if (block < 0 || block >= blocks) return {};
    return {block, static_cast<std::int32_t>(static_cast<std::uint32_t>(j) - column * block_size)};
  }
  __device__ const std::uint8_t* data_at(Place p) const { return data + p.block * data_stride + p.offset * data_bytes; }
  __device__ const std::uint8_t* scales_at(Place p) const { return scales + p.block * scale_stride + p.offset * scale_bytes; }
};

/// Columns that a row scores.
struct Span {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

struct Call {
  std::int64_t rows = 0;
  int heads = 0;
  int dim = 0;
  int group = 0;  ///< dims of a UE8M0 scale
  std::int32_t width = 0;
  std::int64_t groups = 0;  ///< of rows, one for each block and part of the columns
  int group_rows = 1;
  int parts = 1;

  const std::uint8_t* q = nullptr;
  std::int64_t q_stride[2] = {0, 0};  ///< bytes
  int q_align = 1;
  const std::uint8_t* q_scale = nullptr;
  std::int64_t q_scale_stride[2] = {0, 0};
  const float* weights = nullptr;
  std::int64_t weight_stride = 0;
  const std::int32_t* row_to_req = nullptr;  ///< null: the keys belong to nobody
  const std::int32_t* starts = nullptr;      ///< null: 0
  const std::int32_t* ends = nullptr;
  Keys keys;
  float* logits = nullptr;
  std::int64_t logit_stride = 0;

  __device__ Span span(std::int64_t row) const {
    const std::int32_t begin = starts == nullptr ? 0 : max(starts[row], 0);
    const std::int32_t end = min(ends[row], width);
    return begin < end ? Span{begin, end} : Span{};
  }
};

__device__ std::uint32_t load_word(const std::uint8_t* p) { return __ldg(reinterpret_cast<const std::uint32_t*>(p)); }

__device__ uint4 load_four(const std::uint8_t* p, int align) {
  if (align >= 16) return __ldg(reinterpret_cast<const uint4*>(p));
  return make_uint4(load_word(p), load_word(p + 4), load_word(p + 8), load_word(p + 12));
}

__device__ float load_float(const std::uint8_t* p, int align) {
  if (align >= 4) return __uint_as_float(load_word(p));
  return __uint_as_float(p[0] | (static_cast<std::uint32_t>(p[1]) << 8) | (static_cast<std::uint32_t>(p[2]) << 16) |
                         (static_cast<std::uint32_t>(p[3]) << 24));
}

/// How rows of an element become fp16 fragments. A word of codes goes to the two registers of one or two products; the order of dims inside of a dot
/// product is free, so a word goes where its shifts take it, in queries and in keys alike.
template <Element kElement>
struct Codes;

/// Four e4m3 codes to (b0, b1), (b2, b3).
template <>
struct Codes<Element::kE4M3> {
  static constexpr int kWords = kTensorDim / 4;
  static constexpr int kPairs = 2;

  /// A thread's words of a key are those of 16 bytes in each half of the row.
  __device__ static int step_of(int word) { return word / 16 * 4 + word % 4; }
  __device__ static int quarter_of(int word) { return word % 16 / 4; }
  /// Of a product of two.
  __device__ static float unit() { return device::kCodeShift == 0 ? 1.0F : 0x1p16F; }

  __device__ static void add_nans(std::uint32_t w, std::uint32_t* out) {
    const std::uint32_t n = device::lost_nans(w);
    const auto pair = [](std::uint32_t two) { return ((two >> 7 & 1U) | (two >> 15 & 1U) << 16) * 0x7E00U; };
    out[0] |= pair(n), out[1] |= pair(n >> 16);
  }
  __device__ static void widen(std::uint32_t w, std::uint32_t* out) {
    device::widen_codes(w, out[0], out[1]);
    if constexpr (device::kCodeShift != 0) add_nans(w, out);
  }

  /// A thread's share of a key as it is stored, and [step][register].
  struct Raw {
    uint4 four[2];
  };
  __device__ static Raw fetch(const std::uint8_t* row, int align, int quarter) {
    return {{load_four(row + 16 * quarter, align), load_four(row + 64 + 16 * quarter, align)}};
  }
  __device__ static void widen(const Raw& raw, std::uint32_t (&out)[2 * kSteps]) {
    std::uint32_t found = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t w[4] = {raw.four[half].x, raw.four[half].y, raw.four[half].z, raw.four[half].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        device::widen_codes(w[i], out[8 * half + 2 * i], out[8 * half + 2 * i + 1]);
        found |= device::lost_nans(w[i]);
      }
    }
    if constexpr (device::kCodeShift == 0) return;
    if (found == 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t w[4] = {raw.four[half].x, raw.four[half].y, raw.four[half].z, raw.four[half].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) add_nans(w[i], out + 8 * half + 2 * i);
    }
  }
};

/// Eight e2m1 codes to (n0, n4), (n1, n5), (n2, n6), (n3, n7), each as its value.
template <>
struct Codes<Element::kE2M1> {
  static constexpr int kWords = kTensorDim / 8;
  static constexpr int kPairs = 4;

  /// Two products are one group of 32 dims, 16 bytes; a thread has a word of each group.
  __device__ static int step_of(int word) { return word / 4 * 2; }
  __device__ static int quarter_of(int word) { return word % 4; }

  __device__ static void widen(std::uint32_t w, std::uint32_t* out) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t top = w << (12 - 4 * i);  // the pair's nibbles at the top of both halves
      const std::uint32_t bits = ((top >> 3) & 0x0E00'0E00U) | (top & 0x8000'8000U);
      asm("mul.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(bits), "r"(0x7400'7400U));  // of 2^-14 of the value: times 2^14
    }
  }
  __device__ static float unit() { return 1.0F; }

  struct Raw {
    std::uint32_t word[kGroups];
  };
  __device__ static Raw fetch(const std::uint8_t* row, int /*align*/, int quarter) {
    Raw raw;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) raw.word[g] = load_word(row + 16 * g + 4 * quarter);
    return raw;
  }
  __device__ static void widen(const Raw& raw, std::uint32_t (&out)[2 * kSteps]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) widen(raw.word[g], out + 4 * g);
  }
};

/// c += a b: 16 heads x 16 dims, 16 dims x 8 keys.
__device__ void multiply(float (&c)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// What a row's queries take in shared memory: fragments, weights and, of e2m1 rows, group scales, of heads in sixteens.
struct SharedQ {
  std::uint32_t* fragments;  ///< [sixteen][step][lane][4]
  float* weights;            ///< [head]
  float* scales;             ///< [head][group]

  static constexpr int bytes(int sixteens, bool scaled) { return sixteens * (16 * kTensorDim * 2 + 16 * 4 + (scaled ? 16 * kGroups * 4 : 0)); }

  __device__ SharedQ(uint4* memory, int row, int sixteens, bool scaled)
      : fragments(reinterpret_cast<std::uint32_t*>(reinterpret_cast<std::uint8_t*>(memory) + row * bytes(sixteens, scaled))),
        weights(reinterpret_cast<float*>(fragments + sixteens * kSteps * 128)),
        scales(weights + 16 * sixteens) {}

  template <Element kElement>
  __device__ void fill(const Call& c, std::int64_t row, int sixteens) const {
    using C = Codes<kElement>;
    constexpr int kAtOnce = 8;  // on their way together
    for (int base = static_cast<int>(threadIdx.x); base < 16 * sixteens * C::kWords; base += kAtOnce * kThreads) {
      std::uint32_t words[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int head = (base + k * kThreads) / C::kWords;
        words[k] = head < c.heads ? load_word(c.q + row * c.q_stride[0] + head * c.q_stride[1] + 4 * ((base + k * kThreads) % C::kWords)) : 0U;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int head = (base + k * kThreads) / C::kWords;
        const int word = (base + k * kThreads) % C::kWords;
        if (head >= 16 * sixteens) break;
        std::uint32_t pairs[C::kPairs];
        C::widen(words[k], pairs);
#pragma unroll
        for (int p = 0; p < C::kPairs; ++p) {
          const int step = C::step_of(word) + p / 2;
          const int lane = head % 8 * 4 + C::quarter_of(word);
          fragments[((head / 16 * kSteps + step) * 32 + lane) * 4 + head % 16 / 8 + p % 2 * 2] = pairs[p];
        }
      }
    }
    for (int head = static_cast<int>(threadIdx.x); head < 16 * sixteens; head += kThreads) {
      weights[head] = head < c.heads ? c.weights[row * c.weight_stride + head] : 0.0F;
    }
    if constexpr (kElement == Element::kE2M1) {
      for (int i = static_cast<int>(threadIdx.x); i < 16 * sixteens * kGroups; i += kThreads) {
        const int head = i / kGroups;
        scales[i] = head < c.heads ? device::from_ue8m0(c.q_scale[row * c.q_scale_stride[0] + head * c.q_scale_stride[1] + i % kGroups]) : 0.0F;
      }
    }
  }
};

/// sum[2t + i] += relu(dot) * weight of one head (`upper`: of the second eight) with keys 8t + 2 quarter + i.
__device__ void add_head(float (&sum)[8], const float (&dots)[4][4], int upper, float weight) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    sum[2 * t] = fmaf(fmaxf(dots[t][2 * upper], 0.0F), weight, sum[2 * t]);
    sum[2 * t + 1] = fmaf(fmaxf(dots[t][2 * upper + 1], 0.0F), weight, sum[2 * t + 1]);
  }
}

/// Adds the sums of the eight lanes that share keys; lane l gets the key key_of(l). A tree, the same for every key.
__device__ float fold(const float (&sum)[8], int lane) {
  float four[4];
  float two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool high = (lane & 16) != 0;
    four[i] = (high ? sum[4 + i] : sum[i]) + __shfl_xor_sync(0xFFFF'FFFFU, high ? sum[i] : sum[4 + i], 16);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool high = (lane & 8) != 0;
    two[i] = (high ? four[2 + i] : four[i]) + __shfl_xor_sync(0xFFFF'FFFFU, high ? four[i] : four[2 + i], 8);
  }
  const bool high = (lane & 4) != 0;
  return (high ? two[1] : two[0]) + __shfl_xor_sync(0xFFFF'FFFFU, high ? two[0] : two[1], 4);
}

/// The key of a tile that a lane looks up and stores, and the lane of a key.
__device__ int key_of(int lane) { return (lane & 24) + 2 * (lane & 3) + ((lane >> 2) & 1); }
__device__ int lane_of(int key) { return (key & 24) + ((key & 1) << 2) + ((key >> 1) & 3); }

/// One row's heads with 32 keys: the lane's key before its own scale.
template <Element kElement>
__device__ float score_tile(const SharedQ& q, int sixteens, const std::uint32_t (&keys)[4][2 * kSteps], const float* key_scales, int lane) {
  const int row = lane / 4;
  float sum[8] = {};
  __syncwarp();  // products need all lanes at one place, and lanes may have loaded or stored apart
#pragma unroll 1
  for (int h = 0; h < sixteens; ++h) {
    const uint4* a = reinterpret_cast<const uint4*>(q.fragments) + h * kSteps * 32 + lane;
    float dots[4][4] = {};
    if constexpr (kElement == Element::kE4M3) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4 heads = a[32 * s];
#pragma unroll
        for (int t = 0; t < 4; ++t) multiply(dots[t], heads, keys[t][2 * s], keys[t][2 * s + 1]);
      }
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        float part[4][4] = {};
#pragma unroll
        for (int s = 2 * g; s < 2 * g + 2; ++s) {
          const uint4 heads = a[32 * s];
#pragma unroll
          for (int t = 0; t < 4; ++t) multiply(part[t], heads, keys[t][2 * s], keys[t][2 * s + 1]);
        }
        const float low = q.scales[(16 * h + row) * kGroups + g];
        const float high = q.scales[(16 * h + 8 + row) * kGroups + g];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float2 k = *reinterpret_cast<const float2*>(key_scales + kTile * g + 8 * t + 2 * (lane % 4));
          dots[t][0] = fmaf(part[t][0] * low, k.x, dots[t][0]);
          dots[t][1] = fmaf(part[t][1] * low, k.y, dots[t][1]);
          dots[t][2] = fmaf(part[t][2] * high, k.x, dots[t][2]);
          dots[t][3] = fmaf(part[t][3] * high, k.y, dots[t][3]);
        }
      }
    }
    add_head(sum, dots, 0, q.weights[16 * h + row]);
    add_head(sum, dots, 1, q.weights[16 * h + 8 + row]);
  }
  return fold(sum, lane);
}

/// A block has up to kMaxRows rows and every parts-th run of kWarps tiles; a warp has a tile. Rows of one request share the keys that are loaded.
template <Element kElement>
__global__ void __launch_bounds__(kThreads, kElement == Element::kE4M3 ? kResident : 2) score_tensor(const __grid_constant__ Call c) {
  using C = Codes<kElement>;
  constexpr bool kScaled = kElement == Element::kE2M1;
  extern __shared__ uint4 memory[];
  __shared__ Span spans[kMaxRows];
  __shared__ std::int32_t requests[kMaxRows];
  __shared__ float2 group_scales[kWarps][kScaled ? kGroups * kTile / 2 : 1];

  const std::int64_t first = blockIdx.x % c.groups * c.group_rows;
  const std::int64_t part = blockIdx.x / c.groups;
  const int rows = static_cast<int>(min(static_cast<std::int64_t>(c.group_rows), c.rows - first));
  const int sixteens = (c.heads + 15) / 16;
  if (static_cast<int>(threadIdx.x) < rows) {
    spans[threadIdx.x] = c.span(first + threadIdx.x);
    requests[threadIdx.x] = c.row_to_req == nullptr ? 0 : c.row_to_req[first + threadIdx.x];
  }
  __syncthreads();
  std::int32_t begin = c.width;
  std::int32_t end = 0;
  for (int r = 0; r < rows; ++r) {
    if (spans[r].end > 0) begin = min(begin, spans[r].begin);
    end = max(end, spans[r].end);
  }
  const std::int64_t block_tile = begin / kTile + part * kWarps;
  if (block_tile * kTile >= end) return;
  for (int r = 0; r < rows; ++r) {
    if (spans[r].end > 0) SharedQ(memory, r, sixteens, kScaled).fill<kElement>(c, first + r, sixteens);
  }
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t hop = static_cast<std::int64_t>(c.parts) * kWarps * kTile;
  float* key_scales = reinterpret_cast<float*>(group_scales[warp]);
  for (int r = 0, next_request = 0; r < rows; r = next_request) {
    std::int32_t last = spans[r].end;
    for (next_request = r + 1; next_request < rows && requests[next_request] == requests[r]; ++next_request)
      last = max(last, spans[next_request].end);
    std::int64_t j = (block_tile + warp) * kTile + key_of(lane);
    const auto find = [&](std::int64_t at) { return at < last ? c.keys.find(requests[r], at) : Place{}; };
    Place place = find(j);
    Place next = find(j + hop);
    std::uint32_t scale_bits = 0;
    typename C::Raw raw[4];
    // A tile's keys are on their way while the one before is computed.
    const auto fetch = [&](Place of) {
      scale_bits = of.block < 0 ? 0U : load_word(c.keys.scales_at(of));
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        Place from;
        from.block = __shfl_sync(0xFFFF'FFFFU, of.block, lane_of(8 * t + lane / 4));
        from.offset = __shfl_sync(0xFFFF'FFFFU, of.offset, lane_of(8 * t + lane / 4));
        raw[t] = {};
        if (from.block >= 0) raw[t] = C::fetch(c.keys.data_at(from), c.keys.data_align, lane % 4);
      }
    };
    fetch(place);
    for (std::int64_t base = (block_tile + warp) * kTile; base < last; base += hop, j += hop) {
      std::uint32_t keys[4][2 * kSteps];
#pragma unroll
      for (int t = 0; t < 4; ++t) C::widen(raw[t], keys[t]);
      float scale = 1.0F;
      if constexpr (kScaled) {
        __syncwarp();
#pragma unroll
        for (int g = 0; g < kGroups; ++g) key_scales[kTile * g + key_of(lane)] = device::from_ue8m0(static_cast<std::uint8_t>(scale_bits >> (8 * g)));
        __syncwarp();
      } else {
        if (place.block >= 0) scale = __uint_as_float(scale_bits);
      }
      const bool exists = place.block >= 0;
      place = next;
      if (base + hop < last) fetch(place);
      next = find(j + 2 * hop);
      for (int i = r; i < next_request; ++i) {
        if (spans[i].begin >= base + kTile || spans[i].end <= base) continue;
        const float score = score_tile<kElement>(SharedQ(memory, i, sixteens, kScaled), sixteens, keys, key_scales, lane) * C::unit() * scale;
        if (j >= spans[i].begin && j < spans[i].end) c.logits[(first + i) * c.logit_stride + j] = exists ? score : -INFINITY;
      }
    }
  }
}

constexpr int kFmaKeys = 64;
constexpr int kFmaHeads = 32;
constexpr int kFmaDims = 32;

/// Number d of a row of codes whose group scales (UE8M0), if it has any, stand at `scales`.
template <Element kElement>
__device__ float number(const std::uint8_t* row, int align, const std::uint8_t* scales, int group, int d) {
  if constexpr (kElement == Element::kE4M3) return device::from_e4m3(row[d]);
  if constexpr (kElement == Element::kE2M1) {
    return device::from_e2m1(d % 2 == 0 ? row[d / 2] & 15U : static_cast<unsigned>(row[d / 2] >> 4)) * device::from_ue8m0(scales[d / group]);
  }
  return load_float(row + 4 * d, align);
}

/// fp32 throughout: a block has a row and every parts-th 64 keys, a thread 4 keys and 4 of 32 heads at once.
template <Element kElement>
__global__ void __launch_bounds__(kThreads, 4) score_fma(const __grid_constant__ Call c) {
  __shared__ float keys[kFmaDims][kFmaKeys + 1];
  __shared__ float heads[kFmaDims][kFmaHeads + 1];
  __shared__ float sums[8][kFmaKeys];
  __shared__ Place places[kFmaKeys];
  const std::int64_t row = blockIdx.x % c.rows;
  const std::int64_t part = blockIdx.x / c.rows;
  const Span span = c.span(row);
  const std::int64_t request = c.row_to_req == nullptr ? 0 : c.row_to_req[row];
  const int thread = static_cast<int>(threadIdx.x);
  const int x = thread % 16;
  const int y = thread / 16;

  for (std::int64_t base = span.begin + part * kFmaKeys; base < span.end; base += static_cast<std::int64_t>(c.parts) * kFmaKeys) {
    if (thread < kFmaKeys) places[thread] = base + thread < span.end ? c.keys.find(request, base + thread) : Place{};
    __syncthreads();
    float sum[4] = {};
    for (int h = 0; h < c.heads; h += kFmaHeads) {
      float dots[4][4] = {};
      for (int d = 0; d < c.dim; d += kFmaDims) {
        for (int i = thread; i < kFmaKeys * kFmaDims; i += kThreads) {
          const Place p = places[i / kFmaDims];
          const int at = i % kFmaDims;
          keys[at][i / kFmaDims] = p.block < 0 ? 0.0F : number<kElement>(c.keys.data_at(p), c.keys.data_align, c.keys.scales_at(p), c.group, d + at);
        }
        for (int i = thread; i < kFmaHeads * kFmaDims; i += kThreads) {
          const int head = h + i / kFmaDims;
          const int at = i % kFmaDims;
          heads[at][i / kFmaDims] = head >= c.heads
                                        ? 0.0F
                                        : number<kElement>(c.q + row * c.q_stride[0] + head * c.q_stride[1], c.q_align,
                                                           c.q_scale + row * c.q_scale_stride[0] + head * c.q_scale_stride[1], c.group, d + at);
        }
        __syncthreads();
        for (int at = 0; at < kFmaDims; ++at) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int k = 0; k < 4; ++k) dots[i][k] = fmaf(heads[at][y + 8 * i], keys[at][x + 16 * k], dots[i][k]);
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = h + y + 8 * i;
        const float weight = head < c.heads ? c.weights[row * c.weight_stride + head] : 0.0F;
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] = fmaf(fmaxf(dots[i][k], 0.0F), weight, sum[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) sums[y][x + 16 * k] = sum[k];
    __syncthreads();
    if (thread < kFmaKeys && base + thread < span.end) {
      const Place p = places[thread];
      float score = 0;
      for (int i = 0; i < 8; ++i) score += sums[i][thread];
      if constexpr (kElement == Element::kE4M3) {
        if (p.block >= 0) score *= load_float(c.keys.scales_at(p), c.keys.scale_align);
      }
      c.logits[row * c.logit_stride + base + thread] = p.block >= 0 ? score : -INFINITY;
    }
    __syncthreads();
  }
}

/// The largest power of two, up to 16, that divides an address and the strides of dimensions with more than one element.
struct Alignment {
  std::uintptr_t bits = 16;
  Alignment& address(const void* p) { return bits |= reinterpret_cast<std::uintptr_t>(p), *this; }
  Alignment& stride(std::int64_t count, std::int64_t bytes) { return bits |= count > 1 ? static_cast<std::uintptr_t>(bytes) : 0U, *this; }
  int value() const { return static_cast<int>(bits & (~bits + 1)); }
};

/// `sharing`: rows that may have one request's keys.
template <Element kElement>
void launch(Call& c, std::int64_t sharing, const RunContext& context) {
  const auto parts = [&](std::int64_t blocks, std::int64_t groups, std::int64_t keys) {
    return static_cast<int>(std::clamp<std::int64_t>((blocks + groups - 1) / groups, 1, (c.width + keys - 1) / keys));
  };
  if constexpr (kElement != Element::kF32) {
    const bool groups_of_32 = kElement == Element::kE4M3 || c.group == 32;
    if (c.dim == kTensorDim && groups_of_32 && std::min({c.q_align, c.keys.data_align, c.keys.scale_align}) >= 4) {
      const int row_bytes = SharedQ::bytes((c.heads + 15) / 16, kElement == Element::kE2M1);
      constexpr int kReserved = 2 << 10;  // of a block, beside its queries
      const int fit = std::clamp((static_cast<int>(device::shared_limit()) / kResident - kReserved) / row_bytes, 1, kMaxRows);
      c.group_rows = static_cast<int>(std::clamp<std::int64_t>(sharing, 1, std::min<std::int64_t>(c.rows, fit)));
      c.groups = (c.rows + c.group_rows - 1) / c.group_rows;
      c.parts = parts(std::int64_t{kWaves} * kResident * device::multiprocessors(), c.groups, kWarps * kTile);
      const int shared = c.group_rows * row_bytes;
      check_cuda(cudaFuncSetAttribute(score_tensor<kElement>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "cudaFuncSetAttribute");
      score_tensor<kElement><<<blocks_for(c.groups * c.parts, 1), kThreads, shared, stream_of(context.stream)>>>(c);
      check_launch("indexer_logits score_tensor");
      return;
    }
  }
  c.parts = parts(kBlocks, c.rows, kFmaKeys);
  score_fma<kElement><<<blocks_for(c.rows * c.parts, 1), kThreads, 0, stream_of(context.stream)>>>(c);
  check_launch("indexer_logits score_fma");
}

/// What both ops have in common.
template <class Op>
Call call_of(const typename Op::Problem& p, const typename Op::Args& a, std::int64_t width) {
  const std::int64_t element = size_of(a.q.dtype);
  Call c{.rows = p.rows,
         .heads = static_cast<int>(p.heads),
         .dim = p.dim,
         .group = std::max(p.format->group, 1),
         .width = static_cast<std::int32_t>(width),
         .q = static_cast<const std::uint8_t*>(a.q.data),
         .q_stride = {a.q.stride[0] * element, a.q.stride[1] * element},
         .q_align = Alignment().address(a.q.data).stride(p.rows, a.q.stride[0] * element).stride(p.heads, a.q.stride[1] * element).value(),
         .q_scale = static_cast<const std::uint8_t*>(a.q_scale.data),
         .q_scale_stride = {a.q_scale.stride[0], a.q_scale.stride[1]},
         .weights = static_cast<const float*>(a.weights.data),
         .weight_stride = a.weights.stride[0],
         .logits = static_cast<float*>(a.logits.data),
         .logit_stride = a.logits.stride[0]};
  c.keys.data_bytes = p.format->data_bytes;
  c.keys.scale_bytes = p.format->scale_bytes;
  return c;
}

void score(Call& c, const RowFormat& format, std::int64_t sharing, const RunContext& context) {
  switch (format.nope) {
    case Element::kE4M3: return launch<Element::kE4M3>(c, sharing, context);
    case Element::kE2M1: return launch<Element::kE2M1>(c, sharing, context);
    default: return launch<Element::kF32>(c, sharing, context);
  }
}

}  // namespace

template <>
std::string CudaOp<IndexerLogits>::refuse(const IndexerLogits::Problem&, const PlanOptions&) {
  return needs_gpu();
}

template <>
std::size_t CudaOp<IndexerLogits>::workspace_bytes(const IndexerLogits::Problem&, int) {
  return 0;
}

template <>
void CudaOp<IndexerLogits>::run(const IndexerLogits::Problem& p, const IndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.width == 0) return;
  Call c = call_of<IndexerLogits>(p, a, p.width);
  c.row_to_req = static_cast<const std::int32_t*>(a.row_to_req.data);
  c.ends = static_cast<const std::int32_t*>(a.lens.data);
  Keys& k = c.keys;
  k.data = a.cache.base;
  k.data_stride = a.cache.block_stride_bytes;
  k.data_align = Alignment().address(k.data).stride(a.cache.num_blocks, k.data_stride).stride(a.cache.block_size, k.data_bytes).value();
  k.scales = a.cache.base + a.cache.block_size * k.data_bytes;
  k.scale_stride = a.cache.block_stride_bytes;
  k.scale_align = Alignment().address(k.scales).stride(a.cache.num_blocks, k.scale_stride).stride(a.cache.block_size, k.scale_bytes).value();
  k.blocks = a.cache.num_blocks;
  k.block_size = static_cast<std::uint32_t>(std::min<std::int64_t>(a.cache.block_size, INT32_MAX));  // no entry lies past the first such block
  k.paged = true;
  k.table = static_cast<const std::int32_t*>(a.block_table.data);
  k.table_stride = a.block_table.stride[0];
  k.requests = a.block_table.size(0);
  k.columns = a.block_table.size(1);
  score(c, *p.format, p.rows / std::max<std::int64_t>(k.requests, 1), context);
}

template <>
std::string CudaOp<RaggedIndexerLogits>::refuse(const RaggedIndexerLogits::Problem&, const PlanOptions&) {
  return needs_gpu();
}

template <>
std::size_t CudaOp<RaggedIndexerLogits>::workspace_bytes(const RaggedIndexerLogits::Problem&, int) {
  return 0;
}

template <>
void CudaOp<RaggedIndexerLogits>::run(const RaggedIndexerLogits::Problem& p, const RaggedIndexerLogits::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.keys == 0) return;
  Call c = call_of<RaggedIndexerLogits>(p, a, p.keys);
  c.starts = static_cast<const std::int32_t*>(a.starts.data);
  c.ends = static_cast<const std::int32_t*>(a.ends.data);
  Keys& k = c.keys;
  k.data = static_cast<const std::uint8_t*>(a.values.data);
  k.data_stride = a.values.stride[0];
  k.data_align = Alignment().address(k.data).stride(p.keys, k.data_stride).value();
  k.scales = static_cast<const std::uint8_t*>(a.scales.data);
  k.scale_stride = a.scales.stride[0];
  k.scale_align = Alignment().address(k.scales).stride(p.keys, k.scale_stride).value();
  score(c, *p.format, p.rows, context);
}

}  // namespace smla
