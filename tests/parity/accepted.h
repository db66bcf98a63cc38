#pragma once

#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "sparsemla/op.h"

namespace smla::test {

/// The implementations that take a problem here. Others are named once, with their reason.
template <class Op>
std::vector<std::string> accepted(const typename Op::Problem& problem) {
  static std::set<std::string> told;
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<Op>(problem)) {
    if (candidate.refusal.empty()) {
      names.push_back(candidate.name);
    } else if (told.insert(candidate.name).second) {
      std::cout << Op::kName << ": " << candidate.name << " does not run here: " << candidate.refusal << "\n";
    }
  }
  return names;
}

}  // namespace smla::test
