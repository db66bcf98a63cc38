#pragma once

#include <string>
#include <string_view>

#include "device/gpu.h"
#include "sparsemla/ops/attention.h"

namespace smla {

/// A known card by its short name ("h200", ...), so that a machine without it can be asked. @throws InvalidArgument
/// naming --gpu and the cards there are; Unsupported in a build without kernels for GPUs.
device::Gpu known_gpu(const std::string& name);

/// What `smla why sparse_attention --cells` shows.
struct CellTables {
  std::string text;     ///< tables of a page: decode by heads, layer and requests, prefill by heads, keys and queries
  std::string details;  ///< a line for each cell: who runs it and how it is cut
  bool served = true;   ///< somebody runs every cell
};

/// Who runs the cells that docs/performance.md measures. @param shape dtypes and formats of all cells; its tokens,
/// heads and widths are not used. @param gpu asked instead of this machine's; null: this machine's.
CellTables attention_cells(const SparseAttention::Problem& shape, const PlanOptions& options, const device::Gpu* gpu);

}  // namespace smla
