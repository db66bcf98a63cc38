#include "ops/catalog.h"

#include <vector>

#include "ops/op_descriptions.h"
#include "sparsemla/error.h"

namespace smla {

std::span<const OpInfo> op_catalog() {
  static const std::vector<OpInfo> kOps = [] {
    std::vector<OpInfo> ops;
    for_each_op([&ops]<class Op>() {
      ops.push_back({.name = Op::kName,
                     .family = OpDescription<Op>::kFamily,
                     .problem = OpDescription<Op>::kTypical,
                     .candidates = [](const PlanOptions& options) {
                       return explain<Op>(OpDescription<Op>::typical(), options);
                     }});
    });
    return ops;
  }();
  return kOps;
}

const OpInfo& find_op(std::string_view name) {
  std::string known;
  for (const OpInfo& op : op_catalog()) {
    if (op.name == name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  throw InvalidArgument("op: got \"" + std::string(name) + "\", expected one of " + known);
}

}  // namespace smla
