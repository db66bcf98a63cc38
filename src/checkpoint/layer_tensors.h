#pragma once

#include <map>
#include <string>

#include "checkpoint/linear.h"
#include "sparsemla/checkpoint.h"

namespace smla {

/// Stored tensors of one layer by their names below "layers.<i>.attn.".
using StoredLayer = std::map<std::string, StoredTensor, std::less<>>;

/// Reads a slice of a layer. `where` begins the error that lists all that is missing, unknown or misshaped.
LayerTensors read_layer(const std::string& where, const StoredLayer& stored, const LayerConfig& layer, int tp_rank,
                        int tp_size, const LoadOptions& options);

}  // namespace smla
