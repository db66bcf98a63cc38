#include "sparsemla/front_end.h"

#include <algorithm>
#include <array>
#include <string>

#include "sparsemla/error.h"

namespace smla {

namespace {

struct Name {
  std::string_view text;
  FrontEnd front_end;
};

constexpr std::string_view kFlashInferDsv4 = "FLASHINFER_MLA_SPARSE_DSV4";  // two classes: by the device

// Our names first, then upstream's of today and of older versions (spec 8.1, 15).
constexpr std::array kNames{Name{"flashmla", FrontEnd::kFlashMla},
                            Name{"FLASHMLA_SPARSE", FrontEnd::kFlashMla},
                            Name{"FLASHMLA_SPARSE_DSV4", FrontEnd::kFlashMla},
                            Name{"V4_FLASHMLA_SPARSE", FrontEnd::kFlashMla},
                            Name{"flashinfer", FrontEnd::kFlashInfer},
                            Name{kFlashInferDsv4, FrontEnd::kFlashInfer},
                            Name{"V4_FLASHINFER_MLA_SPARSE", FrontEnd::kFlashInfer},
                            Name{"FLASHINFER_MLA_SPARSE_V4", FrontEnd::kFlashInfer},
                            Name{"sm120", FrontEnd::kSm120},
                            Name{kFlashInferDsv4, FrontEnd::kSm120},
                            Name{"DSV4_SPARSE_MLA_SM120", FrontEnd::kSm120}};

constexpr std::array<std::int64_t, 5> kHeadCounts{8, 16, 32, 64, 128};
constexpr std::array<std::int64_t, 5> kSm120Widths{128, 192, 256, 512, 1024};

template <class Values>
bool one_of(const Values& values, const auto& value) {
  return std::ranges::find(values, value) != values.end();
}

/// fp8, fp8_e4m3, fp8_inc: the FP8 rows of the front-end.
bool is_plain_fp8(std::string_view name) { return name == "fp8" || name == "fp8_e4m3" || name == "fp8_inc"; }

void check_strict_dtype(FrontEnd front_end, std::string_view name) {
  if (front_end == FrontEnd::kFlashInfer) {
    if (name == "fp8_ds_mla")
      throw InvalidArgument("FLASHINFER_MLA_SPARSE_DSV4 SM10x uses the plain per-tensor FP8 KV layout, not fp8_ds_mla");
    if (!one_of(std::array<std::string_view, 4>{"auto", "bfloat16", "fp8", "fp8_e4m3"}, name))
      throw InvalidArgument("kv_cache_dtype not supported");
    return;
  }
  if (name == "auto" || name == "bfloat16") {
    throw InvalidArgument("DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got " + std::string(name));
  }
  const bool listed = name == "fp8_ds_mla" || is_plain_fp8(name);
  if (!listed || (front_end == FrontEnd::kSm120 && name == "fp8_inc"))
    throw InvalidArgument("kv_cache_dtype not supported");
}

}  // namespace

std::string_view name_of(FrontEnd front_end) {
  constexpr std::array<std::string_view, 3> kFrontEnds{"flashmla", "flashinfer", "sm120"};
  return kFrontEnds[static_cast<std::size_t>(front_end)];
}

std::vector<std::string_view> front_end_names(FrontEnd front_end) {
  std::vector<std::string_view> names;
  for (const Name& name : kNames) {
    if (name.front_end == front_end) names.push_back(name.text);
  }
  return names;
}

FrontEnd front_end(std::string_view name, int device_major) {
  if (name.empty() || name == "auto") return device_major == 12 ? FrontEnd::kSm120 : FrontEnd::kFlashMla;
  if (name == kFlashInferDsv4) return device_major == 12 ? FrontEnd::kSm120 : FrontEnd::kFlashInfer;
  if (name == "FLASHINFER_MLA_SPARSE" || name == "FLASHINFER_MLA_SPARSE_SM120") {
    throw InvalidArgument(std::string(name) +
                          " is not a DeepSeek V4 attention backend. Use FLASHINFER_MLA_SPARSE_DSV4 for DeepSeek V4 "
                          "FlashInfer sparse MLA.");
  }
  std::string accepted = "auto";
  for (const Name& known : kNames) {
    if (known.text == name) return known.front_end;
    const bool listed = known.text == kFlashInferDsv4 && known.front_end == FrontEnd::kSm120;
    if (!listed) accepted += ", " + std::string(known.text);
  }
  throw InvalidArgument("front-end: got \"" + std::string(name) + "\", expected one of " + accepted);
}

const RowFormat& cache_rows(FrontEnd front_end, std::string_view cache_dtype, bool strict) {
  const bool plain = front_end == FrontEnd::kFlashInfer;
  const auto found = [&]() -> const RowFormat* {
    if (cache_dtype == "fp8_ds_mla") return &fp8_ds_mla_rows();
    if (cache_dtype == "bf16" || cache_dtype == "bfloat16") return &bf16_rows();
    if (cache_dtype == "fp8_per_tensor") return &fp8_per_tensor_rows();
    if (cache_dtype == "auto") return plain ? &bf16_rows() : &fp8_ds_mla_rows();
    if (is_plain_fp8(cache_dtype)) return plain ? &fp8_per_tensor_rows() : &fp8_ds_mla_rows();
    return nullptr;
  }();
  if (found == nullptr) {
    throw InvalidArgument(
        "cache dtype: got \"" + std::string(cache_dtype) +
        "\", expected one of auto, fp8_ds_mla, bf16, bfloat16, fp8_per_tensor, fp8, fp8_e4m3, fp8_inc");
  }
  if (strict) check_strict_dtype(front_end, cache_dtype);
  return *found;
}

const RowFormat& index_rows(std::string_view indexer_kv_dtype, bool strict, int device_major) {
  if (indexer_kv_dtype == "fp8" || indexer_kv_dtype == "auto") return index_fp8_rows();
  if (indexer_kv_dtype != "mxfp4") {
    throw InvalidArgument("indexer_kv_dtype='" + std::string(indexer_kv_dtype) +
                          "' is not supported by the DeepSeek sparse indexer (expected one of ('fp8', 'mxfp4')).");
  }
  if (strict && device_major != 10) {
    throw InvalidArgument(
        "indexer_kv_dtype='mxfp4' requires Blackwell datacenter GPUs (sm_10x), got " +
        (device_major == 0 ? std::string("a CPU") : "compute capability " + std::to_string(device_major) + ".x"));
  }
  return index_mxfp4_rows();
}

std::int64_t upstream_padded_heads(FrontEnd front_end, std::int64_t heads) {
  if (front_end == FrontEnd::kFlashMla) {
    if (heads <= 64) return 64;
    if (heads <= 128) return 128;
    throw InvalidArgument("DeepseekV4 FlashMLA does not support " + std::to_string(heads) +
                          " heads (FP8 decode kernel requires h_q in {64, 128}).");
  }
  for (const std::int64_t padded : kHeadCounts) {
    if (heads <= padded) return padded;
  }
  throw InvalidArgument("DeepseekV4 FlashInfer MLA Sparse does not support " + std::to_string(heads) +
                        " heads (sparse MLA kernel requires h_q in {8, 16, 32, 64, 128}).");
}

void check_upstream_call(FrontEnd front_end, const UpstreamCall& call) {
  switch (front_end) {
    case FrontEnd::kFlashMla: {
      const std::int64_t step = call.padded_heads > 64 ? 128 : 64;
      for (const std::int64_t width : {call.window_width, call.compressed_width}) {
        if (width % step == 0) continue;
        throw Unsupported("FlashMLA: top-k width: got " + std::to_string(width) + ", expected a multiple of " +
                          std::to_string(step) + " with " + std::to_string(call.padded_heads) + " heads");
      }
      return;
    }
    case FrontEnd::kFlashInfer:
      if ((call.window_width + call.compressed_width) % 4 == 0) return;
      throw Unsupported("FlashInfer sparse MLA: index row: got " +
                        std::to_string(call.window_width + call.compressed_width) +
                        " columns, expected a multiple of 4");
    case FrontEnd::kSm120: {
      if (!one_of(kHeadCounts, call.padded_heads) || !one_of(kSm120Widths, call.window_width)) {
        throw Unsupported(
            "FLASHINFER_MLA_SPARSE_DSV4 on SM120 requires a FlashInfer DSV4 sparse MLA decode specialization for "
            "(num_q_heads=" +
            std::to_string(call.padded_heads) + ", top_k=" + std::to_string(call.window_width) +
            "). Install a FlashInfer build containing flashinfer-ai/flashinfer#4380.");
      }
      const bool decode_kernel = call.tokens <= 64;
      if (decode_kernel && call.compressed_width != 0 && call.compressed_width % 64 != 0) {
        throw Unsupported(
            "SM120 sparse-MLA has no decode kernel for this shape: num_tokens=" + std::to_string(call.tokens) +
            ", num_heads=" + std::to_string(call.padded_heads) + ", topk=" + std::to_string(call.window_width) +
            ", extra_topk=" + std::to_string(call.compressed_width));
      }
      return;
    }
  }
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
  if (!full_row && !one_of(kHeadCounts, padded)) {
    throw InvalidArgument("unsupported num_heads_q_padded=" + std::to_string(padded) +
                          " (compiled instantiations: 8, 16, 32, 64, 128).");
  }
}

}  // namespace smla
