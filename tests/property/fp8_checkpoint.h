#pragma once

#include "encoded_checkpoint.h"

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
class Fp8Checkpoint : public EncodedCheckpoint {
 public:
  Fp8Checkpoint(const std::string& name, const ModelConfig& model)
      : EncodedCheckpoint(name, model, [](std::string_view tensor) {
          const bool apart =
              tensor.find("compressor.") != std::string_view::npos || tensor == "indexer.weights_proj.weight";
          return apart ? LinearEncoding::kPlain : LinearEncoding::kFp8;
        }) {}
};

}  // namespace smla::test
