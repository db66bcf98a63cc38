// QuantizeRows on any GPU: a warp for four groups of a row; it loads all their numbers before it uses the first.
#include "device/launch_pdl.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/norm_rope/quantise.cuh"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

using namespace device;

constexpr int kWarps = 8;
constexpr int kGroups = 4;  ///< groups of a warp: one word of packed scales
constexpr int kGroup = QuantizeRows::kGroup;
static_assert(kGroup == 4 * 32);  // four numbers for each lane of a warp

template <class In>
struct QuantizeCall {
  Rows<const In> x;
  Rows<E4M3> values;
  std::uint32_t* scales = nullptr;  ///< words of 4 bytes: one fp32 or four UE8M0 scales
  std::int64_t scale_stride = 0;
  std::int64_t rows = 0;
  std::int64_t padded = 0;
  std::int64_t dim = 0;
  std::int64_t items = 0;  ///< rows * words
  std::int64_t words = 0;  ///< words of a row, one for each warp
  bool packed = false;
};

template <bool kByFours, class In>
__global__ void __launch_bounds__(32 * kWarps) quantise(const __grid_constant__ QuantizeCall<In> c) {
  pdl_wait_and_trigger();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= c.items) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = item / c.words;
  const std::int64_t word = item - row * c.words;
  const std::int64_t begin = word * kGroups * kGroup;
  const In* x = c.x.row(row) + begin;
  E4M3* values = c.values.row(row) + begin;
  const int n =
      static_cast<int>(c.dim - begin < kGroups * kGroup ? c.dim - begin : kGroups * kGroup);  // a multiple of kGroup
  Raw<In> raw[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g * kGroup < n) raw[g] = load_vec4<kByFours>(x, g * kGroup + 4 * lane, n);
  }
  std::uint32_t packed = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g * kGroup >= n) break;
    std::uint32_t codes = 0;
    const int e = quantised(widened(raw[g]), codes);
    store_vec4<kByFours>(values, g * kGroup + 4 * lane, n, codes);
    packed |= static_cast<std::uint32_t>(e + 127) << (8 * g);
    if (!c.packed && lane == 0) c.scales[(word * kGroups + g) * c.scale_stride + row] = __float_as_uint(exp2_int(e));
  }
  if (c.packed && lane == 0) c.scales[word * c.scale_stride + row] = packed;
  // The warps of the last row also write the zeros behind it.
  if (row + 1 < c.rows) return;
  const std::int64_t first = c.packed ? word : word * kGroups;
  const int lines = c.packed ? 1 : n / kGroup;
  const int more = static_cast<int>(c.padded - c.rows);
  if (lane < lines * more) c.scales[(first + lane / more) * c.scale_stride + c.rows + lane % more] = 0;
}

void run(const QuantizeRows::Problem& p, const QuantizeRows::Args& a, const RunContext& context) {
  if (p.rows == 0 || p.dim == 0) return;
  const std::int64_t words = (p.dim / kGroup + kGroups - 1) / kGroups;
  with_float(p.in, [&]<class In>(In) {
    with_bool(by_fours(a.x) && by_fours(a.values), [&]<bool kByFours>(std::bool_constant<kByFours>) {
      const QuantizeCall<In> c{.x = rows_of<const In>(a.x),
                               .values = rows_of<E4M3>(a.values),
                               .scales = static_cast<std::uint32_t*>(a.scales.data),
                               .scale_stride = a.scales.stride[1],
                               .rows = p.rows,
                               .padded = a.scales.size(2),
                               .dim = p.dim,
                               .items = p.rows * words,
                               .words = words,
                               .packed = p.scale == OutputScale::kUe8m0x4};
      launch_pdl<quantise<kByFours, In>>("quantize_rows", blocks_for(c.items, kWarps), 32 * kWarps, 0,
                                         stream_of(context.stream), c);
    });
  });
}

}  // namespace

template <>
Implementation<QuantizeRows> cuda_row() {
  return any_gpu_row<QuantizeRows>(run);
}

}  // namespace smla
