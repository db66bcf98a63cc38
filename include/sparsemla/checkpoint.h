#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsemla/export.h"
#include "sparsemla/model_config.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// The attention tensors of one layer, or of one tensor-parallel slice of it, ready for `layer_weights`
/// (sparsemla/weights.h).
struct LayerTensors {
  LayerConfig config;  ///< numbers of the layer; heads and o_groups are those of the slice
  /// By checkpoint name without "layers.<i>.attn.": "wq_a.weight", "attn_sink", "indexer.compressor.ape", ... Linear
  /// weights are BF16 (F32 where the file has F32; where LoadOptions kept them, E4M3 with "wq_a.scale", ... F32 beside,
  /// or NVFP4 with "wq_a.weight_scale" E4M3 and "wq_a.weight_scale_2" [1] F32), norms as stored, attn_sink and ape F32.
  std::map<std::string, ConstTensorView, std::less<>> tensors;
  std::optional<float> q_scale;  ///< scale of e4m3 queries; none: the checkpoint has none
  std::optional<float>
      kv_scale;  ///< scale of per-tensor rows in the window cache, and in the compressed cache unless that has its own
  std::optional<float> compressed_kv_scale;  ///< scale of per-tensor rows in the compressed cache
  std::shared_ptr<const void> memory;        ///< owns what the views point to
};

/// How a layer's tensors are loaded.
struct LoadOptions {
  /// Keep FP8 weights of wq_a, wq_b, wkv, wo_a, wo_b and indexer.wq_b as E4M3 with F32 scales where a layer can take
  /// them so: the slice is whole blocks of 128 x 128, its inputs are a multiple of 128, and so are the outputs of each
  /// group of wo_a. All others are dequantised.
  bool keep_fp8 = false;
  /// Keep NVFP4 weights as U8 codes with E4M3 scales of 16 inputs and an F32 scale of all, where a layer can take them
  /// so: the slice's inputs are whole groups of 16, and wkv and wgate of a compressor are both NVFP4. All others are
  /// dequantised.
  bool keep_nvfp4 = false;
};

/// What rank `rank` of `size` computes of a layer: heads and o_groups divided, everything else whole.
/// @throws InvalidArgument naming both numbers when they do not divide, or when there is no such rank.
LayerConfig tensor_parallel_slice(const LayerConfig& layer, int rank, int size);

/// A DeepSeek-V4 checkpoint: a folder with config.json and model.safetensors, or with model.safetensors.index.json and
/// its shards; or one safetensors file. Opening reads headers only; tensors are read when asked for, by bounds-checked
/// pread, so that a file which shrinks meanwhile is an IoError.
class Checkpoint {
 public:
  /// @throws IoError for files that are missing or damaged; InvalidArgument for a config.json that is no DeepSeek-V4.
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  /// The path that the constructor was given.
  const std::string& path() const;
  /// The folder's config.json; nothing when there is none.
  const std::optional<ModelConfig>& model() const;
  /// Names of all tensors, a leading "model." cut off.
  std::vector<std::string> names() const;
  /// Whether layer `index` brings a q_scale or a KV scale.
  bool has_cache_scales(std::int64_t index) const;

  /// Layer `index` of the checkpoint's own model; the MTP layers follow the decoder layers, under their index or as
  /// `mtp.N`, N a number of its own. FP8 weights with 128x128 block scales and NVFP4 weights become BF16: the exact
  /// product of code and scales, rounded once to nearest even (exact where the scales are powers of two), unless
  /// `options` keep them.
  /// @throws InvalidArgument that lists every missing, unknown and misshaped tensor of the layer, or when there is no
  /// config.json; IoError for damaged contents (a number or scale that is not finite, a file that shrank), naming
  /// tensor, row and column.
  LayerTensors load_layer(std::int64_t index, int tp_rank = 0, int tp_size = 1, const LoadOptions& options = {}) const;
  /// Loads a layer whose numbers (of the whole layer) the caller gives; needs no config.json.
  LayerTensors load_layer(std::int64_t index, const LayerConfig& layer, int tp_rank = 0, int tp_size = 1,
                          const LoadOptions& options = {}) const;
  /// The tensors of `mtp.N.attn`, N = `index`, for a checkpoint without config.json.
  LayerTensors load_mtp_layer(std::int64_t index, const LayerConfig& layer, int tp_rank = 0, int tp_size = 1,
                              const LoadOptions& options = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla
