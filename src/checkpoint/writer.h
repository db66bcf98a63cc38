#pragma once

#include <string>
#include <vector>

#include "checkpoint/linear.h"
#include "sparsemla/model_config.h"

namespace smla {

/// A checkpoint as it is written: tensors under their full names, each with its dtype in the file where that is not the
/// tensor's own.
class CheckpointWriter {
 public:
  /// A tensor as it is.
  void add(const std::string& name, const ConstTensorView& tensor);
  /// A linear weight `stem`.weight [outputs, inputs] BF16 with its scales: .scale (FP8), or .weight_scale and
  /// .weight_scale_2 (NVFP4).
  void add_linear(const std::string& stem, const ConstTensorView& weight, LinearEncoding encoding);

  /// Writes config.json and model.safetensors, or `shards` shards of about equal size with their index, into a folder
  /// that is there.
  /// @throws IoError; InvalidArgument for fewer than 1 shards or more than tensors.
  void write(const std::string& folder, const ModelConfig& model, int shards) const;
  std::size_t tensors() const { return items_.size(); }
  std::int64_t bytes() const;

 private:
  struct Item {
    std::string name;
    HostTensor tensor;
    std::string dtype;
  };
  std::vector<Item> items_;
};

/// A config.json that parse_model_config reads back as `model`.
std::string model_config_json(const ModelConfig& model);

}  // namespace smla
