#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

void save_state_ref(const SaveState::Problem& problem, const SaveState::Args& args, const RunContext& context);
void save_state_cpu(const SaveState::Problem& problem, const SaveState::Args& args, const RunContext& context);

/// Of a CompressStore, what it does as a SaveState first.
SaveState::Args save_args(const CompressStore::Args& args);
inline SaveState::Problem save_problem(const CompressStore::Problem& p) {
  return {.tokens = p.tokens, .ratio = p.ratio, .dim = p.dim};
}

/// Of a CompressStore with two compressors, each by itself.
CompressStore::Problem first_problem(const CompressStore::Problem& problem);
CompressStore::Problem second_problem(const CompressStore::Problem& problem);
CompressStore::Args second_args(const CompressStore::Args& args);

void compress_store_ref(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context);
void compress_store_cpu(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context);
void compress_store_avx2(const CompressStore::Problem& problem, const CompressStore::Args& args,
                         const RunContext& context);
void compress_store_avx512(const CompressStore::Problem& problem, const CompressStore::Args& args,
                           const RunContext& context);

}  // namespace smla
