// Several weights of one input. Everywhere but in the kernels that stream weights, each is a Projection, of an input
// that RmsNorm has normed before where the problem says so.
#include <optional>
#include <vector>

#include "core/check.h"
#include "core/host_tensor.h"
#include "ops/define_op.h"
#include "ops/norm_rope/implementations.h"
#include "ops/projection/implementations.h"

namespace smla {

namespace {

using Problem = JointProjection::Problem;
using Args = JointProjection::Args;
struct EachPlan {
  std::optional<Planned<RmsNorm>> norm;
  std::vector<Planned<Projection>> parts;
};

/// The norm and each weight as their ops choose.
template <Need kNeed>
Decision decide_each(const Problem& problem, const PlanOptions& options, const Machine& machine) {
  Decision decision = refused(kNeed(machine));
  if (!decision.refusal.empty()) return decision;
  PlanOptions of_part = options;
  of_part.implementation.clear();
  EachPlan plan;
  if (problem.norms_x) {
    plan.norm = choose<RmsNorm>(x_norm_problem(problem), of_part, machine);
    decision.workspace_bytes = plan.norm->decision.workspace_bytes;
    decision.words = "rms_norm " + std::string(plan.norm->implementation->name);
  }
  for (int i = 0; i < problem.parts; ++i) {
    plan.parts.push_back(choose<Projection>(part_problem(problem, i), of_part, machine));
    decision.workspace_bytes = std::max(decision.workspace_bytes, plan.parts.back().decision.workspace_bytes);
    decision.words += (decision.words.empty() ? "" : ", ") + std::string(plan.parts.back().implementation->name);
  }
  decision.workspace_bytes += normed_x_bytes(problem);
  decision.choice = std::move(plan);
  return decision;
}

void run_each(const Problem& problem, const Args& args, const RunContext& context) {
  const auto& plan = context.choice<EachPlan>();
  const std::size_t behind = normed_x_bytes(problem);
  Args normed = args;
  if (plan.norm) {
    run_planned(*plan.norm, x_norm_args(problem, args, context.workspace.data), context, behind);
    normed.x = normed_x(problem, context.workspace.data);
  }
  for (int i = 0; i < problem.parts; ++i) {
    run_planned(plan.parts[static_cast<std::size_t>(i)], part_args(problem, normed, i), context, behind);
  }
}

void run_ref(const Problem& problem, const Args& args, const RunContext& context) {
  HostTensor space;
  Args normed = args;
  if (problem.norms_x) {
    space = HostTensor(problem.x, {problem.m, problem.k});
    rms_norm_ref(x_norm_problem(problem), x_norm_args(problem, args, space.data()), context);
    normed.x = normed_x(problem, space.data());
  }
  for (int i = 0; i < problem.parts; ++i)
    projection_ref(part_problem(problem, i), part_args(problem, normed, i), context);
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

RmsNorm::Problem x_norm_problem(const Problem& problem) {
  return {.rows = problem.m, .dim = problem.k, .in = problem.x, .out = problem.x, .eps = problem.eps};
}
RmsNorm::Args x_norm_args(const Problem& problem, const Args& args, void* to) {
  ConstTensorView rows = args.x;
  rows.rank = 2;
  rows.shape = {problem.m, problem.k, 0, 0};
  rows.stride = {args.x.stride[0], 1, 0, 0};
  return {.x = rows, .weight = args.x_weight, .y = TensorView(to, problem.x, {problem.m, problem.k})};
}
ConstTensorView normed_x(const Problem& problem, const void* at) { return {at, problem.x, {problem.m, 1, problem.k}}; }
std::size_t normed_x_bytes(const Problem& problem) {
  constexpr std::int64_t kAlign = 256;
  if (!problem.norms_x) return 0;
  return static_cast<std::size_t>((problem.m * problem.k * size_of(problem.x) + kAlign - 1) / kAlign * kAlign);
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
  check_that(!problem.norms_x || problem.groups == 1, op, "groups", problem.groups, "1 with norms_x");
}

template <>
void OpTable<JointProjection>::check_args(const Problem& problem, const Args& args) {
  if (problem.norms_x) {
    check_tensor(JointProjection::kName, "x_weight", args.x_weight, {problem.k}, {DType::kBF16, DType::kF32});
  } else {
    check_that(args.x_weight.absent(), JointProjection::kName, "x_weight", args.x_weight, "none without norms_x");
  }
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
