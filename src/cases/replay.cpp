#include "cases/replay.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "cases/op_case.h"
#include "cases/upstream.h"
#include "model/json.h"
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

/// A parameter or a weight that the op did not look at would be dropped unseen. Upstream's dumps say more of a call
/// than its replay needs: "block_stride", which the tensors have, and the like.
void check_all_read(const CaseFile& file) {
  const bool dump = file.op.starts_with("upstream:");
  std::string known;
  for (const std::string& name : file.asked.params) known += (known.empty() ? "" : ", ") + name;
  for (const auto& [name, value] : file.params.members) {
    if (dump || name == "tolerance" || name == "note" || file.asked.params.contains(name)) continue;
    throw InvalidArgument(file.path + ": params: " + name + ": got a parameter that op " + file.op +
                          " does not have in this case, expected one of " + known);
  }
  for (const std::string& name : file.names("weights.")) {
    if (!file.asked.tensors.contains("weights." + name))
      throw InvalidArgument(file.path + ": weights." + name + ": got a tensor that op " + file.op +
                            " does not have in this case, expected none of this name");
  }
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
      ReplayResult result = entry.run(file, options);
      check_all_read(file);
      return result;
    }
    known += (known.empty() ? "" : ", ") + std::string(entry.op);
  }
  throw InvalidArgument(file.path + ": metadata op: got " +
                        JsonValue{.kind = JsonValue::Kind::kString, .text = file.op}.describe() + ", expected one of " +
                        known);
}

namespace {

/// Bounds of results that are neither expected nor made check nothing.
void check_bound_names(const CaseFile& file, const ReplayResult& made, const std::optional<JsonReader>& tolerances) {
  if (!tolerances) return;
  for (const auto& [name, bound] : tolerances->value().members) {
    if (file.find("out." + name) != nullptr || made.results.contains(name)) continue;
    std::string known;
    for (const std::string& n : file.names("out.")) known += (known.empty() ? "" : ", ") + n;
    throw InvalidArgument(file.path + ": params: tolerance: got a bound of \"" + name + "\", expected one of " + known);
  }
}

/// A bound from a file that a result of zeros would pass checks nothing.
void check_strictness(const HostTensor& want, const Tolerance& tolerance) {
  const HostTensor zeros(want.dtype(), want.shape());
  const bool all_zero = want.numel() == 0 || std::memcmp(zeros.data(), want.data(), want.bytes()) == 0;
  if (all_zero || !compare(zeros, want, tolerance).pass) return;
  throw InvalidArgument("tolerance: got " + describe(tolerance) +
                        ", a bound so wide that zeros pass, expected one that they fail");
}

/// The bound of the result out.<name>: the case's, else the op's, else equal bytes.
Tolerance bound_of(const CaseFile& file, const ReplayResult& made, const std::optional<JsonReader>& tolerances,
                   const std::string& name) {
  if (const JsonValue* value = tolerances ? tolerances->find(name) : nullptr)
    return parse_tolerance(file.path + ": params: tolerance: " + name, *value);
  const auto bound = made.bounds.find(name);
  return bound == made.bounds.end() ? Tolerance() : bound->second;
}

}  // namespace

std::vector<Verdict> judge(const CaseFile& file, const ReplayResult& made) {
  const std::vector<std::string> expected = file.names("out.");
  if (expected.empty())
    throw InvalidArgument(file.path + ": got no out.* tensor, expected at least one result to compare with");
  const auto tolerances = file.reader().object("tolerance");
  check_bound_names(file, made, tolerances);
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
    const Tolerance tolerance = bound_of(file, made, tolerances, name);
    try {
      const HostTensor& want = file.tensor("out." + name);
      if (tolerances && tolerances->has(name)) check_strictness(want, tolerance);
      const auto ranges = made.defined.find(name);
      if (ranges != made.defined.end() && got->second.shape() == want.shape()) {
        verdicts.push_back(
            {name, made.implementation,
             compare(defined_part(got->second, ranges->second), defined_part(want, ranges->second), tolerance),
             describe(tolerance)});
      } else {
        verdicts.push_back({name, made.implementation, compare(got->second, want, tolerance), describe(tolerance)});
      }
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(file.path + ": out." + name + ": " + e.what());
    }
  }
  for (const SecondResult& second : made.more) {
    const HostTensor* want = file.find("out." + second.expected);
    if (want == nullptr) continue;
    const Tolerance tolerance = second.bound ? *second.bound : bound_of(file, made, tolerances, second.expected);
    verdicts.push_back(
        {second.name, second.implementation, compare(second.made, *want, tolerance), describe(tolerance)});
  }
  return verdicts;
}

}  // namespace smla
