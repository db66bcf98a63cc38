#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/writer.h"
#include "commands.h"
#include "engine/synthetic.h"
#include "layer/weight_names.h"

namespace smla {

namespace {

struct MakeArguments {
  std::string folder;
  std::string model = "tiny";
  std::int64_t layers = 0;
  std::string dtype = "bf16";
  std::string compressor_dtype = "bf16";
  int shards = 1;
  std::uint64_t seed = 0;
  std::optional<float> q_scale;
  std::optional<float> kv_scale;
  bool prefix = false;
  bool force = false;
};

LinearEncoding encoding_of(const std::string& dtype) {
  if (dtype == "fp8") return LinearEncoding::kFp8;
  return dtype == "nvfp4" ? LinearEncoding::kNvfp4 : LinearEncoding::kPlain;
}

/// The compressor's GEMMs and weights_proj are bf16 in the public checkpoints, whatever the rest is.
bool kept_apart(std::string_view stem) {
  return stem.find("compressor.") != std::string_view::npos || stem == "indexer.weights_proj";
}

void add_scalar(CheckpointWriter& writer, const std::string& name, const float& value) {
  writer.add(name, view_of(&value, {1}));
}

void add_layer(CheckpointWriter& writer, const LayerConfig& config, LayerWeights weights, const std::string& prefix,
               const MakeArguments& a) {
  constexpr std::string_view kWeight = ".weight";
  visit_weights(config, weights, [&](std::string_view name, ConstTensorView& tensor) {
    if (tensor.rank != 2 || !name.ends_with(kWeight)) {
      writer.add(prefix + std::string(name), tensor);
      return;
    }
    const std::string stem(name.substr(0, name.size() - kWeight.size()));
    writer.add_linear(prefix + stem, tensor, encoding_of(kept_apart(stem) ? a.compressor_dtype : a.dtype));
  });
  if (a.q_scale) add_scalar(writer, prefix + "q_scale", *a.q_scale);
  if (a.kv_scale) add_scalar(writer, prefix + "kv_scale", *a.kv_scale);
}

int make_checkpoint(const MakeArguments& a) {
  ModelConfig model = load_model_config(a.model);
  if (a.layers > model.num_layers) {
    throw InvalidArgument("--layers: got " + std::to_string(a.layers) + ", expected 1 to " +
                          std::to_string(model.num_layers));
  }
  if (a.layers > 0) model.num_layers = a.layers;
  // Decoder layers only: MTP layers have parts beside attention.
  model.num_mtp_layers = 0;
  model.compress_ratios.resize(static_cast<std::size_t>(model.num_layers));

  std::filesystem::create_directories(a.folder);
  if (!a.force && !std::filesystem::is_empty(a.folder))
    throw IoError(a.folder + ": got a folder with files in it, expected an empty one (or --force)");
  CheckpointWriter writer;
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const LayerConfig config = model.layer(i);
    add_layer(writer, config, random_weights(config, layer_seed(a.seed, i)).views,
              (a.prefix ? "model.layers." : "layers.") + std::to_string(i) + ".attn.", a);
  }
  writer.write(a.folder, model, a.shards);
  fmt::print("{}: {}, {} layers, {} tensors, {:.1f} MB in {} file{}\n", a.folder, model.name, model.num_layers,
             writer.tensors(), static_cast<double>(writer.bytes()) / 1e6, a.shards, a.shards == 1 ? "" : "s");
  return kExitPass;
}

}  // namespace

void add_make_checkpoint_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<MakeArguments>();
  CLI::App* c = app.add_subcommand("make-checkpoint",
                                   "Write a valid checkpoint with random attention weights, in official names");
  c->footer(
      "`smla run --weights DIR` runs it; with bf16 weights it gives what `smla run --model MODEL --seed S` gives "
      "without a checkpoint.");
  c->add_option("DIR", a->folder, "Folder to write config.json and weights into; made when it is not there")
      ->required();
  c->add_option("--model", a->model, "Preset (v4-flash, v4-pro, tiny) or a config.json")->capture_default_str();
  c->add_option("--layers", a->layers, "Only the first N decoder layers (default: all)")->check(CLI::PositiveNumber);
  c->add_option("--dtype", a->dtype, "Linear weights: bf16, fp8 (128x128 UE8M0 scales) or nvfp4")
      ->check(CLI::IsMember({"bf16", "fp8", "nvfp4"}))
      ->capture_default_str();
  c->add_option("--compressor-dtype", a->compressor_dtype, "The compressors' weights and weights_proj")
      ->check(CLI::IsMember({"bf16", "fp8", "nvfp4"}))
      ->capture_default_str();
  c->add_option("--shards", a->shards, "Files to spread the tensors over; more than 1 come with an index")
      ->check(CLI::Range(1, 99999))
      ->capture_default_str();
  c->add_option("--seed", a->seed, "Seed of the weights")->capture_default_str();
  c->add_option("--q-scale", a->q_scale, "Write this q_scale into every layer")->check(CLI::Range(1e-6, 1e6));
  c->add_option("--kv-scale", a->kv_scale, "Write this kv_scale into every layer")->check(CLI::Range(1e-6, 1e6));
  c->add_flag("--model-prefix", a->prefix, "Names begin with model.");
  c->add_flag("--force", a->force, "Write into a folder that is not empty");
  c->callback([a, &exit_code] { exit_code = make_checkpoint(*a); });
}

}  // namespace smla
