#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "cache/check_cache.h"
#include "core/check.h"
#include "core/check_distinct.h"
#include "ops/attention/implementations.h"
#include "ops/define_op.h"
#include "ops/norm_rope/scalar.h"

namespace smla {

namespace {

/// The rotation of a prologue or an epilogue, of rows of `dim` numbers.
void check_rotation(const std::string& part, int rope_dim, int dim) {
  constexpr std::string_view kOp = SparseAttention::kName;
  check_that(rope_dim >= 2 && rope_dim <= dim && rope_dim % 2 == 0, kOp, part + ".rope_dim", rope_dim,
             "an even number from 2 to " + std::to_string(dim));
  check_that(dim <= kMaxRopeRow, kOp, "dim", dim, "up to " + std::to_string(kMaxRopeRow) + " with " + part);
}

/// With tokens_per_list all heads of all tokens lie at equal distances: a kernel takes them as heads of a list.
void check_even(const SparseAttention::Problem& p, std::string_view name, const ConstTensorView& heads) {
  if (p.tokens_per_list == 1 || heads.absent() || p.heads == 1 || p.tokens <= 1) return;
  check_that(heads.stride[0] == p.heads * heads.stride[1], SparseAttention::kName, words("strides of ", name),
             words(heads.stride[0], " from token to token and ", heads.stride[1], " from head to head"),
             words(p.heads, " heads from token to token, with tokens_per_list"));
}

/// E4M3 o and its scales.
void check_quantised(const SparseAttention::Problem& p, const SparseAttention::Args& args) {
  constexpr std::string_view kOp = SparseAttention::kName;
  const std::int64_t groups = p.output_epilogue->groups;
  const std::int64_t width = p.heads / groups * p.out_dim();
  const std::int64_t chunks = width / InverseRopeQuant::kGroup;
  const bool packed = p.output_epilogue->scale == OutputScale::kUe8m0x4;
  check_tensor(kOp, "o", args.o, {groups, p.tokens, width}, {DType::kE4M3});
  const TensorView& scales = args.output_epilogue.scales;
  check_tensor(kOp, "output_epilogue.scales", scales, {groups, packed ? (chunks + 3) / 4 : chunks, kAny},
               {packed ? DType::kI32 : DType::kF32});
  check_that(scales.size(2) >= p.tokens, kOp, "columns of output_epilogue.scales", scales.size(2),
             words("at least ", p.tokens));
  check_distinct(kOp, "output_epilogue.scales", scales);
}

}  // namespace

bool is_quantised(const SparseAttention::Problem& p) { return p.output_epilogue && p.output_epilogue->groups > 0; }

InverseRope::Problem rope_problem(const SparseAttention::Problem& p) {
  return {.tokens = p.tokens,
          .heads = p.heads,
          .dim = p.out_dim(),
          .rope_dim = p.output_epilogue->rope_dim,
          .in = p.o,
          .out = p.o};
}

InverseRope::Args rope_args(const SparseAttention::Problem& p, const SparseAttention::Args& a) {
  const TensorView heads = a.o.slice(1, 0, p.heads);
  const SparseAttention::OutputEpilogue::Args& epilogue = a.output_epilogue;
  return {.x = heads, .positions = epilogue.positions, .cos_sin = epilogue.cos_sin, .y = heads};
}

QNormRopeInsert::Problem query_problem(const SparseAttention::Problem& p) {
  return {.tokens = p.tokens,
          .heads = p.heads,
          .out_heads = p.heads,
          .dim = p.dim,
          .rope_dim = p.query_prologue->rope_dim,
          .in = p.q,
          .q_out = p.q,
          .format = nullptr,
          .eps = p.query_prologue->eps};
}

std::size_t query_bytes(const SparseAttention::Problem& p) {
  return !p.query_prologue ? 0 : static_cast<std::size_t>(p.tokens * p.heads * p.dim * size_of(p.q));
}

SparseAttention::Args with_ready_queries(const SparseAttention::Problem& p, const SparseAttention::Args& a, void* place,
                                         QueryMaker make, const RunContext& context) {
  const TensorView ready(place, p.q, {p.tokens, p.heads, p.dim});
  const auto bytes = static_cast<std::size_t>(p.dim * size_of(p.q));
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      std::memcpy(ready.slice(0, t, t + 1).slice(1, h, h + 1).data, a.q.slice(0, t, t + 1).slice(1, h, h + 1).data,
                  bytes);
    }
  }
  make(query_problem(p),
       {.q = ready,
        .kv = {},
        .positions = a.query_prologue.positions,
        .cos_sin = a.query_prologue.cos_sin,
        .slot_mapping = {},
        .q_out = ready,
        .cache = {}},
       context);
  SparseAttention::Args args = a;
  args.q = ready;
  return args;
}

float SparseAttention::Problem::softmax_scale() const {
  return scale != 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(dim));
}

EntryRange entries_of(const SparseAttention::Scope& scope, std::int64_t width, std::int64_t token) {
  const auto number = [&](const ConstTensorView& of, std::int64_t absent) {
    return of.absent() ? absent : std::int64_t{of.as<std::int32_t>()[token * of.stride[0]]};
  };
  const std::int64_t start = number(scope.starts, 0);
  const std::int64_t begin = std::clamp<std::int64_t>(start, 0, width);
  return {begin, std::clamp<std::int64_t>(start + number(scope.lens, width), begin, width)};
}

namespace {

std::span<const Implementation<SparseAttention>> rows() {
  static const Implementation<SparseAttention> kTable[] = {
      sparse_attention_widened_row(),
      sm90_row<SparseAttention>(),
      sparse_attention_small_row(),
      cuda_row<SparseAttention>(),
      sparse_attention_simt_row(),
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<SparseAttention, needs_avx512, sparse_attention_workspace>,
       .run = sparse_attention_avx512},
      {.name = "avx2",
       .machine = "AVX2 + FMA",
       .decide = take_all<SparseAttention, needs_avx2, sparse_attention_workspace>,
       .run = sparse_attention_avx2},
      {.name = "cpu",
       .machine = "any CPU",
       .decide = take_all<SparseAttention, needs_nothing, sparse_attention_workspace>,
       .run = sparse_attention_cpu},
      {.name = "ref",
       .machine = "any CPU",
       .decide = take_all<SparseAttention, needs_nothing>,
       .run = sparse_attention_ref},
  };
  return kTable;
}
constexpr std::size_t kRows = 9;
/// The first rows decide about E4M3 o themselves: two write it, sm90_small refuses it, because pieces of a call have
/// other clusters, and so other bits, than the call.
constexpr std::size_t kDecidesE4M3 = SparseAttention::kWritesE4M3.size() + 1;

/// Of a row whose kernels do not.
template <std::size_t kRow>
Decision decide_row(const SparseAttention::Problem& p, const PlanOptions& options, const Machine& machine) {
  if (!is_quantised(p)) return rows()[kRow].decide(p, options, machine);
  return decide_quantised_pieces(rows()[kRow], p, options, machine);
}
template <std::size_t kRow>
void run_row(const SparseAttention::Problem& p, const SparseAttention::Args& a, const RunContext& context) {
  if (!is_quantised(p)) return rows()[kRow].run(p, a, context);
  run_quantised_pieces(p, a, context);
}
template <std::size_t kRow>
Implementation<SparseAttention> whole_row() {
  Implementation<SparseAttention> row = rows()[kRow];
  if constexpr (kRow >= kDecidesE4M3) row.decide = decide_row<kRow>, row.run = run_row<kRow>;
  return row;
}

}  // namespace

template <>
std::span<const Implementation<SparseAttention>> OpTable<SparseAttention>::implementations() {
  static const auto kTable = []<std::size_t... kRow>(std::index_sequence<kRow...>) {
    return std::array{whole_row<kRow>()...};
  }
  (std::make_index_sequence<kRows>());
  return kTable;
}

template <>
void OpTable<SparseAttention>::check_problem(const SparseAttention::Problem& p) {
  constexpr std::string_view kOp = SparseAttention::kName;
  check_that(p.tokens >= 0, kOp, "tokens", p.tokens, "0 or more");
  check_that(p.tokens_per_list >= 1 && p.tokens % p.tokens_per_list == 0, kOp, "tokens_per_list", p.tokens_per_list,
             words("a divisor of ", p.tokens, " tokens"));
  check_that(p.heads >= 1 && p.heads <= 128, kOp, "heads", p.heads, "1 to 128");
  check_that(p.out_heads == 0 || p.out_heads >= p.heads, kOp, "out_heads", p.out_heads,
             "0 or at least heads = " + std::to_string(p.heads));
  check_that(p.dim >= 1 && p.dim <= 65536, kOp, "dim", p.dim, "1 to 65536");
  check_that(p.value_dim >= 0 && p.value_dim <= p.dim, kOp, "value_dim", p.value_dim,
             "0 to dim " + std::to_string(p.dim));
  check_that(p.q == DType::kBF16 || p.q == DType::kE4M3 || p.q == DType::kF32, kOp, "q dtype",
             std::string(name_of(p.q)), "BF16, F8_E4M3 or F32");
  const bool quantised = p.output_epilogue && p.output_epilogue->groups > 0;
  check_that(quantised ? p.o == DType::kE4M3 : p.o == DType::kF32 || (p.o == DType::kBF16 && !p.partial), kOp,
             "o dtype", std::string(name_of(p.o)),
             quantised ? "F8_E4M3 with output_epilogue.groups" : (p.partial ? "F32 (partial results)" : "BF16 or F32"));
  check_that(p.scopes >= 1 && p.scopes <= SparseAttention::kMaxScopes, kOp, "scopes", p.scopes, "1 or 2");
  check_that(std::isfinite(p.scale), kOp, "scale", std::to_string(p.scale), "a finite number");
  check_that(std::isfinite(p.q_scale), kOp, "q_scale", std::to_string(p.q_scale), "a finite number");
  if (p.query_prologue) {
    check_rotation("query_prologue", p.query_prologue->rope_dim, p.dim);
    check_that(p.q != DType::kE4M3, kOp, "q dtype", std::string(name_of(p.q)), "BF16 or F32 with query_prologue");
  }
  if (p.output_epilogue) {
    check_that(!p.partial, kOp, "output_epilogue", std::string("one"), "none (partial results)");
    check_rotation("output_epilogue", p.output_epilogue->rope_dim, p.out_dim());
    check_that(p.output_epilogue->groups >= 0 && (!quantised || p.heads % p.output_epilogue->groups == 0), kOp,
               "output_epilogue.groups", p.output_epilogue->groups, "0 or a divisor of " + std::to_string(p.heads));
  }
  if (p.tokens_per_list > 1) {
    check_that(p.padded_heads() == p.heads, kOp, "out_heads", p.out_heads, words(p.heads, " with tokens_per_list"));
    check_that(!quantised, kOp, "output_epilogue.groups", p.output_epilogue ? p.output_epilogue->groups : 0,
               "0 with tokens_per_list");
  }
  if (quantised) {
    constexpr int kGroup = InverseRopeQuant::kGroup;
    check_that(p.padded_heads() == p.heads, kOp, "out_heads", p.out_heads,
               words(p.heads, " with output_epilogue.groups"));
    check_that(p.out_dim() % kGroup == 0, kOp, "value_dim", p.out_dim(),
               words("a multiple of ", kGroup, " with output_epilogue.groups"));
  }
  for (int i = 0; i < p.scopes; ++i) {
    const SparseAttention::ScopeShape& s = p.scope[static_cast<std::size_t>(i)];
    check_that(s.format != nullptr, kOp, words("scope ", i, " format"), std::string("none"), "a row format");
    check_that(s.format->dim == p.dim, kOp, words("scope ", i, " format"),
               std::string(s.format->name) + " rows of " + std::to_string(s.format->dim) + " numbers",
               "rows of " + std::to_string(p.dim));
    check_that(s.block_size >= 1, kOp, words("scope ", i, " block_size"), s.block_size, "1 or more");
    check_that(s.width >= 0, kOp, words("scope ", i, " width"), s.width, "0 or more");
  }
}

template <>
void OpTable<SparseAttention>::check_args(const SparseAttention::Problem& p, const SparseAttention::Args& args) {
  constexpr std::string_view kOp = SparseAttention::kName;
  check_tensor(kOp, "q", args.q, {p.tokens, kAny, p.dim}, {p.q});
  check_that(args.q.size(1) >= p.heads, kOp, "q heads", args.q.size(1), words("at least ", p.heads));
  if (is_quantised(p)) {
    check_quantised(p, args);
  } else {
    check_tensor(kOp, "o", args.o, {p.tokens, p.padded_heads(), p.out_dim()}, {p.o});
    check_that(args.output_epilogue.scales.absent(), kOp, "output_epilogue.scales", args.output_epilogue.scales,
               "none without output_epilogue.groups");
  }
  check_distinct(kOp, "o", args.o);
  if (!args.lse.absent()) check_tensor(kOp, "lse", args.lse, {p.tokens, p.heads}, {DType::kF32});
  check_distinct(kOp, "lse", args.lse);
  check_even(p, "q", args.q), check_even(p, "o", args.o), check_even(p, "lse", args.lse);
  if (!args.sink.absent()) check_tensor(kOp, "sink", args.sink, {p.heads}, {DType::kF32});
  check_that(!p.partial || args.sink.absent(), kOp, "sink", "a tensor",
             "none: partial results leave it to merge_partials");
  if (p.query_prologue) {
    check_tensor(kOp, "query_prologue.positions", args.query_prologue.positions, {p.tokens}, {DType::kI64});
    check_tensor(kOp, "query_prologue.cos_sin", args.query_prologue.cos_sin, {kAny, p.query_prologue->rope_dim},
                 {DType::kF32});
  }
  if (p.output_epilogue) {
    check_tensor(kOp, "output_epilogue.positions", args.output_epilogue.positions, {p.tokens}, {DType::kI64});
    check_tensor(kOp, "output_epilogue.cos_sin", args.output_epilogue.cos_sin, {kAny, p.output_epilogue->rope_dim},
                 {DType::kF32});
  }
  for (int i = 0; i < p.scopes; ++i) {
    const SparseAttention::Scope& s = args.scopes[static_cast<std::size_t>(i)];
    const SparseAttention::ScopeShape& shape = p.scope[static_cast<std::size_t>(i)];
    check_cache(kOp, words("scope ", i, " cache"), s.cache);
    check_that(*s.cache.format == *shape.format, kOp, words("scope ", i, " cache"),
               words(s.cache.format->name, " rows"), words(shape.format->name, " rows"));
    check_that(s.cache.block_size == shape.block_size, kOp, words("scope ", i, " cache"),
               words("block size ", s.cache.block_size), shape.block_size);
    if (shape.width > 0)
      check_tensor(kOp, words("scope ", i, " indices"), s.indices, {p.lists(), shape.width}, {DType::kI32});
    if (!s.lens.absent()) check_tensor(kOp, words("scope ", i, " lens"), s.lens, {p.tokens}, {DType::kI32});
    check_that(p.tokens_per_list > 1 || s.starts.absent(), kOp, words("scope ", i, " starts"), s.starts,
               "none without tokens_per_list above 1");
    if (!s.starts.absent()) check_tensor(kOp, words("scope ", i, " starts"), s.starts, {p.tokens}, {DType::kI32});
  }
}

template <>
std::span<const Implementation<MergePartials>> OpTable<MergePartials>::implementations() {
  static const Implementation<MergePartials> kTable[] = {
      cuda_row<MergePartials>(),
      {.name = "cpu", .machine = "any CPU", .run = merge_partials_cpu},
      {.name = "ref", .machine = "any CPU", .run = merge_partials_ref},
  };
  return kTable;
}

template <>
void OpTable<MergePartials>::check_problem(const MergePartials::Problem& p) {
  constexpr std::string_view kOp = MergePartials::kName;
  check_that(p.slices >= 0, kOp, "slices", p.slices, "0 or more");
  check_that(p.tokens >= 0, kOp, "tokens", p.tokens, "0 or more");
  check_that(p.heads >= 1, kOp, "heads", p.heads, "1 or more");
  check_that(p.dim >= 1, kOp, "dim", p.dim, "1 or more");
  check_that(p.o == DType::kF32 || p.o == DType::kBF16, kOp, "o dtype", std::string(name_of(p.o)), "BF16 or F32");
}

template <>
void OpTable<MergePartials>::check_args(const MergePartials::Problem& p, const MergePartials::Args& args) {
  constexpr std::string_view kOp = MergePartials::kName;
  check_tensor(kOp, "partial_o", args.partial_o, {p.slices, p.tokens, p.heads, p.dim}, {DType::kF32});
  check_tensor(kOp, "partial_lse", args.partial_lse, {p.slices, p.tokens, p.heads}, {DType::kF32});
  check_tensor(kOp, "o", args.o, {p.tokens, p.heads, p.dim}, {p.o});
  check_distinct(kOp, "o", args.o);
  if (!args.lse.absent()) check_tensor(kOp, "lse", args.lse, {p.tokens, p.heads}, {DType::kF32});
  check_distinct(kOp, "lse", args.lse);
  if (!args.sink.absent()) check_tensor(kOp, "sink", args.sink, {p.heads}, {DType::kF32});
}

template <>
std::span<const Implementation<GatherRows>> OpTable<GatherRows>::implementations() {
  static const Implementation<GatherRows> kTable[] = {
      cuda_row<GatherRows>(),
      {.name = "cpu", .machine = "any CPU", .decide = gather_rows_decide, .run = gather_rows_cpu},
      {.name = "ref", .machine = "any CPU", .run = gather_rows_ref},
  };
  return kTable;
}

template <>
void OpTable<GatherRows>::check_problem(const GatherRows::Problem& p) {
  constexpr std::string_view kOp = GatherRows::kName;
  check_that(p.requests >= 0, kOp, "requests", p.requests, "0 or more");
  check_that(p.rows >= 0, kOp, "rows", p.rows, "0 or more");
  check_that(p.offset >= 0, kOp, "offset", p.offset, "0 or more");
  check_that(p.format != nullptr, kOp, "format", std::string("none"), "a row format");
}

template <>
void OpTable<GatherRows>::check_args(const GatherRows::Problem& p, const GatherRows::Args& args) {
  constexpr std::string_view kOp = GatherRows::kName;
  check_cache(kOp, "cache", args.cache);
  check_that(*args.cache.format == *p.format, kOp, "cache", words(args.cache.format->name, " rows"),
             words(p.format->name, " rows"));
  check_tensor(kOp, "seq_lens", args.seq_lens, {p.requests}, {DType::kI32});
  if (!args.gather_lens.absent()) check_tensor(kOp, "gather_lens", args.gather_lens, {p.requests}, {DType::kI32});
  check_tensor(kOp, "block_table", args.block_table, {p.requests, kAny}, {DType::kI32});
  check_tensor(kOp, "out", args.out, {p.requests, p.rows, p.format->dim}, {DType::kBF16});
}

SMLA_DEFINE_OP(SparseAttention);
SMLA_DEFINE_OP(MergePartials);
SMLA_DEFINE_OP(GatherRows);

}  // namespace smla
