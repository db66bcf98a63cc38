// Python's view of models, checkpoints and rope tables.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "python/objects.h"
#include "sparsemla/checkpoint.h"
#include "sparsemla/model_config.h"
#include "sparsemla/weights.h"

namespace smla::python {

namespace {

namespace nb = nanobind;

/// A layer's numbers as AttentionLayer takes them.
nb::dict config_dict(const LayerConfig& c) {
  nb::dict d;
  d["hidden_size"] = c.hidden_size, d["num_heads"] = c.num_heads, d["head_dim"] = c.head_dim;
  d["rope_head_dim"] = c.rope_head_dim, d["q_lora_rank"] = c.q_lora_rank, d["o_lora_rank"] = c.o_lora_rank;
  d["o_groups"] = c.o_groups, d["window"] = c.window, d["compress_ratio"] = c.compress_ratio;
  d["index_n_heads"] = c.index_n_heads, d["index_head_dim"] = c.index_head_dim, d["index_topk"] = c.index_topk;
  d["rms_norm_eps"] = c.rms_norm_eps, d["hadamard"] = c.hadamard, d["reuses_topk"] = c.reuses_topk;
  return d;
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4M3FN = 10;
  const auto of = [](std::uint8_t code, std::uint8_t bits) { return nb::dlpack::dtype{code, bits, 1}; };
  switch (dtype) {
    case DType::kF32: return of(kFloat, 32);
    case DType::kF64: return of(kFloat, 64);
    case DType::kBF16: return of(kBfloat, 16);
    case DType::kE4M3: return of(kE4M3FN, 8);
    case DType::kU8: return of(kUInt, 8);
    case DType::kI32: return of(kInt, 32);
    case DType::kI64: return of(kInt, 64);
    case DType::kBool: return of(kBool, 8);
  }
  return of(kUInt, 8);
}

/// An array over memory on the host that `owner` keeps.
nb::object array_of(const ConstTensorView& view, nb::handle owner) {
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
  for (int i = 0; i < view.rank; ++i) {
    shape.push_back(static_cast<std::size_t>(view.size(i)));
    strides.push_back(view.stride[static_cast<std::size_t>(i)]);
  }
  return nb::cast(nb::ndarray<nb::array_api>(const_cast<void*>(view.data), shape.size(), shape.data(), owner,
                                             strides.data(), dlpack_dtype(view.dtype), nb::device::cpu::value, 0));
}

nb::object make_rope_table(const RopeConfig& config, std::int64_t positions) {
  if (positions < 1 || positions > std::int64_t{1} << 28)
    throw InvalidArgument("rope_table: positions: got " + std::to_string(positions) + ", expected 1 to 2^28");
  auto table = std::make_unique<std::vector<float>>();
  {
    const nb::gil_scoped_release released;
    *table = rope_table(config, positions);
  }
  float* data = table->data();
  const nb::capsule owner(table.release(), [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return array_of(ConstTensorView(data, DType::kF32, {positions, config.dim}), owner);
}

nb::dict load_layer(const Checkpoint& checkpoint, std::int64_t index, int tp_rank, int tp_size, bool keep_fp8,
                    bool keep_nvfp4) {
  LayerTensors loaded;
  {
    const nb::gil_scoped_release released;
    loaded = checkpoint.load_layer(index, tp_rank, tp_size, {.keep_fp8 = keep_fp8, .keep_nvfp4 = keep_nvfp4});
  }
  const nb::capsule owner(new std::shared_ptr<const void>(loaded.memory),
                          [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
  nb::dict tensors;
  for (const auto& [name, view] : loaded.tensors) tensors[name.c_str()] = array_of(view, owner);
  const auto scale = [](const std::optional<float>& s) { return s ? nb::object(nb::float_(*s)) : nb::none(); };
  nb::dict out;
  out["config"] = config_dict(loaded.config);
  out["tensors"] = tensors;
  out["q_scale"] = scale(loaded.q_scale);
  out["kv_scale"] = scale(loaded.kv_scale);
  out["compressed_kv_scale"] = scale(loaded.compressed_kv_scale);
  return out;
}

}  // namespace

void bind_models(nb::module_& module) {
  using nb::arg;
  nb::class_<ModelConfig>(module, "ModelConfig",
                          "A DeepSeek-V4 model as far as attention is concerned.\n\n"
                          "model: \"v4-flash\", \"v4-pro\", \"tiny\", or the path of a config.json.\n\n"
                          "Raises InvalidArgument naming a key, IoError.")
      .def(
          "__init__", [](ModelConfig* to, const std::string& model) { new (to) ModelConfig(load_model_config(model)); },
          arg("model"))
      .def_ro("name", &ModelConfig::name)
      .def_ro("hidden_size", &ModelConfig::hidden_size)
      .def_ro("num_layers", &ModelConfig::num_layers)
      .def_ro("num_mtp_layers", &ModelConfig::num_mtp_layers)
      .def_ro("max_position", &ModelConfig::max_position)
      .def_ro("compress_ratios", &ModelConfig::compress_ratios)
      .def(
          "layer", [](const ModelConfig& m, std::int64_t i) { return config_dict(m.layer(i)); }, arg("index"),
          "The numbers of a layer, as AttentionLayer takes them; layers of multi-token prediction come last.")
      .def(
          "rope_table",
          [](const ModelConfig& m, std::int64_t i, std::int64_t positions) {
            return make_rope_table(m.layer(i).rope, positions);
          },
          arg("index"), arg("positions"),
          "The rope table of a layer: [positions, 64] float32, cosines first, on the host, as an object with "
          "__dlpack__.");

  nb::class_<Checkpoint>(module, "Checkpoint",
                         "A checkpoint of DeepSeek-V4: a folder with config.json and safetensors files, or one file.\n"
                         "Opening reads headers only.\n\n"
                         "Raises IoError for files that are missing or damaged, InvalidArgument for another model.")
      .def(nb::init<const std::string&>(), arg("path"))
      .def_prop_ro("path", &Checkpoint::path)
      .def_prop_ro("model", [](const Checkpoint& c) { return c.model(); })
      .def("names", &Checkpoint::names, "Names of all tensors.")
      .def("load_layer", &load_layer, arg("index"), arg("tp_rank") = 0, arg("tp_size") = 1, arg("keep_fp8") = false,
           arg("keep_nvfp4") = false,
           "Reads a layer, or what a tensor-parallel rank computes of it: a dict of config (as AttentionLayer takes "
           "it),\n"
           "tensors (by name, on the host, with __dlpack__), q_scale, kv_scale and compressed_kv_scale (or None).\n\n"
           "keep_fp8: E4M3 weights stay as they are where a layer can take them; else they become bfloat16.\n"
           "keep_nvfp4: the same of NVFP4 weights, which are uint8 with two codes a byte.\n\n"
           "Raises InvalidArgument that lists missing, unknown and misshaped tensors; IoError for damaged contents.");
}

}  // namespace smla::python
