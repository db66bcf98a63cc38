#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/gpu.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// How many blocks share a row. With more than one (few wide rows) two kernels run: in the first, each block counts the
/// first digit of its part's keys; in the second, each block lists those columns of its part that may be among the top
/// k, and the last block of a row to finish selects from the row's list.
struct TopkSplit {
  std::int64_t parts = 1;  ///< blocks of a row; 1: one block does it all
  bool few_rows = false;   ///< with one block a row: no multiprocessor has two rows

  /// Columns that a block can keep in registers. Rows of at most as many are never split.
  static constexpr std::int64_t kOneBlock = 32'768;
  static constexpr std::int64_t kShortRow =
      8192;                                    ///< in a split call, one block selects from rows of at most this many
  static constexpr std::int64_t kStep = 1024;  ///< columns of a part are a multiple of it
  static constexpr std::int64_t kMinPart = 4096;
  static constexpr std::int64_t kMaxParts = 64;
  static constexpr std::int64_t kMaxChosen = 4096;  ///< largest k of a split call; a list has room for more columns
  /// Columns that a row's list has room for. Where more have the digit of the k-th key or a larger one, one block
  /// selects from the whole row instead.
  static constexpr std::int64_t kListed = 16'384;
  static constexpr std::int64_t kMaxRows = 256;
  static constexpr std::int64_t kMaxMultiprocessors = 256;  ///< more than these do not get more parts

  // The first digit, 13 bits, is found in two steps: which of 64 groups, which of its 128 values.
  static constexpr int kGroups = 64;
  static constexpr int kValues = 128;
  static constexpr int kDigitBits = 13;
  static constexpr int kDigits = kGroups * kValues;
  static_assert(kDigits == 1 << kDigitBits);

  static constexpr std::int64_t kPartBytes = 4 * (kDigits + kGroups);  ///< workspace of a part
  static constexpr std::int64_t kRowBytes = 8 * kListed + 4;           ///< workspace of a row
};

/// The split in words.
inline std::string describe(const TopkSplit& split) {
  if (split.parts == 1) return "a row by one block";
  return "a row by up to " + std::to_string(split.parts) + " blocks";
}

/// Columns of a part of a row of n < 2^31 columns; at most `parts` parts cover the row.
constexpr std::uint32_t topk_part_columns(std::uint32_t n, std::uint32_t parts) {
  constexpr auto kStep = static_cast<std::uint32_t>(TopkSplit::kStep);
  const std::uint32_t even = (n + parts - 1) / parts;
  return std::max((even + kStep - 1) / kStep * kStep, static_cast<std::uint32_t>(TopkSplit::kMinPart));
}

/// The most rows of a call that is split; more rows keep a GPU busy with one block each.
constexpr std::int64_t topk_most_rows(int multiprocessors) {
  return std::clamp<std::int64_t>(2 * multiprocessors, 1, TopkSplit::kMaxRows);
}

constexpr TopkSplit split_topk(const TopK::Problem& p, const device::Gpu& gpu) {
  const TopkSplit whole{.few_rows = p.rows <= gpu.multiprocessors};
  if (p.rows <= 0 || p.rows > topk_most_rows(gpu.multiprocessors) || p.width <= TopkSplit::kOneBlock || p.k <= 0 ||
      p.k > TopkSplit::kMaxChosen)
    return whole;
  const std::int64_t blocks = std::min<std::int64_t>(gpu.multiprocessors, TopkSplit::kMaxMultiprocessors) / p.rows;
  return {.parts = std::min(std::clamp<std::int64_t>(blocks, 2, TopkSplit::kMaxParts),
                            (p.width + TopkSplit::kMinPart - 1) / TopkSplit::kMinPart)};
}

/// Bytes of workspace for this call and for any with fewer rows or columns, because a layer reserves for its largest
/// step. At most 51 MB.
constexpr std::int64_t topk_workspace_bytes(const TopK::Problem& p, const device::Gpu& gpu) {
  if (p.rows <= 0 || p.width <= TopkSplit::kOneBlock || p.k > TopkSplit::kMaxChosen) return 0;
  const std::int64_t rows = std::min(p.rows, topk_most_rows(gpu.multiprocessors));
  const std::int64_t blocks =
      std::max(std::clamp<std::int64_t>(gpu.multiprocessors, 2, TopkSplit::kMaxMultiprocessors), 2 * rows);
  return std::min(blocks, rows * TopkSplit::kMaxParts) * TopkSplit::kPartBytes + rows * TopkSplit::kRowBytes;
}

}  // namespace smla
