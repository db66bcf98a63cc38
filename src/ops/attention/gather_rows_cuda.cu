// GatherRows on any GPU: decodes paged rows to bf16; a warp for a row, sixteen numbers for each lane at a time.
#include <algorithm>

#include "cache/cache_view.cuh"
#include "cache/row_codec.h"
#include "device/copy.cuh"
#include "device/halves.cuh"
#include "device/launch_pdl.cuh"
#include "device/vec4.cuh"
#include "ops/cuda_row.h"
#include "sparsemla/ops/attention.h"

namespace smla {

namespace {

constexpr int kWarps = 8;
constexpr int kChunk = 16;  ///< numbers that a lane decodes at once; they share an element type and a scale
constexpr unsigned kMaxBlocks = 1U << 16;

struct GatherCall {
  device::CacheView cache;
  std::int64_t num_blocks = 0;
  int data_word = 1;
  int scale_word = 1;
  std::int64_t requests = 0;
  std::int64_t most = 0;  ///< most rows of a request that `out` has room for
  const std::int32_t* seq_lens = nullptr;
  const std::int32_t* gather_lens = nullptr;
  const std::int32_t* table = nullptr;
  std::int64_t table_stride = 0;
  std::int64_t columns = 0;
  std::uint16_t* out = nullptr;  ///< first row that may be written
  std::int64_t out_stride[2] = {0, 0};
  int out_word = 2;
};

/// Loads kWords words from memory that is aligned to `word` bytes.
template <int kWords>
__device__ void load(const std::uint8_t* from, int word, std::uint32_t (&to)[kWords]) {
  if (word == 16 && kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(from)[i];
      to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
  } else if (word >= 8 && kWords % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const uint2 v = reinterpret_cast<const uint2*>(from)[i];
      to[2 * i] = v.x, to[2 * i + 1] = v.y;
    }
  } else if (word >= 4) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) to[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      to[i] = from[4 * i] | static_cast<std::uint32_t>(from[4 * i + 1]) << 8 |
              static_cast<std::uint32_t>(from[4 * i + 2]) << 16 | static_cast<std::uint32_t>(from[4 * i + 3]) << 24;
    }
  }
}

/// Sixteen numbers as bf16, the first of a pair in the lower half.
using Pairs = std::uint32_t[kChunk / 2];

__device__ void to_pairs(float4 v, float factor, std::uint32_t* pairs) {
  v = device::scaled(v, factor);
  pairs[0] = device::bf16_pair(v.x, v.y);
  pairs[1] = device::bf16_pair(v.z, v.w);
}

/// Decodes stored numbers [i, i + 16) of a part of a row and multiplies them by `factor`. bf16 numbers are copied.
__device__ void load_chunk(const std::uint8_t* part, Element element, int i, int word, float factor, Pairs& pairs) {
  switch (element) {
    case Element::kF32: {
      std::uint32_t w[16];
      load(part + 4 * i, word, w);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        to_pairs(device::widened(uint4{w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]}), factor, pairs + 2 * j);
      break;
    }
    case Element::kBF16: {
      load(part + 2 * i, word, pairs);
#pragma unroll
      for (int j = 0; j < 4 && factor != 1.0F; ++j)
        to_pairs(device::widened(uint2{pairs[2 * j], pairs[2 * j + 1]}), factor, pairs + 2 * j);
      break;
    }
    case Element::kE4M3: {
      std::uint32_t w[4];
      load(part + i, word, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) to_pairs(device::widened_codes(w[j]), factor, pairs + 2 * j);
      break;
    }
    case Element::kE2M1: {
      std::uint32_t w[2];
      load(part + i / 2, word, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto number = [&](int k) { return device::from_e2m1((w[j / 2] >> (16 * (j % 2) + 4 * k)) & 15U); };
        to_pairs({number(0), number(1), number(2), number(3)}, factor, pairs + 2 * j);
      }
      break;
    }
  }
}

/// Decodes numbers [d, d + 16) of a row.
__device__ void decode(const GatherCall& c, const device::CacheView::RowPlace& row, int d, Pairs& pairs) {
  const device::CacheView& cache = c.cache;
  if (d >= cache.nope_dim) {
    load_chunk(row.data + cache.rope_offset(), cache.rope, d - cache.nope_dim, c.data_word, 1.0F, pairs);
    return;
  }
  float factor = 1.0F;
  switch (cache.kind) {
    case ScaleKind::kNone: break;
    case ScaleKind::kPerTensor: factor = cache.scale; break;
    case ScaleKind::kUe8m0: factor = device::from_ue8m0(row.scales[d / cache.group]); break;
    case ScaleKind::kF32: {
      std::uint32_t w[1];
      load(row.scales + 4 * (d / cache.group), c.scale_word, w);
      factor = __uint_as_float(w[0]);
      break;
    }
  }
  load_chunk(row.data, cache.nope, d, c.data_word, factor, pairs);
}

__device__ void store(std::uint16_t* to, int word, const Pairs& pairs) {
  if (word == 16) {
    reinterpret_cast<uint4*>(to)[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    reinterpret_cast<uint4*>(to)[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kChunk; ++j) to[j] = static_cast<std::uint16_t>(pairs[j / 2] >> (16 * (j % 2)));
}

__global__ void __launch_bounds__(32 * kWarps) gather(const __grid_constant__ GatherCall c) {
  device::pdl_wait_and_trigger();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       item < c.requests * c.most; item += warps) {
    const std::int64_t b = device::quotient(item, c.most);
    const std::int64_t i = item - b * c.most;
    const std::int64_t seq = max(static_cast<std::int64_t>(c.seq_lens[b]), std::int64_t{0});
    const std::int64_t asked = c.gather_lens == nullptr ? seq : static_cast<std::int64_t>(c.gather_lens[b]);
    const std::int64_t length = min(max(asked, std::int64_t{0}), seq);
    if (i >= length) continue;
    const std::int64_t position = seq - length + i;
    const std::int64_t column = c.cache.block_of(position);
    std::int64_t slot = -1;
    if (column < c.columns) {
      const std::int64_t block = c.table[b * c.table_stride + column];
      if (block >= 0 && block < c.num_blocks)
        slot = block * c.cache.block_size + (position - column * c.cache.block_size);
    }
    std::uint16_t* out = c.out + b * c.out_stride[0] + i * c.out_stride[1];
    const device::CacheView::RowPlace row = c.cache.place(max(slot, std::int64_t{0}));
    for (int d = kChunk * lane; d < c.cache.dim; d += kChunk * 32) {
      Pairs pairs = {};
      if (slot >= 0) decode(c, row, d, pairs);
      store(out + d, c.out_word, pairs);
    }
  }
}

Decision decide(const GatherRows::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  const RowFormat& f = *p.format;
  const bool groups = f.scale == ScaleKind::kUe8m0 || f.scale == ScaleKind::kF32;
  if (f.nope_dim % kChunk != 0 || f.rope_dim() % kChunk != 0 || f.group % kChunk != 0 || groups != (f.group > 0)) {
    return refused(std::string(f.name) + " rows; it takes parts and groups of multiples of " + std::to_string(kChunk) +
                   " numbers");
  }
  return refused(needs_gpu(machine));
}

void run(const GatherRows::Problem& p, const GatherRows::Args& a, const RunContext& context) {
  const std::int64_t most = std::max<std::int64_t>(p.rows - p.offset, 0);
  if (p.requests == 0 || most == 0) return;
  const RowFormat& f = *p.format;
  GatherCall c{.cache = device::view_of_cache(a.cache),
               .num_blocks = a.cache.num_blocks,
               .requests = p.requests,
               .most = most,
               .seq_lens = static_cast<const std::int32_t*>(a.seq_lens.data),
               .gather_lens = static_cast<const std::int32_t*>(a.gather_lens.data),
               .table = static_cast<const std::int32_t*>(a.block_table.data),
               .table_stride = a.block_table.stride[0],
               .columns = a.block_table.size(1),
               .out = static_cast<std::uint16_t*>(a.out.data) + p.offset * a.out.stride[1],
               .out_stride = {a.out.stride[0], a.out.stride[1]}};
  const std::int64_t scales_at =
      f.inline_scale_bytes > 0 ? inline_scale_offset(f) : c.cache.block_size * c.cache.data_bytes;
  c.data_word = device::common_word(c.cache.base, c.cache.block_stride, c.cache.data_bytes, rope_offset(f));
  c.scale_word =
      device::common_word(c.cache.base, c.cache.block_stride, c.cache.data_bytes, scales_at, c.cache.scale_bytes);
  c.out_word = device::common_word(c.out, 2 * c.out_stride[0], 2 * c.out_stride[1]);
  device::launch_pdl<gather>("gather_rows", std::min(blocks_for(p.requests * most, kWarps), kMaxBlocks), 32 * kWarps, 0,
                             stream_of(context.stream), c);
}

}  // namespace

template <>
Implementation<GatherRows> cuda_row() {
  return any_gpu_row<GatherRows>(run, decide);
}

}  // namespace smla
