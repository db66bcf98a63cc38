#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "cache/row_codec.h"
#include "device/simd_generic.h"
#include "ops/attention/attention_kernel.h"
#include "ops/attention/implementations.h"
#include "ops/norm_rope/implementations.h"

namespace smla {

namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

/// The fewest heads of a task. With fewer, decoding the keys once more for another task costs too much.
constexpr std::int64_t kMinHeads = 6;

/// How a call is cut into tasks. When there are too few rows to keep the threads busy, a row's heads are split, and
/// each part decodes the keys again.
struct Cut {
  std::int64_t groups = 1;  ///< tasks of a row
  std::int64_t heads = 0;   ///< heads of a task, fewer in the last
  std::int64_t padded_dim = 0;
  std::int64_t padded_value = 0;
  std::int64_t row_stride = 0;

  Cut(const SparseAttention::Problem& problem, int threads) {
    const std::int64_t most = ceil_div(problem.heads, kMinHeads);
    const auto even = [&](std::int64_t g) {
      return problem.tokens * g >= 4 * threads || problem.tokens * g % threads == 0;
    };
    while (groups < most && !even(groups)) ++groups;
    heads = ceil_div(problem.heads, groups);
    groups = ceil_div(problem.heads, heads);
    padded_dim = round_up(problem.dim, 64);
    padded_value = round_up(problem.out_dim(), 64);
    row_stride = padded_dim + 16;
  }
  std::int64_t scratch_floats() const {
    return (2 * heads + kAttentionTile) * row_stride + heads * kAttentionTile + 3 * round_up(heads, 16);
  }
};

/// Hands out consecutive pieces of a thread's scratch, each aligned to a cache line.
struct Scratch {
  float* at;
  float* take(std::int64_t floats) {
    float* piece = at;
    at += floats;
    return piece;
  }
};

KeyScope key_scope(const SparseAttention::ScopeShape& shape, const SparseAttention::Scope& scope, std::int64_t token,
                   std::int64_t tokens_per_list) {
  const RowFormat& f = *shape.format;
  const EntryRange entries = entries_of(scope, shape.width, token);
  const std::int64_t list = token / tokens_per_list;
  const bool whole = f.nope_dim % 16 == 0 && f.rope_dim() % 16 == 0 && f.group % 16 == 0 &&
                     (f.group == 0 || f.nope_dim % f.group == 0);
  const bool in_row = f.inline_scale_bytes > 0;
  return {.base = scope.cache.base,
          .num_slots = scope.cache.num_slots(),
          .block_size = scope.cache.block_size,
          .block_stride = scope.cache.block_stride_bytes,
          .data_bytes = f.data_bytes,
          .scale_byte = in_row ? inline_scale_offset(f) : scope.cache.block_size * f.data_bytes,
          .scale_stride = in_row ? f.data_bytes : f.scale_bytes,
          .nope_bytes = inline_scale_offset(f),
          .rope_byte = rope_offset(f),
          .nope = f.nope,
          .rope = f.rope,
          .scale_kind = f.scale,
          .nope_dim = f.nope_dim,
          .rope_dim = f.rope_dim(),
          .group = f.group,
          .scale = scope.cache.scale,
          .whole_words = whole,
          .cache = &scope.cache,
          .indices = shape.width == 0
                         ? nullptr
                         : scope.indices.as<std::int32_t>() + list * scope.indices.stride[0] + entries.begin,
          .entries = entries.end - entries.begin};
}

AttentionTask make_task(const SparseAttention::Problem& problem, const SparseAttention::Args& args, const Cut& cut,
                        std::int64_t index, float* scratch) {
  const std::int64_t token = index / cut.groups;
  const std::int64_t head = index % cut.groups * cut.heads;
  AttentionTask task;
  task.num_scopes = problem.scopes;
  for (int s = 0; s < problem.scopes; ++s) {
    task.scopes[s] = key_scope(problem.scope[static_cast<std::size_t>(s)], args.scopes[static_cast<std::size_t>(s)],
                               token, problem.tokens_per_list);
  }
  task.decode_any = [](const void* cache, std::int64_t slot, float* values) {
    decode_row(*static_cast<const PagedCache*>(cache), slot, values);
  };
  task.heads = static_cast<int>(std::min(cut.heads, problem.heads - head));
  task.dim = problem.dim;
  task.value_dim = problem.out_dim();
  task.padded_dim = cut.padded_dim;
  task.padded_value = cut.padded_value;
  task.row_stride = cut.row_stride;
  task.scale = problem.softmax_scale();
  task.q_scale = problem.q_scale;
  task.partial = problem.partial;
  task.q_type = problem.q;
  task.o_type = problem.o;
  task.q = args.q.slice(0, token, token + 1).slice(1, head, head + 1).data;
  task.q_stride = args.q.stride[1];
  if (!args.sink.absent()) task.sink = args.sink.as<float>() + head * args.sink.stride[0];
  task.sink_stride = args.sink.stride[0];
  task.o = args.o.slice(0, token, token + 1).slice(1, head, head + 1).data;
  task.o_stride = args.o.stride[1];
  if (!args.lse.absent()) task.lse = args.lse.as<float>() + token * args.lse.stride[0] + head * args.lse.stride[1];
  task.lse_stride = args.lse.stride[1];

  Scratch pieces{scratch};
  task.q_rows = pieces.take(cut.heads * cut.row_stride);
  task.o_rows = pieces.take(cut.heads * cut.row_stride);
  task.keys = pieces.take(kAttentionTile * cut.row_stride);
  task.scores = pieces.take(cut.heads * kAttentionTile);
  task.largest = pieces.take(round_up(cut.heads, 16));
  task.sum = pieces.take(round_up(cut.heads, 16));
  task.rescale = pieces.take(round_up(cut.heads, 16));
  return task;
}

/// Writes +0 to heads H..Hp-1 of every row.
void clear_padding(const SparseAttention::Problem& problem, const TensorView& o) {
  const auto bytes = static_cast<std::size_t>(problem.out_dim() * size_of(problem.o));
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    for (std::int64_t h = problem.heads; h < problem.padded_heads(); ++h)
      std::memset(o.slice(0, t, t + 1).slice(1, h, h + 1).data, 0, bytes);
  }
}

/// Bytes of the queries that a call computes; they precede its threads' scratch.
std::size_t queries_at_front(const SparseAttention::Problem& problem) {
  constexpr std::size_t kLine = 64;
  return (query_bytes(problem) + kLine - 1) / kLine * kLine;
}

void attend_rows(const SparseAttention::Problem& problem, const SparseAttention::Args& given, const RunContext& context,
                 AttendRow attend) {
  const Cut cut(problem, context.threads);
  const std::int64_t tasks = problem.tokens * cut.groups;
  const SparseAttention::Args args =
      !problem.query_prologue
          ? given
          : with_ready_queries(problem, given, context.workspace.data, qnorm_rope_insert_cpu, context);
  auto* scratch = reinterpret_cast<float*>(static_cast<std::byte*>(context.workspace.data) + queries_at_front(problem));
#pragma omp parallel for num_threads(context.threads) schedule(dynamic, 1)
  for (std::int64_t i = 0; i < tasks; ++i) {
    attend(make_task(problem, args, cut, i, scratch + omp_get_thread_num() * cut.scratch_floats()));
  }
  clear_padding(problem, args.o);
  if (problem.output_epilogue) inverse_rope_cpu(rope_problem(problem), rope_args(problem, args), context);
}

void attend_row_generic(const AttentionTask& task) { attend_row<GenericWord>(task); }

}  // namespace

std::size_t sparse_attention_workspace(const SparseAttention::Problem& problem, int threads) {
  return queries_at_front(problem) +
         static_cast<std::size_t>(Cut(problem, threads).scratch_floats() * threads) * sizeof(float);
}

void sparse_attention_cpu(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                          const RunContext& context) {
  attend_rows(problem, args, context, attend_row_generic);
}

void sparse_attention_avx2(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                           const RunContext& context) {
  attend_rows(problem, args, context, attend_row_avx2);
}

void sparse_attention_avx512(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                             const RunContext& context) {
  attend_rows(problem, args, context, attend_row_avx512);
}

}  // namespace smla
