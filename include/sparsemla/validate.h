#pragma once

#include "sparsemla/export.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/ops/validate.h"
#include "sparsemla/step_metadata.h"

namespace SMLA_API smla {

/// Reads a step's numbers before anything is built from them and names the first bad one, as the op checks of
/// sparsemla/ops/validate.h do:
///   "step: block_tables[window] row 2 column 5: got 412, expected 0..255"
///
/// Bad are: query_start_loc that does not ascend from 0 within the tokens; a sequence shorter than its query or longer
/// than max_seq_len; a position that is not its token's (seq_len - query_len + offset) or lies past `rope_positions`; a
/// block that this step reads or writes and that lies outside the table or the pool; a block that two requests write,
/// or one in two groups.
/// @param num_blocks of the pool; rope_positions: rows of the rope table.
/// @param device whose memory the tensors lie in: a GPU's are copied to the host behind what is queued on `stream`,
/// which is waited for.
/// @throws InvalidArgument for the first bad number, and for tensors that do not fit together.
void validate(const StepBatch& batch, const KvLayout& layout, std::int64_t num_blocks, std::int64_t rope_positions,
              DeviceKind device = DeviceKind::kCpu, Stream stream = {});

}  // namespace smla
