// Projections by cuBLASLt: bf16 x bf16, fp32 x fp32, bf16 x NVFP4 weights that are widened to bf16 before, and on
// Hopper FP8 x FP8 with block scales, all with fp32 sums. What its heuristic chose for a shape is kept.
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "device/launch.cuh"
#include "ops/projection/cublaslt.cuh"
#include "ops/projection/implementations.h"
#include "ops/projection/widen_weights.cuh"

namespace smla {

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  ///< what its kernels for Hopper want
constexpr std::size_t kWorkspaceAlignment = 256;
constexpr std::int64_t kScaledRows = 4;  ///< with block scales, rows come in multiples of this
constexpr std::int64_t kFewRows =
    16;  ///< up to here the own kernel reads FP8 weights once, and more rows never need less workspace
constexpr std::int64_t kFewWidenedRows = 64;  ///< up to here the own kernel streams NVFP4 weights past x
/// Of NVFP4 weights widened at a time, so that the second-level cache still has them when they are multiplied. One
/// output at least.
constexpr std::int64_t kPanelBytes = std::int64_t{16} << 20;

// Block scales came with cuBLAS 12.9.
#if CUBLAS_VERSION >= 120900
constexpr bool kHasBlockScales = true;
constexpr std::int32_t kWeightScales = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
constexpr std::int32_t kInputScales = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
constexpr cublasLtMatmulDescAttributes_t kWeightScaleMode = CUBLASLT_MATMUL_DESC_A_SCALE_MODE;
constexpr cublasLtMatmulDescAttributes_t kInputScaleMode = CUBLASLT_MATMUL_DESC_B_SCALE_MODE;
#else
constexpr bool kHasBlockScales = false;
constexpr std::int32_t kWeightScales = 0;
constexpr std::int32_t kInputScales = 0;
constexpr cublasLtMatmulDescAttributes_t kWeightScaleMode = CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
constexpr cublasLtMatmulDescAttributes_t kInputScaleMode = CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
#endif

void must(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw CudaError(std::string(call) + ": status " + std::to_string(static_cast<int>(status)));
}

/// Strides in elements, alignments in bytes.
struct Shape {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  std::int64_t x_row = 0, x_group = 0, y_row = 0, y_group = 0;
  cudaDataType in = CUDA_R_16BF;
  cudaDataType out = CUDA_R_16BF;
  std::uint32_t x_align = 256, w_align = 256, y_align = 256;
  bool factor_on_device = false;  ///< what sums are multiplied by lies in device memory
  auto operator<=>(const Shape&) const = default;
};

/// Of an address, or of several `step` bytes apart.
std::uint32_t alignment_of(const void* p, std::int64_t step = 0) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uintptr_t>(step);
  return address == 0 ? 256U : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

Shape shape_of(const ProjectionProblem& p) {
  const auto type = [](DType d) {
    return d == DType::kBF16 ? CUDA_R_16BF : d == DType::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_32F;
  };
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .groups = p.groups,
          .x_row = p.groups * p.k,
          .x_group = p.k,
          .y_row = p.groups * p.n,
          .y_group = p.n,
          .in = type(p.x),
          .out = type(p.y)};
}

struct FreeLayout {
  void operator()(cublasLtMatrixLayout_t l) const { (void)cublaslt().free_layout(l); }
};
struct FreePreference {
  void operator()(cublasLtMatmulPreference_t p) const { (void)cublaslt().free_preference(p); }
};
using Desc = cublasLtMatmulDescOpaque_t;  // on the stack, or in a Product: making one allocates nothing
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, FreeLayout>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, FreePreference>;

/// A product as cuBLASLt sees it, by columns: y^T [n, m] = w^T (transposed [k, n]) x^T [k, m].
struct Product {
  Desc desc;
  Layout w, x, y;
  cublasLtMatmulAlgo_t algo{};
  bool found = false;
};

Layout make_layout(cudaDataType type, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t groups,
                   std::int64_t group_stride) {
  const CublasLt& lt = cublaslt();
  cublasLtMatrixLayout_t made = nullptr;
  must(lt.make_layout(&made, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                      std::max(stride, rows)),
       "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  if (groups > 1) {
    const auto count = static_cast<std::int32_t>(groups);
    must(lt.set_layout(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
         "cublasLtMatrixLayoutSetAttribute");
    must(lt.set_layout(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &group_stride, sizeof group_stride),
         "cublasLtMatrixLayoutSetAttribute");
  }
  return layout;
}

/// Where the scales of an FP8 product lie, as cuBLASLt wants them (its manual, "128-element 1D and 128x128 2D block
/// scaling"): 16-byte aligned; of w one for each 128 x 128, those of a block of outputs consecutive and padded to a
/// multiple of four; of x one for each 128 inputs of a row, those of all rows consecutive.
struct Scales {
  const float* w = nullptr;
  const float* x = nullptr;
};

Desc make_desc(const Scales& scales, bool factor_on_device = false) {
  const CublasLt& lt = cublaslt();
  Desc desc{};
  must(lt.init_desc(&desc, sizeof desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
    must(lt.set_desc(&desc, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (factor_on_device) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  if (scales.w == nullptr) return desc;
  set(kWeightScaleMode, kWeightScales);
  set(kInputScaleMode, kInputScales);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scales.w));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(scales.x));
  return desc;
}

std::shared_ptr<const Product> make_product(const Shape& s) {
  const CublasLt& lt = cublaslt();
  auto p = std::make_shared<Product>();
  alignas(
      16) static constexpr float kNoScales[4] = {};  // the heuristic asks whether there are any and does not read them
  p->desc = make_desc(s.in == CUDA_R_8F_E4M3 ? Scales{kNoScales, kNoScales} : Scales{}, s.factor_on_device);
  p->w = make_layout(s.in, s.k, s.n, s.k, s.groups, s.n * s.k);
  p->x = make_layout(s.in, s.k, s.m, s.x_row, s.groups, s.x_group);
  p->y = make_layout(s.out, s.n, s.m, s.y_row, s.groups, s.y_group);

  cublasLtMatmulPreference_t made = nullptr;
  must(lt.make_preference(&made), "cublasLtMatmulPreferenceCreate");
  const Preference preference(made);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    must(lt.set_preference(made, which, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // Parts of k are added in fp32: other schemes add what has been rounded to y's dtype.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} | std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.w_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.x_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.y_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.y_align);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = lt.heuristic(cublaslt_handle(), &p->desc, p->w.get(), p->x.get(), p->y.get(),
                                             p->y.get(), preference.get(), 1, &result, &count);
  p->found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  p->algo = result.algo;
  return p;
}

std::shared_ptr<const Product> product_of(const Shape& shape) {
  constexpr std::size_t kCapacity = 1024;
  static std::mutex mutex;
  static std::map<std::pair<int, Shape>, std::shared_ptr<const Product>> made;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const auto found = made.find({device, shape});
  if (found != made.end()) return found->second;
  if (made.size() >= kCapacity) made.clear();
  return made.emplace(std::pair(device, shape), make_product(shape)).first->second;
}

std::int64_t rounded_up(std::int64_t v, std::int64_t to) { return (v + to - 1) / to * to; }

/// A shape of one group of an FP8 product, without the rows that are too many for a multiple of four.
Shape scaled_shape_of(const ProjectionProblem& p) {
  Shape shape = shape_of(p);
  shape.m = p.m / kScaledRows * kScaledRows;
  shape.groups = 1;
  return shape;
}

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

/// Bytes behind cuBLASLt's own workspace for scales that are not where it wants them.
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

/// FP8 x FP8: the groups one after the other, since a batch of matrices has no block scales. Rows beyond a multiple of
/// four are another implementation's.
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
  auto workspace = reinterpret_cast<std::uintptr_t>(context.workspace.data);
  workspace = (workspace + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  auto* x_scratch = reinterpret_cast<float*>(workspace + kWorkspace);
  auto* w_scratch = reinterpret_cast<float*>(workspace + kWorkspace + input_scale_bytes(p));
  const cudaStream_t stream = stream_of(context.stream);
  const float one = 1;
  const float zero = 0;
  const CublasLt& lt = cublaslt();
  const cublasLtHandle_t handle = cublaslt_handle();
  for (std::int64_t g = 0; g < p.groups; ++g) {
    const auto* xs = static_cast<const float*>(a.x_scale.data) + (p.groups > 1 ? g * a.x_scale.stride[0] : 0);
    const auto* ws = static_cast<const float*>(a.w_scale.data) + (p.groups > 1 ? g * a.w_scale.stride[0] : 0);
    const Scales scales{
        .w = scales_at(ws, a.w_scale.stride[1], blocks, chunks, rounded_up(chunks, 4), w_scratch, stream),
        .x = scales_at(xs, a.x_scale.stride[1], chunks, shape.m, shape.m, x_scratch, stream)};
    Desc desc = make_desc(scales);
    const auto* x = static_cast<const std::uint8_t*>(a.x.data) + g * x_group;
    const auto* w = static_cast<const std::uint8_t*>(a.w.data) + g * p.n * p.k;
    auto* y = static_cast<std::uint8_t*>(a.y.data) + g * y_group * y_bytes;
    must(lt.matmul(handle, &desc, &one, w, product->w.get(), x, product->x.get(), &zero, y, product->y.get(), y,
                   product->y.get(), &product->algo, reinterpret_cast<void*>(workspace), kWorkspace, stream),
         "cublasLtMatmul");
  }
  if (shape.m == p.m) return;
  const auto& rest = context.choice<RestPlan>();
  RunContext of_rest = context;
  of_rest.decision = &rest.decision;
  rest.implementation->run(rest.problem,
                           {.x = a.x.slice(0, shape.m, p.m),
                            .w = a.w,
                            .y = a.y.slice(0, shape.m, p.m),
                            .x_scale = a.x_scale.slice(2, shape.m, p.m),
                            .w_scale = a.w_scale},
                           of_rest);
}

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
/// Behind cuBLASLt's own workspace: the factors of its products, and a panel.
std::size_t panel_bytes(const ProjectionProblem& p) {
  const Panel panel = panel_of(p);
  return kWorkspaceAlignment + static_cast<std::size_t>(2 * panel.outputs * panel.groups * p.k);
}

/// bf16 x NVFP4 weights, a panel at a time.
void run_widened(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  Shape shape = panel_shape(p, p.n, p.groups);
  if (p.m > 1) shape.x_row = a.x.stride[0], shape.y_row = a.y.stride[0];
  if (p.groups > 1) shape.x_group = a.x.stride[1], shape.y_group = a.y.stride[1];
  const bool words = reinterpret_cast<std::uintptr_t>(a.w.data) % 8 == 0;
  if (!words || shape.x_row < p.k || shape.y_row < p.n) return projection_cuda(p, a, context);
  const Panel panel = panel_of(p);
  const std::int64_t y_bytes = size_of(p.y);
  auto workspace = reinterpret_cast<std::uintptr_t>(context.workspace.data);
  workspace = (workspace + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  auto* factors = reinterpret_cast<float*>(workspace + kWorkspace);
  auto* widened = reinterpret_cast<BF16*>(workspace + kWorkspace + kWorkspaceAlignment);
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
      projection::widen_weights(
          {.codes = static_cast<const std::uint8_t*>(a.w.data) + first / 2,
           .scales = static_cast<const std::uint8_t*>(a.w_scale.data) + first / Projection::kNvfp4Group,
           .global_scale = static_cast<const float*>(a.w_global_scale.data),
           .numbers = shape.groups * shape.n * p.k,
           .widened = widened,
           .factors = factors},
          stream);
      const auto* x = static_cast<const BF16*>(a.x.data) + group * shape.x_group;
      auto* y = static_cast<std::uint8_t*>(a.y.data) + (group * shape.y_group + output) * y_bytes;
      Desc desc = product->desc;
      must(cublaslt().matmul(cublaslt_handle(), &desc, factors, widened, product->w.get(), x, product->x.get(),
                             factors + 1, y, product->y.get(), y, product->y.get(), &product->algo,
                             reinterpret_cast<void*>(workspace), kWorkspace, stream),
           "cublasLtMatmul");
    }
  }
}

/// Why NVFP4 weights are not widened for it.
std::string refuse_widened(const ProjectionProblem& p) {
  if (p.x != DType::kBF16) return "beside w in NVFP4 it takes bf16 x";
  if (p.m <= kFewWidenedRows) {
    return "got m = " + std::to_string(p.m) + ": up to " + std::to_string(kFewWidenedRows) +
           " rows other kernels read NVFP4 weights as they are";
  }
  return "";
}

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
  const Panel panel = panel_of(p);
  const Shape shape = scaled ? scaled_shape_of(p) : widened ? panel_shape(p, panel.outputs, panel.groups) : shape_of(p);
  return product_of(shape)->found ? "" : "it has no kernel for this shape";
}

Decision decide(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string reason = refusal(p, options, machine); !reason.empty()) return refused(std::move(reason));
  Decision decision;
  decision.workspace_bytes =
      kWorkspace + kWorkspaceAlignment + (p.x == DType::kE4M3 ? input_scale_bytes(p) + weight_scale_bytes(p) : 0);
  if (p.w == Projection::kNvfp4) decision.workspace_bytes += panel_bytes(p);
  if (p.x == DType::kE4M3 && p.m % kScaledRows != 0) {
    PlanOptions of_rest = options;
    of_rest.implementation.clear();
    RestPlan rest = choose<Projection>(rest_of(p), of_rest, machine);
    decision.workspace_bytes = std::max(decision.workspace_bytes, rest.decision.workspace_bytes);
    decision.words =
        "the last " + std::to_string(rest.problem.m) + " rows by " + std::string(rest.implementation->name);
    decision.choice = std::move(rest);
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
  auto workspace = reinterpret_cast<std::uintptr_t>(context.workspace.data);
  workspace = (workspace + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  const float one = 1;
  const float zero = 0;
  const CublasLt& lt = cublaslt();
  Desc desc = product->desc;
  must(lt.matmul(cublaslt_handle(), &desc, &one, a.w.data, product->w.get(), a.x.data, product->x.get(), &zero,
                 a.y.data, product->y.get(), a.y.data, product->y.get(), &product->algo,
                 reinterpret_cast<void*>(workspace), kWorkspace, stream_of(context.stream)),
       "cublasLtMatmul");
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
