#include "bench/accuracy_stack.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "layer/reference_layer.h"
#include "sparsemla/error.h"
#include "sparsemla/plan.h"

namespace smla::bench {

namespace {

// Streams of random numbers; a layer's h is of kHidden + layer.
constexpr std::uint64_t kEmbedding = 50;
constexpr std::uint64_t kUnembedding = 51;
constexpr std::uint64_t kHidden = 100;
constexpr std::int64_t kLayers = 8;

ModelConfig model_of(const AccuracySizes& sizes) {
  ModelConfig m = model_preset("v4-flash");
  m.name = "accuracy";
  m.hidden_size = sizes.hidden;
  m.num_heads = sizes.heads;
  m.o_groups = sizes.o_groups;
  m.q_lora_rank = m.o_lora_rank = sizes.lora;
  m.index_n_heads = sizes.index_heads;
  m.index_topk = sizes.index_topk;
  m.num_layers = kLayers;
  m.num_mtp_layers = 0;
  m.compress_ratios.resize(kLayers);
  return m;
}

}  // namespace

Numbers normed(const Numbers& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()));
  Numbers y(x);
  for (double& v : y) v *= factor;
  return y;
}

AccuracyModel::AccuracyModel(const AccuracyOptions& options, std::int64_t context)
    : config_(model_of(options.sizes)),
      context_(context),
      measured_(options.measured),
      vocabulary_(options.sizes.vocabulary),
      seed_(options.seed) {
  for (std::int64_t i = 0; i < kLayers; ++i) {
    check_layer_config(config_.layer(i));
    weights_.push_back(random_weights(config_.layer(i), layer_seed(seed_, i)));
  }
  HostTensor all(DType::kF32, {vocabulary_, config_.hidden_size});
  for (std::int64_t v = 0; v < vocabulary_; ++v)
    synthetic_hidden(seed_, kUnembedding, 0, v, all.view().slice(0, v, v + 1));
  unembedding_.assign(all.as<float>(), all.as<float>() + all.numel());
}

std::vector<Numbers> AccuracyModel::embeddings() const {
  std::vector<Numbers> out;
  HostTensor row(DType::kF32, {1, config_.hidden_size});
  for (std::int64_t p = first(); p < context_; ++p) {
    const auto token =
        static_cast<std::int64_t>(mix(seed_, static_cast<std::uint64_t>(p)) % static_cast<std::uint64_t>(vocabulary_));
    synthetic_hidden(seed_, kEmbedding, 0, token, row.view());
    out.emplace_back(row.as<float>(), row.as<float>() + row.numel());
  }
  return out;
}

void AccuracyModel::drawn(std::int64_t layer, std::int64_t position, const TensorView& row) const {
  HostTensor exact(DType::kBF16, {1, config_.hidden_size});
  synthetic_hidden(seed_, kHidden + static_cast<std::uint64_t>(layer), 0, position, exact.view());
  for (std::int64_t i = 0; i < config_.hidden_size; ++i) {
    const BF16 value = exact.as<BF16>()[i];
    if (row.dtype == DType::kBF16) {
      static_cast<BF16*>(row.data)[i] = value;
    } else if (row.dtype == DType::kF32) {
      static_cast<float*>(row.data)[i] = to_float(value);
    } else {
      static_cast<double*>(row.data)[i] = static_cast<double>(to_float(value));
    }
  }
}

std::vector<std::int64_t> AccuracyModel::greedy(const std::vector<Numbers>& rows) const {
  std::vector<std::int64_t> out(rows.size());
#pragma omp parallel for schedule(static)
  for (std::size_t t = 0; t < rows.size(); ++t) out[t] = greedy(rows[t]);
  return out;
}

std::int64_t AccuracyModel::greedy(const Numbers& x) const {
  const Numbers y = normed(x);
  std::int64_t best = 0;
  double most = 0;
  for (std::int64_t v = 0; v < vocabulary_; ++v) {
    const float* row = unembedding_.data() + v * config_.hidden_size;
    double logit = 0;
    for (std::size_t i = 0; i < y.size(); ++i) logit += static_cast<double>(row[i]) * y[i];
    if (v == 0 || logit > most) most = logit, best = v;
  }
  return best;
}

namespace {

/// The `k` entries of the best scores, ties to the lower; ascending.
std::vector<std::int32_t> best_entries(const Numbers& scores, std::int64_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t wanted = std::min(order.size(), static_cast<std::size_t>(k));
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const double of_a = scores[static_cast<std::size_t>(a)];
    const double of_b = scores[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  };
  std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(wanted == 0 ? 0 : wanted - 1), better);
  order.resize(wanted);
  std::ranges::sort(order);
  return order;
}

}  // namespace

AccuracyTruth float64_truth(const AccuracyModel& model) {
  AccuracyTruth truth;
  std::vector<Numbers> x = model.embeddings();
  const std::int64_t hidden = model.config().hidden_size;
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    const LayerConfig config = model.config().layer(layer);
    HostTensor h(DType::kF64, {model.context(), hidden});
#pragma omp parallel for schedule(static)
    for (std::int64_t p = 0; p < model.first(); ++p) model.drawn(layer, p, h.view().slice(0, p, p + 1));
    for (std::int64_t t = 0; t < model.measured(); ++t)
      std::ranges::copy(normed(x[static_cast<std::size_t>(t)]), h.as<double>() + (model.first() + t) * hidden);
    const RopeTable rope(config.rope, model.context(), DeviceKind::kCpu);
    ReferenceLayer reference(config, model.weights(layer), rope.host(), std::as_const(h).view());
    reference.prepare(model.first(), model.context() - 1);

    HostTensor topk(DType::kI32, {model.measured(), config.has_indexer() ? config.index_topk : 0});
    std::fill_n(topk.as<std::int32_t>(), topk.numel(), -1);
    std::vector<Numbers> outputs(x.size());
#pragma omp parallel for schedule(dynamic, 1)
    for (std::int64_t t = 0; t < model.measured(); ++t) {
      const std::int64_t position = model.first() + t;
      Numbers& output = outputs[static_cast<std::size_t>(t)];
      if (config.has_indexer()) {
        const auto entries = best_entries(reference.index_scores(position), config.index_topk);
        std::ranges::copy(entries, topk.as<std::int32_t>() + t * config.index_topk);
        output = reference.output(position, entries);
      } else {
        output = reference.output(position, std::nullopt);
      }
      const Numbers y = normed(output);
      for (std::size_t i = 0; i < y.size(); ++i) x[static_cast<std::size_t>(t)][i] += y[i];
    }
    truth.outputs.push_back(std::move(outputs));
    truth.topk.push_back(std::move(topk));
  }
  truth.greedy = model.greedy(x);
  truth.end = std::move(x);
  return truth;
}

}  // namespace smla::bench
