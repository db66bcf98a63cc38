// Driver of the logits kernels: cuts the work, gathers key tiles from the pages, widens q. The arithmetic is in
// logits_kernel.h.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/codecs.h"
#include "ops/indexer/implementations.h"
#include "ops/indexer/logits_tile.h"

namespace smla {

namespace {

using Problem = IndexerLogits::Problem;
using Args = IndexerLogits::Args;

/// Keys in one array (RaggedIndexerLogits) instead of pages. The driver then reads nothing of Args but q,
/// weights and logits.
struct Ragged {
  ConstTensorView values;
  ConstTensorView scales;
  const std::int32_t* starts;
  const std::int32_t* ends;
};

constexpr std::int64_t kChunkKeys = 2048;  // most keys of a work item
constexpr std::int64_t kMinKeys = 256;     // fewest, where a short context is cut finer to keep the threads busy
constexpr std::int64_t kGroupBytes =
    std::int64_t{1} << 18;  // floats of q that a work item keeps: they should stay in the second-level cache
constexpr int kLane = 16;   // bytes and keys of a transposed square
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Rows that share decoded keys when they belong to one request.
std::int64_t rows_of_group(const Problem& problem) {
  return std::clamp<std::int64_t>(
      kGroupBytes / (problem.heads * problem.dim * static_cast<std::int64_t>(sizeof(float))), 1, 16);
}

/// One thread's scratch.
struct Scratch {
  float* keys;          ///< [dim][kTileKeys]
  float* q;             ///< [rows of a group][heads][dim]
  float* group_scales;  ///< [groups][kTileKeys]
  float* key_scales;    ///< [kTileKeys]
  float* out;           ///< [kTileKeys]
  std::uint8_t* bytes;  ///< [dim][kTileKeys] E4M3
  std::uint8_t* zeros;  ///< a row of zero bytes, read in place of keys that do not exist
};

/// Lays the scratch out from `base` (null: only computes the size); returns its size, a multiple of 64 bytes.
std::size_t lay_out(const Problem& problem, char* base, Scratch& scratch) {
  std::size_t used = 0;
  const auto take = [&]<class T>(T*& pointer, std::int64_t count) {
    if (base != nullptr) pointer = reinterpret_cast<T*>(base + used);
    used += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
  };
  take(scratch.keys, std::int64_t{kTileKeys} * problem.dim);
  take(scratch.q, rows_of_group(problem) * problem.heads * problem.dim);
  take(scratch.group_scales, std::int64_t{kTileKeys} * std::max(problem.format->groups(), 1));
  take(scratch.key_scales, kTileKeys);
  take(scratch.out, kTileKeys);
  take(scratch.bytes, std::int64_t{kTileKeys} * problem.dim);
  take(scratch.zeros, problem.format->row_bytes());
  return used;
}

constexpr std::array<float, 256> kE4M3Values = [] {
  std::array<float, 256> values{};
  for (unsigned i = 0; i < 256; ++i) values[i] = to_float(E4M3{static_cast<std::uint8_t>(i)});
  return values;
}();

void widen_q(const Problem& problem, const Args& args, std::int64_t row, float* to) {
  const RowFormat& format = *problem.format;
  for (std::int64_t h = 0; h < problem.heads; ++h, to += problem.dim) {
    const std::int64_t at = row * args.q.stride[0] + h * args.q.stride[1];
    if (format.nope == Element::kF32) {
      std::memcpy(to, static_cast<const float*>(args.q.data) + at,
                  static_cast<std::size_t>(problem.dim) * sizeof(float));
      continue;
    }
    const std::uint8_t* bytes = static_cast<const std::uint8_t*>(args.q.data) + at;
    if (format.nope == Element::kE4M3) {
      for (int d = 0; d < problem.dim; ++d) to[d] = kE4M3Values[bytes[d]];
      continue;
    }
    const std::uint8_t* scales =
        static_cast<const std::uint8_t*>(args.q_scale.data) + row * args.q_scale.stride[0] + h * args.q_scale.stride[1];
    for (int d = 0; d < problem.dim; d += 2) {
      const float scale = from_ue8m0(scales[d / format.group]);
      to[d] = from_e2m1(bytes[d / 2] & 15U) * scale;
      to[d + 1] = from_e2m1(static_cast<std::uint8_t>(bytes[d / 2] >> 4)) * scale;
    }
  }
}

/// The addresses of a key's numbers and scales.
struct Key {
  const std::uint8_t* data;
  const std::uint8_t* scales;
};

/// The keys of entries [at, at + count) of a request; returns a mask of those that do not exist.
std::uint64_t find_keys(const Args& args, const std::int32_t* table, std::int64_t at, int count,
                        const std::uint8_t* zeros, Key* keys) {
  const PagedCache& cache = args.cache;
  const RowFormat& format = *cache.format;
  const std::int64_t columns = args.block_table.size(1);
  std::int64_t column = at / cache.block_size;
  std::int64_t offset = at % cache.block_size;
  std::uint64_t missing = 0;
  for (int i = 0; i < kTileKeys; ++i) {
    const std::int64_t block = i < count && column < columns ? table[column] : -1;
    if (block >= 0 && block < cache.num_blocks) {
      const std::uint8_t* base = cache.block(block);
      keys[i] = {base + offset * format.data_bytes,
                 base + cache.block_size * format.data_bytes + offset * format.scale_bytes};
    } else {
      keys[i] = {zeros, zeros};
      missing |= std::uint64_t{1} << i;
    }
    if (++offset == cache.block_size) {
      offset = 0;
      ++column;
    }
  }
  return missing;
}

/// The same for keys in one array.
void find_keys(const Ragged& ragged, std::int64_t at, int count, const std::uint8_t* zeros, Key* keys) {
  const auto* values = static_cast<const std::uint8_t*>(ragged.values.data);
  const auto* scales = static_cast<const std::uint8_t*>(ragged.scales.data);
  for (int i = 0; i < kTileKeys; ++i) {
    keys[i] = {zeros, zeros};
    if (i < count)
      keys[i] = {values + (at + i) * ragged.values.stride[0],
                 scales == nullptr ? zeros : scales + (at + i) * ragged.scales.stride[0]};
  }
}

typedef std::uint8_t Bytes __attribute__((vector_size(kLane)));

/// Bytes [at, at+16) of 16 keys to 16 rows of one byte of each key: four times an interleave of row i with row i + 8.
void transpose_square(const Key* keys, std::int64_t at, std::uint8_t* to) {
  Bytes a[kLane];
  Bytes b[kLane];
  for (int i = 0; i < kLane; ++i) std::memcpy(&a[i], keys[i].data + at, kLane);
  const auto interleave = [](const Bytes* from, Bytes* into) {
    for (int i = 0; i < kLane / 2; ++i) {
      into[2 * i] =
          __builtin_shufflevector(from[i], from[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      into[2 * i + 1] =
          __builtin_shufflevector(from[i], from[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
  };
  interleave(a, b);
  interleave(b, a);
  interleave(a, b);
  interleave(b, a);
  for (int i = 0; i < kLane; ++i) std::memcpy(to + i * kTileKeys, &a[i], kLane);
}

/// E2M1 codes are E4M3 numbers: 0, 0.5 and from code 2 on 0x30 + 4 * code.
std::uint8_t e4m3_of_e2m1(unsigned code) {
  const unsigned magnitude = code & 7U;
  const unsigned byte = magnitude >= 2 ? 0x30U + 4U * magnitude : (magnitude == 1 ? 0x30U : 0U);
  return static_cast<std::uint8_t>(byte | ((code & 8U) << 4));
}

/// Gathers a tile of keys and leaves it as floats [dim][kTileKeys] in scratch.keys, with scratch.key_scales.
void load_tile(const Problem& problem, const Key* keys, const LogitsKernel& kernel, const Scratch& scratch) {
  const RowFormat& format = *problem.format;
  std::fill_n(scratch.key_scales, kTileKeys, 1.0F);
  if (format.nope == Element::kF32) {
    for (int i = 0; i < kTileKeys; ++i) {
      for (int d = 0; d < problem.dim; ++d)
        std::memcpy(scratch.keys + d * kTileKeys + i, keys[i].data + 4 * static_cast<std::int64_t>(d), 4);
    }
    return;
  }
  const bool fp4 = format.nope == Element::kE2M1;
  // Packed nibbles go to the upper half: expanding row b writes rows 2b and 2b+1, which never pass the row that is read
  // next.
  std::uint8_t* raw = scratch.bytes + (fp4 ? static_cast<std::int64_t>(format.data_bytes) * kTileKeys : 0);
  for (int at = 0; at < format.data_bytes; at += kLane) {
    for (int i = 0; i < kTileKeys; i += kLane)
      transpose_square(keys + i, at, raw + static_cast<std::int64_t>(at) * kTileKeys + i);
  }
  if (!fp4) {
    for (int i = 0; i < kTileKeys; ++i) std::memcpy(scratch.key_scales + i, keys[i].scales, sizeof(float));
    kernel.decode(scratch.bytes, nullptr, problem.dim, format.group, scratch.keys);
    return;
  }
  for (int b = 0; b < format.data_bytes; ++b) {
    std::uint8_t packed[kTileKeys];
    std::memcpy(packed, raw + static_cast<std::int64_t>(b) * kTileKeys, kTileKeys);
    std::uint8_t* low = scratch.bytes + static_cast<std::int64_t>(2) * b * kTileKeys;
    for (int i = 0; i < kTileKeys; ++i) low[i] = e4m3_of_e2m1(packed[i] & 15U);
    for (int i = 0; i < kTileKeys; ++i) low[kTileKeys + i] = e4m3_of_e2m1(packed[i] >> 4U);
  }
  for (int g = 0; g < format.groups(); ++g) {
    for (int i = 0; i < kTileKeys; ++i) scratch.group_scales[g * kTileKeys + i] = from_ue8m0(keys[i].scales[g]);
  }
  kernel.decode(scratch.bytes, scratch.group_scales, problem.dim, format.group, scratch.keys);
}

/// Rows [begin, end) of one request against entries [from, to).
void score_run(const Problem& problem, const Args& args, const LogitsKernel& kernel, const Scratch& scratch,
               std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
  const std::int32_t* lens = static_cast<const std::int32_t*>(args.lens.data);
  float* logits = static_cast<float*>(args.logits.data);
  std::int64_t longest = 0;
  for (std::int64_t row = begin; row < end; ++row) longest = std::max<std::int64_t>(longest, lens[row]);
  to = std::min(to, longest);
  if (to <= from) return;

  const std::int64_t request = static_cast<const std::int32_t*>(args.row_to_req.data)[begin];
  if (request < 0 || request >= args.block_table.size(0)) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t last = std::min<std::int64_t>(lens[row], to);
      if (last > from) std::fill_n(logits + row * args.logits.stride[0] + from, last - from, kMinusInfinity);
    }
    return;
  }
  const std::int32_t* table =
      static_cast<const std::int32_t*>(args.block_table.data) + request * args.block_table.stride[0];
  const std::int64_t q_size = problem.heads * problem.dim;
  for (std::int64_t row = begin; row < end; ++row) {
    if (lens[row] > from) widen_q(problem, args, row, scratch.q + (row - begin) * q_size);
  }
  for (std::int64_t at = from; at < to; at += kTileKeys) {
    Key keys[kTileKeys];
    const std::uint64_t missing =
        find_keys(args, table, at, static_cast<int>(std::min<std::int64_t>(to - at, kTileKeys)), scratch.zeros, keys);
    load_tile(problem, keys, kernel, scratch);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t n = std::min<std::int64_t>(std::min<std::int64_t>(lens[row], to) - at, kTileKeys);
      if (n <= 0) continue;
      const float* weights = static_cast<const float*>(args.weights.data) + row * args.weights.stride[0];
      kernel.score(scratch.q + (row - begin) * q_size, weights, problem.heads, problem.dim, scratch.keys,
                   scratch.key_scales, static_cast<int>(n), scratch.out);
      for (std::int64_t i = 0; missing != 0 && i < n; ++i) {
        if (((missing >> i) & 1U) != 0) scratch.out[i] = kMinusInfinity;
      }
      std::memcpy(logits + row * args.logits.stride[0] + at, scratch.out, static_cast<std::size_t>(n) * sizeof(float));
    }
  }
}

/// Rows [begin, end) against the keys [from, to) of one array: every row has its own first and last key.
void score_ragged(const Problem& problem, const Args& args, const Ragged& ragged, const LogitsKernel& kernel,
                  const Scratch& scratch, std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
  std::int64_t first = to;
  std::int64_t last = from;
  const std::int64_t q_size = problem.heads * problem.dim;
  for (std::int64_t row = begin; row < end; ++row) {
    if (ragged.ends[row] <= ragged.starts[row]) continue;
    first = std::min<std::int64_t>(first, ragged.starts[row]);
    last = std::max<std::int64_t>(last, ragged.ends[row]);
    widen_q(problem, args, row, scratch.q + (row - begin) * q_size);
  }
  first = std::max(first, from);
  last = std::min(last, to);
  for (std::int64_t at = first; at < last; at += kTileKeys) {
    const std::int64_t stop = std::min(at + kTileKeys, last);
    Key keys[kTileKeys];
    find_keys(ragged, at, static_cast<int>(stop - at), scratch.zeros, keys);
    load_tile(problem, keys, kernel, scratch);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t low = std::max<std::int64_t>(ragged.starts[row], at);
      const std::int64_t high = std::min<std::int64_t>(ragged.ends[row], stop);
      if (high <= low) continue;
      const float* weights = static_cast<const float*>(args.weights.data) + row * args.weights.stride[0];
      kernel.score(scratch.q + (row - begin) * q_size, weights, problem.heads, problem.dim, scratch.keys,
                   scratch.key_scales, static_cast<int>(high - at), scratch.out);
      float* logits = static_cast<float*>(args.logits.data) + row * args.logits.stride[0];
      std::memcpy(logits + low, scratch.out + (low - at), static_cast<std::size_t>(high - low) * sizeof(float));
    }
  }
}

/// Keys of a work item, whole tiles: two items a thread where the context is long enough.
std::int64_t keys_of_item(std::int64_t width, std::int64_t groups, int threads) {
  const std::int64_t pieces = groups == 0 ? 1 : (2 * static_cast<std::int64_t>(threads) + groups - 1) / groups;
  const std::int64_t tiles = (width + pieces * kTileKeys - 1) / (pieces * kTileKeys);
  return std::clamp(tiles * kTileKeys, kMinKeys, kChunkKeys);
}

/// Work items are groups of rows times chunks of columns. Every logit is summed in a fixed order, so the bits depend
/// neither on the cut nor on the threads.
void run_kernel(const Problem& problem, const Args& args, const Ragged* ragged, const RunContext& context,
                const LogitsKernel& kernel) {
  const std::int32_t* row_to_req = static_cast<const std::int32_t*>(args.row_to_req.data);
  const std::int64_t group = rows_of_group(problem);
  const std::int64_t groups = (problem.rows + group - 1) / group;
  const std::int64_t chunk = keys_of_item(problem.width, groups, context.threads);
  const std::int64_t chunks = (problem.width + chunk - 1) / chunk;
  Scratch measure{};
  const std::size_t scratch_bytes = lay_out(problem, nullptr, measure);
  char* memory = static_cast<char*>(context.workspace.data);
  memory += (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64;
  const auto threads = static_cast<int>(std::clamp<std::int64_t>(groups * chunks, 1, context.threads));
#pragma omp parallel num_threads(threads)
  {
    Scratch scratch{};
    lay_out(problem, memory + static_cast<std::size_t>(omp_get_thread_num()) * scratch_bytes, scratch);
    std::memset(scratch.zeros, 0, static_cast<std::size_t>(problem.format->row_bytes()));
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < groups * chunks; ++item) {
      const std::int64_t from = item % chunks * chunk;
      const std::int64_t to = std::min(from + chunk, problem.width);
      const std::int64_t last = std::min((item / chunks + 1) * group, problem.rows);
      if (ragged != nullptr) {
        score_ragged(problem, args, *ragged, kernel, scratch, item / chunks * group, last, from, to);
        continue;
      }
      for (std::int64_t begin = item / chunks * group, end = begin; begin < last; begin = end) {
        while (end < last && row_to_req[end] == row_to_req[begin]) ++end;
        score_run(problem, args, kernel, scratch, begin, end, from, to);
      }
    }
  }
}

/// The ragged op in the driver's terms.
Problem paged_problem(const RaggedIndexerLogits::Problem& problem) {
  return {.rows = problem.rows,
          .heads = problem.heads,
          .dim = problem.dim,
          .width = problem.keys,
          .format = problem.format};
}

void run_kernel(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                const RunContext& context, const LogitsKernel& kernel) {
  Args rows;
  rows.q = args.q;
  rows.q_scale = args.q_scale;
  rows.weights = args.weights;
  rows.logits = args.logits;
  const Ragged ragged{.values = args.values,
                      .scales = args.scales,
                      .starts = static_cast<const std::int32_t*>(args.starts.data),
                      .ends = static_cast<const std::int32_t*>(args.ends.data)};
  run_kernel(paged_problem(problem), rows, &ragged, context, kernel);
}

}  // namespace

std::size_t indexer_logits_workspace(const IndexerLogits::Problem& problem, int threads) {
  Scratch measure{};
  return static_cast<std::size_t>(threads) * lay_out(problem, nullptr, measure) +
         64;  // 64: to align what the caller did not
}

void indexer_logits_cpu(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                        const RunContext& context) {
  run_kernel(problem, args, nullptr, context, indexer_logits_kernel_generic());
}
void indexer_logits_avx2(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                         const RunContext& context) {
  run_kernel(problem, args, nullptr, context, indexer_logits_kernel_avx2());
}
void indexer_logits_avx512(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                           const RunContext& context) {
  run_kernel(problem, args, nullptr, context, indexer_logits_kernel_avx512());
}

std::size_t ragged_indexer_logits_workspace(const RaggedIndexerLogits::Problem& problem, int threads) {
  return indexer_logits_workspace(paged_problem(problem), threads);
}

void ragged_indexer_logits_cpu(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                               const RunContext& context) {
  run_kernel(problem, args, context, indexer_logits_kernel_generic());
}
void ragged_indexer_logits_avx2(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                                const RunContext& context) {
  run_kernel(problem, args, context, indexer_logits_kernel_avx2());
}
void ragged_indexer_logits_avx512(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                                  const RunContext& context) {
  run_kernel(problem, args, context, indexer_logits_kernel_avx512());
}

}  // namespace smla
