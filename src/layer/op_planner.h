#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "sparsemla/layer.h"

namespace smla {

/// Plans ops by the layer's options, and keeps the largest workspace and the list of the implementations.
class OpPlanner {
 public:
  OpPlanner(const LayerOptions& options, std::size_t* scratch, std::string* text)
      : options_(options), scratch_(scratch), text_(text) {}

  const LayerOptions& options() const { return options_; }

  /// @param like: a problem whose implementation computes this one too, if it accepts it and none is named; and cut
  /// alike, or else the sums of both would differ
  template <class Op>
  std::optional<Plan<Op>> make(const typename Op::Problem& problem,
                               const std::optional<typename Op::Problem>& like = {}) const {
    PlanOptions plan = plan_options();
    if (like) plan.implementation = choice_of_both<Op>(problem, *like);
    if (const auto named = options_.implementations.find(Op::kName); named != options_.implementations.end()) {
      plan.implementation = named->second;
    } else if (const auto all = options_.implementations.find("*"); all != options_.implementations.end()) {
      // Some run only where they are asked for by name.
      PlanOptions wanted = plan;
      wanted.implementation = all->second;
      for (const Candidate& c : explain<Op>(problem, wanted)) {
        if (c.name == all->second && c.refusal.empty()) plan.implementation = c.name;
      }
    }
    std::optional<Plan<Op>> made(std::in_place, problem, plan);
    if (like) {
      plan.implementation = made->implementation();
      for (const Candidate& c : explain<Op>(*like, plan)) {
        if (c.name == plan.implementation && c.refusal.empty()) made = Plan<Op>(*like, plan).alike(problem);
      }
    }
    keep(Op::kName, *made);
    return made;
  }

  /// A plan of the named implementation, where it accepts the problem.
  template <class Op>
  std::optional<Plan<Op>> make_named(const typename Op::Problem& problem, std::string_view name) const {
    PlanOptions plan = plan_options();
    plan.implementation = name;
    for (const Candidate& c : explain<Op>(problem, plan)) {
      if (c.name != name || !c.refusal.empty()) continue;
      std::optional<Plan<Op>> made(std::in_place, problem, plan);
      keep(Op::kName, *made);
      return made;
    }
    return {};
  }

  /// A plan where the choice is Op::kOneLaunch. Its workspace counts wherever the options allow it, so that a layer
  /// that reserves for its largest step has it for smaller ones, which may choose otherwise.
  template <class Op>
  std::optional<Plan<Op>> make_one_launch(const typename Op::Problem& problem) const {
    std::string of_others;  // a layer does not say that it has what it will not run
    std::optional<Plan<Op>> made = OpPlanner(options_, scratch_, &of_others).make<Op>(problem);
    if (made->implementation() != Op::kOneLaunch) return {};
    keep(Op::kName, *made);
    return made;
  }

  /// A piece that computes `Op` on each of several ranks and puts the results together; implementations are named for
  /// that op.
  template <class Piece, class Op>
  std::optional<Piece> make_piece(const auto&... arguments) const {
    PlanOptions plan = plan_options();
    std::optional<Piece> made;
    if (const auto named = options_.implementations.find(Op::kName); named != options_.implementations.end()) {
      plan.implementation = named->second;
    } else if (const auto all = options_.implementations.find("*"); all != options_.implementations.end()) {
      try {
        PlanOptions wanted = plan;
        wanted.implementation = all->second;
        made.emplace(arguments..., wanted);
      } catch (const Error&) {  // no implementation of that name, or it does not accept
      }
    }
    if (!made) made.emplace(arguments..., plan);
    keep(Op::kName, *made);
    return made;
  }

 private:
  PlanOptions plan_options() const {
    return {.device = options_.device,
            .implementation = "",
            .deterministic = options_.deterministic,
            .threads = options_.threads};
  }
  /// What is chosen for `like`, where it accepts `problem` by name; empty otherwise.
  template <class Op>
  std::string choice_of_both(const typename Op::Problem& problem, const typename Op::Problem& like) const {
    for (const Candidate& chosen : explain<Op>(like, plan_options())) {
      if (!chosen.refusal.empty()) continue;
      PlanOptions named = plan_options();
      named.implementation = chosen.name;
      for (const Candidate& c : explain<Op>(problem, named)) {
        if (c.name == chosen.name && c.refusal.empty()) return named.implementation;
      }
      return "";
    }
    return "";
  }
  void keep(std::string_view op, const auto& made) const {
    *scratch_ = std::max(*scratch_, made.workspace_bytes());
    const std::string entry = std::string(op) + " " + std::string(made.implementation());
    if ((", " + *text_ + ",").find(", " + entry + ",") == std::string::npos)
      *text_ += (text_->empty() ? "" : ", ") + entry;
  }

  const LayerOptions& options_;
  std::size_t* scratch_;
  std::string* text_;
};

}  // namespace smla
