#include "bench/quantised_weights.h"

#include <utility>

#include "checkpoint/linear.h"
#include "device/large_pages.h"
#include "model/weight_table.h"

namespace smla::bench {

namespace {

/// Scales of E4M3 blocks as layers take them.
HostTensor widened(const HostTensor& ue8m0) {
  HostTensor scale(DType::kF32, ue8m0.shape());
  for (std::int64_t b = 0; b < scale.numel(); ++b) scale.as<float>()[b] = from_ue8m0(ue8m0.as<std::uint8_t>()[b]);
  return scale;
}

HostTensor of_one(const HostTensor& scalar) {
  HostTensor one(DType::kF32, {1});
  one.as<float>()[0] = scalar.as<float>()[0];
  return one;
}

}  // namespace

void quantise(const Options& options, const LayerConfig& config, OwnedLayerWeights& weights) {
  if (!options.fp8_weights && !options.nvfp4_weights) return;
  const auto keep = [&](HostTensor tensor) {
    weights.storage.push_back(std::move(tensor));
    return std::as_const(weights.storage.back()).view();
  };
  const std::vector<WeightSpec> table = weight_table(config);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const WeightSpec& spec = table[i];
    if (spec.fp8_groups == 0) continue;
    EncodedLinear encoded =
        encode_linear(spec.view(weights.views), options.nvfp4_weights ? LinearEncoding::kNvfp4 : LinearEncoding::kFp8);
    prefer_large_pages(encoded.weight.data(), encoded.weight.bytes());
    weights.storage[i] = std::move(encoded.weight);
    spec.view(weights.views) = std::as_const(weights.storage[i]).view();
    spec.scale(weights.views) = keep(options.nvfp4_weights ? std::move(encoded.scale) : widened(encoded.scale));
    if (options.nvfp4_weights) spec.global_scale(weights.views) = keep(of_one(encoded.global_scale));
  }
}

std::string_view weights_text(const Options& options) {
  if (options.nvfp4_weights) return ", nvfp4 weights";
  return options.fp8_weights ? ", fp8 weights" : "";
}

}  // namespace smla::bench
