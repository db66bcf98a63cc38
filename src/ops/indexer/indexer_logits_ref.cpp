#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "ops/indexer/implementations.h"

namespace smla {

namespace {

/// The key of a slot before its row scale, and that scale (1 where the scales belong to groups of dims or do not
/// exist).
float load_key(const PagedCache& cache, std::int64_t slot, std::vector<float>& key) {
  if (cache.format->scale != ScaleKind::kF32) {
    decode_row(cache, slot, key.data());
    return 1.0F;
  }
  const std::uint8_t* bytes = row_data(cache, slot / cache.block_size, slot % cache.block_size);
  for (std::size_t d = 0; d < key.size(); ++d) key[d] = to_float(E4M3{bytes[d]});
  float scale = 0;
  std::memcpy(&scale, row_scales(cache, slot / cache.block_size, slot % cache.block_size), sizeof scale);
  return scale;
}

float load_q(const IndexerLogits::Args& args, const RowFormat& format, std::int64_t row, std::int64_t h, int d) {
  const std::int64_t at = row * args.q.stride[0] + h * args.q.stride[1];
  if (format.nope == Element::kE4M3) return to_float(args.q.as<E4M3>()[at + d]);
  if (format.nope == Element::kF32) return args.q.as<float>()[at + d];
  const std::int64_t group = row * args.q_scale.stride[0] + h * args.q_scale.stride[1] + d / format.group;
  const std::uint8_t pair = args.q.as<std::uint8_t>()[at + d / 2];
  return from_e2m1(static_cast<std::uint8_t>(d % 2 == 0 ? pair & 15U : pair >> 4)) *
         from_ue8m0(args.q_scale.as<std::uint8_t>()[group]);
}

}  // namespace

// logits[row, j] = k_scale_j * sum_h relu(<q[row,h], k_j>) * weights[row,h]; a dot product that is NaN counts as 0 (its
// relu is not above 0).
void indexer_logits_ref(const IndexerLogits::Problem& problem, const IndexerLogits::Args& args,
                        const RunContext& /*context*/) {
  const PagedCache& cache = args.cache;
  std::vector<float> key(static_cast<std::size_t>(problem.dim));
  std::vector<float> q(static_cast<std::size_t>(problem.heads * problem.dim));
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    float* logits = args.logits.as<float>() + row * args.logits.stride[0];
    const float* weights = args.weights.as<float>() + row * args.weights.stride[0];
    const std::int64_t len = std::clamp<std::int64_t>(args.lens.as<std::int32_t>()[row], 0, problem.width);
    const std::int64_t request = args.row_to_req.as<std::int32_t>()[row];
    const bool known = request >= 0 && request < args.block_table.size(0);
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      for (int d = 0; d < problem.dim; ++d) q[h * problem.dim + d] = load_q(args, *problem.format, row, h, d);
    }
    for (std::int64_t j = 0; j < len; ++j) {
      logits[j] = -std::numeric_limits<float>::infinity();
      const std::int64_t column = j / cache.block_size;
      if (!known || column >= args.block_table.size(1)) continue;
      const std::int64_t block = args.block_table.as<std::int32_t>()[request * args.block_table.stride[0] + column];
      if (block < 0 || block >= cache.num_blocks) continue;
      const float scale = load_key(cache, block * cache.block_size + j % cache.block_size, key);
      double sum = 0;
      for (std::int64_t h = 0; h < problem.heads; ++h) {
        double dot = 0;
        for (int d = 0; d < problem.dim; ++d) dot += static_cast<double>(q[h * problem.dim + d]) * key[d];
        sum += (dot > 0 ? dot : 0) * weights[h];
      }
      logits[j] = static_cast<float>(sum * scale);
    }
  }
}

}  // namespace smla
