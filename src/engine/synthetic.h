#pragma once

#include <cstdint>
#include <vector>

#include "core/host_tensor.h"
#include "sparsemla/layer.h"

namespace smla {

/// Counter-based random bits: a pure function of its words (splitmix64 steps).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E37'79B9'7F4A'7C15U;
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9U;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EBU;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(mix(a) ^ b); }

/// Uniform in [0, 1).
constexpr double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// Weights that own their memory.
struct OwnedLayerWeights {
  std::vector<HostTensor> storage;
  LayerWeights views;
};

/// Seed of a model layer's weights in a run of seed `seed`.
constexpr std::uint64_t layer_seed(std::uint64_t seed, std::int64_t model_layer) {
  return mix(seed, static_cast<std::uint64_t>(model_layer) + 1);
}

/// Seeded random bf16 weights with variance 1/inputs, query norms near 1 and key norms near 0.7, small ape, sinks in
/// [-2, 2].
OwnedLayerWeights random_weights(const LayerConfig& config, std::uint64_t seed);

/// What rank `rank` of `ranks` has of a whole layer's weights (tensor_parallel_slice), as copies.
OwnedLayerWeights sliced_weights(const LayerConfig& whole, const OwnedLayerWeights& weights, int rank, int ranks);

/// Shapes and dtypes of those weights, without memory.
LayerWeights weight_shapes(const LayerConfig& config);

/// The hidden state of a token: uniform with variance 1, a function of (seed, stream, request, position). Stream 0:
/// true tokens; 1: rejected drafts; 2: tokens of a block that prompts share, with its id for a request's.
void synthetic_hidden(std::uint64_t seed, std::uint64_t stream, std::int64_t request, std::int64_t position,
                      const TensorView& row);

}  // namespace smla
