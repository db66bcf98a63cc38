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
  decltype(&cublasLtMatmulDescCreate) make_desc = nullptr;
  decltype(&cublasLtMatmulDescDestroy) free_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) free_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) free_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  cublasLtHandle_t handle = nullptr;
  std::string missing;  ///< why it cannot be used; empty when it can
};

/// Opened once.
const CublasLt& cublaslt();

}  // namespace smla
