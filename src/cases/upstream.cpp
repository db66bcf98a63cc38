#include "cases/upstream.h"

#include <array>

namespace smla::upstream {

std::span<const ReplayEntry> table() {
  static constexpr std::array<ReplayEntry, 18> kTable{{
      {"upstream:fused_q_kv_rmsnorm", q_kv_rmsnorm},
      {"upstream:fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert", insert_fp8_ds_mla},
      {"upstream:fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_bf16_insert", insert_bf16},
      {"upstream:fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_fp8_insert", insert_fp8},
      {"upstream:save_partial_states + compress_norm_rope_store", compress},
      {"upstream:fused_indexer_q_rope_quant", indexer_q},
      {"upstream:indexer_k_quant_and_cache (ue8m0)", insert_keys},
      {"upstream:quantize_and_insert_k_cache", insert_keys},
      {"upstream:cp_gather_indexer_k_quant_cache", gather_index_rows},
      {"upstream:fused_inv_rope_fp8_quant", inverse_rope_quant},
      {"upstream:dequantize_and_gather_k_cache", gather_rows},
      {"upstream:combine_topk_swa_indices", combine_indices},
      {"upstream:compute_global_topk_indices_and_lens", global_indices},
      {"upstream:get_compressed_slot_mapping", compressed_slots},
      {"upstream:build_flashinfer_mixed_sparse_indices", mixed_indices},
      {"upstream:DeepGEMM fp8_paged_mqa_logits (sm90)", paged_logits},
      {"upstream:DeepGEMM fp8_mqa_logits (sm90)", ragged_logits},
      {"upstream:vllm cooperative_topk", topk},
  }};
  return kTable;
}

}  // namespace smla::upstream
