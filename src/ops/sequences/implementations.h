#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/sequences.h"

namespace smla {

void pack_sequences_ref(const PackSequences::Problem& problem, const PackSequences::Args& args,
                        const RunContext& context);
void unpack_sequences_ref(const UnpackSequences::Problem& problem, const UnpackSequences::Args& args,
                          const RunContext& context);

}  // namespace smla
