#pragma once

// The words for rules that a Problem may name: in case files, in the C interface.

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "sparsemla/kv_format.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

/// Every value of a rule with its word.
template <class Rule>
inline constexpr std::array<std::pair<Rule, std::string_view>, 0> kRuleNames{};
template <>
inline constexpr std::array<std::pair<ClampRule, std::string_view>, 2> kRuleNames<ClampRule>{
    {{ClampRule::kAmax, "amax"}, {ClampRule::kScale, "scale"}}};
template <>
inline constexpr std::array<std::pair<OutputScale, std::string_view>, 2> kRuleNames<OutputScale>{
    {{OutputScale::kF32, "f32"}, {OutputScale::kUe8m0x4, "ue8m0x4"}}};

/// The word for a value.
template <class Rule>
std::string_view rule_name(Rule rule) {
  for (const auto& [value, name] : kRuleNames<Rule>) {
    if (value == rule) return name;
  }
  return {};
}

/// Sets `rule` to the value of that word; false when there is none.
template <class Rule>
bool set_rule(Rule& rule, std::string_view word) {
  for (const auto& [value, name] : kRuleNames<Rule>) {
    if (name == word) return rule = value, true;
  }
  return false;
}

/// The words, for an error: "amax or scale".
template <class Rule>
std::string rule_names() {
  std::string names;
  for (const auto& [value, name] : kRuleNames<Rule>) names += (names.empty() ? "" : " or ") + std::string(name);
  return names;
}

}  // namespace smla
