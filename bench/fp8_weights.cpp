#include "bench/fp8_weights.h"

#include <utility>

#include "checkpoint/linear.h"
#include "device/large_pages.h"
#include "model/weight_table.h"

namespace smla::bench {

void quantise(const LayerConfig& config, OwnedLayerWeights& weights) {
  const std::vector<WeightSpec> table = weight_table(config);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const WeightSpec& spec = table[i];
    if (spec.fp8_groups == 0) continue;
    EncodedLinear encoded = encode_linear(spec.view(weights.views), LinearEncoding::kFp8);
    HostTensor scale(DType::kF32, encoded.scale.shape());
    for (std::int64_t b = 0; b < scale.numel(); ++b)
      scale.as<float>()[b] = from_ue8m0(encoded.scale.as<std::uint8_t>()[b]);
    prefer_large_pages(encoded.weight.data(), encoded.weight.bytes());
    weights.storage[i] = std::move(encoded.weight);
    spec.view(weights.views) = std::as_const(weights.storage[i]).view();
    weights.storage.push_back(std::move(scale));
    spec.scale(weights.views) = std::as_const(weights.storage.back()).view();
  }
}

}  // namespace smla::bench
