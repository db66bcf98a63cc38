// The front-end after upstream's backend for sm_12x (spec 8.7): two scopes everywhere, prefills 4 requests at a time.
#include <algorithm>

#include "layer/attention_calls.h"
#include "layer/front_end_row.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::array<std::string_view, 3> kNames{"sm120", kFlashInferDsv4, "DSV4_SPARSE_MLA_SM120"};
constexpr std::int64_t kRequestsOfACall = 4;
constexpr std::array<std::int64_t, 5> kDecodeWidths{128, 192, 256, 512, 1024};

class Sm120Calls : public AttentionCalls {
 public:
  explicit Sm120Calls(const AttentionPlanning& planning) : calls_(planning) {
    const BatchSplit& split = planning.shape.split;
    if (split.decode_tokens > 0) calls_.add(planning, 0, split.decode_tokens);
    if (split.decode_tokens == planning.shape.tokens) return;
    for (std::int64_t r = 0; r < split.prefills; r += kRequestsOfACall) {
      const std::int64_t last = std::min(r + kRequestsOfACall, split.prefills);
      calls_.add(planning, planning.prefill_begin(r), planning.prefill_begin(last));
    }
  }
  void run(const AttentionRun& run) const override { calls_.run(run); }

 private:
  TwoScopeCalls calls_;
};

void check_dtype(std::string_view cache_dtype) {
  check_ds_mla_dtype(cache_dtype);
  if (cache_dtype == "fp8_inc") throw InvalidArgument("kv_cache_dtype not supported");
}

void check_call(const UpstreamCall& call) {
  const auto one_of = [](const auto& values, std::int64_t value) {
    return std::ranges::find(values, value) != values.end();
  };
  if (!one_of(kFlashInferHeads, call.padded_heads) || !one_of(kDecodeWidths, call.window_width)) {
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
}

}  // namespace

const FrontEndRow& sm120_row() {
  static const FrontEndRow row{.id = FrontEnd::kSm120,
                               .names = kNames,
                               .device_major = 12,
                               .auto_rows = fp8_ds_mla_rows,
                               .fp8_rows = fp8_ds_mla_rows,
                               .reads_slots = true,
                               .reads_mixed_rows = false,
                               .gathers_prefills = false,
                               .check_dtype = check_dtype,
                               .padded_heads = flashinfer_heads,
                               .check_call = check_call,
                               .no_entries_text = [](std::string_view) -> std::string {
                                 return "Sparse MLA metadata is required for compressed layers.";
                               },
                               .plan = [](const AttentionPlanning& planning) -> std::unique_ptr<const AttentionCalls> {
                                 return std::make_unique<Sm120Calls>(planning);
                               },
                               .most_buffer_bytes = nullptr};
  return row;
}

}  // namespace smla
