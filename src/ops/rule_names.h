#pragma once

// The words for rules that a Problem may name: in case files, in the C interface.

#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sparsemla/kv_format.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

/// Every value of a rule with its word; the argument says which rule.
template <class Value>
using RuleWords = std::array<std::pair<Value, std::string_view>, 2>;
constexpr RuleWords<ClampRule> rule_words(ClampRule /*any*/) {
  return {{{ClampRule::kAmax, "amax"}, {ClampRule::kScale, "scale"}}};
}
constexpr RuleWords<OutputScale> rule_words(OutputScale /*any*/) {
  return {{{OutputScale::kF32, "f32"}, {OutputScale::kUe8m0x4, "ue8m0x4"}}};
}

/// A member of a Problem that is named by a word.
template <class Value>
concept Rule = std::is_enum_v<Value> && requires(Value value) {
  rule_words(value);
};

/// The word for a value.
template <Rule Value>
std::string_view rule_name(Value rule) {
  for (const auto& [value, name] : rule_words(Value{})) {
    if (value == rule) return name;
  }
  return {};
}

/// Sets `rule` to the value of that word; false when there is none.
template <Rule Value>
bool set_rule(Value& rule, std::string_view word) {
  for (const auto& [value, name] : rule_words(Value{})) {
    if (name == word) return rule = value, true;
  }
  return false;
}

/// The words, for an error: "amax or scale".
template <Rule Value>
std::string rule_names() {
  std::string names;
  for (const auto& [value, name] : rule_words(Value{})) names += (names.empty() ? "" : " or ") + std::string(name);
  return names;
}

}  // namespace smla
