#include <array>

#include "cache/check_cache.h"
#include "core/check.h"
#include "ops/compressor/implementations.h"
#include "ops/define_op.h"

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
void check_state(std::string_view op, const Text& what, const PagedCache& state, int dim, int coff) {
  check_format(op, what, state, state_rows(dim, coff));
  const bool aligned = reinterpret_cast<std::uintptr_t>(state.base) % 4 == 0 &&
                       (state.num_blocks < 2 || state.block_stride_bytes % 4 == 0);
  check_that(aligned, op, what, words("base or block stride ", state.block_stride_bytes, " off fp32 alignment"),
             "multiples of 4 bytes");
}

void check_slots(std::string_view op, const Text& what, const ConstTensorView& slots, std::int64_t tokens) {
  check_tensor(op, what, slots, {kAny}, {DType::kI64});
  check_that(slots.size(0) <= tokens, op, what, slots, words("at most ", tokens, " tokens"));
}

/// A member of compressor i, as errors name it.
struct Member {
  int i;
  std::string_view name;
};
void put(std::string& text, const Member& m) { smla::put(text, words("compressors[", m.i, "].", m.name)); }

void check_shape(const CompressStore::Problem& p, int i) {
  constexpr std::string_view op = CompressStore::kName;
  const CompressStore::CompressorShape& c = p.compressor.at(static_cast<std::size_t>(i));
  state_rows(c.dim, p.coff());
  check_that(p.rope_dim >= 0 && p.rope_dim <= c.dim && p.rope_dim % 2 == 0, op, "rope_dim", p.rope_dim,
             words("an even number up to dim ", c.dim));
  check_that(c.format != nullptr, op, Member{i, "format"}, "none", "the entry cache's row format");
  const RowFormat& f = *c.format;
  check_that(f.dim == c.dim, op, Member{i, "format"}, words(f.name, " with ", f.dim, " dims"), words(c.dim, " dims"));
  check_that(f.rope_dim() == 0 || f.rope_dim() == p.rope_dim, op, Member{i, "format"},
             words(f.name, " with ", f.rope_dim(), " rope dims"), words(p.rope_dim, " rope dims"));
  check_that(!c.hadamard || c.dim == 128, op, Member{i, "hadamard"}, words("dim ", c.dim), "the indexer's 128");
}

void check_tensors(const CompressorCall& call, int i) {
  constexpr std::string_view op = CompressStore::kName;
  const CompressStore::Problem& p = call.problem;
  const CompressStore::Compressor& c = call.own;
  const int dim = call.shape.dim;
  check_slots(op, Member{i, "state_slots"}, c.state_slots, p.tokens);
  check_tensor(op, "entry_slots", call.args.entry_slots, {c.state_slots.size(0)}, {DType::kI64});
  check_tensor(op, Member{i, "block_table"}, c.block_table, {kAny, kAny}, {DType::kI32});
  check_tensor(op, Member{i, "norm_weight"}, c.norm_weight, {dim}, {DType::kBF16, DType::kF32});
  check_state(op, Member{i, "state"}, c.state, dim, p.coff());
  check_format(op, Member{i, "entries"}, c.entries, *call.shape.format);
  const auto said = [](const ConstTensorView& v) { return std::string_view(v.absent() ? "none" : "a tensor"); };
  const ConstTensorView& first = call.args.compressors[0].kv_score;
  check_that(c.kv_score.absent() == first.absent(), op, Member{i, "kv_score"}, said(c.kv_score),
             words(said(first), ", as compressors[0].kv_score"));
  if (c.kv_score.absent()) return;
  const std::int64_t half = static_cast<std::int64_t>(p.coff()) * dim;
  check_tensor(op, Member{i, "kv_score"}, c.kv_score, {p.tokens, 2 * half}, {DType::kF32});
  check_tensor(op, Member{i, "ape"}, c.ape, {p.ratio, half}, {DType::kF32, DType::kBF16});
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
  check_state(op, "state", a.state, p.dim, p.coff());
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
  constexpr std::string_view op = CompressStore::kName;
  check_that(p.tokens >= 0, op, "tokens", p.tokens, "0 or more");
  check_ratio(op, p.ratio);
  check_that(p.compressors >= 1 && p.compressors <= CompressStore::kMaxCompressors, op, "compressors", p.compressors,
             words("1 to ", CompressStore::kMaxCompressors));
  for (int i = 0; i < p.compressors; ++i) check_shape(p, i);
}

template <>
void OpTable<CompressStore>::check_args(const CompressStore::Problem& p, const CompressStore::Args& a) {
  constexpr std::string_view op = CompressStore::kName;
  check_tensor(op, "positions", a.positions, {p.tokens}, {DType::kI64});
  check_tensor(op, "token_to_req", a.token_to_req, {p.tokens}, {DType::kI32});
  check_tensor(op, "cos_sin", a.cos_sin, {kAny, p.rope_dim}, {DType::kF32});
  for (int i = 0; i < p.compressors; ++i) check_tensors({p, a, i}, i);
}

SMLA_DEFINE_OP(SaveState);
SMLA_DEFINE_OP(CompressStore);

}  // namespace smla
