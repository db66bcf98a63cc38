#pragma once

// Python's view of models, checkpoints, pools of blocks, snapshots and recorded cases.

#include <nanobind/nanobind.h>

namespace smla::python {

/// Adds ModelConfig, Checkpoint and rope tables to the module.
void bind_models(nanobind::module_& module);
/// Adds KvPool, RequestBlocks and snapshots to the module.
void bind_caches(nanobind::module_& module);
/// Adds PrefixKeys and PrefixCache to the module.
void bind_prefixes(nanobind::module_& module);
/// Adds what writes and records case files to the module.
void bind_cases(nanobind::module_& module);

}  // namespace smla::python
