#include <dlfcn.h>

#include <map>
#include <mutex>
#include <vector>

#include "device/launch.cuh"
#include "device/library_folders.h"
#include "ops/projection/cublaslt.cuh"

namespace smla {

namespace {

template <class Function>
void bind(void* library, const char* name, Function& to, std::string& missing) {
  to = reinterpret_cast<Function>(dlsym(library, name));
  if (to == nullptr && missing.empty()) missing = std::string("cuBLASLt has no ") + name;
}

CublasLt open() {
  CublasLt lt;
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  std::vector<std::string> folders = device::library_folders();
  folders.insert(folders.begin(), "");  // where the loader looks
  folders.emplace_back("/usr/local/cuda/lib64");
  void* library = nullptr;
  std::string looked = "LD_LIBRARY_PATH";
  for (const std::string& folder : folders) {
    library = dlopen((folder.empty() ? name : folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (!folder.empty()) looked += ", " + folder;
  }
  if (library == nullptr) {
    lt.missing = name + " was not found (" + looked + ")";
    return lt;
  }
  bind(library, "cublasLtCreate", lt.create, lt.missing);
  bind(library, "cublasLtMatmul", lt.matmul, lt.missing);
  bind(library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic, lt.missing);
  bind(library, "cublasLtMatmulDescInit_internal", lt.init_desc, lt.missing);
  bind(library, "cublasLtMatmulDescSetAttribute", lt.set_desc, lt.missing);
  bind(library, "cublasLtMatrixLayoutCreate", lt.make_layout, lt.missing);
  bind(library, "cublasLtMatrixLayoutDestroy", lt.free_layout, lt.missing);
  bind(library, "cublasLtMatrixLayoutSetAttribute", lt.set_layout, lt.missing);
  bind(library, "cublasLtMatmulPreferenceCreate", lt.make_preference, lt.missing);
  bind(library, "cublasLtMatmulPreferenceDestroy", lt.free_preference, lt.missing);
  bind(library, "cublasLtMatmulPreferenceSetAttribute", lt.set_preference, lt.missing);
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
