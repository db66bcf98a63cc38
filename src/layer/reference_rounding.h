#pragma once

#include <span>
#include <vector>

#include "sparsemla/layer.h"

namespace smla {

/// What a layer's formats do to its numbers, for a float64 reference that rounds where the layer rounds. Written from
/// the formats' definitions in double, apart from the library's codecs and quantisers.
struct ReferenceRounding {
  bool activations = false;          ///< projections, norms and the attention output are rounded to bf16
  const RowFormat* rows = nullptr;   ///< window and compressed rows; null: exact
  const RowFormat* index = nullptr;  ///< the indexer's rows and queries; null: exact
  float window_scale = 1.0F;         ///< of per-tensor window rows
  float compressed_scale = 1.0F;     ///< of per-tensor compressed rows
  bool fp8_queries = false;          ///< E4M3 queries with q_scale
  float q_scale = 1.0F;              ///< number = e4m3 * q_scale
  ClampRule clamp = ClampRule::kAmax;
  bool fp8_inputs = false;  ///< inputs of E4M3 weights are quantised, at least of the positions below
  /// By position, whether the step that computed it quantised the inputs of E4M3 weights; null: every one did. Memory
  /// is the caller's.
  const std::vector<char>* fp8_positions = nullptr;
  bool fp8_output = false;  ///< the rotated attention output is quantised before wo_a

  /// Rounding of a layer with these options.
  /// @param window_scale, compressed_scale: of per-tensor rows.
  static ReferenceRounding of(const LayerOptions& options, float window_scale, float compressed_scale);
};

/// Each number to the nearest bf16, ties to even.
void round_to_bf16(std::span<double> x);

/// Each number to the nearest e4m3 times `scale`, ties to even, at most 448 * scale.
void round_to_e4m3(std::span<double> x, double scale);

/// A row as its format stores it and decodes it again (spec 4.2, 4.3, 5.1, 5.4). `scale`: of per-tensor rows.
void round_row(const RowFormat& format, double scale, ClampRule clamp, std::span<double> x);

/// The input of an FP8 projection: groups of 128 with scale 2^ceil(log2(max(amax, 1e-10) / 448)) (spec 2).
void round_projection_input(std::span<double> x);

}  // namespace smla
