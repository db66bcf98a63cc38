#include <cstring>

#include "cache/row_codec.h"
#include "ops/compressor/implementations.h"

namespace smla {

// state[slot] = (kv | score + ape[pos mod r]), fp32 (spec 3, algorithm step 1).
void save_state_ref(const SaveState::Problem& problem, const SaveState::Args& args, const RunContext&) {
  const int half = problem.coff() * problem.dim;
  const auto* slots = static_cast<const std::int64_t*>(args.state_slots.data);
  const auto* positions = static_cast<const std::int64_t*>(args.positions.data);
  for (std::int64_t t = 0; t < args.state_slots.size(0); ++t) {
    if (slots[t] < 0 || slots[t] >= args.state.num_slots() || positions[t] < 0) continue;
    const float* kv_score = static_cast<const float*>(args.kv_score.data) + t * args.kv_score.stride[0];
    const std::int64_t ape_row = positions[t] % problem.ratio * args.ape.stride[0];
    std::uint8_t* row = row_data(args.state, slots[t] / args.state.block_size, slots[t] % args.state.block_size);
    for (int i = 0; i < 2 * half; ++i) {
      float v = kv_score[i];
      if (i >= half) {
        const std::int64_t a = ape_row + i - half;
        v += args.ape.dtype == DType::kF32 ? static_cast<const float*>(args.ape.data)[a]
                                           : to_float(static_cast<const BF16*>(args.ape.data)[a]);
      }
      std::memcpy(row + 4 * static_cast<std::ptrdiff_t>(i), &v, 4);
    }
  }
}

}  // namespace smla
