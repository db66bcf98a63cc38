// Upstream's refusals that are the same for all front-ends.
#include <algorithm>

#include "layer/front_end_row.h"
#include "sparsemla/error.h"
#include "sparsemla/front_end.h"

namespace smla {

std::int64_t flashinfer_heads(std::int64_t heads) {
  for (const std::int64_t padded : kFlashInferHeads) {
    if (heads <= padded) return padded;
  }
  throw InvalidArgument("DeepseekV4 FlashInfer MLA Sparse does not support " + std::to_string(heads) +
                        " heads (sparse MLA kernel requires h_q in {8, 16, 32, 64, 128}).");
}

std::string missing_schedule_text(std::string_view kind) {
  return "missing schedule entry for layer kind " + std::string(kind);
}

void check_ds_mla_dtype(std::string_view cache_dtype) {
  if (cache_dtype == "auto" || cache_dtype == "bfloat16") {
    throw InvalidArgument("DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got " + std::string(cache_dtype));
  }
  if (cache_dtype != "fp8_ds_mla" && !is_plain_fp8(cache_dtype)) throw InvalidArgument("kv_cache_dtype not supported");
}

void check_upstream_blocks(std::int64_t window_block, std::int64_t compressed_block, std::int64_t compress_ratio) {
  if (window_block < 64 || window_block % 64 != 0) {
    throw InvalidArgument("block size of the window cache: got " + std::to_string(window_block) +
                          " tokens, expected a multiple of 64");
  }
  if (compress_ratio > 1 && compressed_block * compress_ratio != 256) {
    throw InvalidArgument("block size of the compressed cache: got " + std::to_string(compressed_block) +
                          " entries of " + std::to_string(compress_ratio) + " tokens, expected 256 tokens");
  }
}

void check_upstream_layout(const KvLayout& layout, std::span<const std::string> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (std::ranges::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InvalidArgument("Duplicate layer name: " + names[i]);
    }
  }
  for (const CacheGroup& group : layout.groups) {
    for (const LayerCache& c : group.caches) {
      const LayerCache& first = group.caches.front();
      const bool entries = c.role == CacheRole::kCompressed || c.role == CacheRole::kIndex;
      if (entries ? group.block_tokens % c.block_size != 0 : c.block_size != first.block_size) {
        throw InvalidArgument("No common block size for " + std::to_string(group.caches.size()) + " layers");
      }
      if (c.page_bytes > layout.block_stride_bytes) throw InvalidArgument("max(sm_page_sizes) must be <= block stride");
    }
  }
}

void check_upstream_insert(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args) {
  const auto require = [](bool ok, const char* text) {
    if (!ok) throw InvalidArgument(text);
  };
  const auto contiguous = [](const ConstTensorView& v) {
    std::int64_t step = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
      if (v.size(i) > 1 && v.stride[static_cast<std::size_t>(i)] != step) return false;
      step *= v.size(i);
    }
    return true;
  };
  const bool full_row = problem.format != nullptr && problem.format->scale != ScaleKind::kUe8m0;
  require(contiguous(args.q), "q_in must be contiguous CUDA");
  require(contiguous(args.kv), "kv must be contiguous CUDA");
  require(args.slot_mapping.dtype == DType::kI64, "slot_mapping must be int64 CUDA");
  require(args.positions.dtype == DType::kI64, "position_ids must be int64 CUDA");
  require(args.q.rank == 3 && args.q.size(2) == problem.dim, "q_in shape [N, num_heads_q, 512]");
  require(args.kv.rank == 2 && args.kv.size(1) == problem.dim, "kv shape [N, 512]");
  require(args.q.dtype == args.kv.dtype, "q_in and kv dtype must match");
  const std::int64_t padded = problem.out_heads == 0 ? args.q.size(1) : problem.out_heads;
  require(padded >= args.q.size(1), "q_head_padded must be >= q_in.size(1) (num_heads_q)");
  if (!full_row) {
    require(args.cache.format != nullptr && args.cache.format->scale == ScaleKind::kUe8m0, "k_cache must be uint8");
  } else if (problem.format->nope == Element::kBF16) {
    require(args.cache.format != nullptr && args.cache.format->nope == Element::kBF16, "k_cache must be bfloat16");
  } else {
    require(args.cache.format != nullptr && args.cache.format->nope == Element::kE4M3, "k_cache must be float8_e4m3fn");
  }
  require(args.cos_sin.rank == 2 && args.cos_sin.size(1) == problem.rope_dim, "cos_sin_cache shape [max_pos, 64]");
  require(args.cos_sin.dtype == DType::kF32, "cos_sin_cache must be float32");
  require(args.kv.size(0) == args.q.size(0) && args.positions.size(0) == args.q.size(0),
          "q/kv/position_ids row counts must match");
  require(args.slot_mapping.size(0) <= args.q.size(0), "slot_mapping must not exceed q row count");
  if (!full_row && std::ranges::find(kFlashInferHeads, padded) == kFlashInferHeads.end()) {
    throw InvalidArgument("unsupported num_heads_q_padded=" + std::to_string(padded) +
                          " (compiled instantiations: 8, 16, 32, 64, 128).");
  }
}

}  // namespace smla
