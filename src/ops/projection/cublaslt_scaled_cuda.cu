// FP8 x FP8 by cuBLASLt with block scales: the groups one after the other, since a batch of matrices has none. Rows
// beyond a multiple of four are another implementation's.
#include "device/launch.cuh"
#include "ops/projection/cublaslt_products.cuh"

namespace smla::projection::lt {

namespace {

constexpr std::int64_t kScaledRows = 4;  ///< rows come in multiples of this
/// Up to here the own kernel reads FP8 weights once, and more rows never need less workspace.
constexpr std::int64_t kFewRows = 16;

std::int64_t rounded_up(std::int64_t v, std::int64_t to) { return (v + to - 1) / to * to; }

std::size_t input_scale_bytes(const ProjectionProblem& p) {
  return static_cast<std::size_t>(
      rounded_up(p.k / Projection::kScaleGroup * p.m * 4, static_cast<std::int64_t>(kWorkspaceAlignment)));
}
std::size_t weight_scale_bytes(const ProjectionProblem& p) {
  const std::int64_t rows = rounded_up(p.n, Projection::kWeightBlock) / Projection::kWeightBlock;
  return static_cast<std::size_t>(rows * rounded_up(p.k / Projection::kWeightBlock, 4) * 4);
}

/// `rows` x `columns` scales with `wanted` floats from row to row: where they lie, or copied to `scratch`.
const float* scales_at(const float* scales, std::int64_t stride, std::int64_t rows, std::int64_t columns,
                       std::int64_t wanted, float* scratch, cudaStream_t stream) {
  const bool dense = (rows <= 1 && wanted == columns) || stride == wanted;
  if (dense && wanted == columns && reinterpret_cast<std::uintptr_t>(scales) % 16 == 0) return scales;
  const auto bytes = [](std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); };
  if (wanted != columns) check_cuda(cudaMemsetAsync(scratch, 0, bytes(rows * wanted), stream), "cudaMemsetAsync");
  // A single row may have any stride, also one that no copy takes.
  const std::int64_t from = rows <= 1 ? columns : stride;
  if (from >= columns) {
    check_cuda(cudaMemcpy2DAsync(scratch, bytes(wanted), scales, bytes(from), bytes(columns),
                                 static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream),
               "cudaMemcpy2DAsync");
    return scratch;
  }
  for (std::int64_t r = 0; r < rows; ++r) {  // rows that overlap
    check_cuda(
        cudaMemcpyAsync(scratch + r * wanted, scales + r * stride, bytes(columns), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
  }
  return scratch;
}

/// The rows of an FP8 product beyond a multiple of four, up to three, as a call of its own. All rows are quantised
/// behind both.
ProjectionProblem rest_of(const ProjectionProblem& p) {
  ProjectionProblem rest = p;
  rest.m = p.m % kScaledRows;
  rest.quantises_y = false;
  return rest;
}
using RestPlan = Planned<Projection>;  ///< of them, where there are any

}  // namespace

std::string refuse_scaled(const ProjectionProblem& p, const device::Gpu& gpu) {
  constexpr std::int64_t kAligned = 16;
  if (!kHasBlockScales) return "this build's cuBLAS has no block scales of FP8 products (12.9 and later have)";
  if (p.x_scale != OutputScale::kF32) return "it takes F32 scales of x";
  if (gpu.capability != 90)
    return "it has block scales of FP8 products on sm_90 only, this is sm_" + std::to_string(gpu.capability);
  if (p.n % kAligned != 0 || p.k % Projection::kScaleGroup != 0)
    return "FP8 products: it takes n in multiples of 16 and k in multiples of 128";
  if (p.m <= kFewRows) {
    return "got m = " + std::to_string(p.m) + ": up to " + std::to_string(kFewRows) +
           " rows the own kernel reads FP8 weights once, and m need be no multiple of 4";
  }
  return "";
}

Shape scaled_shape_of(const ProjectionProblem& p) {
  Shape shape = shape_of(p);
  shape.m = p.m / kScaledRows * kScaledRows;
  shape.groups = 1;
  return shape;
}

std::size_t scaled_bytes(const ProjectionProblem& p) { return input_scale_bytes(p) + weight_scale_bytes(p); }

void decide_rest(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine, Decision* decision) {
  if (p.m % kScaledRows == 0) return;
  PlanOptions of_rest = options;
  of_rest.implementation.clear();
  RestPlan rest = choose<Projection>(rest_of(p), of_rest, machine);
  decision->workspace_bytes = std::max(decision->workspace_bytes, rest.decision.workspace_bytes);
  decision->words = "the last " + std::to_string(rest.problem.m) + " rows by " + std::string(rest.implementation->name);
  decision->choice = std::move(rest);
}

void run_scaled(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  Shape shape = scaled_shape_of(p);
  shape.x_row = a.x.stride[0], shape.y_row = a.y.stride[0];
  const std::int64_t x_group = p.groups > 1 ? a.x.stride[1] : 0;
  const std::int64_t y_group = p.groups > 1 ? a.y.stride[1] : 0;
  const std::int64_t y_bytes = size_of(p.y);
  shape.x_align = alignment_of(a.x.data, x_group);
  shape.w_align = alignment_of(a.w.data, p.groups > 1 ? p.n * p.k : 0);
  shape.y_align = alignment_of(a.y.data, y_group * y_bytes);
  const bool aligned = std::min({shape.x_align, shape.w_align, shape.y_align}) >= 16 && shape.x_row % 16 == 0 &&
                       shape.y_row * y_bytes % 16 == 0;
  const std::shared_ptr<const Product> product =
      aligned && shape.x_row >= p.k && shape.y_row >= p.n ? product_of(shape) : nullptr;
  if (product == nullptr || !product->found) return projection_cuda(p, a, context);

  const std::int64_t chunks = p.k / Projection::kScaleGroup;
  const std::int64_t blocks = rounded_up(p.n, Projection::kWeightBlock) / Projection::kWeightBlock;
  const Memory memory(context.workspace);
  auto* x_scratch = reinterpret_cast<float*>(memory.behind);
  auto* w_scratch = reinterpret_cast<float*>(memory.behind + input_scale_bytes(p));
  const cudaStream_t stream = stream_of(context.stream);
  const float one = 1;
  const float zero = 0;
  for (std::int64_t g = 0; g < p.groups; ++g) {
    const auto* xs = static_cast<const float*>(a.x_scale.data) + (p.groups > 1 ? g * a.x_scale.stride[0] : 0);
    const auto* ws = static_cast<const float*>(a.w_scale.data) + (p.groups > 1 ? g * a.w_scale.stride[0] : 0);
    const Scales scales{
        .w = scales_at(ws, a.w_scale.stride[1], blocks, chunks, rounded_up(chunks, 4), w_scratch, stream),
        .x = scales_at(xs, a.x_scale.stride[1], chunks, shape.m, shape.m, x_scratch, stream)};
    multiply(*product, make_desc(scales),
             {.w = static_cast<const std::uint8_t*>(a.w.data) + g * p.n * p.k,
              .x = static_cast<const std::uint8_t*>(a.x.data) + g * x_group,
              .y = static_cast<std::uint8_t*>(a.y.data) + g * y_group * y_bytes,
              .of_sums = &one,
              .of_y = &zero},
             memory, stream);
  }
  if (shape.m == p.m) return;
  run_planned(context.choice<RestPlan>(),
              {.x = a.x.slice(0, shape.m, p.m),
               .w = a.w,
               .y = a.y.slice(0, shape.m, p.m),
               .x_scale = a.x_scale.slice(2, shape.m, p.m),
               .w_scale = a.w_scale},
              context);
}

}  // namespace smla::projection::lt
