#pragma once

#include <cublasLt.h>

#include <string>

namespace smla {

/// The functions of cuBLASLt that projections call. The library is half a gigabyte and often absent where the driver is
/// not, so it is opened when a plan first asks for it, by the version of the toolkit that built this.
struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) free_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) free_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  std::string missing;  ///< why it cannot be used; empty when it can
};

/// The library, opened at the first call.
const CublasLt& cublaslt();

/// The handle of the current device, made when it is first asked for: a handle holds memory of the device that was
/// current then. @throws CudaError when it cannot be made.
cublasLtHandle_t cublaslt_handle();

}  // namespace smla
