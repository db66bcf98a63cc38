#include "ops/catalog.h"

#include <array>

#include "sparsemla/error.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/ops/topk.h"

namespace smla {

namespace {

template <class Op>
typename Op::Problem typical();

template <>
RmsNorm::Problem typical<RmsNorm>() {
  return {.rows = 64, .dim = 1024};
}
template <>
QNormRopeInsert::Problem typical<QNormRopeInsert>() {
  return {.tokens = 64, .heads = 64, .out_heads = 64, .format = &fp8_ds_mla_rows()};
}
template <>
InverseRope::Problem typical<InverseRope>() {
  return {.tokens = 64, .heads = 64};
}
template <>
InverseRopeQuant::Problem typical<InverseRopeQuant>() {
  return {.tokens = 64, .heads = 64, .groups = 8};
}
template <>
InsertRows::Problem typical<InsertRows>() {
  return {.tokens = 64, .format = &fp8_ds_mla_rows()};
}
template <>
SaveState::Problem typical<SaveState>() {
  return {.tokens = 64};
}
template <>
CompressStore::Problem typical<CompressStore>() {
  return {.tokens = 64, .format = &fp8_ds_mla_rows()};
}
template <>
IndexerQ::Problem typical<IndexerQ>() {
  return {.tokens = 64, .format = &index_fp8_rows()};
}
template <>
IndexerLogits::Problem typical<IndexerLogits>() {
  return {.rows = 64, .width = 4096, .format = &index_fp8_rows()};
}
template <>
GatherIndexRows::Problem typical<GatherIndexRows>() {
  return {.requests = 8, .rows = 4096, .format = &index_fp8_rows()};
}
template <>
RaggedIndexerLogits::Problem typical<RaggedIndexerLogits>() {
  return {.rows = 64, .keys = 4096, .format = &index_fp8_rows()};
}
template <>
TopK::Problem typical<TopK>() {
  return {.rows = 64, .width = 4096, .k = 512};
}
template <>
TokenToReq::Problem typical<TokenToReq>() {
  return {.requests = 8, .tokens = 64};
}
template <>
SlotMapping::Problem typical<SlotMapping>() {
  return {.requests = 8, .tokens = 64, .block_size = 64};
}
template <>
CompressedSlotMapping::Problem typical<CompressedSlotMapping>() {
  return {.requests = 8, .tokens = 64};
}
template <>
WindowIndices::Problem typical<WindowIndices>() {
  return {.requests = 8, .tokens = 64};
}
template <>
DenseCompressedIndices::Problem typical<DenseCompressedIndices>() {
  return {.requests = 8, .tokens = 64, .width = 128};
}
template <>
GlobalTopk::Problem typical<GlobalTopk>() {
  return {.requests = 8, .tokens = 64, .k = 512};
}
template <>
ShortContextTopk::Problem typical<ShortContextTopk>() {
  return {.tokens = 64, .k = 512};
}
template <>
VisibleEntries::Problem typical<VisibleEntries>() {
  return {.tokens = 64};
}
template <>
PrefillLens::Problem typical<PrefillLens>() {
  return {.requests = 8};
}
template <>
DraftPositions::Problem typical<DraftPositions>() {
  return {.requests = 8};
}
template <>
AddRows::Problem typical<AddRows>() {
  return {.rows = 64, .dim = 4096};
}
template <>
QuantizeRows::Problem typical<QuantizeRows>() {
  return {.rows = 64, .dim = 4096};
}
template <>
CombineTopkWindow::Problem typical<CombineTopkWindow>() {
  return {.requests = 4, .tokens = 64, .top_k = 512, .m = 2048, .n = 1024};
}
template <>
MixedSparseIndices::Problem typical<MixedSparseIndices>() {
  return {.requests = 8, .tokens = 64, .decode_tokens = 4, .top_k = 512, .compressed_width = 512};
}
template <>
GatherRows::Problem typical<GatherRows>() {
  return {.requests = 4, .rows = 2048, .format = &fp8_ds_mla_rows()};
}
template <>
SparseAttention::Problem typical<SparseAttention>() {
  SparseAttention::Problem problem{.tokens = 64, .heads = 64, .scopes = 2};
  problem.scope[0] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 128};
  problem.scope[1] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 512};
  return problem;
}
template <>
MergePartials::Problem typical<MergePartials>() {
  return {.slices = 4, .tokens = 64, .heads = 64};
}
template <>
Projection::Problem typical<Projection>() {
  return {.m = 64, .n = 1024, .k = 4096};
}

template <>
PackSequences::Problem typical<PackSequences>() {
  return {.requests = 8, .tokens = 20, .max_len = 4, .row = 64 * 128, .dtype = DType::kE4M3};
}
template <>
UnpackSequences::Problem typical<UnpackSequences>() {
  return typical<PackSequences>();
}

template <class Op>
OpInfo info(std::string_view family, std::string_view problem) {
  return {Op::kName, family, problem, [](const PlanOptions& options) { return explain<Op>(typical<Op>(), options); }};
}

}  // namespace

std::span<const OpInfo> op_catalog() {
  static const std::array<OpInfo, 32> kOps{
      info<Projection>("projection", "64 rows of bf16, 4096 to 1024"),
      info<RmsNorm>("norm_rope", "64 rows of 1024, bf16"),
      info<AddRows>("norm_rope", "64 rows of 4096, bf16"),
      info<QuantizeRows>("norm_rope", "64 rows of 4096, bf16"),
      info<QNormRopeInsert>("norm_rope", "64 tokens, 64 heads, fp8_ds_mla rows"),
      info<InsertRows>("norm_rope", "64 tokens, fp8_ds_mla rows"),
      info<SaveState>("compressor", "64 tokens, C4A"),
      info<CompressStore>("compressor", "64 tokens, C4A, fp8_ds_mla rows"),
      info<IndexerQ>("indexer", "64 tokens, 64 heads, index_fp8"),
      info<IndexerLogits>("indexer", "64 rows, 64 heads, 4096 entries, index_fp8"),
      info<GatherIndexRows>("indexer", "8 requests, 4096 entries, index_fp8"),
      info<RaggedIndexerLogits>("indexer", "64 rows, 64 heads, 4096 entries, index_fp8"),
      info<TopK>("topk", "64 rows, 512 of 4096"),
      info<TokenToReq>("index", "8 requests, 64 tokens"),
      info<SlotMapping>("index", "8 requests, 64 tokens"),
      info<CompressedSlotMapping>("index", "8 requests, 64 tokens, C4A"),
      info<WindowIndices>("index", "8 requests, 64 tokens, window 128"),
      info<DenseCompressedIndices>("index", "8 requests, 64 tokens, C128A, 128 columns"),
      info<GlobalTopk>("index", "8 requests, 64 tokens, top 512"),
      info<ShortContextTopk>("index", "64 tokens, top 512"),
      info<VisibleEntries>("index", "64 tokens, C4A"),
      info<PrefillLens>("index", "8 requests, window 128, C4A"),
      info<DraftPositions>("index", "8 requests"),
      info<CombineTopkWindow>("index", "4 requests, 64 tokens, top 512, window 128"),
      info<MixedSparseIndices>("index", "8 requests, 4 decode and 60 prefill tokens, top 512"),
      info<GatherRows>("attention", "4 requests, 2048 rows each, fp8_ds_mla rows"),
      info<SparseAttention>("attention", "64 tokens, 64 heads, widths 128 + 512, fp8_ds_mla rows"),
      info<MergePartials>("attention", "4 slices, 64 tokens, 64 heads"),
      info<InverseRope>("norm_rope", "64 tokens, 64 heads"),
      info<InverseRopeQuant>("norm_rope", "64 tokens, 64 heads, 8 groups"),
      info<PackSequences>("sequences", "8 requests, 20 rows to 8 x 4, 64 x 128 e4m3"),
      info<UnpackSequences>("sequences", "8 requests, 8 x 4 rows to 20, 64 x 128 e4m3")};
  return kOps;
}

const OpInfo& find_op(std::string_view name) {
  std::string known;
  for (const OpInfo& op : op_catalog()) {
    if (op.name == name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  throw InvalidArgument("op: got \"" + std::string(name) + "\", expected one of " + known);
}

}  // namespace smla
