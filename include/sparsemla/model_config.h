#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// YaRN scaling of the rope frequencies (spec 2); the amplitude factor is 1.
struct YarnConfig {
  double factor = 16.0;                        ///< factor by which positions are stretched
  std::int64_t original_max_position = 65536;  ///< longest context before stretching
  double beta_fast = 32.0;                     ///< rotations above which a dim is left alone
  double beta_slow = 1.0;                      ///< rotations below which a dim is stretched
  friend bool operator==(const YarnConfig&, const YarnConfig&) = default;
};

/// The parameters of a rope table. Layers with equal parameters share one.
struct RopeConfig {
  double theta = 10000.0;            ///< base of the frequencies
  std::optional<YarnConfig> yarn{};  ///< absent: plain frequencies
  int dim = 64;                      ///< numbers of a head that are rotated
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

/// What sets layer kinds apart: which caches a layer owns beside its window, and whether it selects entries. A layer
/// that attends to entries without owning or selecting them takes those of the last layer before it that does.
struct LayerRoles {
  bool owns_entries = false;     ///< a compressor: a compressed cache and its state
  bool owns_index_keys = false;  ///< a compressor of the indexer: an index cache and its state
  bool selects = false;          ///< an indexer: scores index keys and chooses index_topk entries
};

/// The numbers of one attention layer (spec 1).
struct LayerConfig {
  std::int64_t hidden_size = 0;     ///< width of hidden states
  std::int64_t num_heads = 0;       ///< query heads
  int head_dim = 512;               ///< numbers of a head
  int rope_head_dim = 64;           ///< dims of a head that are rotated, its last
  std::int64_t q_lora_rank = 0;     ///< width of the low-rank query
  std::int64_t o_lora_rank = 0;     ///< width of the low-rank output of a group
  std::int64_t o_groups = 1;        ///< groups of the output projection
  std::int64_t window = 128;        ///< tokens that a query sees, itself included
  int compress_ratio = 1;           ///< 1: window only, 4: C4A, 128: C128A
  std::int64_t index_n_heads = 64;  ///< heads of the indexer
  int index_head_dim = 128;         ///< numbers of an indexer's head
  std::int64_t index_topk = 512;    ///< entries that the indexer chooses
  float rms_norm_eps = 1e-6F;       ///< RMSNorm's epsilon
  RopeConfig rope;                  ///< every rotation of the layer uses this one table
  bool hadamard = false;            ///< Walsh-Hadamard transform on both sides of the indexer
  /// C4A: attends to the entries that the last C4A layer with an indexer before it chose, and runs no indexer of its
  /// own (IndexCache, spec 9).
  bool reuses_topk = false;

  bool has_compressor() const { return compress_ratio > 1; }  ///< C4A or C128A
  bool has_indexer() const { return compress_ratio == 4; }    ///< C4A
  /// A C4A layer that scores and selects entries itself.
  bool runs_indexer() const { return roles().selects; }
  /// What the layer owns and does. Everything that lays out caches or metadata asks this, not the ratio.
  LayerRoles roles() const {
    const bool selects = has_indexer() && !reuses_topk;
    return {.owns_entries = has_compressor(), .owns_index_keys = selects, .selects = selects};
  }
};

/// Checks a layer's numbers. @throws InvalidArgument naming the first impossible one, what was got and expected.
void check_layer_config(const LayerConfig& config);

/// A DeepSeek-V4 model as far as attention is concerned (spec 1).
struct ModelConfig {
  std::string name;                       ///< preset or path
  std::int64_t hidden_size = 0;           ///< width of hidden states
  std::int64_t num_layers = 0;            ///< decoder layers, without MTP
  std::int64_t num_mtp_layers = 0;        ///< multi-token prediction layers
  std::int64_t num_heads = 0;             ///< query heads
  int head_dim = 512;                     ///< numbers of a head
  int rope_head_dim = 64;                 ///< dims of a head that are rotated, its last
  std::int64_t q_lora_rank = 0;           ///< width of the low-rank query
  std::int64_t o_lora_rank = 0;           ///< width of the low-rank output of a group
  std::int64_t o_groups = 1;              ///< groups of the output projection
  std::int64_t window = 128;              ///< tokens that a query sees, itself included
  std::int64_t index_n_heads = 64;        ///< heads of the indexer
  int index_head_dim = 128;               ///< numbers of an indexer's head
  std::int64_t index_topk = 512;          ///< entries that the indexer chooses
  float rms_norm_eps = 1e-6F;             ///< RMSNorm's epsilon
  double rope_theta = 10000.0;            ///< base of window-only layers, which never have YaRN
  double compress_rope_theta = 160000.0;  ///< base of C4A and C128A layers
  std::optional<YarnConfig> yarn;         ///< of C4A and C128A layers; absent: none
  std::int64_t max_position = 1048576;    ///< longest context
  bool hadamard = false;                  ///< Walsh-Hadamard transform on both sides of the indexer (spec 4.1)
  std::int64_t index_topk_freq =
      1;  ///< of this many C4A layers in a row the first chooses entries, the others reuse them (IndexCache, spec 9)
  /// The same layer by layer, in place of index_topk_freq: a letter for each C4A layer, F: it chooses entries itself;
  /// S: it takes those of the last one before it that does. Empty: by index_topk_freq.
  std::string index_topk_pattern{};
  std::vector<int>
      compress_ratios;  ///< one for each decoder layer, then for MTP layers: 0, 1, 4 or 128, as in the file

  /// Layer `index` (MTP layers follow the decoder layers and are window-only). @throws InvalidArgument when there is no
  /// such layer.
  LayerConfig layer(std::int64_t index) const;
};

/// The preset of that name: "v4-flash", "v4-pro" or "tiny" (all three layer kinds, a few MB of weights). @throws
/// InvalidArgument for another name, with the accepted ones.
ModelConfig model_preset(std::string_view name);
/// The names that model_preset accepts.
std::vector<std::string> model_preset_names();

/// Reads a config.json text in either public shape: flat `compress_ratios` with
/// `rope_theta`/`compress_rope_theta`/`rope_scaling`, or nested rope parameters ({"main": {...}, "compress": {...}}).
/// @throws InvalidArgument naming the key, what was got and what was expected.
ModelConfig parse_model_config(std::string_view json);
/// The model of a preset's name or of a config.json's path. @throws IoError, InvalidArgument.
ModelConfig load_model_config(const std::string& preset_or_path);

/// Builds a rope table (spec 2): [positions, dim] fp32. Row p holds the cosines, then the sines of the dim/2 angles
/// fl32(p * f_i), in radians.
std::vector<float> rope_table(const RopeConfig& config, std::int64_t positions);
/// The dim/2 frequencies f_i of a rope table, fp32.
std::vector<float> rope_frequencies(const RopeConfig& config);

}  // namespace smla
