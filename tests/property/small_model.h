#pragma once

#include "sparsemla/model_config.h"

namespace smla::test {

/// All three layer kinds, small enough for the reference and for hundreds of runs.
inline ModelConfig small_model() {
  ModelConfig m;
  m.name = "small";
  m.hidden_size = 32;
  m.num_layers = 3;
  m.num_heads = 2;
  m.q_lora_rank = 16;
  m.o_lora_rank = 8;
  m.o_groups = 2;
  m.index_n_heads = 2;
  m.index_topk = 9;
  m.yarn = YarnConfig{};
  m.max_position = 4096;
  m.compress_ratios = {0, 4, 128};
  return m;
}

}  // namespace smla::test
