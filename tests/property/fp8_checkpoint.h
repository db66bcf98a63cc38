#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "sparsemla/checkpoint.h"
#include "written_checkpoint.h"

namespace smla::test {

/// A layer of each kind, all of whose FP8 weights a layer can take as they are.
inline ModelConfig fp8_model() {
  ModelConfig m = model_preset("tiny");
  m.num_layers = 3;
  m.o_lora_rank = 128;
  m.compress_ratios = {0, 4, 128};
  return m;
}

/// A checkpoint of random FP8 weights in a folder that goes with it; compressors and weights_proj are BF16.
class Fp8Checkpoint {
 public:
  /// `name`: of the folder, which gets the number of the process too.
  Fp8Checkpoint(const std::string& name, const ModelConfig& model)
      : path_((std::filesystem::temp_directory_path() / (name + "_" + std::to_string(::getpid()))).string()) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    write_checkpoint(
        path_, model, first_layers(model.num_layers), 1, [](std::int64_t i) { return layer_seed(9, i); },
        [](std::string_view tensor) {
          const bool apart =
              tensor.find("compressor.") != std::string_view::npos || tensor == "indexer.weights_proj.weight";
          return apart ? LinearEncoding::kPlain : LinearEncoding::kFp8;
        });
  }
  ~Fp8Checkpoint() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Fp8Checkpoint(const Fp8Checkpoint&) = delete;
  Fp8Checkpoint& operator=(const Fp8Checkpoint&) = delete;

  const std::string& path() const { return path_; }
  std::shared_ptr<const Checkpoint> open() const { return std::make_shared<const Checkpoint>(path_); }

 private:
  std::string path_;
};

}  // namespace smla::test
