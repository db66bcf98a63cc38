// InverseRope and InverseRopeQuant on any GPU: a warp for each head of each token.
#include "device/launch_pdl.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/head_rows.cuh"
#include "ops/norm_rope/quantise.cuh"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kWarps = HeadGrid::kWarps;

template <class In, class Out>
struct RotateCall {
  Rows<const In> x;
  Rows<Out> y;
  const std::int64_t* positions = nullptr;
  Rope rope;
  HeadGrid grid;
  std::int64_t heads = 0;
  int dim = 0;
};

template <bool kByFours, class In, class Out>
__global__ void __launch_bounds__(32 * kWarps) rotate_back(const __grid_constant__ RotateCall<In, Out> c) {
  pdl_wait_and_trigger();
  const std::int64_t token = c.grid.token();
  const std::int64_t head = c.grid.head();
  const std::int64_t position = c.positions[token];
  if (head >= c.heads || !c.rope.has(position)) return;
  const float* cos_sin = c.rope.row(position);
  const In* x = c.x.row(token, head);
  Out* y = c.y.row(token, head);
  const int nope = c.rope.nope;
  const bool in_place = static_cast<const void*>(x) == static_cast<const void*>(y);
  const int begin = (kByFours ? 0 : -(nope & 1)) + (in_place ? nope & ~3 : 0);
  const RegisterRow<32, kByFours, In> held(x, c.dim, begin, static_cast<int>(threadIdx.x));
  held.each([&](int i, Raw<In> raw) {
    if constexpr (std::is_same_v<In, Out>) {
      if (i + 3 < nope) {
        store_vec4<kByFours>(y, i, c.dim, raw);
        return;
      }
    }
    store_vec4<kByFours>(y, i, c.dim, computed<Out>(c.rope.rotated(widened(raw), i, cos_sin, -1.0F)));
  });
}

constexpr int kGroup = InverseRopeQuant::kGroup;
static_assert(kGroup == 4 * 32);  // four numbers for each lane of a warp

template <class In>
struct QuantCall {
  Rows<const In> x;
  Rows<E4M3> values;
  std::uint32_t* scales = nullptr;  ///< words of 4 bytes: one fp32 or four UE8M0 scales
  std::int64_t scale_stride[2] = {0, 0};
  const std::int64_t* positions = nullptr;
  Rope rope;
  HeadGrid grid;
  unsigned blocks = 0;  ///< blocks of heads; the blocks behind them write the padding
  std::int64_t tokens = 0;
  std::int64_t padded = 0;  ///< rows of a group's scales, padding included
  std::int64_t scale_rows = 0;
  std::int64_t groups = 0;
  std::int64_t heads = 0;
  std::int64_t group_heads = 0;
  int dim = 0;
  bool packed = false;

  __device__ std::uint32_t* scale(std::int64_t g, std::int64_t row, std::int64_t t) const {
    return scales + g * scale_stride[0] + row * scale_stride[1] + t;
  }
};

template <class In>
__device__ void clear_padding(const QuantCall<In>& c) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x - c.blocks) * blockDim.x * blockDim.y +
                              threadIdx.y * blockDim.x + threadIdx.x;
  const std::int64_t more = c.padded - c.tokens;
  if (thread >= more * c.groups * c.scale_rows) return;
  const std::int64_t line = thread / more;
  *c.scale(line / c.scale_rows, line % c.scale_rows, c.tokens + thread % more) = 0;
}

template <bool kByFours, class In>
__global__ void __launch_bounds__(32 * kWarps) quantise_back(const __grid_constant__ QuantCall<In> c) {
  pdl_wait_and_trigger();
  if (blockIdx.x >= c.blocks) {
    clear_padding(c);
    return;
  }
  const std::int64_t token = c.grid.token();
  const std::int64_t head = c.grid.head();
  if (head >= c.heads) return;
  const std::int64_t position = c.positions[token];
  const RegisterRow<32, kByFours, In> held(c.x.row(token, head), c.dim, 0,
                                           static_cast<int>(threadIdx.x));  // prefetched before the position is known
  if (!c.rope.has(position)) return;
  const float* cos_sin = c.rope.row(position);
  const std::int64_t group =
      static_cast<std::uint32_t>(head) /
      static_cast<std::uint32_t>(c.group_heads);  // heads fit 32 bits, and a 64-bit division is slow
  const std::int64_t first = (head - group * c.group_heads) * c.dim;  // this head's first number in the group's row
  E4M3* values = c.values.row(group, token) + first;
  const std::int64_t chunks = c.group_heads * c.dim / kGroup;
  const bool whole_words = c.dim % (4 * kGroup) == 0;
  const auto before = static_cast<std::uint32_t>(first / kGroup);  // groups before it; row sizes fit int
  std::uint32_t word = 0;
  // dim is a multiple of kGroup, so all lanes of a warp come here together with one group.
  held.each([&](int i, Raw<In> raw) {
    const float4 v = c.rope.rotated(widened(raw), i, cos_sin, -1.0F);
    std::uint32_t codes = 0;
    const int e = quantised(v, codes);
    store_vec4<kByFours>(values, i, c.dim, codes);
    if (threadIdx.x != 0) return;
    const std::uint32_t k = before + static_cast<std::uint32_t>(i) / kGroup;
    if (!c.packed) {
      *c.scale(group, k, token) = __float_as_uint(exp2_int(e));
    } else if (whole_words) {
      word |= static_cast<std::uint32_t>(e + 127) << (8 * (k % 4));
      if (k % 4 == 3) {
        *c.scale(group, k / 4, token) = word;
        word = 0;
      }
    } else {
      // Heads share words: each writes its bytes, and the last head also those without a group.
      auto* bytes = reinterpret_cast<std::uint8_t*>(c.scale(group, k / 4, token));
      bytes[k % 4] = static_cast<std::uint8_t>(e + 127);
      for (std::uint32_t b = k % 4 + 1; k + 1 == chunks && b < 4; ++b) bytes[b] = 0;
    }
  });
}

void run(const InverseRopeQuant::Problem& p, const InverseRopeQuant::Args& a, const RunContext& context) {
  if (p.tokens == 0 || p.heads == 0 || p.dim == 0) return;
  with_float(p.in, [&]<class In>(In) {
    with_bool(by_fours(a.x) && by_fours(a.values), [&]<bool kByFours>(std::bool_constant<kByFours>) {
      const HeadGrid grid = HeadGrid::of(p.heads);
      const std::int64_t padding = (a.scales.size(2) - p.tokens) * p.groups * a.scales.size(1);
      const QuantCall<In> c{.x = rows_of<const In>(a.x),
                            .values = rows_of<E4M3>(a.values),
                            .scales = static_cast<std::uint32_t*>(a.scales.data),
                            .scale_stride = {a.scales.stride[0], a.scales.stride[1]},
                            .positions = static_cast<const std::int64_t*>(a.positions.data),
                            .rope = rope_of(a.cos_sin, p.dim, p.rope_dim),
                            .grid = grid,
                            .blocks = grid.blocks(p.tokens),
                            .tokens = p.tokens,
                            .padded = a.scales.size(2),
                            .scale_rows = a.scales.size(1),
                            .groups = p.groups,
                            .heads = p.heads,
                            .group_heads = p.heads / p.groups,
                            .dim = p.dim,
                            .packed = p.scale == OutputScale::kUe8m0x4};
      const unsigned blocks = blocks_for(c.blocks + static_cast<std::int64_t>(blocks_for(padding, 32 * grid.heads)), 1);
      launch_pdl<quantise_back<kByFours, In>>("quantise_back", blocks, grid.block(), 0, stream_of(context.stream), c);
    });
  });
}

}  // namespace

void inverse_rope_cuda(const InverseRope::Problem& p, const InverseRope::Args& a, const RunContext& context) {
  if (p.tokens == 0 || p.heads == 0 || p.dim == 0) return;
  with_float(p.in, [&]<class In>(In) {
    with_float(p.out, [&]<class Out>(Out) {
      with_bool(by_fours(a.x) && by_fours(a.y), [&]<bool kByFours>(std::bool_constant<kByFours>) {
        const RotateCall<In, Out> c{.x = rows_of<const In>(a.x),
                                    .y = rows_of<Out>(a.y),
                                    .positions = static_cast<const std::int64_t*>(a.positions.data),
                                    .rope = rope_of(a.cos_sin, p.dim, p.rope_dim),
                                    .grid = HeadGrid::of(p.heads),
                                    .heads = p.heads,
                                    .dim = p.dim};
        launch_pdl<rotate_back<kByFours, In, Out>>("rotate_back", c.grid.blocks(p.tokens), c.grid.block(), 0,
                                                   stream_of(context.stream), c);
      });
    });
  });
}

template <>
Implementation<InverseRope> cuda_row() {
  return any_gpu_row<InverseRope>(inverse_rope_cuda);
}

template <>
Implementation<InverseRopeQuant> cuda_row() {
  return any_gpu_row<InverseRopeQuant>(run);
}

}  // namespace smla
