#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "ops/attention/implementations.h"
#include "ops/norm_rope/implementations.h"

namespace smla {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double load_q(const SparseAttention::Problem& problem, const ConstTensorView& q, std::int64_t token, std::int64_t head,
              int d) {
  const std::int64_t i = token * q.stride[0] + head * q.stride[1] + d;
  if (q.dtype == DType::kBF16) return to_float(q.as<BF16>()[i]);
  if (q.dtype == DType::kE4M3) return to_float(q.as<E4M3>()[i]) * problem.q_scale;
  return q.as<float>()[i];
}

void store_o(const TensorView& o, std::int64_t token, std::int64_t head, int d, double value) {
  const std::int64_t i = token * o.stride[0] + head * o.stride[1] + d;
  if (o.dtype == DType::kBF16) {
    o.as<BF16>()[i] = to_bf16(static_cast<float>(value));
  } else {
    o.as<float>()[i] = static_cast<float>(value);
  }
}

/// The rows that count for a token, decoded, in list order: [n, dim].
std::vector<float> selected_rows(const SparseAttention::Problem& problem, const SparseAttention::Args& args,
                                 std::int64_t token) {
  std::vector<float> rows;
  for (int s = 0; s < problem.scopes; ++s) {
    const SparseAttention::Scope& scope = args.scopes[static_cast<std::size_t>(s)];
    const EntryRange entries = entries_of(scope, problem.scope[static_cast<std::size_t>(s)].width, token);
    const std::int64_t list = token / problem.tokens_per_list;
    for (std::int64_t c = entries.begin; c < entries.end; ++c) {
      const std::int32_t slot = scope.indices.as<std::int32_t>()[list * scope.indices.stride[0] + c];
      if (slot < 0 || slot >= scope.cache.num_slots()) continue;
      rows.resize(rows.size() + static_cast<std::size_t>(problem.dim));
      decode_row(scope.cache, slot, rows.data() + rows.size() - problem.dim);
    }
  }
  return rows;
}

}  // namespace

// s_j = scale <q, k_j>;  lse = ln sum_j exp(s_j);  o = sum_j exp(s_j - lse) v_j / (1 + exp(sink - lse)), where v_j is
// the first value_dim numbers of k_j.
void sparse_attention_ref(const SparseAttention::Problem& problem, const SparseAttention::Args& given,
                          const RunContext& context) {
  std::vector<std::byte> queries(query_bytes(problem));
  const SparseAttention::Args args =
      !problem.query_prologue ? given
                              : with_ready_queries(problem, given, queries.data(), qnorm_rope_insert_ref, context);
  const auto dim = static_cast<std::size_t>(problem.dim);
  const auto values = static_cast<std::size_t>(problem.out_dim());
  const double scale = problem.softmax_scale();
  std::vector<double> q(dim);
  std::vector<double> o(values);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const std::vector<float> rows = selected_rows(problem, args, t);
    const std::size_t n = rows.size() / dim;
    std::vector<double> score(n);
    for (std::int64_t h = 0; h < problem.padded_heads(); ++h) {
      std::fill(o.begin(), o.end(), 0.0);
      double lse = problem.partial ? -kInf : kInf;
      if (h < problem.heads && n > 0) {
        for (std::size_t d = 0; d < dim; ++d) q[d] = load_q(problem, args.q, t, h, static_cast<int>(d));
        double largest = -kInf;
        for (std::size_t j = 0; j < n; ++j) {
          score[j] = 0;
          for (std::size_t d = 0; d < dim; ++d) score[j] += q[d] * rows[j * dim + d];
          score[j] *= scale;
          largest = std::max(largest, score[j]);
        }
        double sum = 0;
        for (std::size_t j = 0; j < n; ++j) sum += std::exp(score[j] - largest);
        lse = largest + std::log(sum);
        const double sink = args.sink.absent() ? -kInf : args.sink.as<float>()[h * args.sink.stride[0]];
        const double denominator = 1.0 + std::exp(sink - lse);
        for (std::size_t j = 0; j < n && denominator != kInf; ++j) {
          const double weight = std::exp(score[j] - lse) / denominator;
          for (std::size_t d = 0; d < values; ++d) o[d] += weight * rows[j * dim + d];
        }
      }
      for (std::size_t d = 0; d < values; ++d) store_o(args.o, t, h, static_cast<int>(d), o[d]);
      if (h < problem.heads && !args.lse.absent())
        args.lse.as<float>()[t * args.lse.stride[0] + h * args.lse.stride[1]] = static_cast<float>(lse);
    }
  }
  if (problem.output_epilogue) inverse_rope_ref(rope_problem(problem), rope_args(problem, args), context);
}

}  // namespace smla
