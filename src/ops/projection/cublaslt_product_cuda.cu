// What products by cuBLASLt have in common. What its heuristic chose for a shape is kept.
#include <map>
#include <mutex>
#include <tuple>

#include "device/launch.cuh"
#include "ops/projection/cublaslt_products.cuh"

namespace smla::projection::lt {

namespace {

#if CUBLAS_VERSION >= 120900
constexpr std::int32_t kWeightScales = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
constexpr std::int32_t kInputScales = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
constexpr cublasLtMatmulDescAttributes_t kWeightScaleMode = CUBLASLT_MATMUL_DESC_A_SCALE_MODE;
constexpr cublasLtMatmulDescAttributes_t kInputScaleMode = CUBLASLT_MATMUL_DESC_B_SCALE_MODE;
#else
constexpr std::int32_t kWeightScales = 0;
constexpr std::int32_t kInputScales = 0;
constexpr cublasLtMatmulDescAttributes_t kWeightScaleMode = CUBLASLT_MATMUL_DESC_A_SCALE_POINTER;
constexpr cublasLtMatmulDescAttributes_t kInputScaleMode = CUBLASLT_MATMUL_DESC_B_SCALE_POINTER;
#endif

void must(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw CudaError(std::string(call) + ": status " + std::to_string(static_cast<int>(status)));
}

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

}  // namespace

Desc make_desc(const Scales& scales, bool factor_on_device) {
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

void multiply(const Product& product, Desc desc, const Tensors& t, const Memory& memory, cudaStream_t stream) {
  must(cublaslt().matmul(cublaslt_handle(), &desc, t.of_sums, t.w, product.w.get(), t.x, product.x.get(), t.of_y, t.y,
                         product.y.get(), t.y, product.y.get(), &product.algo, memory.own, kWorkspace, stream),
       "cublasLtMatmul");
}

}  // namespace smla::projection::lt
