#include <algorithm>
#include <cstring>
#include <vector>

#include "core/codecs.h"
#include "ops/indexer/implementations.h"

namespace smla {

namespace {

/// Number d of a row of codes whose group scales (UE8M0), if it has any, stand at `scales`.
float element(const RowFormat& format, const std::uint8_t* row, const std::uint8_t* scales, int d) {
  if (format.nope == Element::kE4M3) return to_float(E4M3{row[d]});
  if (format.nope == Element::kE2M1) {
    return from_e2m1(static_cast<std::uint8_t>(d % 2 == 0 ? row[d / 2] & 15U : row[d / 2] >> 4)) *
           from_ue8m0(scales[d / format.group]);
  }
  float value = 0;
  std::memcpy(&value, row + static_cast<std::ptrdiff_t>(4) * d, sizeof value);
  return value;
}

const std::uint8_t* bytes_at(const ConstTensorView& t, std::int64_t i, std::int64_t j = 0) {
  return static_cast<const std::uint8_t*>(t.data) +
         (i * t.stride[0] + (t.rank > 2 ? j * t.stride[1] : 0)) * size_of(t.dtype);
}

}  // namespace

// logits[row, j] = k_scale_j * sum_h relu(<q[row,h], k_j>) * weights[row,h] for starts[row] <= j < ends[row]; relu of
// NaN is 0.
void ragged_indexer_logits_ref(const RaggedIndexerLogits::Problem& problem, const RaggedIndexerLogits::Args& args,
                               const RunContext& /*context*/) {
  const RowFormat& format = *problem.format;
  const bool grouped = format.scale == ScaleKind::kUe8m0;
  std::vector<double> q(static_cast<std::size_t>(problem.heads * problem.dim));
  std::vector<double> key(static_cast<std::size_t>(problem.dim));
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      const std::uint8_t* scales = grouped ? bytes_at(args.q_scale, row, h) : nullptr;
      for (int d = 0; d < problem.dim; ++d)
        q[h * problem.dim + d] = element(format, bytes_at(args.q, row, h), scales, d);
    }
    const std::int64_t begin = std::max<std::int64_t>(args.starts.as<std::int32_t>()[row], 0);
    const std::int64_t end = std::min<std::int64_t>(args.ends.as<std::int32_t>()[row], problem.keys);
    for (std::int64_t j = begin; j < end; ++j) {
      float scale = 1.0F;
      if (format.scale == ScaleKind::kF32) std::memcpy(&scale, bytes_at(args.scales, j), sizeof scale);
      for (int d = 0; d < problem.dim; ++d)
        key[d] = element(format, bytes_at(args.values, j), grouped ? bytes_at(args.scales, j) : nullptr, d);
      double sum = 0;
      for (std::int64_t h = 0; h < problem.heads; ++h) {
        double dot = 0;
        for (int d = 0; d < problem.dim; ++d) dot += q[h * problem.dim + d] * key[d];
        sum += (dot > 0 ? dot : 0) * args.weights.as<float>()[row * args.weights.stride[0] + h];
      }
      args.logits.as<float>()[row * args.logits.stride[0] + j] = static_cast<float>(sum * scale);
    }
  }
}

}  // namespace smla
