// Rows to FP8: table, checks and the CPU's loops.
#include <algorithm>
#include <bit>

#include "core/check.h"
#include "device/simd_generic.h"
#include "ops/define_op.h"
#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/kernels.h"
#include "ops/norm_rope/quantise.h"
#include "ops/norm_rope/scalar.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

namespace {

constexpr int kGroup = QuantizeRows::kGroup;

/// `groups_of(r, set)` quantises row r and calls set(group, exponent) for its groups in order.
void write_scales(const QuantizeRows::Problem& p, const QuantizeRows::Args& a, std::int64_t r, auto&& groups_of) {
  const std::int64_t groups = p.dim / kGroup;
  auto* scales = static_cast<std::uint32_t*>(a.scales.data) + r;  // 4 bytes, whatever they hold
  const std::int64_t step = a.scales.stride[1];
  std::uint32_t word = 0;
  groups_of(r, [&](std::int64_t k, int e) {
    if (p.scale == OutputScale::kF32) {
      scales[k * step] = std::bit_cast<std::uint32_t>(exp2_int(e));
      return;
    }
    word |= static_cast<std::uint32_t>(e + 127) << (8 * (k % 4));
    if (k % 4 == 3 || k + 1 == groups) {
      scales[k / 4 * step] = word;
      word = 0;
    }
  });
}

void clear_padding(const QuantizeRows::Problem& p, const QuantizeRows::Args& a) {
  for (std::int64_t s = 0; s < a.scales.size(1); ++s) {
    auto* row = static_cast<std::uint32_t*>(a.scales.data) + s * a.scales.stride[1];
    std::fill(row + p.rows, row + a.scales.size(2), 0U);
  }
}

E4M3* values_of(const QuantizeRows::Args& a, std::int64_t r) {
  return static_cast<E4M3*>(a.values.data) + r * a.values.stride[0];
}

}  // namespace

void quantize_rows_ref(const QuantizeRows::Problem& p, const QuantizeRows::Args& a, const RunContext&) {
  clear_padding(p, a);
  for (std::int64_t r = 0; r < p.rows; ++r) {
    write_scales(p, a, r, [&](std::int64_t row, auto&& set) {
      const void* x = row_of(a.x, row);
      E4M3* values = values_of(a, row);
      for (std::int64_t k = 0; k < p.dim / kGroup; ++k) {
        set(k, quantise_group(
                   kGroup, [&](int i) { return load_element(p.in, x, k * kGroup + i); },
                   [&](int i, float v) { values[k * kGroup + i] = to_e4m3(v); }));
      }
    });
  }
}

// A group at a time as floats, and conversions without branches; threads split rows.
void quantize_rows_cpu(const QuantizeRows::Problem& p, const QuantizeRows::Args& a, const RunContext& context) {
  clear_padding(p, a);
#pragma omp parallel for num_threads(context.threads) if (p.rows * p.dim > 65536) schedule(static)
  for (std::int64_t r = 0; r < p.rows; ++r) {
    write_scales(p, a, r, [&](std::int64_t row, auto&& set) {
      const void* x = row_of(a.x, row);
      E4M3* values = values_of(a, row);
      for (std::int64_t k = 0; k < p.dim / kGroup; ++k) {
        float group[kGroup];
        load_chunk<GenericWord>(x, p.in, k * kGroup, kGroup, group);
        set(k, quantise_group(
                   kGroup, [&](int i) { return group[i]; },
                   [&](int i, float v) { values[k * kGroup + i].bits = e4m3_bits(v); }));
      }
    });
  }
}

template <>
std::span<const Implementation<QuantizeRows>> OpTable<QuantizeRows>::implementations() {
  static const Implementation<QuantizeRows> kTable[] = {
      {.name = "cpu", .machine = "any CPU", .run = quantize_rows_cpu},
      cuda_row<QuantizeRows>(),
      {.name = "ref", .machine = "any CPU", .run = quantize_rows_ref}};
  return kTable;
}
template <>
void OpTable<QuantizeRows>::check_problem(const QuantizeRows::Problem& p) {
  constexpr std::string_view op = QuantizeRows::kName;
  check_that(p.rows >= 0, op, "rows", p.rows, "0 or more");
  check_that(p.dim >= 0 && p.dim % kGroup == 0, op, "dim", p.dim,
             "a multiple of " + std::to_string(kGroup) + ", 0 or more");
  check_that(p.in == DType::kBF16 || p.in == DType::kF32, op, "in", std::string(name_of(p.in)), "BF16 or F32");
}
template <>
void OpTable<QuantizeRows>::check_args(const QuantizeRows::Problem& p, const QuantizeRows::Args& a) {
  constexpr std::string_view op = QuantizeRows::kName;
  const bool packed = p.scale == OutputScale::kUe8m0x4;
  const std::int64_t groups = p.dim / kGroup;
  check_tensor(op, "x", a.x, {p.rows, p.dim}, {p.in});
  check_tensor(op, "values", a.values, {p.rows, p.dim}, {DType::kE4M3});
  check_tensor(op, "scales", a.scales, {1, packed ? (groups + 3) / 4 : groups, (p.rows + 3) / 4 * 4},
               {packed ? DType::kI32 : DType::kF32});
}

SMLA_DEFINE_OP(QuantizeRows);

}  // namespace smla
