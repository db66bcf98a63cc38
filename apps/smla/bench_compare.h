#pragma once

#include <string>
#include <vector>

#include "bench_report.h"

namespace smla {

/// A report out of the JSON that bench_json writes. @throws InvalidArgument naming `file` and what is missing.
BenchReport parse_report(const std::string& file, const std::string& text);

/// One row of two runs.
struct ComparedRow {
  std::string name;  ///< group, name and shape
  double a = 0;      ///< seconds
  double b = 0;      ///< seconds
  double ratio = 0;  ///< a / b, a as it would be with b's ceilings: over 1 when b is faster
};

/// Two runs beside each other. A row's time in `a` is scaled by the ceiling that bounds its floor: times that of a,
/// over that of b.
struct BenchComparison {
  std::vector<ComparedRow> rows;          ///< right in both
  std::vector<std::string> left_out;      ///< rows of one run alone, skipped or wrong ones, with the reason
  double mean = 0;                        ///< geometric, of ratios
  std::string difference;                 ///< "product: 790 and 801 (1.4 %)", the ceiling that differs most
  std::vector<std::string> void_because;  ///< empty: the comparison holds
};
BenchComparison compare_reports(const BenchReport& a, const BenchReport& b);

/// For people; says VOID first where the comparison does not hold.
std::string comparison_table(const BenchComparison& comparison);

/// A run's rows beside the peers'; `voided` tells whether ceilings differ too much from those of a table that was used.
std::string peers_table(const BenchReport& report, bool& voided);

}  // namespace smla
