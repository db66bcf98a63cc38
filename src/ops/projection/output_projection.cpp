// wo_a and wo_b as one op. Everywhere but in the kernel that has a launch for both, each is a Projection.
#include <algorithm>
#include <array>

#include "core/check.h"
#include "ops/define_op.h"
#include "ops/projection/implementations.h"

namespace smla {

namespace {

using Problem = OutputProjection::Problem;
using Args = OutputProjection::Args;
using Plans = std::array<Planned<Projection>, 2>;

/// Each product as Projection chooses.
template <Need kNeed>
Decision decide_each(const Problem& problem, const PlanOptions& options, const Machine& machine) {
  Decision decision = refused(kNeed(machine));
  if (!decision.refusal.empty()) return decision;
  PlanOptions of_product = options;
  of_product.implementation.clear();
  Plans plans{choose<Projection>(first_problem(problem), of_product, machine),
              choose<Projection>(second_problem(problem), of_product, machine)};
  decision.workspace_bytes = std::max(plans[0].decision.workspace_bytes, plans[1].decision.workspace_bytes);
  decision.words = std::string(plans[0].implementation->name) + ", " + std::string(plans[1].implementation->name);
  decision.choice = std::move(plans);
  return decision;
}

void run_each(const Problem& problem, const Args& args, const RunContext& context) {
  const auto& plans = context.choice<Plans>();
  run_planned(plans[0], first_args(args), context);
  run_planned(plans[1], second_args(problem, args), context);
}

void run_ref(const Problem& problem, const Args& args, const RunContext& context) {
  projection_ref(first_problem(problem), first_args(args), context);
  projection_ref(second_problem(problem), second_args(problem, args), context);
}

/// Calls `check`, which speaks of a projection's members, and calls them what this op does in what it throws.
void check_product(std::string_view w, std::string_view y, std::string_view outputs, const auto& check) {
  try {
    check();
  } catch (const InvalidArgument& e) {
    constexpr std::string_view kOp = "projection: ";
    std::string text = e.what();
    if (text.starts_with(kOp)) text = text.substr(kOp.size());
    const std::string member = text.substr(0, text.find(':'));
    std::string name = member;
    if (member == "w") name = w;
    if (member == "w_scale" || member == "w_global_scale") name = std::string(w) + member.substr(1);
    if (member == "y") name = y;
    if (member == "n") name = outputs;
    throw InvalidArgument(std::string(OutputProjection::kName) + ": " + name + text.substr(member.size()));
  }
}

}  // namespace

ProjectionProblem first_problem(const Problem& p) {
  return {.m = p.m, .n = p.rank, .k = p.k, .groups = p.groups, .x = p.x, .w = p.wo_a, .y = p.x};
}
ProjectionProblem second_problem(const Problem& p) {
  return {.m = p.m, .n = p.n, .k = p.groups * p.rank, .groups = 1, .x = p.x, .w = p.wo_b, .y = p.y};
}
Projection::Args first_args(const Args& a) {
  return {.x = a.x, .w = a.wo_a, .y = a.z, .w_scale = a.wo_a_scale, .w_global_scale = a.wo_a_global_scale};
}
Projection::Args second_args(const Problem& p, const Args& a) {
  ConstTensorView rows = a.z;
  rows.shape = {p.m, 1, p.groups * p.rank, 0};
  rows.stride = {a.z.stride[0], p.groups * p.rank, 1, 0};
  return {.x = rows, .w = a.wo_b, .y = a.y, .w_scale = a.wo_b_scale, .w_global_scale = a.wo_b_global_scale};
}

template <>
std::span<const Implementation<OutputProjection>> OpTable<OutputProjection>::implementations() {
  static const Implementation<OutputProjection> kTable[] = {
      output_projection_stream_sm90_row(),
      any_gpu_row<OutputProjection>(run_each, decide_each<needs_gpu>),
      {.name = "cpu", .machine = "any CPU", .decide = decide_each<needs_nothing>, .run = run_each},
      {.name = "ref", .machine = "any CPU", .run = run_ref},
  };
  return kTable;
}

template <>
void OpTable<OutputProjection>::check_problem(const Problem& p) {
  check_that(p.x != DType::kE4M3, OutputProjection::kName, "x", "dtype " + std::string(name_of(p.x)), "BF16 or F32");
  check_product("wo_a", "z", "rank", [&] { OpTable<Projection>::check_problem(first_problem(p)); });
  check_product("wo_b", "y", "n", [&] { OpTable<Projection>::check_problem(second_problem(p)); });
}

template <>
void OpTable<OutputProjection>::check_args(const Problem& p, const Args& a) {
  check_product("wo_a", "z", "rank", [&] { OpTable<Projection>::check_args(first_problem(p), first_args(a)); });
  if (a.z.numel() > 0 && p.groups > 1) {
    check_that(a.z.stride[1] == p.rank, OutputProjection::kName, "z",
               "a second stride of " + std::to_string(a.z.stride[1]),
               std::to_string(p.rank) + ": the groups of a row side by side");
  }
  check_product("wo_b", "y", "n", [&] { OpTable<Projection>::check_args(second_problem(p), second_args(p, a)); });
}

SMLA_DEFINE_OP(OutputProjection);

}  // namespace smla
