#include "core/check.h"
#include "ops/define_op.h"
#include "ops/norm_rope/implementations.h"
#include "ops/projection/implementations.h"
#include "ops/projection/quantise_outputs.h"

namespace smla {

namespace {

template <Need kNeed>
Decision decide_cpu(const ProjectionProblem& problem, const PlanOptions& /*options*/, const Machine& machine) {
  Decision decision = refused(kNeed(machine));
  if (decision.refusal.empty()) decision.workspace_bytes = projection_cpu_workspace(problem, machine.threads);
  return decision;
}

/// Up to so many rows the words of bf16 weights are widened while the next ones come from memory.
constexpr std::int64_t kMostWidenedRows = 4;

Decision decide_bf16(const ProjectionProblem& problem, const PlanOptions& options, const Machine& machine) {
  if (options.deterministic)
    return refused(
        "it adds in another order than what multiplies more rows: a row's bits could depend on its neighbours");
  if (problem.x != DType::kBF16 || problem.w == DType::kF32) return refused("only BF16 x; BF16, F8_E4M3 or NVFP4 w");
  const std::int64_t least = problem.w == DType::kBF16 ? kMostWidenedRows + 1 : 0;
  if (problem.m < least || problem.m > kProjectionMaxFewRows) {
    return refused("got m = " + std::to_string(problem.m) + ", expected " + std::to_string(least) + " to " +
                   std::to_string(kProjectionMaxFewRows));
  }
  return decide_cpu<needs_avx512_bf16>(problem, options, machine);
}

/// The run of an implementation that leaves the quantisation of y to QuantizeRows.
template <auto kRun, auto kQuantize>
void run_and_quantise(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  kRun(problem, args, context);
  quantise_outputs(problem, args, context, kQuantize);
}
template <auto kRun>
constexpr auto kOnCpu = run_and_quantise<kRun, quantize_rows_cpu>;

/// The row of such an implementation on a GPU.
template <auto kRow>
Implementation<Projection> quantises_behind() {
  constexpr auto kRun = [](const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
    kRow().run(p, a, context);
  };
  Implementation<Projection> row = kRow();
  row.run = run_and_quantise<kRun, quantize_rows_on_gpu>;
  return row;
}

void check_size(std::string_view what, std::int64_t got, std::int64_t least) {
  check_that(got >= least, Projection::kName, what, got, "at least " + std::to_string(least));
}

void check_float(std::string_view what, DType dtype) {
  check_that(dtype == DType::kBF16 || dtype == DType::kF32, Projection::kName, what,
             "dtype " + std::string(name_of(dtype)), "BF16 or F32");
}

bool is_operand(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kE4M3; }

void check_w(const ProjectionProblem& problem) {
  if (problem.w != Projection::kNvfp4) {
    check_that(is_operand(problem.w), Projection::kName, "w", "dtype " + std::string(name_of(problem.w)),
               "BF16, F32, F8_E4M3 or U8, which is NVFP4");
    return;
  }
  check_that(problem.k % Projection::kNvfp4Group == 0, Projection::kName, "k", problem.k,
             "a multiple of " + std::to_string(Projection::kNvfp4Group) + ", the inputs of a scale of NVFP4 w");
}

auto strides_text(const ConstTensorView& view) {
  return words("strides ", view.stride[0], ", ", view.stride[1], ", ", view.stride[2]);
}

void check_x(const ProjectionProblem& problem) {
  check_that(is_operand(problem.x), Projection::kName, "x", "dtype " + std::string(name_of(problem.x)),
             "BF16, F32 or F8_E4M3");
  if (problem.x != DType::kE4M3) return;
  check_that(problem.k % Projection::kScaleGroup == 0, Projection::kName, "k", problem.k,
             "a multiple of " + std::to_string(Projection::kScaleGroup) + ", the inputs of a scale of F8_E4M3 x");
}

void check_x_scale(const ProjectionProblem& problem, const ConstTensorView& scale) {
  constexpr std::string_view op = Projection::kName;
  if (problem.x != DType::kE4M3) {
    check_that(scale.absent(), op, "x_scale", scale, words("none: x is ", problem.x));
    return;
  }
  const bool packed = problem.x_scale == OutputScale::kUe8m0x4;
  const std::int64_t chunks = problem.k / Projection::kScaleGroup;
  check_tensor(op, "x_scale", scale, {problem.groups, packed ? (chunks + 3) / 4 : chunks, kAny},
               {packed ? DType::kI32 : DType::kF32});
  check_that(scale.size(2) >= problem.m, op, "x_scale", scale,
             words("at least ", problem.m, " rows in its last dimension"));
  check_that((scale.size(0) <= 1 || scale.stride[0] >= 0) && (scale.size(1) <= 1 || scale.stride[1] >= 0), op,
             "x_scale", strides_text(scale), "no negative stride");
}

/// The scales of NVFP4 w: of groups of inputs, and of all.
void check_nvfp4_scales(const ProjectionProblem& problem, const Projection::Args& args) {
  constexpr std::string_view op = Projection::kName;
  if (problem.w != Projection::kNvfp4) {
    check_that(args.w_global_scale.absent(), op, "w_global_scale", args.w_global_scale,
               words("none: w is ", problem.w));
    return;
  }
  check_tensor(op, "w_scale", args.w_scale, {problem.groups, problem.n, problem.k / Projection::kNvfp4Group},
               {DType::kE4M3});
  check_that(args.w_scale.numel() == 0 || args.w_scale.contiguous(), op, "w_scale", strides_text(args.w_scale),
             "contiguous");
  check_tensor(op, "w_global_scale", args.w_global_scale, {1}, {DType::kF32});
}

void check_w_scale(const ProjectionProblem& problem, const ConstTensorView& scale) {
  constexpr std::string_view op = Projection::kName;
  if (problem.w == Projection::kNvfp4) return;
  if (problem.w != DType::kE4M3) {
    check_that(scale.absent(), op, "w_scale", scale, words("none: w is ", problem.w));
    return;
  }
  const auto blocks = [](std::int64_t size) {
    return (size + Projection::kWeightBlock - 1) / Projection::kWeightBlock;
  };
  check_tensor(op, "w_scale", scale, {problem.groups, blocks(problem.n), blocks(problem.k)}, {DType::kF32});
  check_that((scale.size(0) <= 1 || scale.stride[0] >= 0) && (scale.size(1) <= 1 || scale.stride[1] >= 0), op,
             "w_scale", strides_text(scale), "no negative stride");
}

/// a * b * c elements of at most 4 bytes must be addressable.
void check_product(std::string_view what, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t ab = 0;
  std::int64_t bytes = 0;
  std::int64_t abc = 0;
  const bool fits = !__builtin_mul_overflow(a, b, &ab) && !__builtin_mul_overflow(ab, c, &abc) &&
                    !__builtin_mul_overflow(abc, 8, &bytes);
  check_that(fits, Projection::kName, what,
             std::to_string(a) + " x " + std::to_string(b) + " x " + std::to_string(c) + " elements",
             "a size that 64 bits can address");
}

/// No two elements of y at one address: the inner of the first two dimensions must step over a row, the outer one over
/// all of the inner.
bool rows_apart(const TensorView& y) {
  const int inner = y.stride[1] <= y.stride[0] ? 1 : 0;
  const int outer = 1 - inner;
  const auto extent = [&](int dim) { return y.size(dim) > 1 ? y.stride[static_cast<std::size_t>(dim)] : 0; };
  const std::int64_t row = y.size(2);
  if (y.size(inner) > 1 && extent(inner) < row) return false;
  if (y.size(outer) <= 1) return true;
  return extent(outer) >= (y.size(inner) - 1) * extent(inner) + row;
}

void check_quantised_y(const ProjectionProblem& problem, const Projection::Args& args) {
  constexpr std::string_view op = Projection::kName;
  if (!problem.quantises_y) {
    check_that(args.y_values.absent(), op, "y_values", args.y_values, "none without quantises_y");
    check_that(args.y_scales.absent(), op, "y_scales", args.y_scales, "none without quantises_y");
    return;
  }
  const std::int64_t outputs = problem.groups * problem.n;
  check_tensor(op, "y_values", args.y_values, {problem.m, outputs}, {DType::kE4M3});
  check_tensor(op, "y_scales", args.y_scales, {1, outputs / Projection::kScaleGroup, (problem.m + 3) / 4 * 4},
               {DType::kF32});
  const TensorView& values = args.y_values;
  check_that(values.size(0) <= 1 || values.stride[0] >= outputs, op, "y_values", words("stride ", values.stride[0]),
             "rows that do not overlap");
  check_that(problem.groups == 1 || args.y.numel() == 0 || args.y.stride[1] == problem.n, op, "y", strides_text(args.y),
             words("a second stride of ", problem.n, " with quantises_y"));
}

}  // namespace

template <>
std::span<const Implementation<Projection>> OpTable<Projection>::implementations() {
  static const Implementation<Projection> kTable[] = {
      projection_stream_sm90_row(),
      quantises_behind<projection_cublaslt_row>(),
      quantises_behind<projection_stream_row>(),
      quantises_behind<cuda_row<Projection>>(),
      {.name = "avx512_bf16",
       .machine = "AVX-512 BF16 + VBMI, few rows",
       .decide = decide_bf16,
       .run = kOnCpu<projection_bf16_avx512>},
      {.name = "onednn", .machine = "oneDNN", .decide = projection_onednn_decide, .run = kOnCpu<projection_onednn>},
      {.name = "avx512",
       .machine = "AVX-512 F/BW/DQ/VL",
       .decide = decide_cpu<needs_avx512>,
       .run = kOnCpu<projection_avx512>},
      {.name = "avx2", .machine = "AVX2 + FMA", .decide = decide_cpu<needs_avx2>, .run = kOnCpu<projection_avx2>},
      {.name = "cpu", .machine = "any CPU", .decide = decide_cpu<needs_nothing>, .run = kOnCpu<projection_cpu>},
      {.name = "ref", .machine = "any CPU", .run = run_and_quantise<projection_ref, quantize_rows_ref>},
  };
  return kTable;
}

template <>
void OpTable<Projection>::check_problem(const ProjectionProblem& problem) {
  check_size("m", problem.m, 0);
  check_size("n", problem.n, 0);
  check_size("k", problem.k, 0);
  check_size("groups", problem.groups, 1);
  check_x(problem);
  check_w(problem);
  check_float("y", problem.y);
  if (problem.quantises_y) {
    check_that(problem.n % Projection::kScaleGroup == 0, Projection::kName, "n", problem.n,
               "a multiple of " + std::to_string(Projection::kScaleGroup) + " with quantises_y");
  }
  check_product("x", problem.m, problem.groups, problem.k);
  check_product("w", problem.groups, problem.n, problem.k);
  check_product("y", problem.m, problem.groups, problem.n);
}

template <>
void OpTable<Projection>::check_args(const ProjectionProblem& problem, const Projection::Args& args) {
  constexpr std::string_view op = Projection::kName;
  check_tensor(op, "x", args.x, {problem.m, problem.groups, problem.k}, {problem.x});
  const std::int64_t numbers = problem.w == Projection::kNvfp4 ? 2 : 1;  // of an element of w
  check_tensor(op, "w", args.w, {problem.groups, problem.n, problem.k / numbers}, {problem.w});
  check_tensor(op, "y", args.y, {problem.m, problem.groups, problem.n}, {problem.y});
  check_x_scale(problem, args.x_scale);
  check_w_scale(problem, args.w_scale);
  check_nvfp4_scales(problem, args);
  check_that(args.w.numel() == 0 || args.w.contiguous(), op, "w", strides_text(args.w), "contiguous");
  if (args.x.numel() != 0) {
    check_that((args.x.size(0) <= 1 || args.x.stride[0] >= 0) && (args.x.size(1) <= 1 || args.x.stride[1] >= 0), op,
               "x", strides_text(args.x), "no negative stride");
  }
  if (args.y.numel() != 0) {
    check_that(rows_apart(args.y), op, "y", strides_text(args.y), "rows that do not overlap");
  }
  check_quantised_y(problem, args);
}

SMLA_DEFINE_OP(Projection);

}  // namespace smla
