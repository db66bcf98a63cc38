#include "sparsemla/front_end.h"

#include <algorithm>

#include "layer/front_end_row.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

bool has_name(const FrontEndRow& row, std::string_view name) {
  return std::ranges::find(row.names, name) != row.names.end();
}

/// Of the rows that `wanted` admits, the one that claims the device; otherwise the first that claims none.
const FrontEndRow* choose(int device_major, auto&& wanted) {
  const FrontEndRow* chosen = nullptr;
  for (const FrontEndRow* row : front_end_rows()) {
    if (!wanted(*row)) continue;
    if (row->device_major != 0 && row->device_major == device_major) return row;
    if (chosen == nullptr || (chosen->device_major != 0 && row->device_major == 0)) chosen = row;
  }
  return chosen;
}

}  // namespace

std::span<const FrontEndRow* const> front_end_rows() {
  static const std::array rows{&flashmla_row(), &flashinfer_row(), &sm120_row()};
  return rows;
}

const FrontEndRow& row_of(FrontEnd front_end) { return *front_end_rows()[static_cast<std::size_t>(front_end)]; }

std::string_view name_of(FrontEnd front_end) { return row_of(front_end).names.front(); }

std::vector<std::string_view> front_end_names(FrontEnd front_end) {
  const FrontEndRow& row = row_of(front_end);
  return {row.names.begin(), row.names.end()};
}

FrontEnd front_end(std::string_view name, int device_major) {
  if (name.empty() || name == "auto") return choose(device_major, [](const FrontEndRow&) { return true; })->id;
  if (name == "FLASHINFER_MLA_SPARSE" || name == "FLASHINFER_MLA_SPARSE_SM120") {
    throw InvalidArgument(std::string(name) +
                          " is not a DeepSeek V4 attention backend. Use FLASHINFER_MLA_SPARSE_DSV4 for DeepSeek V4 "
                          "FlashInfer sparse MLA.");
  }
  if (const FrontEndRow* row = choose(device_major, [&](const FrontEndRow& r) { return has_name(r, name); }))
    return row->id;
  std::vector<std::string_view> accepted{"auto"};
  for (const FrontEndRow* row : front_end_rows()) {
    for (const std::string_view known : row->names) {
      if (std::ranges::find(accepted, known) == accepted.end()) accepted.push_back(known);
    }
  }
  std::string list;
  for (const std::string_view known : accepted) list += (list.empty() ? "" : ", ") + std::string(known);
  throw InvalidArgument("front-end: got \"" + std::string(name) + "\", expected one of " + list);
}

bool is_plain_fp8(std::string_view cache_dtype) {
  return cache_dtype == "fp8" || cache_dtype == "fp8_e4m3" || cache_dtype == "fp8_inc";
}

const RowFormat& cache_rows(FrontEnd front_end, std::string_view cache_dtype, bool strict) {
  const FrontEndRow& row = row_of(front_end);
  const auto found = [&]() -> const RowFormat* {
    if (cache_dtype == "fp8_ds_mla") return &fp8_ds_mla_rows();
    if (cache_dtype == "bf16" || cache_dtype == "bfloat16") return &bf16_rows();
    if (cache_dtype == "fp8_per_tensor") return &fp8_per_tensor_rows();
    if (cache_dtype == "auto") return &row.auto_rows();
    if (is_plain_fp8(cache_dtype)) return &row.fp8_rows();
    return nullptr;
  }();
  if (found == nullptr) {
    throw InvalidArgument(
        "cache dtype: got \"" + std::string(cache_dtype) +
        "\", expected one of auto, fp8_ds_mla, bf16, bfloat16, fp8_per_tensor, fp8, fp8_e4m3, fp8_inc");
  }
  if (strict) row.check_dtype(cache_dtype);
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
  return row_of(front_end).padded_heads(heads);
}

void check_upstream_call(FrontEnd front_end, const UpstreamCall& call) { row_of(front_end).check_call(call); }

}  // namespace smla
