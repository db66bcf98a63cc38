#pragma once

#include <functional>
#include <string_view>

#include "sparsemla/layer.h"

namespace smla {

/// Calls `visit` for every weight that a layer of this kind has, with its checkpoint name below "layers.<i>.attn.";
/// after one that is E4M3 (once `visit` has set it) for its scales, "wq_a.scale".
void visit_weights(const LayerConfig& config, LayerWeights& weights,
                   const std::function<void(std::string_view, ConstTensorView&)>& visit);

}  // namespace smla
