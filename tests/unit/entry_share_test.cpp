#include "sparsemla/entry_share.h"

#include <gtest/gtest.h>

#include "sparsemla/error.h"

namespace smla {
namespace {

TEST(EntryShare, EveryEntryHasOneOwnerAndOneLocalNumber) {
  for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const std::int64_t interleave : {1, 2, 3, 64}) {
      std::vector<std::int64_t> owned(static_cast<std::size_t>(ranks), 0);
      for (std::int64_t j = 0; j < 700; ++j) {
        int owners = 0;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const EntryShare share{.rank = rank, .ranks = ranks, .interleave = interleave};
          ASSERT_EQ(share.count(j), owned[static_cast<std::size_t>(rank)]);
          ASSERT_EQ(share.whole(), ranks == 1);
          if (!share.owns(j)) continue;
          ++owners;
          ASSERT_EQ(share.local(j), owned[static_cast<std::size_t>(rank)]++);
          ASSERT_EQ(share.global(share.local(j)), j);
        }
        ASSERT_EQ(owners, 1) << "entry " << j << " of " << ranks << " ranks, interleave " << interleave;
      }
      const EntryShare last{.rank = ranks - 1, .ranks = ranks, .interleave = interleave};
      EXPECT_TRUE(last.counts_window());
      for (const std::int64_t n : owned) EXPECT_GE(n, owned.back()) << "the rank with the window has the fewest";
    }
  }
}

TEST(EntryShare, LongSequencesDoNotOverflow) {
  const EntryShare share{.rank = 65535, .ranks = 65536, .interleave = INT32_MAX};
  EXPECT_EQ(share.count(INT64_MAX), share.count(INT64_MAX - 1));
  EXPECT_EQ(share.count(0), 0);
}

TEST(EntryShare, ImpossibleSharesAreRefused) {
  check_entry_share({});
  EXPECT_THROW(check_entry_share({.rank = 2, .ranks = 2}), InvalidArgument);
  EXPECT_THROW(check_entry_share({.rank = -1, .ranks = 2}), InvalidArgument);
  EXPECT_THROW(check_entry_share({.ranks = 0}), InvalidArgument);
  EXPECT_THROW(check_entry_share({.interleave = 0}), InvalidArgument);
  EXPECT_THROW(check_entry_share({.ranks = 65537}), InvalidArgument);
}

}  // namespace
}  // namespace smla
