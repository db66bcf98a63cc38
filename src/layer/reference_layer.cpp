#include "layer/reference_layer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/codecs.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/plan.h"

namespace smla {

namespace {

double value_at(const ConstTensorView& v, std::int64_t flat) {
  if (v.dtype == DType::kF64) return static_cast<const double*>(v.data)[flat];
  return v.dtype == DType::kBF16 ? static_cast<double>(to_float(static_cast<const BF16*>(v.data)[flat]))
                                 : static_cast<double>(static_cast<const float*>(v.data)[flat]);
}

/// sum_i at(i) * x[i] over n values, in double; eight sums, so that additions need not wait for each other.
template <class At>
double sum_of_products(const At& at, const double* x, std::int64_t n) {
  constexpr std::int64_t kSums = 8;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (std::int64_t j = 0; j < kSums; ++j) sums[j] += at(i + j) * x[i + j];
  }
  for (; i < n; ++i) sums[i % kSums] += at(i) * x[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

double dot(const double* a, const double* b, std::int64_t n) {
  return sum_of_products([a](std::int64_t i) { return a[i]; }, b, n);
}

/// sum_i w[i] * x[i] over n values, in double.
double dot_row(const ConstTensorView& w, std::int64_t offset, const double* x, std::int64_t n) {
  if (w.dtype == DType::kBF16) {
    const BF16* row = static_cast<const BF16*>(w.data) + offset;
    return sum_of_products([row](std::int64_t i) { return static_cast<double>(to_float(row[i])); }, x, n);
  }
  const float* row = static_cast<const float*>(w.data) + offset;
  return sum_of_products([row](std::int64_t i) { return static_cast<double>(row[i]); }, x, n);
}

/// The same with an E4M3 row, a block of 128 inputs at a time; `scales` are the row's.
double dot_fp8_row(const ConstTensorView& w, std::int64_t offset, const double* x, std::int64_t n,
                   const float* scales) {
  constexpr std::int64_t kBlock = Projection::kWeightBlock;
  const E4M3* row = static_cast<const E4M3*>(w.data) + offset;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(to_float(row[i])) * static_cast<double>(scales[i / kBlock]) * x[i];
  return sum;
}

/// The same with NVFP4 weights from number `offset` on, which the scale of all multiplies at the end.
double dot_nvfp4_row(const LinearWeight& weight, std::int64_t offset, const double* x, std::int64_t n) {
  const auto* codes = static_cast<const std::uint8_t*>(weight.w.data) + offset / 2;
  const E4M3* scales = static_cast<const E4M3*>(weight.scale.data) + offset / Projection::kNvfp4Group;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const unsigned code = i % 2 == 0 ? codes[i / 2] & 15U : codes[i / 2] >> 4U;
    sum += static_cast<double>(from_e2m1(static_cast<std::uint8_t>(code))) *
           static_cast<double>(to_float(scales[i / Projection::kNvfp4Group])) * x[i];
  }
  return sum * static_cast<double>(*static_cast<const float*>(weight.global_scale.data));
}

}  // namespace

ReferenceLayer::ReferenceLayer(const LayerConfig& config, const LayerWeights& weights, const ConstTensorView& cos_sin,
                               const ConstTensorView& hidden, const ReferenceRounding& rounding)
    : config_(config), weights_(weights), cos_sin_(cos_sin), hidden_(hidden), rounding_(rounding) {
  const auto tokens = static_cast<std::size_t>(hidden.size(0));
  for (Rows* rows : {&lora_, &window_, &entries_, &kv_score_, &index_entries_, &index_kv_score_}) rows->resize(tokens);
}

bool ReferenceLayer::rounds_fp8_inputs(std::int64_t position) const {
  if (!rounding_.fp8_inputs || rounding_.fp8_positions == nullptr) return rounding_.fp8_inputs;
  const std::vector<char>& positions = *rounding_.fp8_positions;
  return positions[static_cast<std::size_t>(position)] != 0;
}

ReferenceLayer::Row ReferenceLayer::linear(const LinearWeight& weight, std::span<const double> x, std::int64_t position,
                                           std::int64_t first_row, std::int64_t rows) const {
  const ConstTensorView& w = weight.w;
  const auto inputs = static_cast<std::int64_t>(x.size());
  Row quantised;
  if (w.dtype == DType::kE4M3 && rounds_fp8_inputs(position)) {
    quantised.assign(x.begin(), x.end());
    round_projection_input(quantised);
    x = quantised;
  }
  Row y(static_cast<std::size_t>(rows));
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = first_row + r;
    double& sum = y[static_cast<std::size_t>(r)];
    if (w.dtype == DType::kE4M3) {
      const float* scales =
          static_cast<const float*>(weight.scale.data) + row / Projection::kWeightBlock * weight.scale.stride[0];
      sum = dot_fp8_row(w, row * inputs, x.data(), inputs, scales);
    } else if (w.dtype == Projection::kNvfp4) {
      sum = dot_nvfp4_row(weight, row * inputs, x.data(), inputs);
    } else {
      sum = dot_row(w, row * inputs, x.data(), inputs);
    }
  }
  return y;
}

void ReferenceLayer::round_activation(std::span<double> x) const {
  if (rounding_.activations) round_to_bf16(x);
}

ReferenceLayer::Row ReferenceLayer::activation(const LinearWeight& weight, std::span<const double> x,
                                               std::int64_t position, std::int64_t rows) const {
  Row y = linear(weight, x, position, 0, rows);
  round_activation(y);
  return y;
}

ReferenceLayer::Row ReferenceLayer::hidden_row(std::int64_t position) const {
  if (position < 0 || position >= hidden_.size(0)) {
    throw InvalidArgument("reference layer: position: got " + std::to_string(position) + ", expected 0 to " +
                          std::to_string(hidden_.size(0) - 1));
  }
  Row x(static_cast<std::size_t>(config_.hidden_size));
  for (std::int64_t i = 0; i < config_.hidden_size; ++i)
    x[static_cast<std::size_t>(i)] = value_at(hidden_, position * hidden_.stride[0] + i);
  return x;
}

// y_i = x_i / sqrt(mean(x^2) + eps) * w_i
void ReferenceLayer::rms_norm(std::span<double> x, const ConstTensorView* weight) const {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor =
      1.0 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(config_.rms_norm_eps));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] *= factor * (weight == nullptr ? 1.0 : value_at(*weight, static_cast<std::int64_t>(i)));
}

// Pairs (2i, 2i+1): e' = e*c -+ o*s, o' = o*c +- e*s
void ReferenceLayer::rotate(double* last_dims, std::int64_t position, bool inverse) const {
  const int half = config_.rope_head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double c = value_at(cos_sin_, position * config_.rope_head_dim + i);
    const double s = value_at(cos_sin_, position * config_.rope_head_dim + half + i) * (inverse ? -1.0 : 1.0);
    const double e = last_dims[2 * i];
    const double o = last_dims[2 * i + 1];
    last_dims[2 * i] = e * c - o * s;
    last_dims[2 * i + 1] = o * c + e * s;
  }
}

const ReferenceLayer::Row& ReferenceLayer::lora(std::int64_t position) {
  auto& row = lora_[static_cast<std::size_t>(position)];
  if (!row) {
    row = activation(linear_wq_a(weights_), hidden_row(position), position, config_.q_lora_rank);
    rms_norm(*row, &weights_.q_norm);
    round_activation(*row);
  }
  return *row;
}

const ReferenceLayer::Row& ReferenceLayer::window_row(std::int64_t position) {
  auto& row = window_[static_cast<std::size_t>(position)];
  if (!row) {
    row = activation(linear_wkv(weights_), hidden_row(position), position, config_.head_dim);
    rms_norm(*row, &weights_.kv_norm);
    round_activation(*row);
    rotate(row->data() + config_.head_dim - config_.rope_head_dim, position, false);
    if (rounding_.rows != nullptr)
      round_row(*rounding_.rows, static_cast<double>(rounding_.window_scale), rounding_.clamp, *row);
  }
  return *row;
}

/// kv and score + ape of a token.
const ReferenceLayer::Row& ReferenceLayer::scored_token(std::int64_t position, const CompressorWeights& w,
                                                        Rows& kv_score) {
  auto& row = kv_score[static_cast<std::size_t>(position)];
  if (!row) {
    const std::int64_t width = w.wkv.size(0);
    const Row x = hidden_row(position);
    row = linear(linear_wkv(w), x, position, 0, width);
    Row score = linear(linear_wgate(w), x, position, 0, width);
    for (std::int64_t c = 0; c < width; ++c)
      score[static_cast<std::size_t>(c)] += value_at(w.ape, position % config_.compress_ratio * width + c);
    row->insert(row->end(), score.begin(), score.end());
  }
  return *row;
}

// e[c] = sum_s softmax_s(score[s,c]) kv[s,c] over the group's tokens; ratio 4 also over the previous group, whose
// tokens give channels [0, dim).
const ReferenceLayer::Row& ReferenceLayer::pooled(std::int64_t g, const CompressorWeights& w, int dim, Rows& entries,
                                                  Rows& kv_score) {
  auto& out = entries[static_cast<std::size_t>(g)];
  if (out) return *out;
  const int r = config_.compress_ratio;
  const std::int64_t width = w.wkv.size(0);
  const bool overlap = r == 4;
  Row e(static_cast<std::size_t>(dim));
  for (int c = 0; c < dim; ++c) {
    double best = -std::numeric_limits<double>::infinity();
    double sum = 0;
    double weighted = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t p = (overlap && g > 0 ? g - 1 : g) * r; p < (g + 1) * r; ++p) {
        const auto channel = static_cast<std::size_t>(overlap && p >= g * r ? dim + c : c);
        const Row& row = scored_token(p, w, kv_score);
        const double score = row[static_cast<std::size_t>(width) + channel];
        if (pass == 0) {
          best = std::max(best, score);
        } else {
          sum += std::exp(score - best);
          weighted += std::exp(score - best) * row[channel];
        }
      }
    }
    e[static_cast<std::size_t>(c)] = weighted / sum;
  }
  rms_norm(e, &w.norm);
  rotate(e.data() + dim - config_.rope_head_dim, g * r, false);
  out = std::move(e);
  return *out;
}

const std::vector<double>& ReferenceLayer::entry(std::int64_t g) {
  auto& kept = entries_[static_cast<std::size_t>(g)];
  if (!kept) {
    pooled(g, weights_.compressor, config_.head_dim, entries_, kv_score_);
    round_activation(*kept);
    if (rounding_.rows != nullptr)
      round_row(*rounding_.rows, static_cast<double>(rounding_.compressed_scale), rounding_.clamp, *kept);
  }
  return *kept;
}

const std::vector<double>& ReferenceLayer::index_entry(std::int64_t g) {
  auto& kept = index_entries_[static_cast<std::size_t>(g)];
  if (!kept) {
    pooled(g, weights_.index_compressor, config_.index_head_dim, index_entries_, index_kv_score_);
    round_index_row(*kept, rounding_.clamp);
  }
  return *kept;
}

// The transform on both sides changes no score but for what is rounded behind it: without rounding it is left out.
void ReferenceLayer::round_index_row(std::span<double> x, ClampRule clamp) const {
  if (rounding_.index == nullptr) return;
  round_to_bf16(x);
  if (config_.hadamard) {
    for (std::size_t half = 1; half < x.size(); half *= 2) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        if ((i & half) != 0) continue;
        const double a = x[i];
        const double b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
    for (double& v : x) v /= std::sqrt(static_cast<double>(x.size()));
    round_to_bf16(x);
  }
  round_row(*rounding_.index, 1.0, clamp, x);
}

// Rows that many positions share are made by one loop each, and projections that entries are pooled from are given up
// when the entries are there: all of a long context would fill the memory.
void ReferenceLayer::prepare(std::int64_t first, std::int64_t last) {
  if (first < 0 || last < first || last >= hidden_.size(0)) {
    throw InvalidArgument("reference layer: positions: got " + std::to_string(first) + " to " + std::to_string(last) +
                          ", expected some of 0 to " + std::to_string(hidden_.size(0) - 1));
  }
#pragma omp parallel for schedule(dynamic, 4)
  for (std::int64_t p = std::max<std::int64_t>(first - config_.window + 1, 0); p <= last; ++p) {
    window_row(p);
    if (p >= first) lora(p);
  }
  if (!config_.has_compressor()) return;
  const std::int64_t r = config_.compress_ratio;
  const std::int64_t count = visible_entries(last, config_.compress_ratio);
  const std::int64_t piece = std::max<std::int64_t>(4096 / r, 1);
  for (std::int64_t g = 0; g < count; g += piece) {
    const std::int64_t end = std::min(g + piece, count);
#pragma omp parallel for schedule(dynamic, 16)
    for (std::int64_t p = g * r; p < end * r; ++p) {
      scored_token(p, weights_.compressor, kv_score_);
      if (config_.runs_indexer()) scored_token(p, weights_.index_compressor, index_kv_score_);
    }
#pragma omp parallel for schedule(dynamic, 4)
    for (std::int64_t e = g; e < end; ++e) {
      entry(e);
      if (config_.runs_indexer()) index_entry(e);
    }
    for (std::int64_t p = std::max<std::int64_t>(g - 1, 0) * r; p < (end - 1) * r; ++p) {
      kv_score_[static_cast<std::size_t>(p)].reset();
      index_kv_score_[static_cast<std::size_t>(p)].reset();
    }
  }
}

// score[j] = sum_h relu(<q_h, k_j>) * w_h * dim^-0.5 * heads^-0.5
std::vector<double> ReferenceLayer::index_scores(std::int64_t position) {
  const std::int64_t heads = config_.index_n_heads;
  const std::int64_t dim = config_.index_head_dim;
  Row q = activation(linear_index_wq_b(weights_), lora(position), position, heads * dim);
  const Row w = activation(linear_index_weights_proj(weights_), hidden_row(position), position, heads);
  for (std::int64_t h = 0; h < heads; ++h) {
    rotate(q.data() + (h + 1) * dim - config_.rope_head_dim, position, false);
    round_index_row(std::span(q).subspan(static_cast<std::size_t>(h * dim), static_cast<std::size_t>(dim)),
                    ClampRule::kAmax);
  }
  const double factor = 1.0 / std::sqrt(static_cast<double>(dim) * static_cast<double>(heads));
  Row scores(static_cast<std::size_t>(visible_entries(position, config_.compress_ratio)));
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const Row& k = index_entry(static_cast<std::int64_t>(j));
    for (std::int64_t h = 0; h < heads; ++h) {
      const double s = dot(q.data() + h * dim, k.data(), dim);
      scores[j] += std::max(s, 0.0) * w[static_cast<std::size_t>(h)] * factor;
    }
  }
  return scores;
}

// Each head divided by its root mean square, rotated at its position, and as attention is given it.
ReferenceLayer::Row ReferenceLayer::queries(std::int64_t position) {
  const std::int64_t dim = config_.head_dim;
  Row q = activation(linear_wq_b(weights_), lora(position), position, config_.num_heads * dim);
  for (std::int64_t h = 0; h < config_.num_heads; ++h) {
    rms_norm(std::span(q).subspan(static_cast<std::size_t>(h * dim), static_cast<std::size_t>(dim)), nullptr);
    rotate(q.data() + (h + 1) * dim - config_.rope_head_dim, position, false);
  }
  if (rounding_.fp8_queries) {
    round_to_e4m3(q, static_cast<double>(rounding_.q_scale));
  } else {
    round_activation(q);
  }
  return q;
}

std::vector<double> ReferenceLayer::output(std::int64_t position, std::optional<std::span<const std::int32_t>> entries,
                                           std::optional<std::pair<std::int64_t, std::int64_t>> window) {
  const std::int64_t heads = config_.num_heads;
  const std::int64_t dim = config_.head_dim;
  const Row q = queries(position);

  std::vector<const Row*> keys;
  const auto [first, last] =
      window.value_or(std::pair{std::max<std::int64_t>(position - config_.window + 1, 0), position});
  for (std::int64_t p = first; p <= last; ++p) keys.push_back(&window_row(p));
  if (entries) {
    for (const std::int32_t g : *entries) {
      if (g >= 0 && g < visible_entries(position, config_.compress_ratio)) keys.push_back(&entry(g));
    }
  } else if (config_.compress_ratio == 128) {
    for (std::int64_t g = 0; g < visible_entries(position, config_.compress_ratio); ++g) keys.push_back(&entry(g));
  }

  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  Row o(static_cast<std::size_t>(heads * dim));
  for (std::int64_t h = 0; h < heads; ++h) {
    const double* head = q.data() + h * dim;
    Row s(keys.size());
    for (std::size_t j = 0; j < keys.size(); ++j) s[j] = scale * dot(head, keys[j]->data(), dim);
    const double best = *std::ranges::max_element(s);
    const double sink = value_at(weights_.attn_sink, h);
    double sum = std::exp(sink - best);
    for (const double v : s) sum += std::exp(v - best);
    double* out = o.data() + h * dim;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const double p = std::exp(s[j] - best) / sum;
      for (std::int64_t i = 0; i < dim; ++i) out[i] += p * (*keys[j])[static_cast<std::size_t>(i)];
    }
    round_activation({out, static_cast<std::size_t>(dim)});
    rotate(out + dim - config_.rope_head_dim, position, true);
  }
  if (rounding_.fp8_output || (weights_.wo_a.dtype == DType::kE4M3 && rounds_fp8_inputs(position))) {
    round_projection_input(o);
  } else {
    round_activation(o);
  }

  const auto group_in = static_cast<std::size_t>(heads / config_.o_groups * dim);
  Row z;
  for (std::int64_t g = 0; g < config_.o_groups; ++g) {
    const Row part =
        linear(linear_wo_a(weights_), std::span(o).subspan(static_cast<std::size_t>(g) * group_in, group_in), position,
               g * config_.o_lora_rank, config_.o_lora_rank);
    z.insert(z.end(), part.begin(), part.end());
  }
  round_activation(z);
  return activation(linear_wo_b(weights_), z, position, config_.hidden_size);
}

}  // namespace smla
