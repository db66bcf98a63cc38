#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "core/arena.h"
#include "layer/attention_calls.h"
#include "layer/front_end_row.h"
#include "sparsemla/context_parallel.h"
#include "sparsemla/layer.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// Intermediate tensors of one forward, laid out in the caller's workspace. T tokens, H heads, d head_dim, K
/// index_topk.
struct LayerBuffers {
  TensorView hidden_values;           ///< [T, hidden] E4M3, FP8 wq_a or wkv
  TensorView hidden_scales;           ///< [1, hidden/128, T to a multiple of 4] F32
  TensorView latents;                 ///< [T, q_lora + d] act, what wq_a and wkv make in one product
  TensorView qr;                      ///< [T, q_lora] act, the left columns of it
  TensorView qr_values;               ///< [T, q_lora] E4M3, normed, FP8 wq_b or index_wq_b
  TensorView qr_scales;               ///< as hidden_scales
  TensorView kv;                      ///< [T, d] act, the right ones
  TensorView kv_scores;               ///< [T, 2*coff*d + 2*2*128] F32, what both compressors' weights make
  TensorView kv_score;                ///< [T, 2*coff*d] F32, the left columns of it
  TensorView index_kv_score;          ///< [T, 2*2*128] F32, the right ones
  TensorView index_weights;           ///< [T, Hi] act
  TensorView q;                       ///< [T, H, d] act
  TensorView q_attn;                  ///< [T, Hp, d] what attention reads; q itself unless E4M3 or padded
  TensorView index_q;                 ///< [T, Hi, 128] act
  TensorView index_q_stored;          ///< [T, Hi, 128 or 64] E4M3, U8 or F32
  TensorView index_q_scale;           ///< [T, Hi, 4] U8, mxfp4 only
  TensorView index_w;                 ///< [T, Hi] F32
  TensorView scores;                  ///< [rows of a chunk, width] F32
  TensorView own_topk;                ///< [T, K] I32 this context-parallel rank's among the chosen, local numbers
  TensorView slots;                   ///< [T, K] I32, C4A layers of front-ends that read slots
  TensorView slot_lens;               ///< [T] I32, likewise
  void* attention_buffers = nullptr;  ///< AttentionCalls::buffer_bytes()
  TensorView o;                       ///< [T, Hp, d] act
  TensorView o_heads;                 ///< [T, H, d] act, rotated back: o itself unless padded
  TensorView o_values;                ///< [G, T, D] E4M3, FP8 output projection
  TensorView o_scales;                ///< its scales
  TensorView z;                       ///< [T, G*o_lora] act
  TensorView z_values;                ///< [T, G*o_lora] E4M3, FP8 wo_b
  TensorView z_scales;                ///< as hidden_scales
  TensorView zero_positions;          ///< [T] I64, dummy runs
  std::array<Workspace, 2>
      scratch{};  ///< of the caller's stream and of the side stream; one memory without a side stream
};

struct LayerPlan::Ops {
  std::int64_t tokens = 0;
  std::int64_t requests = 0;
  std::int64_t max_seq_len = 0;
  StepShape shape;
  std::int64_t padded_heads = 0;
  std::size_t least_score_bytes = 0;      ///< reserve more for the score matrix than this shape needs
  bool rounds_fp8_inputs = false;         ///< inputs of E4M3 weights are rounded to E4M3
  std::optional<OutputScale> fp8_output;  ///< of wo_a's input: asked for, or because wo_a is E4M3
  bool short_context = false;             ///< C4A: every visible entry fits the top-k
  std::int64_t score_width = 0;           ///< columns of the score matrix
  std::int64_t slot_block = 0;            ///< entries in a block where the top-k writes slots too
  std::int64_t score_rows = 0;            ///< rows scored at once, so that the matrix stays within its budget
  std::size_t scratch_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::string text;

  std::optional<Plan<Projection>> wq_a, wkv, wq_b, wo_a, wo_b, compressor_gemm, index_compressor_gemm,
      index_weights_proj, index_wq_b;
  std::optional<Plan<Projection>> latents;      ///< wq_a and wkv at once; absent where their dtypes differ or are NVFP4
  std::optional<Plan<Projection>> compressors;  ///< the weights of both compressors at once, likewise
  /// In place of all projections above, one for each input (joint_products.h); wo_a stays where its input is FP8.
  std::optional<Plan<JointProjection>> joint_inputs, joint_queries, joint_wo_a, joint_wo_b;
  std::optional<Plan<JointProjection>> joint_wq_b, joint_index_wq_b;  ///< in place of joint_queries, for two streams
  bool queries_norm = false;  ///< those three norm the latent queries themselves, and latent_norms the keys alone
  std::optional<Plan<OutputProjection>> output_projection;  ///< in place of the last two, where one launch makes both
  /// Inputs of FP8 weights. latent_norms has another; wo_a quantises z itself unless groups would share a scale.
  std::optional<Plan<QuantizeRows>> quantize_hidden, quantize_z;
  std::optional<Plan<LatentNorms>> latent_norms;
  std::optional<Plan<LatentNorms>> latent_norms_and_insert;  ///< with a query prologue: no op of its own makes q
  std::optional<Plan<QNormRopeInsert>> insert;
  std::optional<Plan<CompressStore>> compress;
  std::optional<Plan<IndexerQ>> index_q;
  bool compressors_apart = false;  ///< compressors_run_apart() (joint_products.h)
  bool index_q_rehearses = false;  ///< index_queries_rehearse() (joint_products.h)
  std::optional<Plan<IndexerLogits>> logits, logits_tail;
  std::optional<Plan<TopK>> topk, topk_tail;
  /// In place of the two above, scores and selection of all tokens in one launch, for a forward that nobody observes.
  std::optional<Plan<IndexerTopK>> indexer_topk;
  std::optional<ContextTopK> context_topk, context_topk_tail;  ///< in place of the three above, with ranks
  std::optional<Plan<ShortContextTopk>> short_topk;
  std::unique_ptr<const AttentionCalls> attention;
  std::optional<SparseAttention::QueryPrologue> query_prologue;
  std::optional<SparseAttention::OutputEpilogue> output_epilogue;
  std::unique_ptr<const AttentionCalls> fused_attention;  ///< with the two above, for a forward that nobody observes
  bool fused_attention_quantises = false;                 ///< it writes E4M3, in place of inverse_rope_quant
  std::optional<Plan<InverseRope>> inverse_rope;
  std::optional<Plan<InverseRopeQuant>> inverse_rope_quant;

  LayerBuffers lay_out(const LayerConfig& config, const LayerOptions& options, void* base, std::size_t* used) const;
};

/// Whether parts of a forward run on a second stream: compressors and indexer, or beside joint products wq_b.
inline bool has_side_stream(const LayerConfig& config, const LayerOptions& options) {
  // Ranks that gather on two streams at once would have to agree on an order of the two.
  return options.device == DeviceKind::kCuda && options.side_streams && config.has_compressor() &&
         options.context_parallel == nullptr;
}

/// Whether steps of few rows compute the weights of one input at once.
inline bool names_joint_products(const LayerOptions& options) {
  return options.implementations.contains(JointProjection::kName);
}

/// Whether inputs of E4M3 weights may be rounded to E4M3, which tensor cores multiply. A CPU multiplies them as they
/// are, which is nearer to the model, unless an FP8 output projection is asked for; so do joint products
/// (joint_products.h), which are for few rows unless they are named.
inline bool may_round_fp8_inputs(const LayerOptions& options) {
  return (options.device != DeviceKind::kCpu && !names_joint_products(options)) || options.fp8_output.has_value();
}

/// The dtype of activations.
inline DType activation_dtype(const LayerOptions& options) {
  return options.precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
}

}  // namespace smla
