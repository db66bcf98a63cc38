#pragma once

#include <algorithm>
#include <cstdint>

namespace smla {

/// Entries that a query at `pos` sees: j < (pos+1)/ratio, at most `most`.
inline std::int64_t visible_entries(std::int64_t pos, std::int64_t ratio, std::int64_t most) {
  if (pos < 0) return 0;
  // pos/ratio with one more where pos closes its group: (pos+1)/ratio without the overflow at the largest pos.
  const std::int64_t closed = std::min(pos / ratio, most);
  return closed < most && pos % ratio == ratio - 1 ? closed + 1 : closed;
}

}  // namespace smla
