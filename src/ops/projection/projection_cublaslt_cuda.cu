// Projections by cuBLASLt: bf16 x bf16 and fp32 x fp32 with fp32 sums. What its heuristic chose for a shape is kept.
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "device/launch.cuh"
#include "ops/projection/cublaslt.cuh"
#include "ops/projection/implementations.h"

namespace smla {

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  ///< what its kernels for Hopper want
constexpr std::size_t kWorkspaceAlignment = 256;

void must(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw CudaError(std::string(call) + ": status " + std::to_string(static_cast<int>(status)));
}

/// Strides in elements, alignments in bytes.
struct Shape {
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  std::int64_t x_row = 0, x_group = 0, y_row = 0, y_group = 0;
  cudaDataType in = CUDA_R_16BF;
  cudaDataType out = CUDA_R_16BF;
  std::uint32_t x_align = 256, w_align = 256, y_align = 256;
  auto operator<=>(const Shape&) const = default;
};

std::uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return address == 0 ? 256U : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

Shape shape_of(const ProjectionProblem& p) {
  const auto type = [](DType d) { return d == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; };
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

struct FreeDesc {
  void operator()(cublasLtMatmulDesc_t d) const { (void)cublaslt().free_desc(d); }
};
struct FreeLayout {
  void operator()(cublasLtMatrixLayout_t l) const { (void)cublaslt().free_layout(l); }
};
struct FreePreference {
  void operator()(cublasLtMatmulPreference_t p) const { (void)cublaslt().free_preference(p); }
};
using Desc = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, FreeDesc>;
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, FreeLayout>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, FreePreference>;

/// A product as cuBLASLt sees it, by columns: y^T [n, m] = w^T (transposed [k, n]) x^T [k, m].
struct Product {
  Desc desc;
  Layout w, x, y;
  cublasLtMatmulAlgo_t algo{};
  bool found = false;
};

Layout make_layout(cudaDataType type, std::int64_t rows, std::int64_t columns, std::int64_t stride, std::int64_t groups, std::int64_t group_stride) {
  const CublasLt& lt = cublaslt();
  cublasLtMatrixLayout_t made = nullptr;
  must(lt.make_layout(&made, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), std::max(stride, rows)),
       "cublasLtMatrixLayoutCreate");
  Layout layout(made);
  if (groups > 1) {
    const auto count = static_cast<std::int32_t>(groups);
    must(lt.set_layout(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), "cublasLtMatrixLayoutSetAttribute");
    must(lt.set_layout(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &group_stride, sizeof group_stride), "cublasLtMatrixLayoutSetAttribute");
  }
  return layout;
}

std::shared_ptr<const Product> make_product(const Shape& s) {
  const CublasLt& lt = cublaslt();
  auto p = std::make_shared<Product>();
  cublasLtMatmulDesc_t desc = nullptr;
  must(lt.make_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  p->desc.reset(desc);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  must(lt.set_desc(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "cublasLtMatmulDescSetAttribute");
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
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.w_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.x_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.y_align);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.y_align);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = lt.heuristic(lt.handle, desc, p->w.get(), p->x.get(), p->y.get(), p->y.get(), preference.get(), 1, &result, &count);
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

}  // namespace

std::string projection_cublaslt_refuse(const ProjectionProblem& p, const PlanOptions& options) {
  if (const std::string gpu = needs_gpu(); !gpu.empty()) return gpu;
  if (p.x != p.w || p.x == DType::kE4M3) return "it takes x and w of one dtype, BF16 or F32";
  if (p.x == DType::kF32 && p.y == DType::kBF16) return "it takes no bf16 y of float32 operands";
  if (options.deterministic) return "its choice of kernel depends on the number of rows (deterministic)";
  if (p.m == 0 || p.n == 0 || p.k == 0) return "it takes no empty matrices";
  if (p.m > INT32_MAX || p.n > INT32_MAX || p.k > INT32_MAX || p.groups > INT32_MAX) return "it takes sizes to 2^31-1";
  if (const std::string& missing = cublaslt().missing; !missing.empty()) return missing;
  return product_of(shape_of(p))->found ? "" : "it has no kernel for this shape";
}

std::size_t projection_cublaslt_workspace(const ProjectionProblem&, int) { return kWorkspace + kWorkspaceAlignment; }

void projection_cublaslt(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  Shape shape = shape_of(p);
  if (p.m > 1) shape.x_row = a.x.stride[0], shape.y_row = a.y.stride[0];
  if (p.groups > 1) shape.x_group = a.x.stride[1], shape.y_group = a.y.stride[1];
  shape.x_align = alignment_of(a.x.data);
  shape.w_align = alignment_of(a.w.data);
  shape.y_align = alignment_of(a.y.data);
  // Rows that overlap or are narrower than k are not a matrix to it.
  const bool matrix = shape.x_row >= p.k && shape.y_row >= p.n;
  const std::shared_ptr<const Product> product = matrix ? product_of(shape) : nullptr;
  if (product == nullptr || !product->found) return CudaOp<Projection>::run(p, a, context);
  auto workspace = reinterpret_cast<std::uintptr_t>(context.workspace.data);
  workspace = (workspace + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  const float one = 1;
  const float zero = 0;
  const CublasLt& lt = cublaslt();
  must(lt.matmul(lt.handle, product->desc.get(), &one, a.w.data, product->w.get(), a.x.data, product->x.get(), &zero, a.y.data, product->y.get(),
                 a.y.data, product->y.get(), &product->algo, reinterpret_cast<void*>(workspace), kWorkspace, stream_of(context.stream)),
       "cublasLtMatmul");
}

}  // namespace smla
