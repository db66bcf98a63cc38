#include "sparsemla/weights.h"

#include "model/weight_table.h"

namespace smla {

LayerWeights layer_weights(const LayerTensors& tensors) {
  LayerWeights weights;
  visit_weights(tensors.config, weights, [&](std::string_view name, ConstTensorView& view) {
    const auto found = tensors.tensors.find(name);
    if (found == tensors.tensors.end())
      throw InvalidArgument("layer weights: " + std::string(name) + ": got no such tensor, expected it");
    view = found->second;
  });
  return weights;
}

}  // namespace smla
