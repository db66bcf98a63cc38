#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/op.h"

namespace smla {

/// An op for people: its family and what each implementation says to a typical problem (a V4-Flash layer at 64 tokens).
struct OpInfo {
  std::string_view name;
  std::string_view family;   ///< folder under src/ops
  std::string_view problem;  ///< the typical problem in words
  std::vector<Candidate> (*candidates)(const PlanOptions& options) = nullptr;
};

/// Every op of the library, in the order of a layer.
std::span<const OpInfo> op_catalog();

/// @throws InvalidArgument for an unknown name, with the known ones.
const OpInfo& find_op(std::string_view name);

}  // namespace smla
