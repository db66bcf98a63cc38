#include <cmath>
#include <cstring>

#include "cases/replay.h"
#include "core/check.h"
#include "ops/staging.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/attention.h"

namespace smla {

namespace {

/// Heads of an output buffer: a small file cannot ask for gigabytes.
constexpr std::int64_t kMaxHeads = 1024;

const RowFormat& attention_format(const CaseParams& params, const std::string& key) {
  const std::string name = params.text(key);
  std::string accepted;
  for (const RowFormat* format :
       {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &f32_rows(), &fp8_v32_rows()}) {
    if (format->name == name) return *format;
    accepted += (accepted.empty() ? "" : ", ") + std::string(format->name);
  }
  params.fail(key, "the string \"" + name + "\"", "one of " + accepted);
}

/// Scope `i` of the case: its problem and its tensors.
void read_scope(const CaseFile& file, const CaseParams& params, int i, SparseAttention::Problem& problem,
                SparseAttention::Args& args) {
  const std::string suffix = std::to_string(i);
  const HostTensor& cache = file.tensor("in.cache" + suffix);
  const HostTensor& indices = file.tensor("in.indices" + suffix);
  check_tensor(file.path, "in.cache" + suffix, cache.view(), {kAny, kAny}, {DType::kU8});
  check_tensor(file.path, "in.indices" + suffix, indices.view(), {problem.lists(), kAny}, {DType::kI32});
  SparseAttention::ScopeShape& shape = problem.scope[static_cast<std::size_t>(i)];
  shape.format = &attention_format(params, "format" + suffix);
  shape.block_size = params.integer("block_size" + suffix, 1, std::int64_t{1} << 31);
  shape.width = indices.size(1);

  SparseAttention::Scope& scope = args.scopes[static_cast<std::size_t>(i)];
  scope.cache.format = shape.format;
  // The attention op only reads its caches; PagedCache serves writers too and so has no const form.
  scope.cache.base = const_cast<std::uint8_t*>(cache.as<std::uint8_t>());
  scope.cache.num_blocks = cache.size(0);
  scope.cache.block_size = shape.block_size;
  scope.cache.block_stride_bytes = cache.size(1);
  scope.cache.scale = static_cast<float>(params.number("kv_scale" + suffix, -3.4e38, 3.4e38, 1.0));
  const std::int64_t least = block_bytes(*shape.format, shape.block_size);
  check_that(scope.cache.num_blocks == 0 || cache.size(1) >= least, file.path, "in.cache" + suffix + " block stride",
             cache.size(1),
             "at least " + std::to_string(least) + " bytes, " + std::to_string(shape.block_size) + " rows of " +
                 std::string(shape.format->name));
  scope.indices = indices.view();
  if (const HostTensor* lens = file.find("in.lens" + suffix)) {
    check_tensor(file.path, "in.lens" + suffix, lens->view(), {problem.tokens}, {DType::kI32});
    scope.lens = lens->view();
  }
  if (const HostTensor* starts = file.find("in.starts" + suffix)) {
    check_tensor(file.path, "in.starts" + suffix, starts->view(), {problem.tokens}, {DType::kI32});
    scope.starts = starts->view();
  }
}

}  // namespace

ReplayResult replay_sparse_attention(const CaseFile& file, const ReplayOptions& options) {
  file.expect_inputs({"q", "cache0", "indices0", "lens0", "starts0", "cache1", "indices1", "lens1", "starts1", "sink",
                      "positions", "cos_sin", "q_positions", "q_cos_sin"});
  const CaseParams params = file.reader();
  const HostTensor& q = file.tensor("in.q");
  check_tensor(file.path, "in.q", q.view(), {kAny, kAny, kAny}, {DType::kBF16, DType::kE4M3, DType::kF32});

  SparseAttention::Problem problem{.tokens = q.size(0), .heads = q.size(1), .q = q.dtype()};
  problem.dim = attention_format(params, "format0").dim;
  check_that(q.size(2) == problem.dim, file.path, "in.q head width", q.size(2), std::to_string(problem.dim));
  problem.scale = static_cast<float>(params.number("scale", -3.4e38, 3.4e38, 0.0));  // 0: dim^-0.5
  problem.q_scale = static_cast<float>(params.number("q_scale", -3.4e38, 3.4e38, 1.0));
  problem.value_dim = static_cast<int>(params.integer("value_dim", 0, problem.dim, 0));
  problem.partial = params.flag("partial", false);
  problem.out_heads = params.integer("out_heads", 0, kMaxHeads, 0);
  problem.tokens_per_list = params.integer("tokens_per_list", 1, std::max<std::int64_t>(problem.tokens, 1), 1);
  check_that(problem.tokens % problem.tokens_per_list == 0, file.path, "tokens_per_list", problem.tokens_per_list,
             "a divisor of " + std::to_string(problem.tokens) + " tokens");
  if (const auto rope_dim = static_cast<int>(params.integer("rope_dim", 0, problem.dim, 0)); rope_dim > 0)
    problem.output_epilogue = {.rope_dim = rope_dim};
  const auto q_eps = static_cast<float>(params.number("q_eps", 0, 1, 1e-6));
  if (const auto rope_dim = static_cast<int>(params.integer("q_rope_dim", 0, problem.dim, 0)); rope_dim > 0)
    problem.query_prologue = {.rope_dim = rope_dim, .eps = q_eps};
  const HostTensor* want_o = file.find("out.o");
  if (problem.partial || (want_o != nullptr && want_o->dtype() == DType::kF32)) problem.o = DType::kF32;
  problem.scopes = file.find("in.cache1") != nullptr || file.find("in.indices1") != nullptr ? 2 : 1;

  SparseAttention::Args args;
  args.q = q.view();
  for (int i = 0; i < problem.scopes; ++i) read_scope(file, params, i, problem, args);
  if (const HostTensor* sink = file.find("in.sink")) {
    check_tensor(file.path, "in.sink", sink->view(), {problem.heads}, {DType::kF32});
    args.sink = sink->view();
  }
  if (problem.output_epilogue) {
    args.output_epilogue = {.positions = file.tensor("in.positions").view(),
                            .cos_sin = file.tensor("in.cos_sin").view()};
  }
  if (problem.query_prologue) {  // by positions and a table of its own, or by those of the epilogue
    const std::string own = file.find("in.q_positions") != nullptr ? "in.q_" : "in.";
    args.query_prologue = {.positions = file.tensor(own + "positions").view(),
                           .cos_sin = file.tensor(own + "cos_sin").view()};
  }
  const Plan<SparseAttention> plan(problem, options.plan);

  // Poisoned, so that what an implementation forgets to write shows.
  HostTensor o(problem.o, {problem.tokens, problem.padded_heads(), problem.out_dim()});
  HostTensor lse(DType::kF32, {problem.tokens, problem.heads});
  std::memset(o.data(), 0xFF, o.bytes());
  std::memset(lse.data(), 0xFF, lse.bytes());
  args.o = o.view();
  args.lse = lse.view();
  run_staged(plan, args, options.plan.device);

  ReplayResult result{.implementation = std::string(plan.implementation()), .results = {}};
  result.results.emplace("o", std::move(o));
  result.results.emplace("lse", std::move(lse));
  return result;
}

}  // namespace smla
