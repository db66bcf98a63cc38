#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/sequences/implementations.h"

// Copies of whole rows; there is nothing to round.

namespace smla {

namespace {

/// Rows [first, first + count) of request b that exist and fit the rectangle.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

Range range_of(const PackSequences::Problem& problem, const ConstTensorView& query_start_loc, std::int64_t b) {
  const auto* starts = static_cast<const std::int32_t*>(query_start_loc.data);
  const std::int64_t first = starts[b * query_start_loc.stride[0]];
  const std::int64_t end = std::min<std::int64_t>(starts[(b + 1) * query_start_loc.stride[0]], problem.tokens);
  if (first < 0 || first >= end) return {};
  return {.first = first, .count = std::min(end - first, problem.max_len)};
}

template <class View>
auto* row_at(const View& view, std::int64_t i, std::int64_t j) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::uint8_t, const std::uint8_t>;
  const std::int64_t at = view.rank == 3 ? i * view.stride[0] + j * view.stride[1] : j * view.stride[0];
  return static_cast<Byte*>(view.data) + at * size_of(view.dtype);
}

}  // namespace

void pack_sequences_ref(const PackSequences::Problem& problem, const PackSequences::Args& args,
                        const RunContext& /*context*/) {
  const auto bytes = static_cast<std::size_t>(problem.row * size_of(problem.dtype));
  if (bytes == 0) return;
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const Range range = range_of(problem, args.query_start_loc, b);
    for (std::int64_t i = 0; i < problem.max_len; ++i) {
      std::uint8_t* to = row_at(args.packed, b, i);
      if (i < range.count) {
        std::memcpy(to, row_at(args.rows, 0, range.first + i), bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
}

void unpack_sequences_ref(const UnpackSequences::Problem& problem, const UnpackSequences::Args& args,
                          const RunContext& /*context*/) {
  const auto bytes = static_cast<std::size_t>(problem.row * size_of(problem.dtype));
  if (bytes == 0) return;
  for (std::int64_t b = 0; b < problem.requests; ++b) {
    const Range range = range_of(problem, args.query_start_loc, b);
    for (std::int64_t i = 0; i < range.count; ++i)
      std::memcpy(row_at(args.rows, 0, range.first + i), row_at(args.packed, b, i), bytes);
  }
}

}  // namespace smla
