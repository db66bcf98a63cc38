// bf16 x NVFP4 weights by cuBLASLt: a panel of weights at a time is widened to bf16 and multiplied.
#include "device/launch.cuh"
#include "ops/projection/cublaslt_products.cuh"
#include "ops/projection/widen_weights.cuh"

namespace smla::projection::lt {

namespace {

constexpr std::int64_t kFewRows = 64;  ///< up to here other kernels read NVFP4 weights as they are
/// Of weights widened at a time, so that the second-level cache still has them when they are multiplied. One output at
/// least.
constexpr std::int64_t kPanelBytes = std::int64_t{16} << 20;

/// NVFP4 weights that are widened at a time: some outputs of a group, or several whole groups.
struct Panel {
  std::int64_t outputs = 0, groups = 1;
};
Panel panel_of(const ProjectionProblem& p) {
  const std::int64_t most = std::max<std::int64_t>(kPanelBytes / (2 * p.k), 1);
  if (p.n > most) return {.outputs = most >= 16 ? most / 16 * 16 : most};
  return {.outputs = p.n, .groups = std::min(p.groups, std::max<std::int64_t>(most / p.n, 1))};
}
Shape panel_shape(const ProjectionProblem& p, std::int64_t outputs, std::int64_t groups) {
  Shape shape = shape_of(p);
  shape.n = outputs, shape.groups = groups;
  shape.factor_on_device = true;
  return shape;
}
}  // namespace

std::string refuse_widened(const ProjectionProblem& p) {
  if (p.x != DType::kBF16) return "beside w in NVFP4 it takes bf16 x";
  if (p.m <= kFewRows) {
    return "got m = " + std::to_string(p.m) + ": up to " + std::to_string(kFewRows) +
           " rows other kernels read NVFP4 weights as they are";
  }
  return "";
}

Shape widened_shape_of(const ProjectionProblem& p) {
  const Panel panel = panel_of(p);
  return panel_shape(p, panel.outputs, panel.groups);
}

/// The factors of its products, and a panel.
std::size_t widened_bytes(const ProjectionProblem& p) {
  const Panel panel = panel_of(p);
  return kWorkspaceAlignment + static_cast<std::size_t>(2 * panel.outputs * panel.groups * p.k);
}

void run_widened(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  Shape shape = panel_shape(p, p.n, p.groups);
  if (p.m > 1) shape.x_row = a.x.stride[0], shape.y_row = a.y.stride[0];
  if (p.groups > 1) shape.x_group = a.x.stride[1], shape.y_group = a.y.stride[1];
  const bool words = reinterpret_cast<std::uintptr_t>(a.w.data) % 8 == 0;
  if (!words || shape.x_row < p.k || shape.y_row < p.n) return projection_cuda(p, a, context);
  const Panel panel = panel_of(p);
  const std::int64_t y_bytes = size_of(p.y);
  const Memory memory(context.workspace);
  auto* factors = reinterpret_cast<float*>(memory.behind);
  auto* widened = reinterpret_cast<BF16*>(memory.behind + kWorkspaceAlignment);
  const cudaStream_t stream = stream_of(context.stream);
  shape.x_align = alignment_of(a.x.data, 2 * shape.x_group);
  for (std::int64_t group = 0; group < p.groups; group += panel.groups) {
    for (std::int64_t output = 0; output < p.n; output += panel.outputs) {
      shape.groups = std::min(panel.groups, p.groups - group);
      shape.n = std::min(panel.outputs, p.n - output);
      shape.y_align = alignment_of(a.y.data, (shape.y_group | output) * y_bytes);
      const std::shared_ptr<const Product> product = product_of(shape);
      if (!product->found) return projection_cuda(p, a, context);  // which writes all of y again
      const std::int64_t first = (group * p.n + output) * p.k;
      widen_weights({.codes = static_cast<const std::uint8_t*>(a.w.data) + first / 2,
                     .scales = static_cast<const std::uint8_t*>(a.w_scale.data) + first / Projection::kNvfp4Group,
                     .global_scale = static_cast<const float*>(a.w_global_scale.data),
                     .numbers = shape.groups * shape.n * p.k,
                     .widened = widened,
                     .factors = factors},
                    stream);
      multiply(*product, product->desc,
               {.w = widened,
                .x = static_cast<const BF16*>(a.x.data) + group * shape.x_group,
                .y = static_cast<std::uint8_t*>(a.y.data) + (group * shape.y_group + output) * y_bytes,
                .of_sums = factors,
                .of_y = factors + 1},
               memory, stream);
    }
  }
}

}  // namespace smla::projection::lt
