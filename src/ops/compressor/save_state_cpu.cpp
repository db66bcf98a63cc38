#include <cstring>

#include "cache/row_codec.h"
#include "ops/compressor/implementations.h"

namespace smla {

// Rows over threads; one addition a score, so its bits are the reference's.
void save_state_cpu(const SaveState::Problem& problem, const SaveState::Args& args, const RunContext& context) {
  const int half = problem.coff() * problem.dim;
  const auto* slots = static_cast<const std::int64_t*>(args.state_slots.data);
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  const std::int64_t rows = args.state_slots.size(0);
#pragma omp parallel for num_threads(context.threads) if (rows * half > 65536) schedule(static)
  for (std::int64_t t = 0; t < rows; ++t) {
    if (slots[t] < 0 || slots[t] >= args.state.num_slots() || positions[t] < 0) continue;
    const float* kv = static_cast<const float*>(args.kv_score.data) + t * args.kv_score.stride[0];
    const float* score = kv + half;
    const std::int64_t ape_row = positions[t] % problem.ratio * args.ape.stride[0];
    auto* row = reinterpret_cast<float*>(
        row_data(args.state, slots[t] / args.state.block_size, slots[t] % args.state.block_size));
    std::memcpy(row, kv, static_cast<std::size_t>(half) * sizeof(float));
    if (args.ape.dtype == DType::kF32) {
      const float* ape = static_cast<const float*>(args.ape.data) + ape_row;
      for (int i = 0; i < half; ++i) row[half + i] = score[i] + ape[i];
    } else {
      const BF16* ape = static_cast<const BF16*>(args.ape.data) + ape_row;
      for (int i = 0; i < half; ++i) row[half + i] = score[i] + to_float(ape[i]);
    }
  }
}

}  // namespace smla
