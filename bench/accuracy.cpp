#include "bench/accuracy.h"

#include <algorithm>

#include "bench/accuracy_stack.h"
#include "ops/named_implementations.h"
#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr std::array<std::string_view, 4> kGroups{"cache", "index", "weights", "kernel"};
// Of the group kernel: the reference takes minutes beyond, and no kernel errs more for it.
constexpr std::int64_t kKernelContext = 1024;
constexpr std::int64_t kKernelMeasured = 128;

LayerOptions rows_of(const RowFormat& rows, std::optional<DType> q = {}) {
  LayerOptions out;
  out.caches.rows = &rows;
  out.q = q;
  return out;
}

LayerOptions index_of(const RowFormat& rows) {
  LayerOptions out;
  out.caches.index = &rows;
  return out;
}

LayerOptions f32() {
  LayerOptions out;
  out.precision = Precision::kF32;
  return out;
}

/// Everything that is measured. What a row does not name is fp8_ds_mla rows, bf16 queries, index_fp8 rows, bf16 weights
/// and the fastest kernels.
std::vector<AccuracyCase> cases_of(DeviceKind device) {
  std::vector<AccuracyCase> out;
  const auto add = [&](std::string_view group, std::string name, const LayerOptions& options) -> AccuracyCase& {
    return out.emplace_back(AccuracyCase{.group = std::string(group), .name = std::move(name), .options = options});
  };
  add("cache", "f32 throughout", f32());
  add("cache", "bf16", rows_of(bf16_rows()));
  add("cache", "fp8_ds_mla", rows_of(fp8_ds_mla_rows()));
  add("cache", "fp8_ds_mla, e4m3 queries", rows_of(fp8_ds_mla_rows(), DType::kE4M3));
  add("cache", "fp8_per_tensor, bf16 queries", rows_of(fp8_per_tensor_rows(), DType::kBF16));
  add("cache", "fp8_per_tensor, e4m3 queries", rows_of(fp8_per_tensor_rows()));
  add("index", "index_f32", index_of(index_f32_rows()));
  add("index", "index_fp8", index_of(index_fp8_rows()));
  add("index", "index_fp8, Hadamard", index_of(index_fp8_rows())).hadamard = true;
  add("index", "index_mxfp4", index_of(index_mxfp4_rows()));
  add("index", "index_mxfp4, Hadamard", index_of(index_mxfp4_rows())).hadamard = true;
  add("weights", "fp8, dequantised", {}).weights = LinearEncoding::kFp8;
  AccuracyCase& stored = add("weights", "fp8 as stored", {});
  stored.weights = LinearEncoding::kFp8;
  stored.keep_fp8 = true;
  stored.options.fp8_output = OutputScale::kF32;  // with FP8 inputs, as on a GPU
  LayerOptions output;
  output.fp8_output = OutputScale::kF32;
  add("weights", "bf16, fp8 output projection", output);
  add("weights", "nvfp4", {}).weights = LinearEncoding::kNvfp4;
  const std::vector<std::string> kernels = device == DeviceKind::kCpu
                                               ? std::vector<std::string>{"ref", "cpu", "avx2", "avx512", "onednn"}
                                               : std::vector<std::string>{"cuda", "cuda_simt", "sm90", "cublaslt"};
  for (const std::string& kernel : kernels) {
    for (const bool exact : {false, true}) {
      LayerOptions options = exact ? f32() : LayerOptions{};
      options.implementations["*"] = kernel;
      add("kernel", kernel + (exact ? ", f32 throughout" : ""), options);
    }
  }
  for (AccuracyCase& c : out) c.options.device = device;
  return out;
}

/// Why a case cannot run here: this machine has none of its kernels.
std::string refusal_of(const AccuracyCase& c) {
  try {
    check_named_implementations(c.name, c.options.implementations, c.options.device);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::vector<std::string_view> accuracy_groups() { return {kGroups.begin(), kGroups.end()}; }

void measure_accuracy(const AccuracyOptions& options, const std::function<void(const std::string&)>& say,
                      const std::function<void(const AccuracyRow&)>& emit) {
  for (const std::string& group : options.groups) {
    if (std::ranges::find(kGroups, group) == kGroups.end())
      throw InvalidArgument("bench accuracy: got \"" + group + "\", expected cache, index, weights or kernel");
  }
  for (const std::int64_t context : options.contexts) {
    if (options.measured < 1 || context < options.measured)
      throw InvalidArgument("bench accuracy: context: got " + std::to_string(context) + " tokens, expected at least " +
                            std::to_string(std::max<std::int64_t>(options.measured, 1)) + ", the measured ones");
  }
  const std::vector<AccuracyCase> cases = cases_of(options.device);
  const auto measure = [&](const AccuracyOptions& o, std::int64_t context, bool kernels) {
    const auto left_out = [&](const AccuracyCase& c) {
      return (c.group == kGroups.back()) != kernels ||
             (!o.groups.empty() && std::ranges::find(o.groups, c.group) == o.groups.end());
    };
    if (std::ranges::all_of(cases, left_out)) return;
    const AccuracyModel model(o, context);
    say(std::to_string(context) + " tokens in float64");
    const AccuracyTruth truth = float64_truth(model);
    for (AccuracyCase c : cases) {
      if (left_out(c)) continue;
      c.options.threads = o.threads;
      say(std::to_string(context) + " tokens, " + c.group + ": " + c.name);
      const std::string refusal = refusal_of(c);
      emit(refusal.empty() ? measure_case(model, truth, c)
                           : AccuracyRow{.group = c.group, .name = c.name, .context = context, .skipped = refusal});
    }
  };
  for (const std::int64_t context : options.contexts) measure(options, context, false);
  if (options.contexts.empty()) return;
  AccuracyOptions kernels = options;
  kernels.measured = std::min(options.measured, kKernelMeasured);
  measure(kernels, std::max(kernels.measured, std::min(options.contexts.front(), kKernelContext)), true);
}

}  // namespace smla::bench
