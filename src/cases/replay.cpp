#include "cases/replay.h"

#include <array>
#include <set>

#include "ops/catalog.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::array<ReplayEntry, 2> kTable{{{"sparse_attention", replay_sparse_attention}, {"attention_layer", replay_attention_layer, true}}};

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

std::span<const ReplayEntry> replay_table() { return kTable; }

ReplayResult replay(const CaseFile& file, const ReplayOptions& options) {
  std::string known;
  for (const ReplayEntry& entry : kTable) {
    if (entry.op == file.op) {
      check_implementation(options.plan.implementation);
      if (entry.cpu_only && options.plan.device != DeviceKind::kCpu) {
        throw Unsupported(file.path + ": op " + file.op + ": got device " + name_of(options.plan.device) +
                          ", expected cpu (the layer has no other form yet)");
      }
      return entry.run(file, options);
    }
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
