#include <array>

#include "cache/check_cache.h"
#include "core/check.h"
#include "ops/compressor/implementations.h"

namespace smla {

namespace {

void check_ratio(std::string_view op, int ratio) {
  check_that(ratio == 4 || ratio == 128, op, "ratio", ratio, "4 or 128");
}

void check_format(std::string_view op, const Text& what, const PagedCache& cache, const RowFormat& expected) {
  check_cache(op, what, cache);
  check_that(*cache.format == expected, op, what, words(cache.format->name, " rows"), words(expected.name, " rows"));
}

/// State rows are read and written in place as fp32.
void check_state(std::string_view op, std::string_view suffix, const PagedCache& state, int dim, int coff) {
  check_format(op, words("state", suffix), state, state_rows(dim, coff));
  const bool aligned = reinterpret_cast<std::uintptr_t>(state.base) % 4 == 0 &&
                       (state.num_blocks < 2 || state.block_stride_bytes % 4 == 0);
  check_that(aligned, op, words("state", suffix),
             words("base or block stride ", state.block_stride_bytes, " off fp32 alignment"), "multiples of 4 bytes");
}

void check_slots(std::string_view op, const Text& what, const ConstTensorView& slots, std::int64_t tokens) {
  check_tensor(op, what, slots, {kAny}, {DType::kI64});
  check_that(slots.size(0) <= tokens, op, what, slots, words("at most ", tokens, " tokens"));
}

/// One compressor of a CompressStore; `suffix`: of its names.
void check_compressor(const CompressStore::Problem& p, const std::string& suffix) {
  constexpr std::string_view op = CompressStore::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_ratio(op, p.ratio);
  state_rows(p.dim, p.coff());
  check_that(p.rope_dim >= 0 && p.rope_dim <= p.dim && p.rope_dim % 2 == 0, op, "rope_dim", p.rope_dim,
             "an even number up to dim " + std::to_string(p.dim));
  check_that(p.format != nullptr, op, "format" + suffix, "none", "the entry cache's row format");
  const std::string format(p.format->name);
  check_that(p.format->dim == p.dim, op, "format" + suffix, format + " with " + std::to_string(p.format->dim) + " dims",
             std::to_string(p.dim) + " dims");
  check_that(p.format->rope_dim() == 0 || p.format->rope_dim() == p.rope_dim, op, "format" + suffix,
             format + " with " + std::to_string(p.format->rope_dim()) + " rope dims",
             std::to_string(p.rope_dim) + " rope dims");
  check_that(!p.hadamard || p.dim == 128, op, "hadamard" + suffix, "dim " + std::to_string(p.dim), "the indexer's 128");
}

void check_tensors(const CompressStore::Problem& p, const CompressStore::Args& a, const std::string& suffix) {
  constexpr std::string_view op = CompressStore::kName;
  check_slots(op, words("state_slots", suffix), a.state_slots, p.tokens);
  check_tensor(op, "entry_slots", a.entry_slots, {a.state_slots.size(0)}, {DType::kI64});
  check_tensor(op, words("block_table", suffix), a.block_table, {kAny, kAny}, {DType::kI32});
  check_tensor(op, words("norm_weight", suffix), a.norm_weight, {p.dim}, {DType::kBF16, DType::kF32});
  check_state(op, suffix, a.state, p.dim, p.coff());
  check_format(op, words("entries", suffix), a.entries, *p.format);
  if (a.kv_score.absent()) return;
  const std::int64_t half = static_cast<std::int64_t>(p.coff()) * p.dim;
  check_tensor(op, "kv_score" + suffix, a.kv_score, {p.tokens, 2 * half}, {DType::kF32});
  check_tensor(op, "ape" + suffix, a.ape, {p.ratio, half}, {DType::kF32, DType::kBF16});
}

}  // namespace

template <>
std::span<const Implementation<SaveState>> OpTable<SaveState>::implementations() {
  static const Implementation<SaveState> kTable[] = {
      cuda_row<SaveState>(),
      {.name = "cpu", .machine = "any CPU", .run = save_state_cpu},
      {.name = "ref", .machine = "any CPU", .run = save_state_ref},
  };
  return kTable;
}

template <>
void OpTable<SaveState>::check_problem(const SaveState::Problem& p) {
  constexpr std::string_view op = SaveState::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_ratio(op, p.ratio);
  state_rows(p.dim, p.coff());  // throws unless there are such rows
}

template <>
void OpTable<SaveState>::check_args(const SaveState::Problem& p, const SaveState::Args& a) {
  constexpr std::string_view op = SaveState::kName;
  const std::int64_t half = static_cast<std::int64_t>(p.coff()) * p.dim;
  check_tensor(op, "kv_score", a.kv_score, {p.tokens, 2 * half}, {DType::kF32});
  check_tensor(op, "ape", a.ape, {p.ratio, half}, {DType::kF32, DType::kBF16});
  check_tensor(op, "positions", a.positions, {p.tokens}, {DType::kI64});
  check_slots(op, "state_slots", a.state_slots, p.tokens);
  check_state(op, "", a.state, p.dim, p.coff());
}

template <>
std::span<const Implementation<CompressStore>> OpTable<CompressStore>::implementations() {
  static const Implementation<CompressStore> kTable[] = {
      sm90_row<CompressStore>(),
      cuda_row<CompressStore>(),
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = take_all<CompressStore, needs_avx512>,
       .run = compress_store_avx512},
      {.name = "avx2",
       .machine = "AVX2 + FMA",
       .decide = take_all<CompressStore, needs_avx2>,
       .run = compress_store_avx2},
      {.name = "cpu", .machine = "any CPU", .run = compress_store_cpu},
      {.name = "ref", .machine = "any CPU", .run = compress_store_ref},
  };
  return kTable;
}

template <>
void OpTable<CompressStore>::check_problem(const CompressStore::Problem& p) {
  check_compressor(p, "");
  check_that(p.dim2 >= 0, CompressStore::kName, "dim2", p.dim2, "0 or more");
  if (p.dim2 > 0) check_compressor(second_problem(p), "2");
}

template <>
void OpTable<CompressStore>::check_args(const CompressStore::Problem& p, const CompressStore::Args& a) {
  constexpr std::string_view op = CompressStore::kName;
  check_tensor(op, "positions", a.positions, {p.tokens}, {DType::kI64});
  check_tensor(op, "token_to_req", a.token_to_req, {p.tokens}, {DType::kI32});
  check_tensor(op, "cos_sin", a.cos_sin, {kAny, p.rope_dim}, {DType::kF32});
  check_tensors(p, a, "");
  if (p.dim2 == 0) return;
  check_tensors(second_problem(p), second_args(a), "2");
  const auto said = [](const ConstTensorView& v) { return std::string(v.absent() ? "none" : "a tensor"); };
  check_that(a.kv_score.absent() == a.kv_score2.absent(), op, "kv_score2", said(a.kv_score2),
             said(a.kv_score) + ", as kv_score");
}

CompressStore::Problem first_problem(const CompressStore::Problem& problem) {
  CompressStore::Problem p = problem;
  p.dim2 = 0;
  return p;
}

CompressStore::Problem second_problem(const CompressStore::Problem& problem) {
  CompressStore::Problem p = first_problem(problem);
  p.dim = problem.dim2, p.format = problem.format2, p.hadamard = problem.hadamard2;
  return p;
}

CompressStore::Args second_args(const CompressStore::Args& args) {
  CompressStore::Args a = args;
  a.state_slots = args.state_slots2, a.block_table = args.block_table2, a.norm_weight = args.norm_weight2;
  a.kv_score = args.kv_score2, a.ape = args.ape2, a.state = args.state2, a.entries = args.entries2;
  return a;
}

SaveState::Args save_args(const CompressStore::Args& a) {
  return {
      .kv_score = a.kv_score, .ape = a.ape, .positions = a.positions, .state_slots = a.state_slots, .state = a.state};
}

SMLA_DEFINE_OP(SaveState);
SMLA_DEFINE_OP(CompressStore);

}  // namespace smla
