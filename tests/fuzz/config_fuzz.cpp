// config.json: any text is a model whose every layer passes its own checks, or an error that says what is wrong.
#include "checkpoint/writer.h"
#include "sparsemla/model_config.h"
#include "support.h"

namespace smla::fuzz {
namespace {

void run(const std::string& text) {
  const ModelConfig model = parse_model_config(text);
  require(model.num_layers >= 0 && model.max_position > 0, "a model with impossible numbers");
  for (std::int64_t i = 0; i < std::min<std::int64_t>(model.num_layers + model.num_mtp_layers, 80); ++i) {
    const LayerConfig layer = model.layer(i);
    check_layer_config(layer);
    require(rope_frequencies(layer.rope).size() == static_cast<std::size_t>(layer.rope_head_dim / 2),
            "frequencies of another count");
  }
  // What is written reads back as the same model.
  const ModelConfig again = parse_model_config(model_config_json(model));
  require(again.compress_ratios == model.compress_ratios && again.num_heads == model.num_heads &&
              again.rope_theta == model.rope_theta && again.yarn == model.yarn &&
              again.max_position == model.max_position,
          "config.json does not read back as it was written");
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::survives([&] { smla::fuzz::run(std::string(reinterpret_cast<const char*>(data), size)); });
  return 0;
}
