#include "sparsemla/entry_share.h"

#include <string>

#include "sparsemla/error.h"

namespace smla {

namespace {
constexpr std::int64_t kMaxRanks = 1 << 16;  // keeps products of ranks and interleave far inside 64 bits
}  // namespace

void check_entry_share(const EntryShare& share) {
  if (share.ranks >= 1 && share.ranks <= kMaxRanks && share.rank >= 0 && share.rank < share.ranks &&
      share.interleave >= 1 && share.interleave <= INT32_MAX)
    return;
  throw InvalidArgument("entry share: got rank " + std::to_string(share.rank) + " of " + std::to_string(share.ranks) +
                        ", interleave " + std::to_string(share.interleave) +
                        ", expected 0 <= rank < ranks <= " + std::to_string(kMaxRanks) + " and interleave 1 to 2^31-1");
}

}  // namespace smla
