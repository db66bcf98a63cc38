#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cases/case_file.h"
#include "cases/tolerance.h"
#include "sparsemla/op.h"

namespace smla {

/// How a recorded call is run again.
struct ReplayOptions {
  PlanOptions plan;  ///< device, forced implementation, threads
};

/// Columns [first, second) of each row of a matrix.
using ColumnRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// An expected result made once more in another way.
struct SecondResult {
  std::string name;      ///< "output, not observed"
  std::string expected;  ///< compared with out.<expected>, where the case has it
  std::string implementation;
  HostTensor made;
  std::optional<Tolerance> bound;  ///< absent: that of the expected result
};

/// What came out: owned tensors by result name ("o", "lse", "output", ...), without the "out." prefix.
struct ReplayResult {
  std::string implementation;  ///< what ran
  std::map<std::string, HostTensor> results;
  std::map<std::string, Tolerance>
      bounds{};  ///< of a result for which the case gives none; without either: equal bytes
  std::map<std::string, ColumnRanges>
      defined{};                    ///< of a result whose other columns have no meaning and are not compared
  std::set<std::string> ignored{};  ///< results a case may expect and that nobody compares
  std::vector<SecondResult> more{};
};

/// Runs the case's op on its inputs. A replay function makes views, calls the library and computes nothing itself; it
/// may return more results than the case expects. Tensors are host memory: for another device it stages them there and
/// back.
/// @throws InvalidArgument naming the file and the tensor, Unsupported when nothing here can run it.
using ReplayFunction = ReplayResult (*)(const CaseFile& file, const ReplayOptions& options);

struct ReplayEntry {
  std::string_view op;
  ReplayFunction run;
};

/// Every op that has a case form. Upstream's names (upstream:...) may be given without the library before them and the
/// note in brackets behind.
std::span<const ReplayEntry> replay_table();

/// Runs the case's op. @throws InvalidArgument for an op that is not in the table or an implementation name that no op
/// has, naming the known ones.
ReplayResult replay(const CaseFile& file, const ReplayOptions& options);

/// One line of `smla verify`.
struct Verdict {
  std::string result;  ///< "o"
  std::string implementation;
  Comparison comparison;
  std::string bound{};  ///< what the result was held to, as text
};

/// Compares what came out with every out.* tensor under `params.tolerance`.
/// @throws InvalidArgument when the case expects nothing, the replay did not make a result, or a tolerance is
/// malformed.
std::vector<Verdict> judge(const CaseFile& file, const ReplayResult& made);

/// The replay functions.
ReplayResult replay_sparse_attention(const CaseFile& file, const ReplayOptions& options);
ReplayResult replay_attention_layer(const CaseFile& file, const ReplayOptions& options);

}  // namespace smla
