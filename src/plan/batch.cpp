#include <numeric>
#include <string>

#include "sparsemla/error.h"
#include "sparsemla/plan.h"

namespace smla {

namespace {
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
}  // namespace

BatchSplit split_batch(std::span<const std::int32_t> query_start_loc, std::int64_t threshold, bool require_uniform) {
  if (query_start_loc.empty()) throw InvalidArgument("query_start_loc: got [0], expected [requests + 1]");
  const auto requests = static_cast<std::int64_t>(query_start_loc.size()) - 1;
  const auto length = [&](std::int64_t r) {
    return static_cast<std::int64_t>(query_start_loc[static_cast<std::size_t>(r + 1)]) -
           query_start_loc[static_cast<std::size_t>(r)];
  };
  std::int64_t first_prefill = requests;
  for (std::int64_t r = requests - 1; r >= 0; --r) {
    if (length(r) < 0) {
      throw InvalidArgument("query_start_loc: row " + std::to_string(r + 1) + ": got " +
                            std::to_string(query_start_loc[static_cast<std::size_t>(r + 1)]) + ", expected at least " +
                            std::to_string(query_start_loc[static_cast<std::size_t>(r)]));
    }
    const bool uniform = !require_uniform || threshold <= 1 || length(r) == length(0) || length(r) == 0;
    if (length(r) > threshold || !uniform) first_prefill = r;
  }
  const std::int64_t begin = query_start_loc.front();
  const std::int64_t middle = query_start_loc[static_cast<std::size_t>(first_prefill)];
  return {.decodes = first_prefill,
          .prefills = requests - first_prefill,
          .decode_tokens = middle - begin,
          .prefill_tokens = query_start_loc.back() - middle};
}

std::int64_t dense_width(std::int64_t max_model_len, std::int64_t ratio) {
  return ceil_div(ceil_div(max_model_len, ratio), 128) * 128;
}

std::int64_t block_table_width(std::int64_t max_model_len, std::int64_t block_tokens) {
  return ceil_div(ceil_div(max_model_len, block_tokens), 128 / std::gcd<std::int64_t>(128, block_tokens)) *
         (128 / std::gcd<std::int64_t>(128, block_tokens));
}

}  // namespace smla
