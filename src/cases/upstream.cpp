#include "cases/upstream.h"

#include <array>

namespace smla::upstream {

std::span<const ReplayEntry> table() {
  static constexpr std::array<ReplayEntry, 18> kTable{{
      {"upstream:fused_q_kv_rmsnorm", q_kv_rmsnorm, true},
      {"upstream:fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert", insert_fp8_ds_mla, true},
      {"upstream:fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_bf16_insert", insert_bf16, true},
      {"upstream:fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_fp8_insert", insert_fp8, true},
      {"upstream:save_partial_states + compress_norm_rope_store", compress, true},
      {"upstream:fused_indexer_q_rope_quant", indexer_q, true},
      {"upstream:indexer_k_quant_and_cache (ue8m0)", insert_keys, true},
      {"upstream:quantize_and_insert_k_cache", insert_keys, true},
      {"upstream:cp_gather_indexer_k_quant_cache", gather_index_rows, true},
      {"upstream:fused_inv_rope_fp8_quant", inverse_rope_quant, true},
      {"upstream:dequantize_and_gather_k_cache", gather_rows, true},
      {"upstream:combine_topk_swa_indices", combine_indices, true},
      {"upstream:compute_global_topk_indices_and_lens", global_indices, true},
      {"upstream:get_compressed_slot_mapping", compressed_slots, true},
      {"upstream:build_flashinfer_mixed_sparse_indices", mixed_indices, true},
      {"upstream:DeepGEMM fp8_paged_mqa_logits (sm90)", paged_logits, true},
      {"upstream:DeepGEMM fp8_mqa_logits (sm90)", ragged_logits, true},
      {"upstream:vllm cooperative_topk", topk, true},
  }};
  return kTable;
}

}  // namespace smla::upstream
