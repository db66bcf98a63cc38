#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/bench.h"

namespace smla::bench {

/// A measurement of somebody else's kernels on one card.
struct PeerCell {
  std::map<std::string, double, std::less<>> numbers;  ///< "us", "floor_us", "logits_us", "tflops"
  std::string ours;  ///< the ops of this library that do the same, where the names differ
};

/// One file of data/peers: lines "# key: text" and "# ceiling NAME NUMBER", then CSV. The columns before the first
/// column of numbers make the cell's name, behind the file's or that of "# cells: NAME", whose grid it adds to.
struct PeerTable {
  std::string name;                                      ///< the file's name without suffix
  std::map<std::string, std::string, std::less<>> says;  ///< "source", "card", ...
  std::map<std::string, double, std::less<>>
      ceilings;  ///< ceilings of the run that the file comes from: "product_tflops", "copy_gbs", "gather_2_gbs",
                 ///< "gather_64_gbs"
  std::map<std::string, PeerCell, std::less<>> cells;  ///< "decode/64/swa/1"
};

/// @throws InvalidArgument naming the table and the line.
PeerTable parse_peer_table(std::string_view name, std::string_view text);

/// The tables that the program was built with.
std::span<const PeerTable> peer_tables();

/// A cell and the table that it is in; both null when there is none.
struct PeerMatch {
  const PeerTable* table = nullptr;
  const PeerCell* cell = nullptr;
};
PeerMatch find_peer(std::span<const PeerTable> tables, std::string_view cell);

/// A peer's time for a row, in seconds: as measured, and scaled to this run's ceilings.
struct PeerTime {
  double measured = 0;
  double scaled =
      0;  ///< measured * (the other run's ceiling / this run's), for the ceiling that bounds the row's floor
};
/// The peer's time of a row; zeros when no peer has the row's cell.
PeerTime peer_time(const Row& row, const Machine& machine, std::span<const PeerTable> tables);

/// Largest relative difference between this run's ceilings and those of a table's run.
double ceiling_difference(const PeerTable& table, const Machine& machine);

}  // namespace smla::bench
