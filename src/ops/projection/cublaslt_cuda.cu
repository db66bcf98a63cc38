#include <map>
#include <mutex>
#include <string>

#include "device/launch.cuh"
#include "device/toolkit_library.h"
#include "ops/projection/cublaslt.cuh"

namespace smla {

namespace {

CublasLt open() {
  CublasLt lt;
  device::ToolkitLibrary library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR), "cuBLASLt");
  library.bind("cublasLtCreate", lt.create);
  library.bind("cublasLtMatmul", lt.matmul);
  library.bind("cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  library.bind("cublasLtMatmulDescInit_internal", lt.init_desc);
  library.bind("cublasLtMatmulDescSetAttribute", lt.set_desc);
  library.bind("cublasLtMatrixLayoutCreate", lt.make_layout);
  library.bind("cublasLtMatrixLayoutDestroy", lt.free_layout);
  library.bind("cublasLtMatrixLayoutSetAttribute", lt.set_layout);
  library.bind("cublasLtMatmulPreferenceCreate", lt.make_preference);
  library.bind("cublasLtMatmulPreferenceDestroy", lt.free_preference);
  library.bind("cublasLtMatmulPreferenceSetAttribute", lt.set_preference);
  lt.missing = library.missing();
  return lt;
}

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt lt = open();
  return lt;
}

cublasLtHandle_t cublaslt_handle() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  int ordinal = 0;
  check_cuda(cudaGetDevice(&ordinal), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = handles.try_emplace(ordinal, nullptr);
  if (!is_new) return entry->second;
  if (const cublasStatus_t status = cublaslt().create(&entry->second); status != CUBLAS_STATUS_SUCCESS) {
    handles.erase(entry);
    throw CudaError("cublasLtCreate: status " + std::to_string(static_cast<int>(status)));
  }
  return entry->second;
}

}  // namespace smla
