#pragma once

#include "ops/registry.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

void save_state_ref(const SaveState::Problem& problem, const SaveState::Args& args, const RunContext& context);
void save_state_cpu(const SaveState::Problem& problem, const SaveState::Args& args, const RunContext& context);

/// One compressor of a CompressStore, with what it shares with the others.
struct CompressorCall {
  const CompressStore::Problem& problem;
  const CompressStore::Args& args;
  const CompressStore::CompressorShape& shape;
  const CompressStore::Compressor& own;

  CompressorCall(const CompressStore::Problem& p, const CompressStore::Args& a, int i)
      : problem(p),
        args(a),
        shape(p.compressor.at(static_cast<std::size_t>(i))),
        own(a.compressors.at(static_cast<std::size_t>(i))) {}

  /// Whether it first does what SaveState does.
  bool saves() const { return !own.kv_score.absent(); }
  SaveState::Problem save_problem() const {
    return {.tokens = problem.tokens, .ratio = problem.ratio, .dim = shape.dim};
  }
  SaveState::Args save_args() const {
    return {.kv_score = own.kv_score,
            .ape = own.ape,
            .positions = args.positions,
            .state_slots = own.state_slots,
            .state = own.state};
  }
};

void compress_store_ref(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context);
void compress_store_cpu(const CompressStore::Problem& problem, const CompressStore::Args& args,
                        const RunContext& context);
void compress_store_avx2(const CompressStore::Problem& problem, const CompressStore::Args& args,
                         const RunContext& context);
void compress_store_avx512(const CompressStore::Problem& problem, const CompressStore::Args& args,
                           const RunContext& context);

}  // namespace smla
