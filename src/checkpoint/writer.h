#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/linear.h"
#include "sparsemla/model_config.h"

namespace smla {

/// Writes a checkpoint one tensor at a time, so that no more than one needs to be in memory: first every tensor is
/// planned in order, then `begin` makes the files, then the tensors themselves come in the same order.
class CheckpointWriter {
 public:
  /// A tensor as it is, under its full name.
  void plan(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape);
  /// A linear weight `stem`.weight [outputs, inputs] with its scales: .scale (FP8), or .weight_scale and
  /// .weight_scale_2 (NVFP4).
  void plan_linear(const std::string& stem, std::int64_t outputs, std::int64_t inputs, LinearEncoding encoding);
  std::size_t tensors() const { return plans_.size(); }  ///< that were planned
  std::int64_t bytes() const;                            ///< of them

  /// Begins model.safetensors, or `shards` shards of about equal size, in a folder that is there.
  /// @throws IoError; InvalidArgument for fewer than 1 shards or more than tensors.
  void begin(const std::string& folder, int shards);
  /// The next planned tensor, contiguous; a linear weight is BF16. @throws IoError; InvalidArgument for another name,
  /// dtype or shape than planned.
  void add(const std::string& name, const ConstTensorView& tensor);
  void add_linear(const std::string& stem, const ConstTensorView& weight, LinearEncoding encoding);
  std::int64_t written() const { return written_; }  ///< bytes so far
  /// Completes the last file and writes the index and, last of all, config.json: an unfinished folder is no checkpoint.
  /// @throws IoError; InvalidArgument while planned tensors are missing.
  void finish(const ModelConfig& model);

 private:
  void append(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape,
              const void* data);
  std::string file_name(int shard) const;
  void open_next();

  std::vector<SafetensorsPlan> plans_;
  std::string folder_;
  std::vector<std::size_t> ends_;  ///< of each shard: one past its last tensor
  std::optional<SafetensorsWriter> file_;
  int shard_ = -1;
  std::size_t next_ = 0;
  std::int64_t written_ = 0;
};

/// A config.json that parse_model_config reads back as `model`.
std::string model_config_json(const ModelConfig& model);

}  // namespace smla
