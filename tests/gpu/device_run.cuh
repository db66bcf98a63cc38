#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ops/fields.h"
#include "sparsemla/op.h"

namespace smla {

/// Two scopes of one shape each: the one op whose arguments fields.h does not list.
inline void tensors(SparseAttention::Args& a, auto&& t) {
  t.in("q", a.q), t.in("sink", a.sink), t.out("o", a.o), t.out("lse", a.lse);
  for (SparseAttention::Scope& scope : a.scopes) {
    t.cache("cache", scope.cache, CacheAccess::kRead), t.in("indices", scope.indices), t.in("lens", scope.lens);
  }
}

}  // namespace smla

namespace smla::test {

inline void must(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw CudaError(std::string(what) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

/// Device copies of the host memory that an op's arguments view; the same host memory is the same device memory.
class DeviceArguments {
 public:
  ~DeviceArguments() {
    for (const auto& [host, piece] : pieces_) cudaFree(piece.device);
  }
  DeviceArguments() = default;
  DeviceArguments(const DeviceArguments&) = delete;
  DeviceArguments& operator=(const DeviceArguments&) = delete;

  /// Copies everything to the device and lets the views point there.
  template <class Args>
  void upload(Args& args) {
    tensors(args, Visit{*this, Pass::kMeasure});
    for (auto& [host, piece] : pieces_) {
      must(cudaMalloc(&piece.device, piece.bytes), "cudaMalloc");
      must(cudaMemcpy(piece.device, host, piece.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    tensors(args, Visit{*this, Pass::kRedirect});
  }
  /// Copies what the op may have written back to where it came from; all of it, so that a stray write shows.
  void download() {
    for (const auto& [host, piece] : pieces_) {
      must(cudaMemcpy(const_cast<void*>(host), piece.device, piece.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
  }

 private:
  enum class Pass { kMeasure, kRedirect };
  struct Piece {
    void* device = nullptr;
    std::size_t bytes = 0;
  };
  struct Visit {
    DeviceArguments& self;
    Pass pass;
    void in(const char*, ConstTensorView& v) { view(v); }
    void out(const char*, TensorView& v) { view(v); }
    void cache(const char*, PagedCache& c, CacheAccess) {
      if (c.format == nullptr || c.base == nullptr || c.num_blocks == 0) return;
      const auto bytes = static_cast<std::size_t>((c.num_blocks - 1) * c.block_stride_bytes + block_bytes(*c.format, c.block_size));
      if (pass == Pass::kMeasure) {
        self.note(c.base, bytes);
      } else {
        c.base = static_cast<std::uint8_t*>(self.pieces_.at(c.base).device);
      }
    }
    template <class View>
    void view(View& v) {
      if (v.absent() || v.data == nullptr || v.numel() == 0) return;
      std::int64_t last = 0;
      for (int i = 0; i < v.rank; ++i) last += (v.size(i) - 1) * v.stride[static_cast<std::size_t>(i)];
      if (pass == Pass::kMeasure) {
        self.note(v.data, static_cast<std::size_t>((last + 1) * size_of(v.dtype)));
      } else {
        v.data = self.pieces_.at(v.data).device;
      }
    }
  };
  void note(const void* host, std::size_t bytes) {
    Piece& piece = pieces_[host];
    piece.bytes = std::max(piece.bytes, bytes);
  }
  std::map<const void*, Piece> pieces_;
};

/// Runs a plan of the device over host memory: uploads, runs over workspace of 0xFF, waits, downloads.
template <class Op>
void run_on_gpu(const typename Op::Problem& problem, typename Op::Args args, const std::string& implementation = "", bool deterministic = false) {
  const Plan<Op> plan(problem, {.device = DeviceKind::kCuda, .implementation = implementation, .deterministic = deterministic});
  DeviceArguments memory;
  memory.upload(args);
  void* workspace = nullptr;
  must(cudaMalloc(&workspace, std::max<std::size_t>(plan.workspace_bytes(), 64)), "cudaMalloc");
  must(cudaMemset(workspace, 0xFF, std::max<std::size_t>(plan.workspace_bytes(), 64)), "cudaMemset");
  plan.run(args, {.data = workspace, .bytes = plan.workspace_bytes()});
  must(cudaDeviceSynchronize(), std::string(Op::kName).c_str());
  memory.download();
  cudaFree(workspace);
}

/// Tests that need a GPU say why they did not run.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (gpus(&reason).empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace smla::test
