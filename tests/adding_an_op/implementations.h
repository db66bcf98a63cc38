#pragma once

#include "ops/registry.h"
#include "pick_rows.h"

namespace smla {

void pick_rows_ref(const PickRows::Problem& problem, const PickRows::Args& args, const RunContext& context);
void pick_rows_cpu(const PickRows::Problem& problem, const PickRows::Args& args, const RunContext& context);

}  // namespace smla
