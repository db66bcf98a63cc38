#pragma once

#include <cstdint>
#include <vector>

#include "model/weight_table.h"

namespace smla::test {

/// The weights that the table joins under `number`, copied behind each other; the views then look into the copy.
inline std::vector<std::uint8_t> join_weights(const LayerConfig& config, LayerWeights& weights, int number) {
  std::vector<std::uint8_t> bytes;
  std::vector<ConstTensorView*> views;
  for (const WeightSpec& spec : weight_table(config)) {
    if (spec.joined != number) continue;
    views.push_back(&spec.view(weights));
    const auto* data = static_cast<const std::uint8_t*>(views.back()->data);
    bytes.insert(bytes.end(), data, data + views.back()->numel() * size_of(views.back()->dtype));
  }
  const std::uint8_t* at = bytes.data();
  for (ConstTensorView* view : views) {
    view->data = at;
    at += view->numel() * size_of(view->dtype);
  }
  return bytes;  // moved: the views stay right
}

}  // namespace smla::test
