#include <cmath>
#include <limits>

#include "ops/compressor/implementations.h"
#include "ops/compressor/window.h"

namespace smla {

namespace {

// e = sum_j softmax_j(logit_j) * value_j over the window's rows, in double.
double pool(const Window& window, int channel) {
  const double lowest = -std::numeric_limits<double>::infinity();
  double largest = lowest;
  bool any = false;
  for (int j = 0; j < window.rows; ++j) {
    const auto logit = static_cast<double>(window.logits[j][channel]);
    largest = std::fmax(largest, logit);
    any = any || logit != lowest;
  }
  if (!any) return 0.0;
  double sum = 0.0;
  double total = 0.0;
  for (int j = 0; j < window.rows; ++j) {
    const double weight = std::exp(static_cast<double>(window.logits[j][channel]) - largest);
    sum += weight;
    total += weight * static_cast<double>(window.values[j][channel]);
  }
  return total / sum;
}

}  // namespace

// Pool, y = e * rsqrt(sum(e^2)/d + eps) * w, rotate at the group's first position, store (spec 3, algorithm step 2).
void compress_store_ref(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context) {
  if (!args.kv_score.absent()) save_state_ref(save_problem(problem), save_args(args), context);
  Window window;
  for (std::int64_t t = 0; t < args.state_slots.size(0); ++t) {
    const Closing token = closing_token(problem, args, t);
    if (!token.acts) continue;
    find_window(problem, args, token, window);
    if (window.rows == 0) continue;
    float row[kMaxEntry];
    double squares = 0.0;
    for (int c = 0; c < problem.dim; ++c) {
      row[c] = static_cast<float>(pool(window, c));
      squares += static_cast<double>(row[c]) * row[c];
    }
    const auto inverse = static_cast<float>(1.0 / std::sqrt(squares / problem.dim + static_cast<double>(problem.eps)));
    for (int c = 0; c < problem.dim; ++c) {
      const void* w = args.norm_weight.data;
      row[c] = row[c] * inverse *
               (args.norm_weight.dtype == DType::kF32 ? static_cast<const float*>(w)[c]
                                                      : to_float(static_cast<const BF16*>(w)[c]));
    }
    const int pairs = problem.rope_dim / 2;
    for (int i = 0; i < pairs; ++i) {
      float* pair = row + problem.dim - problem.rope_dim + 2 * i;
      const float e = pair[0];
      const float o = pair[1];
      pair[0] = e * token.cos_sin[i] - o * token.cos_sin[pairs + i];
      pair[1] = o * token.cos_sin[i] + e * token.cos_sin[pairs + i];
    }
    store_entry(problem, args.entries, token.entry_slot, row);
  }
  if (problem.dim2 > 0) compress_store_ref(second_problem(problem), second_args(args), context);
}

}  // namespace smla
