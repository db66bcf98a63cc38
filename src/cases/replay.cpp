#include "cases/replay.h"

#include <array>

#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::array<ReplayEntry, 2> kTable{{{"sparse_attention", replay_sparse_attention}, {"attention_layer", replay_attention_layer}}};

}  // namespace

std::span<const ReplayEntry> replay_table() { return kTable; }

ReplayResult replay(const CaseFile& file, const ReplayOptions& options) {
  std::string known;
  for (const ReplayEntry& entry : kTable) {
    if (entry.op == file.op) return entry.run(file, options);
    known += (known.empty() ? "" : ", ") + std::string(entry.op);
  }
  throw InvalidArgument(file.path + ": metadata op: got \"" + file.op + "\", expected one of " + known);
}

std::vector<Verdict> judge(const CaseFile& file, const ReplayResult& made) {
  const std::vector<std::string> expected = file.names("out.");
  if (expected.empty()) throw InvalidArgument(file.path + ": got no out.* tensor, expected at least one result to compare with");
  const auto tolerances = file.reader().object("tolerance");
  std::vector<Verdict> verdicts;
  for (const std::string& name : expected) {
    const auto got = made.results.find(name);
    if (got == made.results.end()) {
      std::string known;
      for (const auto& [n, tensor] : made.results) known += (known.empty() ? "" : ", ") + ("out." + n);
      throw InvalidArgument(file.path + ": out." + name + ": got a result that op " + file.op + " does not make in this case, expected one of " +
                            known);
    }
    Tolerance tolerance;
    if (const JsonValue* value = tolerances ? tolerances->find(name) : nullptr) {
      tolerance = parse_tolerance(file.path + ": params: tolerance: " + name, *value);
    }
    try {
      verdicts.push_back({name, made.implementation, compare(got->second, file.tensor("out." + name), tolerance)});
    } catch (const InvalidArgument& e) {
      throw InvalidArgument(file.path + ": out." + name + ": " + e.what());
    }
  }
  return verdicts;
}

}  // namespace smla
