#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "engine/synthetic.h"
#include "model/weight_table.h"

namespace smla::test {

/// Writes random weights of `layers` of a model, layer i's by `seed(i)`, into a folder that is there. `encoding`: of
/// the linear weight of that name.
inline void write_checkpoint(const std::string& folder, const ModelConfig& model,
                             const std::vector<std::int64_t>& layers, int shards,
                             const std::function<std::uint64_t(std::int64_t)>& seed,
                             const std::function<LinearEncoding(std::string_view)>& encoding) {
  CheckpointWriter writer;
  const auto each = [&](std::int64_t layer, LayerWeights weights, bool plan) {
    const LayerConfig config = model.layer(layer);
    const std::string prefix = "layers." + std::to_string(layer) + ".attn.";
    visit_weights(config, weights, [&](std::string_view name, ConstTensorView& t) {
      const std::string full = prefix + std::string(name);
      if (t.rank == 2 && name.ends_with(".weight")) {
        const std::string stem = full.substr(0, full.rfind('.'));
        if (plan) return writer.plan_linear(stem, t.size(0), t.size(1), encoding(name));
        return writer.add_linear(stem, t, encoding(name));
      }
      if (plan) return writer.plan(full, t.dtype, {t.shape.begin(), t.shape.begin() + t.rank});
      writer.add(full, t);
    });
  };
  for (const std::int64_t i : layers) each(i, weight_shapes(model.layer(i)), true);
  writer.begin(folder, shards);
  for (const std::int64_t i : layers) {
    const OwnedLayerWeights owned = random_weights(model.layer(i), seed(i));
    each(i, owned.views, false);
  }
  writer.finish(model);
}

/// 0 to n - 1.
inline std::vector<std::int64_t> first_layers(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(i);
  return out;
}

}  // namespace smla::test
