// QNormRopeInsert and InsertRows on any GPU: norms and rotates the heads of q, rotates kv rows and encodes them at
// their slots. A warp has a head or a row. One kernel; its last blocks do the rows.
#include <bit>

#include "device/copy.cuh"
#include "device/launch_pdl.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/head_rows.cuh"
#include "ops/norm_rope/insert.cuh"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;
using insertion::Insert;

constexpr int kWarps = HeadGrid::kWarps;

/// Blocks on a multiprocessor for which the registers must suffice. fp32 heads need more registers.
template <class In>
constexpr int kBlocks = sizeof(In) == 4 ? 3 : 5;

template <class In, class Out>
struct InsertCall {
  Rows<const In> q;
  Rows<Out> y;
  const std::int64_t* positions = nullptr;
  Rope rope;
  HeadGrid grid;
  unsigned blocks = 0;  ///< blocks of heads; the blocks behind them insert rows
  std::int64_t heads = 0;
  std::int64_t out_heads = 0;
  int dim = 0;
  float eps = 0;
  float factor = 1;
  bool many = false;  ///< whether there are many tokens
  Insert<In> insert;
};

/// Prefetches q before the position is known.
template <bool kByFours, class In, class Out>
__device__ void norm_and_rotate(const InsertCall<In, Out>& c, const In* q, Out* y, std::int64_t position) {
  const RegisterRow<32, kByFours, In> held(q, c.dim, kByFours ? 0 : -(c.rope.nope & 1), static_cast<int>(threadIdx.x));
  if (!c.rope.has(position)) return;
  const float* cos_sin = c.rope.row(position);
  // With few tokens, the heads of a token would all prefetch the same lines and wait for each other.
  if (const int i = 32 * static_cast<int>(threadIdx.x); c.many && i < 2 * c.rope.pairs) prefetch(cos_sin + i);
  const float inverse = inverse_root(sum_of_warp(held.squares()), c.dim, c.eps);
  held.each([&](int i, Raw<In> raw) {
    float4 v = c.rope.rotated(scaled(widened(raw), inverse), i, cos_sin);
    if constexpr (std::is_same_v<Out, E4M3>) v = scaled(v, c.factor);
    store_vec4<kByFours>(y, i, c.dim, computed<Out>(v));
  });
}

template <bool kByFours, class In, class Out>
__global__ void __launch_bounds__(32 * kWarps, kBlocks<In>)
    norm_rope_insert(const __grid_constant__ InsertCall<In, Out> c) {
  pdl_wait_and_trigger();
  if (blockIdx.x >= c.blocks) {
    const std::int64_t row = c.insert.row_of_warp(blockIdx.x - c.blocks);
    c.insert.fetch(row);
    const std::int64_t slot = c.insert.slot(row);
    const std::int64_t position = row >= 0 && row < c.insert.rows ? c.positions[row] : -1;
    if (slot < 0 || !c.rope.has(position)) return;
    const float* cos_sin = c.rope.row(position);
    const In* from = c.insert.kv.row(row);
    encode_row_of(c.insert.cache, slot, c.insert.clamp, c.insert.warp(), c.insert.row_warps(),
                  [&](int q) { return c.rope.rotated(c.insert.vec4(from, 4 * q), 4 * q, cos_sin); });
    return;
  }
  const std::int64_t token = c.grid.token();
  const std::int64_t head = c.grid.head();
  if (head >= c.out_heads) return;
  const std::int64_t position = c.positions[token];
  Out* y = c.y.row(token, head);
  if (head < c.heads) {
    norm_and_rotate<kByFours>(c, c.q.row(token, head), y, position);
    return;
  }
  if (!c.rope.has(position)) return;
  for (int i = 4 * static_cast<int>(threadIdx.x); i < c.dim; i += 128) store_vec4<kByFours>(y, i, c.dim, Raw<Out>{});
}

template <class In>
__global__ void __launch_bounds__(32 * kWarps) insert_rows(const __grid_constant__ Insert<In> c) {
  pdl_wait_and_trigger();
  const std::int64_t row = c.row_of_warp(blockIdx.x);
  c.fetch(row);
  const std::int64_t slot = c.slot(row);
  if (slot < 0) return;
  const In* from = c.kv.row(row);
  encode_row_of(c.cache, slot, c.clamp, c.warp(), c.row_warps(), [&](int q) { return c.vec4(from, 4 * q); });
}

/// Inserts rows of up to 512 numbers, sixteen for each lane, 2^lane_bits lanes for each row. Rows are loaded before
/// their slots are known.
template <class In>
__global__ void __launch_bounds__(32 * kWarps) insert_sixteens(const __grid_constant__ Insert<In> c, int lane_bits) {
  pdl_wait_and_trigger();
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  const std::int64_t row = (warp << (5 - lane_bits)) + (lane >> lane_bits);
  const int first = 16 * (lane & ((1 << lane_bits) - 1));
  float4 v[4] = {};
  std::int64_t slot = -1;
  if (row < c.rows && first < c.cache.dim) {
    constexpr int kLoads = static_cast<int>(sizeof(In));  // loads of 16 bytes
    const auto* from = reinterpret_cast<const uint4*>(c.kv.row(row) + first);
    uint4 raw[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) raw[i] = from[i];
    slot = c.slot(row);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kLoads == 4) {
        v[j] = widened(raw[j]);
      } else {
        v[j] = widened(j % 2 == 0 ? uint2{raw[j / 2].x, raw[j / 2].y} : uint2{raw[j / 2].z, raw[j / 2].w});
      }
    }
  }
  encode_sixteens<std::is_same_v<In, BF16>>(c.cache, slot, c.clamp, first, v);
}

template <class F>
void with_q_out(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kE4M3: f(E4M3{}); break;
    case DType::kF32: f(float{}); break;
    default: f(BF16{}); break;
  }
}

void run(const QNormRopeInsert::Problem& p, const QNormRopeInsert::Args& a, const RunContext& context) {
  const std::int64_t inserted = p.format == nullptr ? 0 : a.slot_mapping.size(0);
  const bool has_q = p.heads > 0;
  if (p.tokens == 0 || p.dim == 0 || (!has_q && inserted == 0)) return;
  with_float(p.in, [&]<class In>(In) {
    with_q_out(p.q_out, [&]<class Out>(Out) {
      with_bool(!has_q || (by_fours(a.q) && by_fours(a.q_out)), [&]<bool kByFours>(std::bool_constant<kByFours>) {
        InsertCall<In, Out> c{.positions = static_cast<const std::int64_t*>(a.positions.data),
                              .rope = rope_of(a.cos_sin, p.dim, p.rope_dim),
                              .heads = p.heads,
                              .out_heads = p.out_heads,
                              .dim = p.dim,
                              .eps = p.eps,
                              .factor = p.q_scale_inv,
                              .many = p.tokens >= insertion::kMany};
        unsigned warps = kWarps;
        if (has_q) {
          c.q = rows_of<const In>(a.q);
          c.y = rows_of<Out>(a.q_out);
          c.grid = HeadGrid::of(p.out_heads);
          c.blocks = c.grid.blocks(p.tokens);
          warps = c.grid.heads;
        }
        if (inserted > 0) {
          c.insert = insertion::insert_of<In>(a.kv, a.slot_mapping, a.cache, p.clamp);
          while (c.insert.block_rows(warps) == 0) --c.insert.row_bits;
        }
        const unsigned blocks = blocks_for(
            c.blocks + static_cast<std::int64_t>(inserted == 0 ? 0 : blocks_for(inserted, c.insert.block_rows(warps))),
            1);
        launch_pdl<norm_rope_insert<kByFours, In, Out>>("norm_rope_insert", blocks, dim3(32, warps), 0,
                                                        stream_of(context.stream), c);
      });
    });
  });
}

void run(const InsertRows::Problem& p, const InsertRows::Args& a, const RunContext& context) {
  const std::int64_t rows = a.slot_mapping.size(0);
  if (rows == 0) return;
  with_float(p.in, [&]<class In>(In) {
    const Insert<In> c = insertion::insert_of<In>(a.rows, a.slot_mapping, a.cache, p.clamp);
    const auto row_bytes = a.rows.stride[0] * static_cast<std::int64_t>(sizeof(In));
    if (has_sixteens(a.cache) && common_word(a.rows.data, row_bytes) == 16) {
      const int lane_bits = std::bit_width(static_cast<unsigned>(p.format->dim / 16 - 1));
      launch_pdl<insert_sixteens<In>>("insert_rows", blocks_for(rows, std::int64_t{kWarps} << (5 - lane_bits)),
                                      dim3(32, kWarps), 0, stream_of(context.stream), c, lane_bits);
      return;
    }
    launch_pdl<insert_rows<In>>("insert_rows", blocks_for(rows, c.block_rows(kWarps)), dim3(32, kWarps), 0,
                                stream_of(context.stream), c);
  });
}

}  // namespace

template <>
Implementation<QNormRopeInsert> cuda_row() {
  return any_gpu_row<QNormRopeInsert>(run, insertion::decide<QNormRopeInsert>);
}

template <>
Implementation<InsertRows> cuda_row() {
  return any_gpu_row<InsertRows>(run, insertion::decide<InsertRows>);
}

}  // namespace smla
