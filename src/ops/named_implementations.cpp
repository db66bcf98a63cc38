#include "ops/named_implementations.h"

#include <algorithm>
#include <vector>

#include "ops/catalog.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

/// What `device` has of an op, each with its answer to the op's typical problem.
std::vector<Candidate> candidates_on(const OpInfo& op, DeviceKind device) {
  std::vector<Candidate> all = op.candidates({.device = device});
  std::erase_if(all, [](const Candidate& c) { return c.refusal.starts_with("runs on "); });
  return all;
}

void check_choice(const std::string& where, const std::string& op, const std::string& name, DeviceKind device) {
  std::vector<std::string> known;
  bool runs = false;
  std::string refusal;
  for (const OpInfo& info : op_catalog()) {
    if (op != kEveryOp && op != info.name) continue;
    for (const Candidate& c : candidates_on(info, device)) {
      if (std::ranges::find(known, c.name) == known.end()) known.push_back(c.name);
      if (c.name != name) continue;
      runs = runs || c.refusal.empty();
      if (refusal.empty()) refusal = c.refusal;
    }
  }
  if (std::ranges::find(known, name) == known.end()) {
    std::string names;
    for (const std::string& k : known) names += (names.empty() ? "" : ", ") + k;
    throw InvalidArgument(where + ": got " + name + (op == kEveryOp ? "" : " for " + op) + ", expected " +
                          (names.empty() ? "none" : "one of " + names) + " on " + name_of(device));
  }
  // A GPU's kernel may refuse the typical problem and take another; a CPU's refuses all of them when features are
  // missing.
  if (!runs && device == DeviceKind::kCpu && op == kEveryOp)
    throw InvalidArgument(where + ": got " + name + ", expected one that runs here: " + refusal);
}

}  // namespace

void check_named_implementations(std::string_view where, const std::map<std::string, std::string, std::less<>>& choices,
                                 DeviceKind device) {
  for (const auto& [op, name] : choices) {
    if (op != kEveryOp) {
      try {
        find_op(op);
      } catch (const InvalidArgument& e) {
        throw InvalidArgument(std::string(where) + ": " + e.what());
      }
    }
    check_choice(std::string(where), op, name, device);
  }
}

}  // namespace smla
