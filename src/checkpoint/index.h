#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace smla {

/// The weight_map of a model.safetensors.index.json: tensor name -> name of a file in the same folder.
/// @throws IoError for text that is no such index, or a file name that leads out of the folder.
std::map<std::string, std::string> parse_checkpoint_index(const std::string& where, std::string_view json);

/// A layer's tensor name split up: "model.layers.3.attn.wq_a.weight" -> layer 3, "wq_a.weight". False for any other
/// tensor. `stack` is the name before the number: "layers", or "mtp" for the MTP layers, which official checkpoints
/// number on their own.
bool split_layer_name(std::string_view name, std::int64_t& layer, std::string& rest, std::string_view stack = "layers");

}  // namespace smla
