// Upstream's index and slot calls: integers, compared exactly.
#include <algorithm>

#include "cases/upstream.h"
#include "sparsemla/ops/index.h"

namespace smla::upstream {

namespace {

/// A list of index rows, whatever size-1 axes stand between its first and last dimension.
ConstTensorView index_rows(const CaseFile& file, const char* name) {
  const HostTensor& tensor = input(file, name);
  check_that(tensor.dtype() == DType::kI32 && tensor.rank() >= 2, file.path, std::string("in.") + name,
             describe(tensor.view()), "[tokens, width] I32");
  const std::int64_t rows = tensor.size(0);
  return ConstTensorView(tensor.data(), DType::kI32,
                         {rows, rows == 0 ? tensor.size(tensor.rank() - 1) : tensor.numel() / rows});
}
ConstTensorView index_rows_if(const CaseFile& file, const char* name) {
  return file.find(std::string("in.") + name) == nullptr ? ConstTensorView{} : index_rows(file, name);
}

std::int64_t width_of(const CaseFile& file, const char* result, std::int64_t otherwise) {
  const HostTensor* want = file.find(std::string("out.") + result);
  return want == nullptr || want->rank() < 2 ? otherwise : want->size(want->rank() - 1);
}

}  // namespace

ReplayResult combine_indices(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  CombineTopkWindow::Problem problem{.window = params.integer("window", 1, INT32_MAX, 128),
                                     .ratio = params.integer("compress_ratio", 1, INT32_MAX),
                                     .top_k = params.integer("topk", 0, INT32_MAX),
                                     .m = params.integer("M", 0, INT32_MAX),
                                     .n = params.integer("N", 0, INT32_MAX)};
  CombineTopkWindow::Args args;
  args.topk = index_rows(file, "topk_indices");
  problem.tokens = args.topk.size(0);
  args.query_start_loc = input(file, "query_start_loc", {kAny}, DType::kI32);
  args.seq_lens = input(file, "seq_lens", {kAny}, DType::kI32);
  args.gather_lens = input(file, "gather_lens", {kAny}, DType::kI32);
  problem.requests = args.seq_lens.size(0);
  HostTensor indices = poisoned(
      DType::kI32,
      {problem.tokens, width_of(file, "combined_indices", (problem.top_k + problem.window + 127) / 128 * 128)});
  HostTensor lens = poisoned(DType::kI32, {problem.tokens});
  args.indices = indices.view();
  args.lens = lens.view();
  ReplayResult result;
  run<CombineTopkWindow>(problem, options, args, result);
  result.results.emplace("combined_indices", std::move(indices));
  result.results.emplace("combined_lens", std::move(lens));
  return result;
}

ReplayResult global_indices(const CaseFile& file, const ReplayOptions& options) {
  GlobalTopk::Args args;
  args.topk = index_rows(file, "topk_indices");
  const std::int64_t tokens = args.topk.size(0);
  args.token_to_req = input(file, "token_to_req", {tokens}, DType::kI32);
  args.block_table = input(file, "block_table", {kAny, kAny}, DType::kI32);
  args.valid = input(file, "is_valid_token", {tokens}, DType::kBool);
  HostTensor indices = poisoned(DType::kI32, shape_of(file, "global_topk_indices", {tokens, args.topk.size(1)}));
  HostTensor lens = poisoned(DType::kI32, {tokens});
  check_that(indices.numel() == args.topk.numel(), file.path, "out.global_topk_indices", describe(indices.view()),
             "the shape of in.topk_indices");
  args.indices = TensorView(indices.data(), DType::kI32, {tokens, args.topk.size(1)});
  args.lens = lens.view();
  const GlobalTopk::Problem problem{.requests = args.block_table.size(0),
                                    .tokens = tokens,
                                    .k = args.topk.size(1),
                                    .storage_block = file.reader().integer("block_size", 1, INT32_MAX)};
  ReplayResult result;
  run<GlobalTopk>(problem, options, args, result);
  result.results.emplace("global_topk_indices", std::move(indices));
  result.results.emplace("topk_lens", std::move(lens));
  return result;
}

ReplayResult compressed_slots(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  CompressedSlotMapping::Args args;
  args.query_start_loc = input(file, "query_start_loc", {kAny}, DType::kI32);
  args.seq_lens = input(file, "seq_lens", {kAny}, DType::kI32);
  args.block_table = input(file, "block_table", {kAny, kAny}, DType::kI32);
  const std::int64_t starts = args.query_start_loc.size(0);
  const std::int64_t scheduled = starts == 0 ? 0 : std::max(args.query_start_loc.as<std::int32_t>()[starts - 1], 0);
  constexpr std::int64_t kMaxTokens = std::int64_t{1}
                                      << 24;  // of a step; nothing else in the file bounds what query_start_loc says
  check_that(scheduled <= kMaxTokens, file.path, "last number of in.query_start_loc", scheduled,
             "at most " + std::to_string(kMaxTokens));
  HostTensor slots =
      poisoned(DType::kI64, shape_of(file, "slot_mapping", {params.integer("num_tokens", 0, kMaxTokens, scheduled)}));
  args.slots = slots.view();
  const CompressedSlotMapping::Problem problem{.requests = args.seq_lens.size(0),
                                               .tokens = slots.numel(),
                                               .ratio = params.integer("compress_ratio", 1, INT32_MAX),
                                               .storage_block = params.integer("block_size", 1, INT32_MAX)};
  ReplayResult result;
  run<CompressedSlotMapping>(problem, options, args, result);
  result.results.emplace("slot_mapping", std::move(slots));
  return result;
}

ReplayResult mixed_indices(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  MixedSparseIndices::Args args;
  args.decode_window = index_rows_if(file, "decode_swa_indices");
  args.decode_compressed = index_rows_if(file, "decode_compressed_indices");
  args.prefill_topk = index_rows_if(file, "prefill_topk_indices");
  args.query_start_loc = input(file, "query_start_loc", {kAny}, DType::kI32);
  args.seq_lens = input(file, "seq_lens", {kAny}, DType::kI32);
  args.token_to_req = input(file, "token_to_req", {kAny}, DType::kI32);
  args.window_table = input(file, "swa_block_table", {kAny, kAny}, DType::kI32);
  args.compressed_table = index_rows_if(file, "compressed_block_table");
  const std::int64_t decode_width = args.decode_compressed.absent() ? 0 : args.decode_compressed.size(1);
  const std::int64_t window = params.integer("window", 1, INT32_MAX, 128);
  MixedSparseIndices::Problem problem{.requests = args.seq_lens.size(0),
                                      .tokens = args.token_to_req.size(0),
                                      .decode_tokens = args.decode_window.absent() ? 0 : args.decode_window.size(0),
                                      .window = window,
                                      .window_width = args.decode_window.absent() ? window : args.decode_window.size(1),
                                      .ratio = params.integer("compress_ratio", 1, INT32_MAX),
                                      .top_k = params.integer("topk", 0, INT32_MAX, 0),
                                      .window_block = params.integer("swa_block", 1, INT32_MAX),
                                      .compressed_block = params.integer("compressed_block", 1, INT32_MAX, 1),
                                      .window_span = params.integer("swa_span", 0, INT32_MAX, 0),
                                      .compressed_span = params.integer("compressed_span", 0, INT32_MAX, 0),
                                      .local = params.flag("local", true)};
  problem.compressed_width = (std::max(problem.top_k, decode_width) + 3) / 4 * 4;
  problem.compressed_width =
      width_of(file, "sparse_indices", problem.window_width + problem.compressed_width) - problem.window_width;
  if (problem.local) {
    if (file.find("in.is_valid_token") != nullptr)
      args.decode_valid = input(file, "is_valid_token", {kAny}, DType::kBool);
  } else if (file.find("in.decode_compressed_topk_lens") != nullptr) {
    args.decode_lens = input(file, "decode_compressed_topk_lens", {kAny}, DType::kI32);
  }
  // Upstream may hand over the flags and lengths of the whole batch.
  if (args.decode_valid.rank == 1 && args.decode_valid.size(0) > problem.decode_tokens) {
    args.decode_valid = args.decode_valid.slice(0, 0, problem.decode_tokens);
  }
  if (args.decode_lens.rank == 1 && args.decode_lens.size(0) > problem.decode_tokens) {
    args.decode_lens = args.decode_lens.slice(0, 0, problem.decode_tokens);
  }
  HostTensor indices = poisoned(DType::kI32, {problem.tokens, problem.window_width + problem.compressed_width});
  HostTensor lens = poisoned(DType::kI32, {problem.tokens});
  args.indices = indices.view();
  args.lens = lens.view();
  ReplayResult result;
  run<MixedSparseIndices>(problem, options, args, result);
  result.results.emplace("sparse_indices", std::move(indices));
  result.results.emplace("sparse_topk_lens", std::move(lens));
  return result;
}

}  // namespace smla::upstream
