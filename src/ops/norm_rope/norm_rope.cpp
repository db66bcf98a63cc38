#include <array>

#include "cache/check_cache.h"
#include "core/check.h"
#include "ops/define_op.h"
#include "ops/norm_rope/implementations.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

std::string name(DType dtype) { return std::string(name_of(dtype)); }

void check_float(std::string_view op, std::string_view what, DType dtype) {
  check_that(dtype == DType::kBF16 || dtype == DType::kF32, op, what, name(dtype), "BF16 or F32");
}

void check_rope_dims(std::string_view op, int dim, int rope_dim) {
  check_that(dim >= 0 && dim <= kMaxRopeRow, op, "dim", dim, "0 to " + std::to_string(kMaxRopeRow));
  check_that(rope_dim >= 0 && rope_dim <= dim && rope_dim % 2 == 0, op, "rope_dim", rope_dim,
             "an even number up to dim " + std::to_string(dim));
}

/// Rows of so many numbers on their way into a cache.
void check_inserted(std::string_view op, const RowFormat& f, std::int64_t dim, int rope_dim) {
  const std::string format(f.name);
  check_that(f.dim == dim, op, "format", format + " with " + std::to_string(f.dim) + " dims",
             std::to_string(dim) + " dims");
  check_that(f.rope_dim() == 0 || f.rope_dim() == rope_dim, op, "format",
             format + " with " + std::to_string(f.rope_dim()) + " rope dims", std::to_string(rope_dim) + " rope dims");
}
void check_target(std::string_view op, std::int64_t tokens, const RowFormat& f, const ConstTensorView& slots,
                  const PagedCache& cache) {
  check_tensor(op, "slot_mapping", slots, {kAny}, {DType::kI64});
  check_that(slots.size(0) <= tokens, op, "slot_mapping", slots, words("at most ", tokens, " tokens"));
  check_cache(op, "cache", cache);
  check_that(*cache.format == f, op, "cache", words(cache.format->name, " rows"), words(f.name, " rows"));
}

/// In place means the same elements at the same addresses.
void check_in_place(std::string_view op, std::string_view output, const ConstTensorView& in,
                    const ConstTensorView& out) {
  if (in.data != out.data || in.numel() == 0) return;
  bool same = in.dtype == out.dtype;
  for (int i = 0; i + 1 < in.rank; ++i)
    same =
        same && (in.size(i) <= 1 || in.stride[static_cast<std::size_t>(i)] == out.stride[static_cast<std::size_t>(i)]);
  check_that(same, op, output, words(out, " over its input ", in), "the input's dtype and strides, or other memory");
}

}  // namespace

template <>
std::span<const Implementation<RmsNorm>> OpTable<RmsNorm>::implementations() {
  static const Implementation<RmsNorm> kTable[] = {
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<RmsNorm, needs_avx512>,
       .run = rms_norm_avx512},
      {.name = "avx2", .machine = "AVX2 + FMA", .decide = take_all<RmsNorm, needs_avx2>, .run = rms_norm_avx2},
      {.name = "cpu", .machine = "any CPU", .run = rms_norm_cpu},
      cuda_row<RmsNorm>(),
      {.name = "ref", .machine = "any CPU", .run = rms_norm_ref},
  };
  return kTable;
}

template <>
void OpTable<RmsNorm>::check_problem(const RmsNorm::Problem& p) {
  constexpr std::string_view op = RmsNorm::kName;
  check_that(p.rows >= 0, op, "rows", p.rows, "0 or more");
  check_that(p.dim >= 0, op, "dim", p.dim, "0 or more");
  check_float(op, "in", p.in);
  check_float(op, "out", p.out);
}

template <>
void OpTable<RmsNorm>::check_args(const RmsNorm::Problem& p, const RmsNorm::Args& a) {
  constexpr std::string_view op = RmsNorm::kName;
  check_tensor(op, "x", a.x, {p.rows, p.dim}, {p.in});
  if (p.has_weight) check_tensor(op, "weight", a.weight, {p.dim}, {DType::kBF16, DType::kF32});
  check_tensor(op, "y", a.y, {p.rows, p.dim}, {p.out});
  check_in_place(op, "y", a.x, a.y);
}

template <>
std::span<const Implementation<LatentNorms>> OpTable<LatentNorms>::implementations() {
  static const Implementation<LatentNorms> kTable[] = {
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<LatentNorms, needs_avx512, normed_kv_bytes>,
       .run = latent_norms_avx512},
      {.name = "avx2",
       .machine = "AVX2 + FMA",
       .decide = take_all<LatentNorms, needs_avx2, normed_kv_bytes>,
       .run = latent_norms_avx2},
      {.name = "cpu",
       .machine = "any CPU",
       .decide = take_all<LatentNorms, needs_nothing, normed_kv_bytes>,
       .run = latent_norms_cpu},
      cuda_row<LatentNorms>(),
      {.name = "ref",
       .machine = "any CPU",
       .decide = take_all<LatentNorms, needs_nothing, normed_kv_bytes>,
       .run = latent_norms_ref},
  };
  return kTable;
}

template <>
void OpTable<LatentNorms>::check_problem(const LatentNorms::Problem& p) {
  constexpr std::string_view op = LatentNorms::kName;
  check_that(p.rows >= 0, op, "rows", p.rows, "0 or more");
  check_that(p.qr_dim >= 0, op, "qr_dim", p.qr_dim, "0 or more");
  check_that(p.kv_dim >= 0, op, "kv_dim", p.kv_dim, "0 or more");
  check_float(op, "in", p.in);
  check_float(op, "out", p.out);
  if (p.quantises_qr) {
    check_that(p.qr_dim % QuantizeRows::kGroup == 0, op, "qr_dim", p.qr_dim,
               "a multiple of " + std::to_string(QuantizeRows::kGroup) + " with quantises_qr");
  }
  if (!p.insert) return;
  check_that(p.insert->format != nullptr, op, "insert.format", std::string("none"), "a row format");
  check_that(p.kv_dim > 0, op, "kv_dim", p.kv_dim, "1 or more with insert");
  check_that(p.in == p.out, op, "out", name(p.out), name(p.in) + ", as in, with insert");
  check_rope_dims(op, p.insert->format->dim, p.insert->rope_dim);
  check_inserted(op, *p.insert->format, p.kv_dim, p.insert->rope_dim);
}

template <>
void OpTable<LatentNorms>::check_args(const LatentNorms::Problem& p, const LatentNorms::Args& a) {
  constexpr std::string_view op = LatentNorms::kName;
  check_tensor(op, "qr", a.qr, {p.rows, p.qr_dim}, {p.in});
  check_tensor(op, "kv", a.kv, {p.rows, p.kv_dim}, {p.in});
  if (p.has_weight) {
    check_tensor(op, "qr_weight", a.qr_weight, {p.qr_dim}, {DType::kBF16, DType::kF32});
    check_tensor(op, "kv_weight", a.kv_weight, {p.kv_dim}, {DType::kBF16, DType::kF32});
  }
  check_tensor(op, "qr_out", a.qr_out, {p.rows, p.qr_dim}, {p.out});
  check_in_place(op, "qr_out", a.qr, a.qr_out);
  if (p.quantises_qr) {
    check_tensor(op, "qr_values", a.qr_values, {p.rows, p.qr_dim}, {DType::kE4M3});
    check_tensor(op, "qr_scales", a.qr_scales, {1, p.qr_dim / QuantizeRows::kGroup, (p.rows + 3) / 4 * 4},
                 {DType::kF32});
  }
  if (p.insert) {
    check_tensor(op, "insert.positions", a.insert.positions, {p.rows}, {DType::kI64});
    check_tensor(op, "insert.cos_sin", a.insert.cos_sin, {kAny, p.insert->rope_dim}, {DType::kF32});
    check_target(op, p.rows, *p.insert->format, a.insert.slot_mapping, a.insert.cache);
    return;
  }
  check_tensor(op, "kv_out", a.kv_out, {p.rows, p.kv_dim}, {p.out});
  check_in_place(op, "kv_out", a.kv, a.kv_out);
}

std::size_t normed_kv_bytes(const LatentNorms::Problem& p, int) {
  return p.insert ? static_cast<std::size_t>(p.rows * p.kv_dim * size_of(p.out)) : 0;
}

template <>
std::span<const Implementation<QNormRopeInsert>> OpTable<QNormRopeInsert>::implementations() {
  static const Implementation<QNormRopeInsert> kTable[] = {
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<QNormRopeInsert, needs_avx512>,
       .run = qnorm_rope_insert_avx512},
      {.name = "avx2",
       .machine = "AVX2 + FMA",
       .decide = take_all<QNormRopeInsert, needs_avx2>,
       .run = qnorm_rope_insert_avx2},
      {.name = "cpu", .machine = "any CPU", .run = qnorm_rope_insert_cpu},
      cuda_row<QNormRopeInsert>(),
      {.name = "ref", .machine = "any CPU", .run = qnorm_rope_insert_ref},
  };
  return kTable;
}

template <>
void OpTable<QNormRopeInsert>::check_problem(const QNormRopeInsert::Problem& p) {
  constexpr std::string_view op = QNormRopeInsert::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_that(p.heads >= 0, op, "heads", p.heads, "0 or more");
  check_that(p.heads == 0 || p.out_heads >= p.heads, op, "out_heads", p.out_heads,
             "at least " + std::to_string(p.heads) + " heads");
  check_rope_dims(op, p.dim, p.rope_dim);
  check_float(op, "in", p.in);
  check_that(p.q_out == DType::kBF16 || p.q_out == DType::kF32 || p.q_out == DType::kE4M3, op, "q_out", name(p.q_out),
             "BF16, F32 or F8_E4M3");
  if (p.format != nullptr) check_inserted(op, *p.format, p.dim, p.rope_dim);
}

template <>
void OpTable<QNormRopeInsert>::check_args(const QNormRopeInsert::Problem& p, const QNormRopeInsert::Args& a) {
  constexpr std::string_view op = QNormRopeInsert::kName;
  check_tensor(op, "positions", a.positions, {p.tokens}, {DType::kI64});
  check_tensor(op, "cos_sin", a.cos_sin, {kAny, p.rope_dim}, {DType::kF32});
  if (p.heads > 0) {
    check_tensor(op, "q", a.q, {p.tokens, p.heads, p.dim}, {p.in});
    check_tensor(op, "q_out", a.q_out, {p.tokens, p.out_heads, p.dim}, {p.q_out});
    check_in_place(op, "q_out", a.q, a.q_out);
  }
  if (p.format == nullptr) return;
  check_tensor(op, "kv", a.kv, {p.tokens, p.dim}, {p.in});
  check_target(op, p.tokens, *p.format, a.slot_mapping, a.cache);
}

template <>
std::span<const Implementation<InverseRope>> OpTable<InverseRope>::implementations() {
  static const Implementation<InverseRope> kTable[] = {
      {.name = "cpu", .machine = "any CPU", .run = inverse_rope_cpu},
      cuda_row<InverseRope>(),
      {.name = "ref", .machine = "any CPU", .run = inverse_rope_ref},
  };
  return kTable;
}

template <>
void OpTable<InverseRope>::check_problem(const InverseRope::Problem& p) {
  constexpr std::string_view op = InverseRope::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_that(p.heads >= 0, op, "heads", p.heads, "0 or more");
  check_rope_dims(op, p.dim, p.rope_dim);
  check_float(op, "in", p.in);
  check_float(op, "out", p.out);
}

template <>
void OpTable<InverseRope>::check_args(const InverseRope::Problem& p, const InverseRope::Args& a) {
  constexpr std::string_view op = InverseRope::kName;
  check_tensor(op, "x", a.x, {p.tokens, p.heads, p.dim}, {p.in});
  check_tensor(op, "positions", a.positions, {p.tokens}, {DType::kI64});
  check_tensor(op, "cos_sin", a.cos_sin, {kAny, p.rope_dim}, {DType::kF32});
  check_tensor(op, "y", a.y, {p.tokens, p.heads, p.dim}, {p.out});
  check_in_place(op, "y", a.x, a.y);
}

template <>
std::span<const Implementation<InverseRopeQuant>> OpTable<InverseRopeQuant>::implementations() {
  static const Implementation<InverseRopeQuant> kTable[] = {
      {.name = "cpu", .machine = "any CPU", .run = inverse_rope_quant_cpu},
      cuda_row<InverseRopeQuant>(),
      {.name = "ref", .machine = "any CPU", .run = inverse_rope_quant_ref},
  };
  return kTable;
}

template <>
void OpTable<InverseRopeQuant>::check_problem(const InverseRopeQuant::Problem& p) {
  constexpr std::string_view op = InverseRopeQuant::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_that(p.heads >= 0, op, "heads", p.heads, "0 or more");
  check_that(p.groups >= 1 && p.heads % p.groups == 0, op, "groups", p.groups,
             "a divisor of " + std::to_string(p.heads) + " heads");
  check_rope_dims(op, p.dim, p.rope_dim);
  check_that(p.dim % InverseRopeQuant::kGroup == 0, op, "dim", p.dim,
             "a multiple of " + std::to_string(InverseRopeQuant::kGroup));
  check_float(op, "in", p.in);
}

template <>
void OpTable<InverseRopeQuant>::check_args(const InverseRopeQuant::Problem& p, const InverseRopeQuant::Args& a) {
  constexpr std::string_view op = InverseRopeQuant::kName;
  check_tensor(op, "x", a.x, {p.tokens, kAny, p.dim}, {p.in});
  check_that(a.x.size(1) >= p.heads, op, "heads of x", a.x.size(1), words("at least ", p.heads));
  check_tensor(op, "positions", a.positions, {p.tokens}, {DType::kI64});
  check_tensor(op, "cos_sin", a.cos_sin, {kAny, p.rope_dim}, {DType::kF32});
  const std::int64_t width = p.heads / p.groups * p.dim;
  const std::int64_t chunks = width / InverseRopeQuant::kGroup;
  const bool packed = p.scale == OutputScale::kUe8m0x4;
  check_tensor(op, "values", a.values, {p.groups, p.tokens, width}, {DType::kE4M3});
  check_tensor(op, "scales", a.scales, {p.groups, packed ? (chunks + 3) / 4 : chunks, (p.tokens + 3) / 4 * 4},
               {packed ? DType::kI32 : DType::kF32});
}

template <>
std::span<const Implementation<InsertRows>> OpTable<InsertRows>::implementations() {
  static const Implementation<InsertRows> kTable[] = {
      cuda_row<InsertRows>(),
      {.name = "ref", .machine = "any CPU", .run = insert_rows_ref},
  };
  return kTable;
}

template <>
void OpTable<InsertRows>::check_problem(const InsertRows::Problem& p) {
  constexpr std::string_view op = InsertRows::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_float(op, "in", p.in);
  check_that(p.format != nullptr, op, "format", std::string("none"), "a row format");
  check_that(p.format->dim <= kMaxRopeRow, op, "format",
             std::string(p.format->name) + " with " + std::to_string(p.format->dim) + " dims",
             "at most " + std::to_string(kMaxRopeRow));
}

template <>
void OpTable<InsertRows>::check_args(const InsertRows::Problem& p, const InsertRows::Args& a) {
  constexpr std::string_view op = InsertRows::kName;
  check_tensor(op, "rows", a.rows, {p.tokens, p.format->dim}, {p.in});
  check_target(op, p.tokens, *p.format, a.slot_mapping, a.cache);
}

SMLA_DEFINE_OP(RmsNorm);
SMLA_DEFINE_OP(LatentNorms);
SMLA_DEFINE_OP(QNormRopeInsert);
SMLA_DEFINE_OP(InverseRope);
SMLA_DEFINE_OP(InverseRopeQuant);
SMLA_DEFINE_OP(InsertRows);

}  // namespace smla
