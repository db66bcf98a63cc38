#pragma once

#include <cstdint>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// The part of a sequence's entries that one of several ranks has (context parallel, spec 9). Entries are dealt out in
/// runs of `interleave`: entry j belongs to rank j / interleave % ranks. A rank numbers its own from 0 on, in the order
/// of the sequence; these numbers are local, those of the whole sequence global. The default is a rank that has all.
struct EntryShare {
  std::int64_t rank = 0;        ///< 0 to ranks - 1
  std::int64_t ranks = 1;       ///< 1 or more
  std::int64_t interleave = 1;  ///< entries of a run, 1 or more

  /// Whether the rank has all entries.
  constexpr bool whole() const { return ranks == 1; }
  /// Whether entry `j` of the sequence is the rank's.
  constexpr bool owns(std::int64_t j) const { return j / interleave % ranks == rank; }
  /// The local number of entry `j`, which the rank owns.
  constexpr std::int64_t local(std::int64_t j) const { return j / (interleave * ranks) * interleave + j % interleave; }
  /// The global number of the rank's entry `i`.
  constexpr std::int64_t global(std::int64_t i) const {
    return (i / interleave * ranks + rank) * interleave + i % interleave;
  }
  /// How many of a sequence's first `length` entries are the rank's: its entries 0 to count - 1.
  constexpr std::int64_t count(std::int64_t length) const {
    const std::int64_t base = length / interleave / ranks * interleave;
    const std::int64_t rest = length - base * ranks - rank * interleave;
    return base + (rest < 0 ? 0 : (rest > interleave ? interleave : rest));
  }
  /// Whether the rank counts the window rows, which every rank has: the last one does, for it never has more entries
  /// than another.
  constexpr bool counts_window() const { return rank == ranks - 1; }
  friend bool operator==(const EntryShare&, const EntryShare&) = default;
};

/// @throws InvalidArgument unless 0 <= rank < ranks <= 65536 and 1 <= interleave <= 2^31-1.
void check_entry_share(const EntryShare& share);

}  // namespace smla
