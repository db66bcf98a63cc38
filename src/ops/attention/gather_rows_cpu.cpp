#include <array>
#include <cstring>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "ops/attention/gather_rows.h"
#include "ops/attention/implementations.h"

namespace smla {

namespace {

constexpr int kMaxRow = 2048;  ///< numbers of a decoded row on the stack; larger rows are refused

constexpr std::array<float, 256> kE4M3Values = [] {
  std::array<float, 256> values{};
  for (unsigned i = 0; i < 256; ++i) values[i] = to_float(E4M3{static_cast<std::uint8_t>(i)});
  return values;
}();

/// E4M3 dims with UE8M0 group scales, then bf16 dims.
void decode_groups(const PagedCache& cache, std::int64_t slot, BF16* out) {
  const RowFormat& format = *cache.format;
  const std::uint8_t* data = row_data(cache, slot / cache.block_size, slot % cache.block_size);
  const std::uint8_t* scales = row_scales(cache, slot / cache.block_size, slot % cache.block_size);
  for (int g = 0; g < format.groups(); ++g) {
    const float scale = from_ue8m0(scales[g]);
    for (int i = g * format.group; i < (g + 1) * format.group; ++i) out[i] = to_bf16(kE4M3Values[data[i]] * scale);
  }
  std::memcpy(out + format.nope_dim, data + format.nope_dim,
              static_cast<std::size_t>(format.rope_dim()) * sizeof(BF16));
}

void decode(const PagedCache& cache, std::int64_t slot, BF16* out) {
  const RowFormat& format = *cache.format;
  const bool no_rope = format.rope_dim() == 0;
  if (format.nope == Element::kE4M3 && format.scale == ScaleKind::kUe8m0 &&
      (no_rope || format.rope == Element::kBF16)) {
    decode_groups(cache, slot, out);
  } else if (format.nope == Element::kBF16 && format.scale == ScaleKind::kNone &&
             (no_rope || format.rope == Element::kBF16)) {
    std::memcpy(out, row_data(cache, slot / cache.block_size, slot % cache.block_size),
                static_cast<std::size_t>(format.data_bytes));
  } else {
    float row[kMaxRow];
    decode_row(cache, slot, row);
    for (int d = 0; d < format.dim; ++d) out[d] = to_bf16(row[d]);
  }
}

}  // namespace

Decision gather_rows_decide(const GatherRows::Problem& problem, const PlanOptions& /*options*/,
                            const Machine& /*machine*/) {
  return problem.format->dim <= kMaxRow ? Decision{}
                                        : refused("rows of more than " + std::to_string(kMaxRow) + " numbers");
}

// Threads split rows. No sum: the bits are the reference's.
void gather_rows_cpu(const GatherRows::Problem& problem, const GatherRows::Args& args, const RunContext& context) {
  const std::int64_t most = problem.rows > problem.offset ? problem.rows - problem.offset : 0;
  const auto row_bytes = static_cast<std::size_t>(problem.format->dim) * sizeof(BF16);
#pragma omp parallel for num_threads(context.threads) if (problem.requests * most > 64) schedule(dynamic, 64)
  for (std::int64_t item = 0; item < problem.requests * most; ++item) {
    const std::int64_t b = item / most;
    const std::int64_t i = item % most;
    const GatherRange range = gather_range(problem, args, b);
    if (i >= range.count) continue;
    BF16* out = static_cast<BF16*>(args.out.data) + b * args.out.stride[0] + (problem.offset + i) * args.out.stride[1];
    const std::int64_t slot = gather_slot(args, b, range.first + i);
    if (slot >= 0) {
      decode(args.cache, slot, out);
    } else {
      std::memset(static_cast<void*>(out), 0, row_bytes);
    }
  }
}

}  // namespace smla
