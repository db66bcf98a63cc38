#pragma once

#include "sparsemla/checkpoint.h"
#include "sparsemla/export.h"
#include "sparsemla/layer.h"

namespace SMLA_API smla {

/// Views of a loaded layer's tensors in the places where a layer looks for them; `tensors.memory` must outlive the
/// layer.
/// @throws InvalidArgument naming a tensor that is not there.
LayerWeights layer_weights(const LayerTensors& tensors);

}  // namespace smla
