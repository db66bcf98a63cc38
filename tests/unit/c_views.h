#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "sparsemla/c_api.h"
#include "sparsemla/step_metadata.h"

namespace smla::test {

/// A view as the C interface takes it.
inline smla_tensor describe_for_c(const ConstTensorView& view) {
  smla_tensor t{};
  t.struct_size = sizeof t;
  t.data = const_cast<void*>(view.data);
  t.dtype =
      std::array{
          SMLA_F32, SMLA_F64, SMLA_BF16, SMLA_E4M3, SMLA_U8, SMLA_I32, SMLA_I64, SMLA_BOOL}[static_cast<std::size_t>(
          view.dtype)];
  t.rank = view.rank;
  std::ranges::copy(view.shape, t.shape);
  std::ranges::copy(view.stride, t.strides);
  return t;
}

/// A batch as the C interface takes it; `view` points into the object.
struct CBatch {
  smla_tensor start, lens, positions;
  std::vector<smla_tensor> tables;
  std::vector<const smla_tensor*> table_pointers;
  smla_step_batch view{};

  explicit CBatch(const StepBatch& batch)
      : start(describe_for_c(batch.query_start_loc)),
        lens(describe_for_c(batch.seq_lens)),
        positions(describe_for_c(batch.positions)) {
    for (const ConstTensorView& table : batch.block_tables) tables.push_back(describe_for_c(table));
    for (const smla_tensor& table : tables) table_pointers.push_back(&table);
    view.struct_size = sizeof view;
    view.query_start_loc = &start;
    view.seq_lens = &lens;
    view.positions = &positions;
    view.block_tables = table_pointers.data();
    view.num_block_tables = static_cast<std::int32_t>(tables.size());
  }
  CBatch(const CBatch&) = delete;
  CBatch& operator=(const CBatch&) = delete;
};

}  // namespace smla::test
