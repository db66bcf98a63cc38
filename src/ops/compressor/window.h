#pragma once

#include <cstdint>

#include "ops/compressor/implementations.h"

namespace smla {

inline constexpr int kMaxWindow = 128;  ///< rows of the widest window: coff * r = 2*4 or 1*128
inline constexpr int kMaxEntry = 512;   ///< numbers of the widest entry

/// The readable rows of the window of one closing token: their d values and d logits, oldest first.
struct Window {
  int rows = 0;
  const float* values[kMaxWindow];
  const float* logits[kMaxWindow];
};

/// Where and at which position token `t` stores an entry.
struct Closing {
  bool acts = false;
  std::int64_t position = 0;  ///< of the token
  std::int64_t request = 0;   ///< row of the block table
  std::int64_t entry_slot = 0;
  const float* cos_sin = nullptr;  ///< rope row of the group's first position
};

/// Whether token `t` (< M) closes a group and everything it needs lies inside the tensors.
Closing closing_token(const CompressorCall& c, std::int64_t t);

/// Looks the window of a closing token up in the paged state: rows that do not exist (before position 0, no column, no
/// block) are left out.
void find_window(const CompressorCall& c, const Closing& token, Window& window);

/// Rounds where the format asks for it, transforms where the problem does, and encodes a normed and rotated row of d
/// numbers at `slot`.
void store_entry(const CompressorCall& c, std::int64_t slot, float* row);

}  // namespace smla
