#include "cases/replay.h"

#include <algorithm>
#include <array>
#include <set>

#include "cases/op_case.h"
#include "cases/upstream.h"
#include "ops/catalog.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::array<ReplayEntry, 2> kTable{
    {{"sparse_attention", replay_sparse_attention}, {"attention_layer", replay_attention_layer}}};

/// "upstream:DeepGEMM f (sm90)" -> "upstream:f".
std::string plain_name(std::string_view op) {
  constexpr std::string_view kPrefix = "upstream:";
  if (!op.starts_with(kPrefix)) return std::string(op);
  op.remove_prefix(kPrefix.size());
  for (const std::string_view library : {"DeepGEMM ", "vllm "}) {
    if (op.starts_with(library)) op.remove_prefix(library.size());
  }
  if (op.ends_with(')')) op = op.substr(0, op.rfind(" ("));
  return std::string(kPrefix) + std::string(op);
}

/// `tensor` with 0 wherever a column has no meaning.
HostTensor defined_part(const HostTensor& tensor, const ColumnRanges& ranges) {
  HostTensor out(tensor.dtype(), tensor.shape());
  const std::int64_t width = tensor.rank() == 2 ? tensor.size(1) : 0;
  const std::int64_t rows =
      std::min<std::int64_t>(width == 0 ? 0 : tensor.size(0), static_cast<std::int64_t>(ranges.size()));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto [begin, end] = ranges[static_cast<std::size_t>(row)];
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, width);
    const std::int64_t last = std::clamp<std::int64_t>(end, first, width);
    const std::int64_t at = (row * width + first) * size_of(tensor.dtype());
    std::copy_n(static_cast<const std::uint8_t*>(tensor.data()) + at, (last - first) * size_of(tensor.dtype()),
                static_cast<std::uint8_t*>(out.data()) + at);
  }
  return out;
}

/// A layer forces a name only on the ops that have it, so a name that nobody has would pass unseen.
void check_implementation(const std::string& name) {
  if (name.empty()) return;
  std::set<std::string> known;
  for (const OpInfo& op : op_catalog()) {
    for (const Candidate& candidate : op.candidates({})) known.insert(candidate.name);
  }
  if (known.contains(name)) return;
  std::string list;
  for (const std::string& n : known) list += (list.empty() ? "" : ", ") + n;
  throw InvalidArgument("implementation: got \"" + name + "\", expected one of " + list);
}

}  // namespace

std::span<const ReplayEntry> replay_table() {
  static const std::vector<ReplayEntry> kAll = [] {
    std::vector<ReplayEntry> all(kTable.begin(), kTable.end());
    for (const auto entries : {op_case::table(), upstream::table()})
      all.insert(all.end(), entries.begin(), entries.end());
    return all;
  }();
  return kAll;
}

ReplayResult replay(const CaseFile& file, const ReplayOptions& options) {
  std::string known;
  for (const ReplayEntry& entry : replay_table()) {
    if (plain_name(entry.op) == plain_name(file.op)) {
      check_implementation(options.plan.implementation);
      return entry.run(file, options);
    }
    known += (known.empty() ? "" : ", ") + std::string(entry.op);
  }
  throw InvalidArgument(file.path + ": metadata op: got \"" + file.op + "\", expected one of " + known);
}

std::vector<Verdict> judge(const CaseFile& file, const ReplayResult& made) {
  const std::vector<std::string> expected = file.names("out.");
  if (expected.empty())
    throw InvalidArgument(file.path + ": got no out.* tensor, expected at least one result to compare with");
  const auto tolerances = file.reader().object("tolerance");
  std::vector<Verdict> verdicts;
  for (const std::string& name : expected) {
    if (made.ignored.contains(name)) continue;
    const auto got = made.results.find(name);
    if (got == made.results.end()) {
      std::string known;
      for (const auto& [n, tensor] : made.results) known += (known.empty() ? "" : ", ") + ("out." + n);
      throw InvalidArgument(file.path + ": out." + name + ": got a result that op " + file.op +
                            " does not make in this case, expected one of " + known);
    }
    Tolerance tolerance;
    if (const auto bound = made.bounds.find(name); bound != made.bounds.end()) tolerance = bound->second;
    if (const JsonValue* value = tolerances ? tolerances->find(name) : nullptr) {
      tolerance = parse_tolerance(file.path + ": params: tolerance: " + name, *value);
    }
    try {
      const HostTensor& want = file.tensor("out." + name);
      const auto ranges = made.defined.find(name);
      if (ranges != made.defined.end() && got->second.shape() == want.shape()) {
        verdicts.push_back(
            {name, made.implementation,
             compare(defined_part(got->second, ranges->second), defined_part(want, ranges->second), tolerance)});
      } else {
        verdicts.push_back({name, made.implementation, compare(got->second, want, tolerance)});
      }
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(file.path + ": out." + name + ": " + e.what());
    }
  }
  return verdicts;
}

}  // namespace smla
