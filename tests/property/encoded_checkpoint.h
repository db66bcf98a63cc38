#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "sparsemla/checkpoint.h"
#include "written_checkpoint.h"

namespace smla::test {

/// A checkpoint of random weights in a folder that goes with it.
class EncodedCheckpoint {
 public:
  /// `name`: of the folder, which gets the number of the process too. `encoding`: of the linear weight of that name.
  EncodedCheckpoint(const std::string& name, const ModelConfig& model,
                    const std::function<LinearEncoding(std::string_view)>& encoding)
      : path_((std::filesystem::temp_directory_path() / (name + "_" + std::to_string(::getpid()))).string()) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    write_checkpoint(
        path_, model, first_layers(model.num_layers), 1, [](std::int64_t i) { return layer_seed(9, i); }, encoding);
  }
  ~EncodedCheckpoint() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  EncodedCheckpoint(const EncodedCheckpoint&) = delete;
  EncodedCheckpoint& operator=(const EncodedCheckpoint&) = delete;

  const std::string& path() const { return path_; }
  std::shared_ptr<const Checkpoint> open() const { return std::make_shared<const Checkpoint>(path_); }

 private:
  std::string path_;
};

/// One whose linear weights are all NVFP4.
class Nvfp4Checkpoint : public EncodedCheckpoint {
 public:
  Nvfp4Checkpoint(const std::string& name, const ModelConfig& model)
      : EncodedCheckpoint(name, model, [](std::string_view) { return LinearEncoding::kNvfp4; }) {}
};

}  // namespace smla::test
