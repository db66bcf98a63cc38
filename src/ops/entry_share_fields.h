#pragma once

#include "sparsemla/entry_share.h"

namespace smla {

/// The scalars of an EntryShare, for descriptions of ops.
inline void entry_share_fields(EntryShare& share, auto&& f) {
  f("share.rank", share.rank), f("share.ranks", share.ranks), f("share.interleave", share.interleave);
}

}  // namespace smla
