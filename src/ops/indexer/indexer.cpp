#include "cache/check_cache.h"
#include "core/check.h"
#include "ops/define_op.h"
#include "ops/indexer/implementations.h"

namespace smla {

namespace {

/// Both ops take rows of one kind of element: e4m3 with one fp32 scale, e2m1 with UE8M0 group scales, or plain fp32.
void check_format(std::string_view op, const RowFormat* format, int dim, std::int64_t heads) {
  check_that(format != nullptr, op, "problem.format", "none", "an index row format");
  const bool fp8 = format->nope == Element::kE4M3 && format->scale == ScaleKind::kF32 && format->group == format->dim;
  const bool fp4 = format->nope == Element::kE2M1 && format->scale == ScaleKind::kUe8m0;
  const bool f32 = format->nope == Element::kF32 && format->scale == ScaleKind::kNone;
  check_that(format->rope_dim() == 0 && format->dim % 32 == 0 && (fp8 || fp4 || f32), op, "problem.format",
             std::string(format->name), "index_fp8, index_mxfp4 or index_f32");
  constexpr int kMaxDim = 512;  // a head's numbers lie in the kernels' registers or on the stack
  check_that(format->dim <= kMaxDim, op, "problem.format",
             std::string(format->name) + " of " + std::to_string(format->dim) + " numbers",
             "rows of at most " + std::to_string(kMaxDim));
  check_that(dim == format->dim, op, "problem.dim", dim,
             std::to_string(format->dim) + " as in " + std::string(format->name));
  check_that(heads >= 1 && heads <= 128, op, "problem.heads", heads, "1 to 128");
}

/// q and its scales as IndexerQ writes and IndexerLogits reads them.
void check_q(std::string_view op, std::string_view name, const ConstTensorView& q, const ConstTensorView& q_scale,
             const RowFormat& format, std::int64_t rows, std::int64_t heads) {
  switch (format.nope) {
    case Element::kE4M3: check_tensor(op, name, q, {rows, heads, format.dim}, {DType::kE4M3}); break;
    case Element::kE2M1: check_tensor(op, name, q, {rows, heads, format.dim / 2}, {DType::kU8}); break;
    default: check_tensor(op, name, q, {rows, heads, format.dim}, {DType::kF32}); break;
  }
  if (format.scale == ScaleKind::kUe8m0) {
    check_tensor(op, "q_scale", q_scale, {rows, heads, format.groups()}, {DType::kU8});
  } else {
    check_that(q_scale.absent(), op, "q_scale", q_scale, words("no tensor with ", format.name));
  }
}

}  // namespace

template <>
std::span<const Implementation<IndexerQ>> OpTable<IndexerQ>::implementations() {
  static const Implementation<IndexerQ> kTable[] = {
      cuda_row<IndexerQ>(),
      {.name = "cpu", .machine = "any CPU", .run = indexer_q_cpu},
      {.name = "ref", .machine = "any CPU", .run = indexer_q_ref},
  };
  return kTable;
}

template <>
void OpTable<IndexerQ>::check_problem(const IndexerQ::Problem& problem) {
  check_format(IndexerQ::kName, problem.format, problem.dim, problem.heads);
  check_that(problem.tokens >= 0, IndexerQ::kName, "problem.tokens", problem.tokens, "0 or more");
  check_that(problem.rope_dim >= 0 && problem.rope_dim <= problem.dim && problem.rope_dim % 2 == 0, IndexerQ::kName,
             "problem.rope_dim", problem.rope_dim, "an even number up to " + std::to_string(problem.dim));
  check_that(!problem.hadamard || (problem.dim & (problem.dim - 1)) == 0, IndexerQ::kName, "problem.dim", problem.dim,
             "a power of two for the Hadamard transform");
  check_that(problem.in == DType::kBF16 || problem.in == DType::kF32, IndexerQ::kName, "problem.in",
             std::string(name_of(problem.in)), "BF16 or F32");
}

template <>
void OpTable<IndexerQ>::check_args(const IndexerQ::Problem& problem, const IndexerQ::Args& args) {
  check_tensor(IndexerQ::kName, "q", args.q, {problem.tokens, problem.heads, problem.dim}, {problem.in});
  check_tensor(IndexerQ::kName, "weights", args.weights, {problem.tokens, problem.heads}, {problem.in});
  check_tensor(IndexerQ::kName, "positions", args.positions, {problem.tokens}, {DType::kI64});
  check_tensor(IndexerQ::kName, "cos_sin", args.cos_sin, {kAny, problem.rope_dim}, {DType::kF32});
  check_that(problem.tokens == 0 || args.cos_sin.size(0) >= 1, IndexerQ::kName, "rows of cos_sin", args.cos_sin.size(0),
             "1 or more");
  check_q(IndexerQ::kName, "q_out", args.q_out, args.q_scale, *problem.format, problem.tokens, problem.heads);
  check_tensor(IndexerQ::kName, "weights_out", args.weights_out, {problem.tokens, problem.heads}, {DType::kF32});
}

template <>
std::span<const Implementation<IndexerLogits>> OpTable<IndexerLogits>::implementations() {
  static const Implementation<IndexerLogits> kTable[] = {
      sm90_row<IndexerLogits>(),
      cuda_row<IndexerLogits>(),
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<IndexerLogits, needs_avx512, indexer_logits_workspace>,
       .run = indexer_logits_avx512},
      {.name = "avx2",
       .machine = "AVX2 + FMA",
       .decide = take_all<IndexerLogits, needs_avx2, indexer_logits_workspace>,
       .run = indexer_logits_avx2},
      {.name = "cpu",
       .machine = "any CPU",
       .decide = take_all<IndexerLogits, needs_nothing, indexer_logits_workspace>,
       .run = indexer_logits_cpu},
      {.name = "ref", .machine = "any CPU", .run = indexer_logits_ref},
  };
  return kTable;
}

void check_index_scores(std::string_view op, const IndexerLogits::Problem& problem) {
  check_format(op, problem.format, problem.dim, problem.heads);
  check_that(problem.rows >= 0, op, "problem.rows", problem.rows, "0 or more");
  check_that(problem.width >= 0 && problem.width <= INT32_MAX, op, "problem.width", problem.width, "0 to 2^31-1");
}

void check_index_scores(std::string_view op, const IndexerLogits::Problem& problem, const IndexerLogits::Args& args) {
  check_q(op, "q", args.q, args.q_scale, *problem.format, problem.rows, problem.heads);
  check_tensor(op, "weights", args.weights, {problem.rows, problem.heads}, {DType::kF32});
  check_tensor(op, "row_to_req", args.row_to_req, {problem.rows}, {DType::kI32});
  check_tensor(op, "lens", args.lens, {problem.rows}, {DType::kI32});
  check_tensor(op, "block_table", args.block_table, {kAny, kAny}, {DType::kI32});
  check_cache(op, "cache", args.cache);
  check_that(*args.cache.format == *problem.format, op, "cache.format", args.cache.format->name, problem.format->name);
}

template <>
void OpTable<IndexerLogits>::check_problem(const IndexerLogits::Problem& problem) {
  check_index_scores(IndexerLogits::kName, problem);
}

template <>
void OpTable<IndexerLogits>::check_args(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args) {
  check_index_scores(IndexerLogits::kName, problem, args);
  check_tensor(IndexerLogits::kName, "logits", args.logits, {problem.rows, problem.width}, {DType::kF32});
}

template <>
std::span<const Implementation<RaggedIndexerLogits>> OpTable<RaggedIndexerLogits>::implementations() {
  static const Implementation<RaggedIndexerLogits> kTable[] = {
      sm90_row<RaggedIndexerLogits>(),
      cuda_row<RaggedIndexerLogits>(),
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<RaggedIndexerLogits, needs_avx512, ragged_indexer_logits_workspace>,
       .run = ragged_indexer_logits_avx512},
      {.name = "avx2",
       .machine = "AVX2 + FMA",
       .decide = take_all<RaggedIndexerLogits, needs_avx2, ragged_indexer_logits_workspace>,
       .run = ragged_indexer_logits_avx2},
      {.name = "cpu",
       .machine = "any CPU",
       .decide = take_all<RaggedIndexerLogits, needs_nothing, ragged_indexer_logits_workspace>,
       .run = ragged_indexer_logits_cpu},
      {.name = "ref", .machine = "any CPU", .run = ragged_indexer_logits_ref},
  };
  return kTable;
}

template <>
void OpTable<RaggedIndexerLogits>::check_problem(const RaggedIndexerLogits::Problem& problem) {
  constexpr std::string_view op = RaggedIndexerLogits::kName;
  check_format(op, problem.format, problem.dim, problem.heads);
  check_that(problem.rows >= 0, op, "problem.rows", problem.rows, "0 or more");
  check_that(problem.keys >= 0 && problem.keys <= INT32_MAX, op, "problem.keys", problem.keys, "0 to 2^31-1");
}

template <>
void OpTable<RaggedIndexerLogits>::check_args(const RaggedIndexerLogits::Problem& problem,
                                              const RaggedIndexerLogits::Args& args) {
  constexpr std::string_view op = RaggedIndexerLogits::kName;
  check_q(op, "q", args.q, args.q_scale, *problem.format, problem.rows, problem.heads);
  check_tensor(op, "weights", args.weights, {problem.rows, problem.heads}, {DType::kF32});
  check_tensor(op, "values", args.values, {problem.keys, problem.format->data_bytes}, {DType::kU8});
  if (problem.format->scale_bytes > 0)
    check_tensor(op, "scales", args.scales, {problem.keys, problem.format->scale_bytes}, {DType::kU8});
  check_tensor(op, "starts", args.starts, {problem.rows}, {DType::kI32});
  check_tensor(op, "ends", args.ends, {problem.rows}, {DType::kI32});
  check_tensor(op, "logits", args.logits, {problem.rows, problem.keys}, {DType::kF32});
}

template <>
std::span<const Implementation<GatherIndexRows>> OpTable<GatherIndexRows>::implementations() {
  static const Implementation<GatherIndexRows> kTable[] = {
      cuda_row<GatherIndexRows>(),
      {.name = "ref", .machine = "any CPU", .run = gather_index_rows_ref},
  };
  return kTable;
}

template <>
void OpTable<GatherIndexRows>::check_problem(const GatherIndexRows::Problem& problem) {
  constexpr std::string_view op = GatherIndexRows::kName;
  check_that(problem.format != nullptr, op, "problem.format", "none", "a row format");
  check_that(problem.requests >= 0, op, "problem.requests", problem.requests, "0 or more");
  check_that(problem.rows >= 0, op, "problem.rows", problem.rows, "0 or more");
}

template <>
void OpTable<GatherIndexRows>::check_args(const GatherIndexRows::Problem& problem, const GatherIndexRows::Args& args) {
  constexpr std::string_view op = GatherIndexRows::kName;
  check_cache(op, "cache", args.cache);
  check_that(*args.cache.format == *problem.format, op, "cache.format", args.cache.format->name, problem.format->name);
  check_tensor(op, "cu_seq_lens", args.cu_seq_lens, {problem.requests + 1}, {DType::kI32});
  check_tensor(op, "block_table", args.block_table, {problem.requests, kAny}, {DType::kI32});
  check_tensor(op, "values", args.values, {problem.rows, problem.format->data_bytes}, {DType::kU8});
  if (problem.format->scale_bytes > 0)
    check_tensor(op, "scales", args.scales, {problem.rows, problem.format->scale_bytes}, {DType::kU8});
}

SMLA_DEFINE_OP(IndexerQ);
SMLA_DEFINE_OP(IndexerLogits);
SMLA_DEFINE_OP(RaggedIndexerLogits);
SMLA_DEFINE_OP(GatherIndexRows);

}  // namespace smla
