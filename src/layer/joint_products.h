#pragma once

#include "layer/layer_plan.h"

namespace smla {

// The products of a layer as joint ones, one for each input: hidden states, latent queries, attention output, and what
// wo_a makes of it. Each function gives the problem, and the tensors where the buffers have them (a plan is made before
// there are any).

/// A joint product of a layer.
struct JointProduct {
  JointProjection::Problem problem;
  JointProjection::Args args;
};

/// Rows up to which a layer that names JointProjection uses it; with `deterministic` it always does.
inline constexpr std::int64_t kJointRows = 64;
/// Rows up to which the indexer's queries are a product of their own: then wq_b's weights stream on a second stream
/// while the indexer chooses (docs/kernels/decode-layer.md "wq_b beside the indexer").
inline constexpr std::int64_t kQueriesApartRows = 16;
inline constexpr std::int64_t kJointRowsOnHopper = 128;  ///< where it names JointProjection::kOneLaunchOnHopper

/// Whether the products of a step of `tokens` rows are joint ones: where JointProjection is named, and on a GPU where
/// a kernel that streams weights is chosen for them and products of rounded inputs are not faster. Not by itself with
/// `deterministic`, for which the number of rows must not matter. Not where an FP8 output projection is asked for
/// beside FP8 weights: weights of one input then have different inputs.
bool has_joint_products(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        std::int64_t tokens);

/// Whether a step of `tokens` rows rounds the inputs of E4M3 weights to E4M3.
bool rounds_fp8_inputs(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                       std::int64_t tokens);

/// What is made of the hidden states: wq_a, wkv; wkv and wgate of the compressors; the indexer's weights where it
/// scores.
JointProduct joint_inputs(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                          const LayerPlan::Ops& ops, const LayerBuffers& b, const ConstTensorView& hidden);

/// Up to so many rows latent queries are normed by the products of them, where `sm90_stream` makes these and the norm's
/// weight is bf16: 16 where it is named for joint products; 8 by itself where wq_b has 24 MiB or more, or streams
/// beside the indexer (docs/kernels/decode-layer.md "Norms within"). 0: none are.
std::int64_t normed_query_rows(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                               const JointProjection::Problem& queries);

/// Whether wq_b, which streams beside the indexer, does so by half of each multiprocessor and a stage at a time: E4M3
/// weights of up to 48 MiB. Of more it is wq_b that attention waits for (docs/kernels/decode-layer.md "wq_b beside
/// the indexer").
bool wq_b_leaves_room(const LayerWeights& weights);
/// Whether index queries rehearse beside it (IndexerQ::Args::rehearses): up to four tokens, beside 16 MiB or more,
/// where it was measured to pay (docs/kernels/decode-layer.md "A rehearsal of index queries").
bool index_queries_rehearse(const LayerWeights& weights, std::int64_t tokens);
/// Whether a C4A layer's compressors have a stream of their own there: two to eight tokens, beside 32 MiB or more,
/// where it was measured to pay (docs/kernels/decode-layer.md "Compressors on a stream of their own").
bool compressors_run_apart(const LayerWeights& weights, std::int64_t tokens);

/// What is made of the latent queries: wq_b, and the indexer's where it scores.
JointProduct joint_queries(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                           const LayerPlan::Ops& ops, const LayerBuffers& b);
/// Each of the two alone.
JointProduct joint_wq_b(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b);
JointProduct joint_index_wq_b(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                              const LayerPlan::Ops& ops, const LayerBuffers& b);
/// wo_a of the attention output's heads, rotated back.
JointProduct joint_wo_a(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b);
/// wo_b.
JointProduct joint_wo_b(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b, const TensorView& out);

/// Both as one op.
struct OutputProduct {
  OutputProjection::Problem problem;
  OutputProjection::Args args;
};
OutputProduct output_projection(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                                const LayerPlan::Ops& ops, const LayerBuffers& b, const TensorView& out);

}  // namespace smla
