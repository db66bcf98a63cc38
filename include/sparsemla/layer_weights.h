#pragma once

#include "sparsemla/export.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Weights of one compressor (spec 3): `dim` 512 for the layer's, 128 for the indexer's.
struct CompressorWeights {
  ConstTensorView wkv;    ///< [coff*dim, hidden] BF16 or F32
  ConstTensorView wgate;  ///< [coff*dim, hidden]
  ConstTensorView ape;    ///< [ratio, coff*dim] F32 or BF16
  ConstTensorView norm;   ///< [dim] BF16 or F32
};

/// Weights of one layer by their checkpoint names (spec 1); memory belongs to the caller and must outlive the layer.
/// Linear weights are BF16 or F32. Those with a scale below may be E4M3: on a GPU, but for few tokens
/// (AttentionLayer::rounds_fp8_inputs), their inputs are then quantised to FP8, too (QuantizeRows; of wo_a
/// InverseRopeQuant).
/// Weights of the same input that follow one another in memory are one product: wq_a and wkv; wkv and wgate of the
/// compressor, with those of the indexer's compressor behind them where there is one.
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
  /// With E4M3 weights only: [cdiv(outputs, 128), cdiv(inputs, 128)] F32, a scale for each 128 x 128 of the weight;
  /// inputs are a multiple of 128, and so are the outputs of a group of wo_a.
  ConstTensorView wq_a_scale{};
  ConstTensorView wq_b_scale{};        ///< as wq_a_scale
  ConstTensorView wkv_scale{};         ///< as wq_a_scale
  ConstTensorView wo_a_scale{};        ///< as wq_a_scale
  ConstTensorView wo_b_scale{};        ///< as wq_a_scale
  ConstTensorView index_wq_b_scale{};  ///< as wq_a_scale
};

}  // namespace smla
