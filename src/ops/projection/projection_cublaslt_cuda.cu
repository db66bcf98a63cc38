// Projections by cuBLASLt: bf16 x bf16, fp32 x fp32, bf16 x NVFP4 weights that are widened to bf16 before, and on
// Hopper FP8 x FP8 with block scales, all with fp32 sums.
#include "device/launch.cuh"
#include "ops/projection/cublaslt_products.cuh"

namespace smla {

namespace {

using namespace projection::lt;

std::string refusal(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_gpu(machine); !missing.empty()) return missing;
  const bool widened = p.w == Projection::kNvfp4;
  if (widened) {
    if (std::string refusal = refuse_widened(p); !refusal.empty()) return refusal;
  } else if (p.x != p.w) {
    return "it takes x and w of one dtype, or bf16 x and w in NVFP4";
  }
  if (p.x == DType::kF32 && p.y == DType::kBF16) return "it takes no bf16 y of float32 operands";
  if (options.deterministic) return "its choice of kernel depends on the number of rows (deterministic)";
  if (p.m == 0 || p.n == 0 || p.k == 0) return "it takes no empty matrices";
  if (p.m > INT32_MAX || p.n > INT32_MAX || p.k > INT32_MAX || p.groups > INT32_MAX) return "it takes sizes to 2^31-1";
  const bool scaled = p.x == DType::kE4M3;
  if (scaled) {
    if (const std::string refusal = refuse_scaled(p, machine.gpu); !refusal.empty()) return refusal;
  }
  if (const std::string& missing = cublaslt().missing; !missing.empty()) return missing;
  try {
    (void)cublaslt_handle();
  } catch (const CudaError& e) {  // a library that does not fit the driver
    return std::string("cuBLASLt does not work here: ") + e.what();
  }
  const Shape shape = scaled ? scaled_shape_of(p) : widened ? widened_shape_of(p) : shape_of(p);
  return product_of(shape)->found ? "" : "it has no kernel for this shape";
}

Decision decide(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = refusal(p, options, machine); !reason.empty()) return refused(std::move(reason));
  Decision decision;
  decision.workspace_bytes = kWorkspace + kWorkspaceAlignment;
  if (p.x == DType::kE4M3) {
    decision.workspace_bytes += scaled_bytes(p);
    decide_rest(p, options, machine, &decision);
  } else if (p.w == Projection::kNvfp4) {
    decision.workspace_bytes += widened_bytes(p);
  }
  return decision;
}

void run(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  if (p.x == DType::kE4M3) return run_scaled(p, a, context);
  if (p.w == Projection::kNvfp4) return run_widened(p, a, context);
  Shape shape = shape_of(p);
  if (p.m > 1) shape.x_row = a.x.stride[0], shape.y_row = a.y.stride[0];
  if (p.groups > 1) shape.x_group = a.x.stride[1], shape.y_group = a.y.stride[1];
  shape.x_align = alignment_of(a.x.data);
  shape.w_align = alignment_of(a.w.data);
  shape.y_align = alignment_of(a.y.data);
  // Rows that overlap or are narrower than k are not a matrix to it.
  const bool matrix = shape.x_row >= p.k && shape.y_row >= p.n;
  const std::shared_ptr<const Product> product = matrix ? product_of(shape) : nullptr;
  if (product == nullptr || !product->found) return projection_cuda(p, a, context);
  const float one = 1;
  const float zero = 0;
  multiply(*product, product->desc, {.w = a.w.data, .x = a.x.data, .y = a.y.data, .of_sums = &one, .of_y = &zero},
           Memory(context.workspace), stream_of(context.stream));
}

}  // namespace

Implementation<Projection> projection_cublaslt_row() {
  return {.name = "cublaslt",
          .machine = "NVIDIA GPU, sm_80 and up, cuBLASLt",
          .device = DeviceKind::kCuda,
          .decide = decide,
          .run = run};
}

}  // namespace smla
