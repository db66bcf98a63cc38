#pragma once

#include <string>
#include <vector>

#include "bench/bench.h"

namespace smla {

/// How rows of one kind stand to a peer's: ratios are its time, scaled by ceilings (peers.h), over ours.
struct PeerSummary {
  std::string cells;  ///< what the names of its cells begin with: "decode/64"
  int count = 0;      ///< of right rows with a peer
  int wrong = 0;      ///< of wrong ones, in no other number
  double mean = 0;    ///< geometric
  double worst = 0;
  std::string worst_cell;
};

/// What one `smla bench` measured.
struct BenchReport {
  std::string command;  ///< as it was typed
  std::string model;
  std::string clock;      ///< "wall" or "cpu"
  bench::Machine before;  ///< ceilings measured before the rows
  bench::Machine after;   ///< and after them; the same object twice where nothing ran in between
  std::vector<bench::Row> rows;

  /// The better of the two measurements of each ceiling: what shares are taken of.
  bench::Machine ceilings() const;
  /// Largest relative difference between the two, of the fp32 peak, the bf16 peak and the bandwidth.
  double drift() const;
  bool on_gpu() const { return !before.gpu.empty(); }
  /// Rows whose results were not right.
  int wrong() const;
  /// By the names of cells, in order of appearance; ends with "decode/*" over more than one, and "decode/* up to 16"
  /// where batches are in the names.
  std::vector<PeerSummary> peer_summaries() const;
};

inline constexpr double kVoidDrift =
    0.05;  ///< ceilings that moved more say that the machine was not the same throughout

/// A row's derived numbers, of a run on a GPU.
struct GpuNumbers {
  double tflops = 0;
  double gbs = 0;
  double floor = 0;        ///< seconds
  double over_floor = 0;   ///< time / floor
  double peer = 0;         ///< seconds, 0: no peer
  double peer_scaled = 0;  ///< by ceilings
  double ratio = 0;        ///< peer_scaled / time; 0 for a wrong row
};
GpuNumbers gpu_numbers(const bench::Row& row, const bench::Machine& machine);

/// A line of people's summaries.
std::string peer_line(const PeerSummary& summary);
/// `text` as a field of a CSV line.
std::string csv_field(const std::string& text);
/// The table and the CSV of a run on a GPU.
std::string gpu_table(const BenchReport& report);
std::string gpu_csv(const BenchReport& report);

/// For people: ceilings, one line a row, a layer's stages under it.
std::string bench_table(const BenchReport& report);
/// A header and one line a row, the ceilings first; a layer's stages in one field, "attention=0.231;...".
std::string bench_csv(const BenchReport& report);
/// Everything, "smla-bench/1".
std::string bench_json(const BenchReport& report);

}  // namespace smla
