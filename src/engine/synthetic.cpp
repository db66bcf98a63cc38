#include "engine/synthetic.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "device/large_pages.h"
#include "model/weight_table.h"

namespace smla {

namespace {

/// Fills with uniform numbers of standard deviation `deviation` around `mean`, four from each 64 random bits.
void fill(const TensorView& t, std::uint64_t seed, double mean, double deviation) {
  const std::int64_t n = t.numel();
  const auto half_width = static_cast<float>(deviation * std::sqrt(3.0));
  const auto middle = static_cast<float>(mean);
#pragma omp parallel for schedule(static)
  for (std::int64_t block = 0; block < (n + 3) / 4; ++block) {
    std::uint64_t bits = mix(seed, static_cast<std::uint64_t>(block));
    for (std::int64_t i = 4 * block; i < std::min<std::int64_t>(4 * block + 4, n); ++i) {
      const float u = (static_cast<float>(bits & 0xFFFFU) + 0.5F) * 0x1p-15F - 1.0F;
      bits >>= 16;
      const float v = middle + half_width * u;
      if (t.dtype == DType::kBF16) {
        static_cast<BF16*>(t.data)[i] = to_bf16(v);
      } else {
        static_cast<float*>(t.data)[i] = v;
      }
    }
  }
}

/// How the numbers of a weight are spread.
struct Spread {
  DType dtype = DType::kBF16;
  double mean = 0;
  double deviation = 0;
};

Spread spread_of(const WeightSpec& spec) {
  // Keys of length 0.7 sqrt(dim) against queries of length sqrt(dim): scores with a standard deviation of 0.7, a
  // softmax that prefers without singling out.
  constexpr double kKeyNorm = 0.7;
  switch (spec.kind) {
    case WeightKind::kLinear: return {.deviation = 1.0 / std::sqrt(static_cast<double>(spec.shape[1]))};
    case WeightKind::kNorm: {
      const double mean = spec.stem == "q_norm" ? 1.0 : kKeyNorm;
      return {.mean = mean, .deviation = 0.1 * mean};
    }
    case WeightKind::kApe: return {.dtype = DType::kF32, .deviation = 0.2};
    case WeightKind::kSink: return {.dtype = DType::kF32, .deviation = 1.0};
  }
  return {};
}

}  // namespace

OwnedLayerWeights random_weights(const LayerConfig& config, std::uint64_t seed) {
  OwnedLayerWeights out;
  std::uint64_t next = 0;
  for (const WeightSpec& spec : weight_table(config)) {
    const Spread spread = spread_of(spec);
    out.storage.emplace_back(spread.dtype, spec.shape);
    fill(out.storage.back().view(), mix(seed, next++), spread.mean, spread.deviation);
    prefer_large_pages(out.storage.back().data(), out.storage.back().bytes());
    spec.view(out.views) = std::as_const(out.storage.back()).view();
  }
  return out;
}

OwnedLayerWeights sliced_weights(const LayerConfig& whole, const OwnedLayerWeights& weights, int rank, int ranks) {
  OwnedLayerWeights out;
  LayerWeights all = weights.views;
  for (const WeightSpec& spec : weight_table(whole)) {
    const ConstTensorView& from = spec.view(all);
    ConstTensorView part = from;
    if (spec.cut != WeightCut::kNone) {
      const int dim = spec.cut == WeightCut::kRows ? 0 : 1;
      const std::int64_t each = from.size(dim) / ranks;
      part = from.slice(dim, each * rank, each * (rank + 1));
    }
    HostTensor& own = out.storage.emplace_back(
        from.dtype, std::vector<std::int64_t>(part.shape.begin(), part.shape.begin() + part.rank));
    const std::int64_t rows = part.rank == 1 ? 1 : part.size(0);
    const std::int64_t bytes = part.size(part.rank - 1) * size_of(part.dtype);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(static_cast<std::uint8_t*>(own.data()) + r * bytes,
                  static_cast<const std::uint8_t*>(part.data) + r * part.stride[0] * size_of(part.dtype),
                  static_cast<std::size_t>(bytes));
    }
    spec.view(out.views) = std::as_const(own).view();
  }
  return out;
}

LayerWeights weight_shapes(const LayerConfig& config) {
  LayerWeights shapes;
  for (const WeightSpec& spec : weight_table(config)) {
    ConstTensorView& view = spec.view(shapes);
    view.dtype = spread_of(spec).dtype;
    view.rank = static_cast<int>(spec.shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = spec.shape.size(); i-- > 0;) {
      view.shape[i] = spec.shape[i];
      view.stride[i] = stride;
      stride *= spec.shape[i];
    }
  }
  return shapes;
}

void synthetic_hidden(std::uint64_t seed, std::uint64_t stream, std::int64_t request, std::int64_t position,
                      const TensorView& row) {
  const std::uint64_t key = mix(mix(seed, 0xD1B5'4A32'D192'ED03U + stream),
                                mix(static_cast<std::uint64_t>(request), static_cast<std::uint64_t>(position)));
  const std::int64_t n = row.numel();
  constexpr float kHalfWidth = 1.7320508F;  // variance 1
  for (std::int64_t i = 0; i < n; i += 4) {
    std::uint64_t bits = mix(key, static_cast<std::uint64_t>(i));
    for (std::int64_t j = i; j < std::min(i + 4, n); ++j) {
      const float v = ((static_cast<float>(bits & 0xFFFFU) + 0.5F) * 0x1p-15F - 1.0F) * kHalfWidth;
      bits >>= 16;
      if (row.dtype == DType::kBF16) {
        static_cast<BF16*>(row.data)[j] = to_bf16(v);
      } else {
        static_cast<float*>(row.data)[j] = v;
      }
    }
  }
}

}  // namespace smla
