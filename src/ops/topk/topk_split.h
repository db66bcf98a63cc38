#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/gpu.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// How a call of few wide rows is cut. Each row is shared by `parts` blocks, which count the first digit of its keys
/// and then list the columns that can be chosen; the last of them to finish chooses.
struct TopkSplit {
  std::int64_t parts = 1;  ///< blocks of a row; 1: one block does it all
  bool few_rows = false;   ///< with one block a row: no multiprocessor has two rows

  static constexpr std::int64_t kOneBlock = 16'384;  ///< columns: no call of fewer is cut
  static constexpr std::int64_t kHeld =
      32'768;  ///< columns that a block's registers hold: calls of no more are cut only into
  static constexpr std::int64_t kWorthwhile = 3;   ///< or more
  static constexpr std::int64_t kShortRow = 8192;  ///< in such a call, a row that one block does by itself
  static constexpr std::int64_t kStep = 1024;      ///< a part is a multiple of it
  static constexpr std::int64_t kLeastPart = 4096;
  static constexpr std::int64_t kMostParts = 64;
  static constexpr std::int64_t kMostChosen = 4096;  ///< k: a list must have room for more
  static constexpr std::int64_t kListed =
      16'384;  ///< columns of a row that can be chosen; one block chooses from the whole row where there are more
  static constexpr std::int64_t kMostRows = 256;
  static constexpr std::int64_t kMostMultiprocessors = 256;  ///< that a call is cut for

  // The first digit, 13 bits, is found in two steps: which of 64 groups, which of its 128 values.
  static constexpr int kGroups = 64;
  static constexpr int kValues = 128;
  static constexpr int kDigitBits = 13;
  static constexpr int kDigits = kGroups * kValues;
  static_assert(kDigits == 1 << kDigitBits);

  static constexpr std::int64_t kPartBytes = 4 * (kDigits + kGroups);  ///< of the workspace, for a part
  static constexpr std::int64_t kRowBytes = 8 * kListed + 4;           ///< and for a row
};

/// In words.
inline std::string describe(const TopkSplit& split) {
  if (split.parts == 1) return "a row by one block";
  return "a row by up to " + std::to_string(split.parts) + " blocks";
}

/// Columns of a part of a row of n < 2^31 columns: at most `parts` of them cover it.
constexpr std::uint32_t topk_part_columns(std::uint32_t n, std::uint32_t parts) {
  constexpr auto kStep = static_cast<std::uint32_t>(TopkSplit::kStep);
  const std::uint32_t even = (n + parts - 1) / parts;
  return std::max((even + kStep - 1) / kStep * kStep, static_cast<std::uint32_t>(TopkSplit::kLeastPart));
}

/// Most rows that are cut, into two at least: more of them keep a GPU busy by themselves.
constexpr std::int64_t topk_most_rows(int multiprocessors) {
  return std::clamp<std::int64_t>(2 * multiprocessors, 1, TopkSplit::kMostRows);
}

constexpr TopkSplit split_topk(const TopK::Problem& p, const device::Gpu& gpu) {
  const TopkSplit whole{.few_rows = p.rows <= gpu.multiprocessors};
  if (p.rows <= 0 || p.rows > topk_most_rows(gpu.multiprocessors) || p.width <= TopkSplit::kOneBlock || p.k <= 0 ||
      p.k > TopkSplit::kMostChosen)
    return whole;
  const std::int64_t blocks = std::min<std::int64_t>(gpu.multiprocessors, TopkSplit::kMostMultiprocessors) / p.rows;
  if (p.width <= TopkSplit::kHeld && blocks < TopkSplit::kWorthwhile) return whole;
  return {.parts = std::min(std::clamp<std::int64_t>(blocks, 2, TopkSplit::kMostParts),
                            (p.width + TopkSplit::kLeastPart - 1) / TopkSplit::kLeastPart)};
}

/// Enough for this call and for any of fewer rows or columns, because a layer reserves for its largest step. At most 51
/// MB.
constexpr std::int64_t topk_workspace_bytes(const TopK::Problem& p, const device::Gpu& gpu) {
  if (p.rows <= 0 || p.width <= TopkSplit::kOneBlock || p.k > TopkSplit::kMostChosen) return 0;
  const std::int64_t rows = std::min(p.rows, topk_most_rows(gpu.multiprocessors));
  const std::int64_t blocks =
      std::max(std::clamp<std::int64_t>(gpu.multiprocessors, 2, TopkSplit::kMostMultiprocessors), 2 * rows);
  return std::min(blocks, rows * TopkSplit::kMostParts) * TopkSplit::kPartBytes + rows * TopkSplit::kRowBytes;
}

}  // namespace smla
