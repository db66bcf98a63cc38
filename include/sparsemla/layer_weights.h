#pragma once

#include "sparsemla/export.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Weights of one compressor (spec 3): `dim` 512 for the layer's, 128 for the indexer's.
struct CompressorWeights {
  ConstTensorView wkv;                   ///< [coff*dim, hidden] BF16, F32 or NVFP4
  ConstTensorView wgate;                 ///< [coff*dim, hidden], of the same dtype
  ConstTensorView ape;                   ///< [ratio, coff*dim] F32 or BF16
  ConstTensorView norm;                  ///< [dim] BF16 or F32
  ConstTensorView wkv_scale{};           ///< with NVFP4 weights, as LayerWeights::wq_a_scale
  ConstTensorView wgate_scale{};         ///< as wkv_scale
  ConstTensorView wkv_global_scale{};    ///< with NVFP4 weights, as LayerWeights::wq_a_global_scale
  ConstTensorView wgate_global_scale{};  ///< as wkv_global_scale
};

/// Weights of one layer by their checkpoint names (spec 1); memory belongs to the caller and must outlive the layer.
/// Linear weights [outputs, inputs] are BF16, F32 or NVFP4. NVFP4 is U8 [outputs, inputs/2], two e2m1 codes a byte, the
/// lower input in the low half; inputs are a multiple of 16. wq_a, wq_b, wkv, wo_a, wo_b and index_wq_b may be E4M3: on
/// a GPU, but for few tokens (AttentionLayer::rounds_fp8_inputs), their inputs are then quantised to FP8, too
/// (QuantizeRows; of wo_a InverseRopeQuant). Rows are dense.
/// Weights of the same input that follow one another in memory are one product: wq_a and wkv; wkv and wgate of the
/// compressor, with those of the indexer's compressor behind them where there is one. NVFP4 ones are not, for each has
/// a scale of its own.
struct LayerWeights {
  ConstTensorView wq_a;                ///< [q_lora_rank, hidden]
  ConstTensorView q_norm;              ///< [q_lora_rank]
  ConstTensorView wq_b;                ///< [num_heads*head_dim, q_lora_rank]
  ConstTensorView wkv;                 ///< [head_dim, hidden]
  ConstTensorView kv_norm;             ///< [head_dim]
  ConstTensorView wo_a;                ///< [o_groups*o_lora_rank, num_heads/o_groups*head_dim]
  ConstTensorView wo_b;                ///< [hidden, o_groups*o_lora_rank]
  ConstTensorView attn_sink;           ///< [num_heads] F32
  CompressorWeights compressor;        ///< compress_ratio > 1
  CompressorWeights index_compressor;  ///< compress_ratio = 4
  ConstTensorView index_wq_b;          ///< [index_n_heads*index_head_dim, q_lora_rank], compress_ratio = 4
  ConstTensorView index_weights_proj;  ///< [index_n_heads, hidden], compress_ratio = 4
  /// With E4M3 weights: [cdiv(outputs, 128), cdiv(inputs, 128)] F32, a scale for each 128 x 128 of the weight; inputs
  /// are a multiple of 128, and so are the outputs of a group of wo_a. With NVFP4 weights: [outputs, inputs/16] E4M3, a
  /// scale for each 16 inputs of an output. With others none.
  ConstTensorView wq_a_scale{};
  ConstTensorView wq_b_scale{};                ///< as wq_a_scale
  ConstTensorView wkv_scale{};                 ///< as wq_a_scale
  ConstTensorView wo_a_scale{};                ///< as wq_a_scale
  ConstTensorView wo_b_scale{};                ///< as wq_a_scale
  ConstTensorView index_wq_b_scale{};          ///< as wq_a_scale
  ConstTensorView index_weights_proj_scale{};  ///< as wq_a_scale, with NVFP4 weights only
  /// With NVFP4 weights only: [1] F32, the scale of the whole weight.
  ConstTensorView wq_a_global_scale{};
  ConstTensorView wq_b_global_scale{};                ///< as wq_a_global_scale
  ConstTensorView wkv_global_scale{};                 ///< as wq_a_global_scale
  ConstTensorView wo_a_global_scale{};                ///< as wq_a_global_scale
  ConstTensorView wo_b_global_scale{};                ///< as wq_a_global_scale
  ConstTensorView index_wq_b_global_scale{};          ///< as wq_a_global_scale
  ConstTensorView index_weights_proj_global_scale{};  ///< as wq_a_global_scale
};

}  // namespace smla
