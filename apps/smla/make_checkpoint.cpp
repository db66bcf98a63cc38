#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "arguments.h"
#include "checkpoint/writer.h"
#include "commands.h"
#include "engine/synthetic.h"
#include "model/weight_table.h"
#include "progress.h"

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
  bool quiet = false;
};

constexpr std::int64_t kMegabyte = 1000000;

LinearEncoding encoding_of(const std::string& dtype) {
  if (dtype == "fp8") return LinearEncoding::kFp8;
  return dtype == "nvfp4" ? LinearEncoding::kNvfp4 : LinearEncoding::kPlain;
}

/// The compressor's GEMMs and weights_proj are bf16 in the public checkpoints, whatever the rest is.
bool kept_apart(std::string_view stem) {
  return stem.find("compressor.") != std::string_view::npos || stem == "indexer.weights_proj";
}

/// Calls `plain`(name, tensor) or `linear`(stem, tensor, encoding) for each tensor of a layer, in the order of the
/// files.
template <class Plain, class Linear>
void each_tensor(const LayerConfig& config, LayerWeights weights, const std::string& prefix, const MakeArguments& a,
                 const Plain& plain, const Linear& linear) {
  constexpr std::string_view kWeight = ".weight";
  visit_weights(config, weights, [&](std::string_view name, ConstTensorView& tensor) {
    if (tensor.rank != 2 || !name.ends_with(kWeight)) return plain(prefix + std::string(name), tensor);
    const std::string stem(name.substr(0, name.size() - kWeight.size()));
    linear(prefix + stem, tensor, encoding_of(kept_apart(stem) ? a.compressor_dtype : a.dtype));
  });
  if (a.q_scale) plain(prefix + "q_scale", view_of(&*a.q_scale, {1}));
  if (a.kv_scale) plain(prefix + "kv_scale", view_of(&*a.kv_scale, {1}));
}

/// @throws IoError unless the folder is there or can be made, and is empty (or --force).
void prepare_folder(const MakeArguments& a) {
  std::error_code error;
  std::filesystem::create_directories(a.folder, error);
  if (!std::filesystem::is_directory(a.folder))
    throw IoError(a.folder + ": got \"" + (error ? error.message() : "not a folder") +
                  "\", expected a folder to write into");
  const bool empty = std::filesystem::is_empty(a.folder, error);
  if (error) throw IoError(a.folder + ": got \"" + error.message() + "\", expected a folder to write into");
  if (!a.force && !empty)
    throw IoError(a.folder + ": got a folder with files in it, expected an empty one (or --force)");
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

  prepare_folder(a);
  const auto prefix = [&](std::int64_t layer) {
    return (a.prefix ? "model.layers." : "layers.") + std::to_string(layer) + ".attn.";
  };
  CheckpointWriter writer;
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const LayerConfig config = model.layer(i);
    each_tensor(
        config, weight_shapes(config), prefix(i), a,
        [&](const std::string& name, const ConstTensorView& t) {
          writer.plan(name, t.dtype, {t.shape.begin(), t.shape.begin() + t.rank});
        },
        [&](const std::string& stem, const ConstTensorView& t, LinearEncoding encoding) {
          writer.plan_linear(stem, t.size(0), t.size(1), encoding);
        });
  }
  writer.begin(a.folder, a.shards);
  Progress progress("make-checkpoint", "MB", writer.bytes() / kMegabyte, a.quiet);
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const LayerConfig config = model.layer(i);
    each_tensor(
        config, random_weights(config, layer_seed(a.seed, i)).views, prefix(i), a,
        [&](const std::string& name, const ConstTensorView& t) { writer.add(name, t); },
        [&](const std::string& stem, const ConstTensorView& t, LinearEncoding encoding) {
          writer.add_linear(stem, t, encoding);
          progress.update(writer.written() / kMegabyte, fmt::format("layer {} of {}", i, model.num_layers));
        });
  }
  writer.finish(model);
  progress.finish();
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
  c->add_option("--layers", a->layers, "Only the first N decoder layers (default: all)")->check(whole(1));
  c->add_option("--dtype", a->dtype, "Linear weights: bf16, fp8 (128x128 UE8M0 scales) or nvfp4")
      ->check(one_of({"bf16", "fp8", "nvfp4"}))
      ->capture_default_str();
  c->add_option("--compressor-dtype", a->compressor_dtype, "The compressors' weights and weights_proj")
      ->check(one_of({"bf16", "fp8", "nvfp4"}))
      ->capture_default_str();
  c->add_option("--shards", a->shards, "Files to spread the tensors over; more than 1 come with an index")
      ->check(whole(1, 99999))
      ->capture_default_str();
  c->add_option("--seed", a->seed, "Seed of the weights")->check(seed_number())->capture_default_str();
  c->add_option("--q-scale", a->q_scale, "Write this q_scale into every layer")->check(real(1e-6, 1e6));
  c->add_option("--kv-scale", a->kv_scale, "Write this kv_scale into every layer")->check(real(1e-6, 1e6));
  c->add_flag("--model-prefix", a->prefix, "Names begin with model.");
  c->add_flag("--force", a->force, "Write into a folder that is not empty");
  c->add_flag("-q,--quiet", a->quiet, "No progress");
  c->callback([a, &exit_code] { exit_code = make_checkpoint(*a); });
}

}  // namespace smla
