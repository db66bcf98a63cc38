// Upstream's indexer calls: queries, gathered keys, scores, selection.
#include <algorithm>
#include <cmath>

#include "cases/upstream.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/topk.h"

namespace smla::upstream {

namespace {

/// A factor that the library takes from the shape: a dump with another one is no call that it can make.
void check_factor(const CaseParams& params, const char* name, std::int64_t n) {
  const double expected = 1.0 / std::sqrt(static_cast<double>(n));
  const double got = params.number(name, -1e300, 1e300, expected);
  check_that(std::fabs(got - expected) <= 1e-6 * expected, params.where(), name, std::to_string(got),
             std::to_string(expected));
}

/// As wide as upstream's own, which may be padded. Only ReplayResult::defined columns are compared, and there a score
/// that was not written shows.
HostTensor poisoned_scores(const CaseFile& file, std::int64_t rows, std::int64_t width) {
  const HostTensor* want = file.find("out.logits");
  if (want == nullptr) return poisoned(DType::kF32, {rows, width});
  check_tensor(file.path, "out.logits", want->view(), {rows, kAny}, {DType::kF32});
  return poisoned(DType::kF32, want->shape());
}

}  // namespace

ReplayResult indexer_q(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  const std::string mode = params.text("mode");
  check_that(mode == "fp8" || mode == "mxfp4", params.where(), "mode", "\"" + mode + "\"", "\"fp8\" or \"mxfp4\"");
  const bool fp8 = mode == "fp8";
  IndexerQ::Args args;
  args.q = input(file, "q", {kAny, kAny, kAny}, DType::kBF16);
  const std::int64_t tokens = args.q.size(0);
  const std::int64_t heads = args.q.size(1);
  const std::int64_t dim = args.q.size(2);
  check_factor(params, "softmax_scale", dim);
  check_factor(params, "head_scale", heads);
  args.weights = input(file, "weights", {tokens, heads}, DType::kBF16);
  args.positions = input(file, "position", {tokens}, DType::kI64);
  args.cos_sin = input(file, "cos_sin", {kAny, kAny}, DType::kF32);
  HostTensor q_out = poisoned(fp8 ? DType::kE4M3 : DType::kU8, {tokens, heads, fp8 ? dim : dim / 2});
  check_that(dim == index_mxfp4_rows().dim, file.path, "in.q head width", dim, std::to_string(index_mxfp4_rows().dim));
  HostTensor q_scale = poisoned(DType::kI32, {tokens, heads});  // four bytes in an int32
  HostTensor weights = poisoned(DType::kF32, {tokens, heads});
  args.q_out = q_out.view();
  if (!fp8) args.q_scale = TensorView(q_scale.data(), DType::kU8, {tokens, heads, dim / 32});
  args.weights_out = weights.view();
  const IndexerQ::Problem problem{.tokens = tokens,
                                  .heads = heads,
                                  .dim = static_cast<int>(dim),
                                  .rope_dim = static_cast<int>(args.cos_sin.size(1)),
                                  .format = fp8 ? &index_fp8_rows() : &index_mxfp4_rows()};
  ReplayResult result;
  run<IndexerQ>(problem, options, args, result);
  if (fp8) result.bounds.emplace("q_fp8", ulps(1));
  result.bounds.emplace("weights_out", floats());
  result.results.emplace(fp8 ? "q_fp8" : "q_packed", std::move(q_out));
  if (!fp8) result.results.emplace("q_scale", std::move(q_scale));
  result.results.emplace("weights_out", std::move(weights));
  return result;
}

ReplayResult gather_index_rows(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  const HostTensor& cache = input(file, {"cache", "kv_cache", "k_cache"});
  const HostTensor& want_k = file.tensor("out.dst_k");
  const HostTensor& want_scale = file.tensor("out.dst_scale");
  check_tensor(file.path, "out.dst_k", want_k.view(), {kAny, kAny}, {DType::kU8, DType::kE4M3});
  const std::int64_t rows = want_k.size(0);
  const RowFormat& format = want_k.size(1) == index_mxfp4_rows().data_bytes ? index_mxfp4_rows() : index_fp8_rows();
  check_that(want_k.size(1) == format.data_bytes, file.path, "out.dst_k", describe(want_k.view()),
             "rows of " + std::to_string(index_fp8_rows().data_bytes) + " or " +
                 std::to_string(index_mxfp4_rows().data_bytes) + " bytes");
  check_that(static_cast<std::int64_t>(want_scale.bytes()) == rows * format.scale_bytes, file.path, "out.dst_scale",
             describe(want_scale.view()), std::to_string(format.scale_bytes) + " bytes for each row of out.dst_k");
  const auto fill = static_cast<int>(params.integer("fill", 0, 255, 0));
  HostTensor k(want_k.dtype(), want_k.shape());
  HostTensor scale(want_scale.dtype(), want_scale.shape());
  if (k.bytes() > 0) std::memset(k.data(), fill, k.bytes());
  if (scale.bytes() > 0) std::memset(scale.data(), fill, scale.bytes());

  GatherIndexRows::Args args;
  args.cache = cache_of(file, "in.cache", cache, format, params.integer("block_size", 1, INT32_MAX, 64));
  args.cu_seq_lens = input(file, "cu_seq_lens", {kAny}, DType::kI32);
  args.block_table = input(file, "block_table", {kAny, kAny}, DType::kI32);
  args.values = TensorView(k.data(), DType::kU8, {rows, format.data_bytes});
  args.scales = TensorView(scale.data(), DType::kU8, {rows, format.scale_bytes});
  ReplayResult result;
  run<GatherIndexRows>({.requests = args.cu_seq_lens.size(0) - 1, .rows = rows, .format = &format}, options, args,
                       result);
  result.results.emplace("dst_k", std::move(k));
  result.results.emplace("dst_scale", std::move(scale));
  return result;
}

ReplayResult paged_logits(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  const HostTensor& cache = input(file, {"cache", "kv_cache", "fused_kv_cache"});
  const HostTensor& q = input(file, "q");
  check_tensor(file.path, "in.q", q.view(), {kAny, kAny, kAny, kAny}, {DType::kE4M3});
  const std::int64_t requests = q.size(0);
  const std::int64_t next_n = q.size(1);
  const std::int64_t rows = requests * next_n;
  const HostTensor& lens = input(file, "context_lens");
  check_that(lens.dtype() == DType::kI32 && lens.numel() == rows, file.path, "in.context_lens", describe(lens.view()),
             "[" + std::to_string(requests) + ", " + std::to_string(next_n) + "] I32");
  IndexerLogits::Args args;
  args.q = ConstTensorView(q.data(), DType::kE4M3, {rows, q.size(2), q.size(3)});
  args.weights = input(file, "weights", {rows, q.size(2)}, DType::kF32);
  HostTensor row_to_req(DType::kI32, {rows});
  for (std::int64_t row = 0; row < rows; ++row)
    row_to_req.as<std::int32_t>()[row] = static_cast<std::int32_t>(row / next_n);
  args.row_to_req = row_to_req.view();
  args.lens = ConstTensorView(lens.data(), DType::kI32, {rows});
  args.block_table = input(file, "block_table", {kAny, kAny}, DType::kI32);
  args.cache = cache_of(file, "in.cache", cache, index_fp8_rows(), params.integer("block_size", 1, INT32_MAX, 64));
  const auto longest = rows == 0 ? 0 : *std::max_element(lens.as<std::int32_t>(), lens.as<std::int32_t>() + rows);
  // No entry exists past the block table, whatever the lengths say: a width that the file itself justifies.
  const std::int64_t held = args.block_table.size(1) * args.cache.block_size;
  HostTensor logits = poisoned_scores(file, rows, std::clamp<std::int64_t>(longest, 0, held));
  args.logits = logits.view();
  const IndexerLogits::Problem problem{.rows = rows,
                                       .heads = q.size(2),
                                       .dim = static_cast<int>(q.size(3)),
                                       .width = logits.size(1),
                                       .format = &index_fp8_rows()};
  ReplayResult result;
  run<IndexerLogits>(problem, options, args, result);
  ColumnRanges& defined = result.defined["logits"];
  for (std::int64_t row = 0; row < rows; ++row)
    defined.push_back({0, std::min<std::int64_t>(lens.as<std::int32_t>()[row], logits.size(1))});
  result.bounds.emplace("logits", scores());
  result.results.emplace("logits", std::move(logits));
  result.ignored.insert("schedule");
  return result;
}

ReplayResult ragged_logits(const CaseFile& file, const ReplayOptions& options) {
  RaggedIndexerLogits::Args args;
  args.q = input(file, "q", {kAny, kAny, kAny}, DType::kE4M3);
  const std::int64_t rows = args.q.size(0);
  const RowFormat& format = index_fp8_rows();
  const HostTensor& k = input(file, {"k", "kv", "k_fp8", "kv_fp8", "k_quant"});
  const HostTensor& scale = input(file, {"k_scale", "kv_scale", "k_scales", "kv_scales", "scale"});
  const std::int64_t keys = static_cast<std::int64_t>(k.bytes()) / format.data_bytes;
  check_tensor(file.path, "in.k", k.view(), {keys, format.data_bytes}, {DType::kE4M3, DType::kU8});
  check_that(static_cast<std::int64_t>(scale.bytes()) == keys * format.scale_bytes, file.path, "in.k_scale",
             describe(scale.view()), "[" + std::to_string(keys) + "] F32");
  args.values = ConstTensorView(k.data(), DType::kU8, {keys, format.data_bytes});
  args.scales = ConstTensorView(scale.data(), DType::kU8, {keys, format.scale_bytes});
  args.weights = input(file, "weights", {rows, args.q.size(1)}, DType::kF32);
  const HostTensor& starts = input(file, {"ks", "cu_seq_len_k_start", "cu_seqlen_ks"});
  const HostTensor& ends = input(file, {"ke", "cu_seq_len_k_end", "cu_seqlen_ke"});
  args.starts = starts.view();
  args.ends = ends.view();
  HostTensor logits = poisoned_scores(file, rows, keys);
  // Upstream may pad its rows; what is past the keys is not defined.
  args.logits = logits.view();
  check_that(logits.size(1) >= keys, file.path, "columns of out.logits", logits.size(1),
             "at least the " + std::to_string(keys) + " keys");
  args.logits.shape[1] = keys;
  const RaggedIndexerLogits::Problem problem{
      .rows = rows, .keys = keys, .heads = args.q.size(1), .dim = static_cast<int>(args.q.size(2)), .format = &format};
  ReplayResult result;
  run<RaggedIndexerLogits>(problem, options, args, result);
  ColumnRanges& defined = result.defined["logits"];
  for (std::int64_t row = 0; row < rows; ++row) {
    defined.push_back({starts.as<std::int32_t>()[row], std::min<std::int64_t>(ends.as<std::int32_t>()[row], keys)});
  }
  result.bounds.emplace("logits", scores());
  result.results.emplace("logits", std::move(logits));
  return result;
}

ReplayResult topk(const CaseFile& file, const ReplayOptions& options) {
  TopK::Args args;
  args.logits = input(file, "logits", {kAny, kAny}, DType::kF32);
  const std::int64_t rows = args.logits.size(0);
  const HostTensor& lens = input(file, {"lens", "lengths", "seq_lens"});
  check_that(lens.dtype() == DType::kI32 && lens.numel() == rows, file.path, "in.lens", describe(lens.view()),
             "[" + std::to_string(rows) + "] I32");
  args.lens = ConstTensorView(lens.data(), DType::kI32, {rows});
  const HostTensor* want = file.find("out.indices_sorted");
  const std::int64_t k = file.reader().integer(
      "k|topk", 0, INT32_MAX,
      want != nullptr && want->rank() == 2 ? std::optional<std::int64_t>(want->size(1)) : std::nullopt);
  HostTensor indices = poisoned(DType::kI32, {rows, k});  // ascending, -1 last: as it is on the CPU
  args.indices = indices.view();
  ReplayResult result;
  run<TopK>({.rows = rows, .width = args.logits.size(1), .k = k}, options, args, result);
  Tolerance set;
  set.set = true;
  result.bounds.emplace("indices_sorted", set);
  result.results.emplace("indices_sorted", std::move(indices));
  return result;
}

}  // namespace smla::upstream
