#include <algorithm>
#include <bit>

#include "bench/choices.h"
#include "bench/gpu.h"
#include "cache/cache_view.cuh"
#include "core/codecs.h"
#include "device/gpu.h"
#include "device/launch.cuh"
#include "device/memory.h"
#include "device/ptx/mma_sm80.cuh"

namespace smla::bench {

namespace {

using device::CacheView;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Where a kernel that keeps nothing would write: the compiler cannot know that it never does.
__device__ unsigned kept;
__device__ void pretend_to_keep(unsigned bits, unsigned never) {
  if (bits == never) kept = bits;
}
constexpr unsigned kNever = 0x9D2C'5680U;

__global__ void __launch_bounds__(kThreads) sweep(const uint4* memory, std::int64_t words, unsigned never) {
  unsigned bits = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words; i += step) {
    const uint4 v = memory[i];
    bits = (bits ^ v.x ^ v.y ^ v.z ^ v.w) * 3;
  }
  pretend_to_keep(bits, never);
}

constexpr int kCopyWords = 4;  ///< of a thread
__global__ void __launch_bounds__(kThreads) copy(uint4* to, const uint4* from, std::int64_t words) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads * kCopyWords + threadIdx.x;
  uint4 v[kCopyWords];
#pragma unroll
  for (int i = 0; i < kCopyWords; ++i) {
    if (first + i * kThreads < words) v[i] = __ldcs(from + first + i * kThreads);
  }
#pragma unroll
  for (int i = 0; i < kCopyWords; ++i) {
    if (first + i * kThreads < words) __stcs(to + first + i * kThreads, v[i]);
  }
}

__global__ void follow(const std::int32_t* next, int reads, std::int32_t* last) {
  std::int32_t at = 0;
  for (int i = 0; i < reads; ++i) at = next[at];
  if (reads > 0) *last = at;
}

/// Rows of a cache with a power of two of them in a block, all in 8-byte words.
struct WordRows {
  const std::uint8_t* base = nullptr;
  std::int64_t block_stride = 0;
  int shift = 0;  ///< log2 of a block's rows
  int data_words = 0;
  int scale_words = 0;
};

/// A warp reads kRows rows at once, 8 bytes a lane; the scales come as the words behind the numbers.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    gather(const __grid_constant__ WordRows c, const std::int32_t* slots, std::int64_t rows, unsigned never) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * kRows;
  const int words = c.data_words + c.scale_words;
  const unsigned long long* data[kRows];
  const unsigned long long* scales[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int slot = slots[first + r < rows ? first + r : rows - 1];
    const int row = slot & ((1 << c.shift) - 1);
    const auto* block = reinterpret_cast<const unsigned long long*>(c.base + (slot >> c.shift) * c.block_stride);
    data[r] = block + row * c.data_words;
    scales[r] = block + (c.data_words << c.shift) + row * c.scale_words - c.data_words;
  }
  // Everything is on its way before the first word is looked at.
  constexpr int kAtOnce = 3;
  unsigned long long bits = 0;
  for (int w = lane; w < words; w += 32 * kAtOnce) {
    unsigned long long v[kRows][kAtOnce];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = w + 32 * i;
        v[r][i] = at < words ? __ldg((at < c.data_words ? data[r] : scales[r]) + at) : 0;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) bits = (bits ^ v[r][i]) * 3;
    }
  }
  pretend_to_keep(static_cast<unsigned>(bits) ^ static_cast<unsigned>(bits >> 32), never);
}

constexpr int kChains = 8;  // independent sums of a warp: what hides the latency of an mma
__global__ void __launch_bounds__(kThreads) multiply_adds(std::int64_t rounds, std::uint32_t seed, unsigned never) {
  float d[kChains][4];
#pragma unroll
  for (int i = 0; i < kChains; ++i) d[i][0] = d[i][1] = d[i][2] = d[i][3] = static_cast<float>(i);
  // bf16 pairs of magnitudes near 1, other ones in every lane.
  const std::uint32_t x = (static_cast<std::uint32_t>(mix(seed, threadIdx.x)) & 0x807F'807FU) | 0x3F00'3F00U;
  const std::uint32_t a[4] = {x, x ^ 0x0013'8025U, x ^ 0x8031'0046U, x ^ 0x0052'0009U};
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) device::mma_m16n8k16_bf16(d[i], a, a[i % 4] ^ 0x0004'8000U, a[(i + 1) % 4]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  pretend_to_keep(__float_as_uint(sum), never);
}

__device__ float random_number(std::uint64_t seed, std::int64_t i, float width) {
  return width * static_cast<float>(2 * unit(mix(seed, static_cast<std::uint64_t>(i))) - 1);
}

template <class T>
__global__ void __launch_bounds__(kThreads) random_numbers(T* to, std::int64_t n, std::uint64_t seed, float width) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const float v = random_number(seed, i, width);
    if constexpr (std::is_same_v<T, BF16>) {
      to[i] = to_bf16(v);
    } else if constexpr (std::is_same_v<T, E4M3>) {
      to[i] = to_e4m3(v);
    } else {
      to[i] = v;
    }
  }
}

/// A warp a row; every record has whole 4-byte words.
__global__ void __launch_bounds__(kThreads)
    copy_rows(const __grid_constant__ CacheView to, const __grid_constant__ CacheView from, const std::int32_t* slots,
              std::int64_t rows, std::uint64_t seed) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  const std::int64_t slot = slots != nullptr ? slots[row]
                                             : static_cast<std::int64_t>(mix(seed, static_cast<std::uint64_t>(row)) %
                                                                         static_cast<std::uint64_t>(from.num_slots));
  if (slot < 0 || slot >= from.num_slots) return;
  const auto copy = [&](std::uint8_t* a, const std::uint8_t* b, std::int64_t bytes) {
    for (std::int64_t i = lane; i < bytes / 4; i += 32)
      reinterpret_cast<std::uint32_t*>(a)[i] = reinterpret_cast<const std::uint32_t*>(b)[i];
  };
  copy(to.data(row), from.data(slot), from.data_bytes);
  copy(to.scales(row), from.scales(slot), from.scale_bytes);
}

template <class T>
__global__ void __launch_bounds__(kThreads) count_nan(const T* values, std::int64_t n, unsigned long long* count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  unsigned long long mine = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    if constexpr (std::is_same_v<T, BF16>) {
      mine += (values[i].bits & 0x7FFFU) > 0x7F80U ? 1 : 0;
    } else if constexpr (std::is_same_v<T, E4M3>) {
      mine += (values[i].bits & 0x7FU) == 0x7FU ? 1 : 0;
    } else {
      mine += isnan(values[i]) ? 1 : 0;
    }
  }
  if (mine != 0) atomicAdd(count, mine);
}

struct IndexCall {
  std::int32_t* slots = nullptr;
  std::int64_t queries = 0;
  std::int64_t width = 0;
  const std::int32_t* tables = nullptr;
  std::int64_t columns = 0;
  IndexRule rule;
};

__global__ void __launch_bounds__(kThreads)
    make_indices(const __grid_constant__ IndexCall c, const __grid_constant__ Shuffle order) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < c.queries * c.width;
       i += step) {
    const std::int64_t query = i / c.width;
    const std::int64_t column = i - query * c.width;
    const std::int64_t request = query / c.rule.queries_of_request;
    std::int64_t entry = column;
    if (c.rule.kind == IndexRule::Kind::kRandom) {
      entry = order.at(column, mix(c.rule.seed, static_cast<std::uint64_t>(query)));
    } else if (c.rule.kind == IndexRule::Kind::kSliding) {
      const std::uint64_t first =
          mix(c.rule.seed, static_cast<std::uint64_t>(request)) % static_cast<std::uint64_t>(c.rule.first_below);
      entry += static_cast<std::int64_t>(first) + query % c.rule.queries_of_request;
    }
    const std::int32_t block = c.tables[request * c.columns + entry / c.rule.page];
    c.slots[i] = static_cast<std::int32_t>(block * c.rule.page + entry % c.rule.page);
  }
}

/// Enough blocks to fill the GPU several times over, no more than there is work for.
unsigned looping_blocks(std::int64_t items) {
  const std::int64_t most = std::int64_t{32} * device::current_gpu().multiprocessors;
  return static_cast<unsigned>(std::clamp<std::int64_t>((items + kThreads - 1) / kThreads, 1, most));
}

}  // namespace

void gpu_sweep(const void* memory, std::size_t bytes, Stream stream) {
  const auto words = static_cast<std::int64_t>(bytes / sizeof(uint4));
  sweep<<<looping_blocks(words), kThreads, 0, stream_of(stream)>>>(static_cast<const uint4*>(memory), words, kNever);
  check_launch("bench sweep");
}

void gpu_copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  const auto words = static_cast<std::int64_t>(bytes / sizeof(uint4));
  copy<<<blocks_for(words, std::int64_t{kThreads} * kCopyWords), kThreads, 0, stream_of(stream)>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), words);
  check_launch("bench copy");
}

void gpu_gather(const PagedCache& cache, const std::int32_t* slots, std::int64_t rows, Stream stream) {
  constexpr int kRows = 4;
  const RowFormat& f = *cache.format;
  const auto block = static_cast<std::uint64_t>(cache.block_size);
  if (f.data_bytes % 8 != 0 || f.scale_bytes % 8 != 0 || cache.block_stride_bytes % 8 != 0 ||
      f.inline_scale_bytes != 0 || !std::has_single_bit(block)) {
    throw InvalidArgument("bench gather: got " + std::string(f.name) + " rows in blocks of " + std::to_string(block) +
                          ", expected records of whole 8-byte words in blocks of a power of two");
  }
  if (rows == 0) return;
  const WordRows view{.base = cache.base,
                      .block_stride = cache.block_stride_bytes,
                      .shift = std::countr_zero(block),
                      .data_words = f.data_bytes / 8,
                      .scale_words = f.scale_bytes / 8};
  gather<kRows>
      <<<blocks_for(rows, std::int64_t{kWarps} * kRows), kThreads, 0, stream_of(stream)>>>(view, slots, rows, kNever);
  check_launch("bench gather");
}

double gpu_multiply_add(std::int64_t rounds, Stream stream) {
  const unsigned blocks = 8U * static_cast<unsigned>(device::current_gpu().multiprocessors);
  multiply_adds<<<blocks, kThreads, 0, stream_of(stream)>>>(rounds, 1, kNever);
  check_launch("bench multiply_adds");
  return 2.0 * 16 * 8 * 16 * kChains * static_cast<double>(rounds) * kWarps * blocks;
}

void gpu_random(const TensorView& to, std::uint64_t seed, float width, Stream stream) {
  const std::int64_t n = to.numel();
  if (n == 0) return;
  const auto run = [&](auto* p) {
    random_numbers<<<looping_blocks(n), kThreads, 0, stream_of(stream)>>>(p, n, seed, width);
  };
  switch (to.dtype) {
    case DType::kBF16: run(static_cast<BF16*>(to.data)); break;
    case DType::kE4M3: run(static_cast<E4M3*>(to.data)); break;
    case DType::kF32: run(static_cast<float*>(to.data)); break;
    default:
      throw InvalidArgument("bench random numbers: got dtype " + std::string(name_of(to.dtype)) +
                            ", expected BF16, F8_E4M3 or F32");
  }
  check_launch("bench random_numbers");
}

void gpu_follow(const std::int32_t* next, int reads, std::int32_t* last, Stream stream) {
  follow<<<1, 1, 0, stream_of(stream)>>>(next, reads, last);
  check_launch("bench follow");
}
void gpu_copy_rows(const PagedCache& to, const PagedCache& from, const std::int32_t* slots, std::int64_t rows,
                   std::uint64_t seed, Stream stream) {
  const auto words = [](const PagedCache& c) {
    return c.format->data_bytes % 4 == 0 && c.format->scale_bytes % 4 == 0 && c.block_stride_bytes % 4 == 0;
  };
  if (to.format != from.format || !words(to) || !words(from) || rows > to.num_slots() ||
      to.format->inline_scale_bytes != 0) {
    throw InvalidArgument(
        "bench copy rows: got caches that do not fit, expected one format of whole 4-byte words and room for " +
        std::to_string(rows));
  }
  if (rows == 0) return;
  copy_rows<<<blocks_for(rows, kWarps), kThreads, 0, stream_of(stream)>>>(
      device::view_of_cache(to), device::view_of_cache(from), slots, rows, seed);
  check_launch("bench copy_rows");
}

std::int64_t gpu_count_nan(const ConstTensorView& values, Stream stream) {
  const DeviceMemory count(DeviceKind::kCuda, sizeof(unsigned long long));
  const std::int64_t n = values.numel();
  if (n > 0) {
    const auto run = [&](const auto* p) {
      count_nan<<<looping_blocks(n), kThreads, 0, stream_of(stream)>>>(p, n,
                                                                       static_cast<unsigned long long*>(count.data()));
    };
    switch (values.dtype) {
      case DType::kBF16: run(values.as<BF16>()); break;
      case DType::kE4M3: run(values.as<E4M3>()); break;
      default: run(values.as<float>()); break;
    }
    check_launch("bench count_nan");
  }
  unsigned long long found = 0;
  copy_bytes(DeviceKind::kCuda, &found, count.data(), sizeof found, stream);
  synchronize(DeviceKind::kCuda, stream);
  return static_cast<std::int64_t>(found);
}

void gpu_make_indices(const TensorView& slots, const ConstTensorView& tables, const IndexRule& rule, Stream stream) {
  const IndexCall call{.slots = slots.as<std::int32_t>(),
                       .queries = slots.size(0),
                       .width = slots.size(1),
                       .tables = tables.as<std::int32_t>(),
                       .columns = tables.size(1),
                       .rule = rule};
  if (slots.numel() == 0) return;
  const bool sliding = rule.kind == IndexRule::Kind::kSliding;
  const std::int64_t last = call.width + (sliding ? rule.first_below - 1 + rule.queries_of_request - 1 : 0);
  if (last > rule.entries || rule.entries > call.columns * rule.page ||
      tables.size(0) * rule.queries_of_request < call.queries) {
    throw InvalidArgument("bench indices: got " + std::to_string(last) + " entries to name, expected at most " +
                          std::to_string(rule.entries));
  }
  make_indices<<<looping_blocks(slots.numel()), kThreads, 0, stream_of(stream)>>>(call, Shuffle(rule.entries));
  check_launch("bench make_indices");
}

}  // namespace smla::bench
