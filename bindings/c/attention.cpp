#include "sparsemla/ops/attention.h"

#include <algorithm>
#include <array>

#include "c/descriptors.h"
#include "c/status.h"
#include "core/host_tensor.h"

namespace {

using namespace smla;
using namespace smla::c;

constexpr const char* kName = "smla_sparse_attention";

/// What the arguments of one call mean.
struct Call {
  SparseAttention::Problem problem;
  SparseAttention::Args args;
  PlanOptions options;
  Stream stream;
};

SparseAttention::Scope read_scope(const std::string& name, const smla_attention_scope* scope) {
  const smla_attention_scope given = read_struct(name, scope, offsetof(smla_attention_scope, starts));
  return {.cache = read_cache(name + ".cache", given.cache),
          .indices = read_tensor(name + ".indices", given.indices),
          .lens = read_tensor(name + ".lens", given.lens),
          .starts = read_tensor(name + ".starts", given.starts)};
}

void need_rank(const char* name, const ConstTensorView& view, int rank) {
  if (view.rank != rank) {
    throw InvalidArgument(std::string(kName) + ": " + name + ": got " + (view.absent() ? "no tensor" : describe(view)) +
                          ", expected " + std::to_string(rank) + " dimensions");
  }
}

Call read_call(const smla_sparse_attention_args* args) {
  const smla_sparse_attention_args given =
      read_struct("smla_sparse_attention_args", args, offsetof(smla_sparse_attention_args, device));
  check_reserved("smla_sparse_attention_args", given.reserved);
  check_reserved("smla_sparse_attention_args", given.reserved2);
  Call call;
  call.args.q = read_tensor("q", given.q);
  call.args.o = read_tensor("o", given.o);
  call.args.lse = read_tensor("lse", given.lse);
  call.args.sink = read_tensor("sink", given.sink);
  need_rank("q", call.args.q, 3);
  need_rank("o", call.args.o, 3);
  call.problem = {.tokens = call.args.q.size(0),
                  .heads = given.heads == 0 ? call.args.q.size(1) : given.heads,
                  .out_heads = call.args.o.size(1),
                  .dim = static_cast<int>(std::min<std::int64_t>(call.args.q.size(2), 1 << 20)),
                  .value_dim = static_cast<int>(std::clamp<std::int64_t>(given.value_dim, -1, 1 << 20)),
                  .q = call.args.q.dtype,
                  .o = call.args.o.dtype,
                  .scopes = given.scope2 == nullptr ? 1 : 2,
                  .scope = {},
                  .scale = given.scale,
                  .q_scale = given.q_scale == 0.0F ? 1.0F : given.q_scale,
                  .partial = read_flag("partial", given.partial),
                  .tokens_per_list = given.tokens_per_list == 0 ? 1 : given.tokens_per_list};
  const std::array<const smla_attention_scope*, 2> scopes{given.scope, given.scope2};
  for (std::size_t i = 0; i < static_cast<std::size_t>(call.problem.scopes); ++i) {
    const char* name = i == 0 ? "scope" : "scope2";
    SparseAttention::Scope& scope = call.args.scopes[i] = read_scope(name, scopes[i]);
    need_rank(i == 0 ? "scope.indices" : "scope2.indices", scope.indices, 2);
    call.problem.scope[i] = {
        .format = scope.cache.format, .block_size = scope.cache.block_size, .width = scope.indices.size(1)};
  }
  call.stream = {.handle = given.stream};
  call.options = {.device = read_device(given.device),
                  .implementation = given.implementation == nullptr ? "" : given.implementation,
                  .deterministic = read_flag("deterministic", given.deterministic),
                  .threads = read_threads(given.threads)};
  return call;
}

}  // namespace

extern "C" {

smla_status smla_sparse_attention_workspace(const smla_sparse_attention_args* args, size_t* workspace_bytes,
                                            const char** implementation) {
  return guarded([&] {
    const Call call = read_call(args);
    const Plan<SparseAttention> plan(call.problem, call.options);
    if (workspace_bytes != nullptr) *workspace_bytes = plan.workspace_bytes();
    if (implementation != nullptr) *implementation = plan.implementation().data();  // a literal, so it ends in 0
  });
}

smla_status smla_sparse_attention(const smla_sparse_attention_args* args, void* workspace, size_t workspace_bytes) {
  return guarded([&] {
    const Call call = read_call(args);
    check_workspace("workspace", workspace, workspace_bytes);
    Plan<SparseAttention>(call.problem, call.options)
        .run(call.args, {.data = workspace, .bytes = workspace_bytes}, call.stream);
  });
}

smla_status smla_merge_partials(const smla_tensor* partial_o, const smla_tensor* partial_lse, const smla_tensor* sink,
                                const smla_tensor* o, const smla_tensor* lse, smla_device device, void* stream) {
  return guarded([&] {
    const MergePartials::Args args{.partial_o = read_tensor("partial_o", partial_o),
                                   .partial_lse = read_tensor("partial_lse", partial_lse),
                                   .sink = read_tensor("sink", sink),
                                   .o = read_tensor("o", o),
                                   .lse = read_tensor("lse", lse)};
    if (args.partial_o.rank != 4 || args.o.absent()) {
      throw InvalidArgument("smla_merge_partials: got partial_o " + describe(args.partial_o) + " and o " +
                            describe(args.o) + ", expected partial_o [S, T, H, dim] and o [T, H, dim]");
    }
    const Plan<MergePartials> plan({.slices = args.partial_o.size(0),
                                    .tokens = args.partial_o.size(1),
                                    .heads = args.partial_o.size(2),
                                    .dim = static_cast<int>(std::min<std::int64_t>(args.partial_o.size(3), 1 << 20)),
                                    .o = args.o.dtype},
                                   {.device = read_device(device)});
    const HostTensor scratch(
        DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});  // of the CPU's; the GPU's kernel needs none
    plan.run(args, {.data = const_cast<void*>(scratch.data()), .bytes = scratch.bytes()}, {.handle = stream});
  });
}

smla_status smla_cache_block_bytes(const char* format, int64_t block_size, int64_t* out_block_bytes,
                                   int64_t* out_page_bytes) {
  return guarded([&] {
    need_pointer(format, "smla_cache_block_bytes", "format");
    const RowFormat& rows = row_format(format);
    if (block_size < 1 || block_size > INT32_MAX) {
      throw InvalidArgument("smla_cache_block_bytes: got block size " + std::to_string(block_size) +
                            ", expected 1 to 2147483647");
    }
    if (out_block_bytes != nullptr) *out_block_bytes = block_bytes(rows, block_size);
    if (out_page_bytes != nullptr) *out_page_bytes = page_bytes(rows, block_size);
  });
}

}  // extern "C"
