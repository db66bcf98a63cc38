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

// Pool, y = e * rsqrt(sum(e^2)/d + eps) * w, rotate at the group's first position, store (spec 3, algorithm step 2).
void compress(const CompressorCall& c, const RunContext& context) {
  if (c.saves()) save_state_ref(c.save_problem(), c.save_args(), context);
  const int dim = c.shape.dim;
  const int pairs = c.problem.rope_dim / 2;
  Window window;
  for (std::int64_t t = 0; t < c.own.state_slots.size(0); ++t) {
    const Closing token = closing_token(c, t);
    if (!token.acts) continue;
    find_window(c, token, window);
    if (window.rows == 0) continue;
    float row[kMaxEntry];
    double squares = 0.0;
    for (int i = 0; i < dim; ++i) {
      row[i] = static_cast<float>(pool(window, i));
      squares += static_cast<double>(row[i]) * row[i];
    }
    const auto inverse = static_cast<float>(1.0 / std::sqrt(squares / dim + static_cast<double>(c.problem.eps)));
    for (int i = 0; i < dim; ++i) {
      const void* w = c.own.norm_weight.data;
      row[i] = row[i] * inverse *
               (c.own.norm_weight.dtype == DType::kF32 ? static_cast<const float*>(w)[i]
                                                       : to_float(static_cast<const BF16*>(w)[i]));
    }
    for (int i = 0; i < pairs; ++i) {
      float* pair = row + dim - c.problem.rope_dim + 2 * i;
      const float even = pair[0];
      const float odd = pair[1];
      pair[0] = even * token.cos_sin[i] - odd * token.cos_sin[pairs + i];
      pair[1] = odd * token.cos_sin[i] + even * token.cos_sin[pairs + i];
    }
    store_entry(c, token.entry_slot, row);
  }
}

}  // namespace

void compress_store_ref(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context) {
  for (int i = 0; i < problem.compressors; ++i) compress({problem, args, i}, context);
}

}  // namespace smla
