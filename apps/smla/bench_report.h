#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace smla {

/// What one `smla bench` measured.
struct BenchReport {
  std::string model;
  std::string clock;      ///< "wall" or "cpu"
  bench::Machine before;  ///< ceilings measured before the rows
  bench::Machine after;   ///< and after them; the same object twice where nothing ran in between
  std::vector<bench::Row> rows;

  /// The better of the two measurements of each ceiling: what shares are taken of.
  bench::Machine ceilings() const;
  /// Largest relative difference between the two, of the fp32 peak, the bf16 peak and the bandwidth.
  double drift() const;
};

/// For people: ceilings, one line a row, a layer's stages under it.
std::string bench_table(const BenchReport& report);
/// A header and one line a row, the ceilings first; a layer's stages in one field, "attention=0.231;...".
std::string bench_csv(const BenchReport& report);
/// Everything, "smla-bench/1".
std::string bench_json(const BenchReport& report);

}  // namespace smla
