// Several weights of one input. Everywhere but in the kernels that stream weights, each is a Projection.
#include <vector>

#include "core/check.h"
#include "ops/define_op.h"
#include "ops/projection/implementations.h"

namespace smla {

namespace {

using Problem = JointProjection::Problem;
using Args = JointProjection::Args;
using PartPlans = std::vector<Planned<Projection>>;

/// Each weight as Projection chooses.
template <Need kNeed>
Decision decide_each(const Problem& problem, const PlanOptions& options, const Machine& machine) {
  Decision decision = refused(kNeed(machine));
  if (!decision.refusal.empty()) return decision;
  PlanOptions of_part = options;
  of_part.implementation.clear();
  PartPlans plans;
  for (int i = 0; i < problem.parts; ++i) {
    plans.push_back(choose<Projection>(part_problem(problem, i), of_part, machine));
    decision.workspace_bytes = std::max(decision.workspace_bytes, plans.back().decision.workspace_bytes);
    decision.words += (i == 0 ? "" : ", ") + std::string(plans.back().implementation->name);
  }
  decision.choice = std::move(plans);
  return decision;
}

void run_each(const Problem& problem, const Args& args, const RunContext& context) {
  const auto& plans = context.choice<PartPlans>();
  for (int i = 0; i < problem.parts; ++i) {
    run_planned(plans[static_cast<std::size_t>(i)], part_args(problem, args, i), context);
  }
}

void run_ref(const Problem& problem, const Args& args, const RunContext& context) {
  for (int i = 0; i < problem.parts; ++i)
    projection_ref(part_problem(problem, i), part_args(problem, args, i), context);
}

/// Calls `check`, which speaks of a projection's members, and names the part in what it throws.
void check_part(int i, const auto& check) {
  try {
    check();
  } catch (const InvalidArgument& e) {
    constexpr std::string_view kOp = "projection: ";
    std::string text = e.what();
    if (text.starts_with(kOp)) text = text.substr(kOp.size());
    const std::string_view member = std::string_view(text).substr(0, text.find(':'));
    const bool of_part =
        member == "n" || member == "w" || member == "y" || member == "w_scale" || member == "w_global_scale";
    throw InvalidArgument(std::string(JointProjection::kName) + ": " +
                          (of_part ? "parts[" + std::to_string(i) + "]." : "") + text);
  }
}

}  // namespace

ProjectionProblem part_problem(const Problem& problem, int i) {
  const JointProjection::Part& part = problem.part[static_cast<std::size_t>(i)];
  return {
      .m = problem.m, .n = part.n, .k = problem.k, .groups = problem.groups, .x = problem.x, .w = part.w, .y = part.y};
}

Projection::Args part_args(const Problem& /*problem*/, const Args& args, int i) {
  const JointProjection::PartArgs& part = args.parts[static_cast<std::size_t>(i)];
  return {.x = args.x, .w = part.w, .y = part.y, .w_scale = part.w_scale, .w_global_scale = part.w_global_scale};
}

template <>
std::span<const Implementation<JointProjection>> OpTable<JointProjection>::implementations() {
  static const Implementation<JointProjection> kTable[] = {
      joint_projection_stream_sm90_row(),
      joint_projection_stream_row(),
      any_gpu_row<JointProjection>(run_each, decide_each<needs_gpu>),
      {.name = "cpu", .machine = "any CPU", .decide = decide_each<needs_nothing>, .run = run_each},
      {.name = "ref", .machine = "any CPU", .run = run_ref},
  };
  return kTable;
}

template <>
void OpTable<JointProjection>::check_problem(const Problem& problem) {
  constexpr std::string_view op = JointProjection::kName;
  check_that(problem.parts >= 1 && problem.parts <= JointProjection::kMaxParts, op, "parts", problem.parts,
             "1 to " + std::to_string(JointProjection::kMaxParts));
  check_that(problem.x != DType::kE4M3, op, "x", "dtype " + std::string(name_of(problem.x)), "BF16 or F32");
  for (int i = 0; i < problem.parts; ++i)
    check_part(i, [&] { OpTable<Projection>::check_problem(part_problem(problem, i)); });
}

template <>
void OpTable<JointProjection>::check_args(const Problem& problem, const Args& args) {
  for (int i = 0; i < JointProjection::kMaxParts; ++i) {
    if (i < problem.parts) {
      check_part(i, [&] { OpTable<Projection>::check_args(part_problem(problem, i), part_args(problem, args, i)); });
      continue;
    }
    const JointProjection::PartArgs& part = args.parts[static_cast<std::size_t>(i)];
    const auto none = [&](std::string_view member, const ConstTensorView& view) {
      check_that(view.absent(), JointProjection::kName, words("parts[", i, "].", member), view,
                 words("none: there are ", problem.parts, " parts"));
    };
    none("w", part.w), none("y", part.y), none("w_scale", part.w_scale);
    none("w_global_scale", part.w_global_scale);
  }
}

SMLA_DEFINE_OP(JointProjection);

}  // namespace smla
