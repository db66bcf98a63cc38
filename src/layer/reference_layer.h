#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "layer/grouped_views.h"
#include "layer/reference_rounding.h"
#include "sparsemla/layer.h"

namespace smla {

/// attention(x) of one request in float64 that knows no pages and no chunks (spec 2 to 4): what a run is checked
/// against. It sums in double and rounds where a layer of `rounding` stores a number in fewer bits; without one it
/// rounds nothing.
///
/// Projections of a token are made when first needed and kept, so that several tokens of one request share them.
class ReferenceLayer {
 public:
  /// @param hidden [tokens, hidden] F64, F32 or BF16: the layer's inputs from position 0 on; memory stays with the
  /// caller, as do weights and cos_sin.
  ReferenceLayer(const LayerConfig& config, const LayerWeights& weights, const ConstTensorView& cos_sin,
                 const ConstTensorView& hidden, const ReferenceRounding& rounding = {});

  /// Makes, with all threads, every row that positions [first, last] read. From then on index_scores and output of
  /// distinct positions among them may be called by several threads at once.
  void prepare(std::int64_t first, std::int64_t last);
  /// Index scores of every entry that `position` sees (C4A layers).
  std::vector<double> index_scores(std::int64_t position);
  /// The layer's output at `position`, attending over the window and over `entries`: for a C4A layer the chosen
  /// entries, for a C128A layer all that are visible when absent. `window`: first and last position seen, where it is
  /// not the causal window (DSpark).
  std::vector<double> output(std::int64_t position, std::optional<std::span<const std::int32_t>> entries,
                             std::optional<std::pair<std::int64_t, std::int64_t>> window = std::nullopt);
  /// Compressed entry g of the layer, or of its indexer.
  const std::vector<double>& entry(std::int64_t g);
  const std::vector<double>& index_entry(std::int64_t g);

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<std::optional<Row>>;

  /// Whether the inputs of E4M3 weights are rounded to FP8 at `position`.
  bool rounds_fp8_inputs(std::int64_t position) const;
  /// Rows [first_row, first_row + rows) of a weight times x at `position`; the input of an E4M3 weight may have to be
  /// rounded to FP8 first.
  Row linear(const LinearWeight& weight, std::span<const double> x, std::int64_t position, std::int64_t first_row,
             std::int64_t rows) const;
  /// The same from row 0 on with the product rounded as an activation.
  Row activation(const LinearWeight& weight, std::span<const double> x, std::int64_t position, std::int64_t rows) const;
  void round_activation(std::span<double> x) const;
  Row hidden_row(std::int64_t position) const;
  /// One query of the indexer, or one of its entries: bf16, transformed where the model does so, and as `index` stores
  /// it.
  void round_index_row(std::span<double> x, ClampRule clamp) const;
  void rms_norm(std::span<double> x, const ConstTensorView* weight) const;
  void rotate(double* last_dims, std::int64_t position, bool inverse) const;
  const Row& lora(std::int64_t position);
  const Row& window_row(std::int64_t position);
  const Row& scored_token(std::int64_t position, const CompressorWeights& w, Rows& kv_score);
  const Row& pooled(std::int64_t g, const CompressorWeights& w, int dim, Rows& entries, Rows& kv_score);
  Row queries(std::int64_t position);

  LayerConfig config_;
  LayerWeights weights_;
  ConstTensorView cos_sin_;
  ConstTensorView hidden_;
  ReferenceRounding rounding_;
  Rows lora_;
  Rows window_;
  Rows entries_;
  Rows kv_score_;
  Rows index_entries_;
  Rows index_kv_score_;
};

}  // namespace smla
