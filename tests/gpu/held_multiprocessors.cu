#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "gpu/held_multiprocessors.h"

namespace smla::test {

namespace {

constexpr int kShared = 120 << 10;  // one block a multiprocessor

void must(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(std::string("held multiprocessors: ") + cudaGetErrorString(e));
}

/// Counts the blocks that have started; they stay until they are told to end.
__global__ void hold(int* started, const volatile int* end) {
  atomicAdd(started, 1);
  while (*end == 0) __nanosleep(1000);
}

}  // namespace

struct HeldMultiprocessors::State {
  cudaStream_t stream = nullptr, beside = nullptr;
  int* words = nullptr;  ///< on the GPU: blocks that have started, and whether they are to end
};

HeldMultiprocessors::HeldMultiprocessors(int count) : state_(std::make_unique<State>()) {
  State& s = *state_;
  must(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
  must(cudaStreamCreateWithFlags(&s.beside, cudaStreamNonBlocking));
  must(cudaMalloc(reinterpret_cast<void**>(&s.words), 2 * sizeof(int)));
  must(cudaMemset(s.words, 0, 2 * sizeof(int)));
  must(cudaDeviceSynchronize());
  must(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  hold<<<count, 1, kShared, s.stream>>>(s.words, s.words + 1);
  must(cudaGetLastError());
  for (int started = 0; started < count;) {
    must(cudaMemcpyAsync(&started, s.words, sizeof started, cudaMemcpyDeviceToHost, s.beside));
    must(cudaStreamSynchronize(s.beside));
  }
}

HeldMultiprocessors::~HeldMultiprocessors() {
  State& s = *state_;
  const int end = 1;
  cudaMemcpyAsync(s.words + 1, &end, sizeof end, cudaMemcpyHostToDevice, s.beside);
  cudaStreamSynchronize(s.beside);
  cudaStreamSynchronize(s.stream);
  cudaStreamDestroy(s.beside);
  cudaStreamDestroy(s.stream);
  cudaFree(s.words);
}

bool HeldMultiprocessors::ends_meanwhile(void* stream, double seconds) {
  // Whoever is last frees it: the host function may come after this has given up.
  auto* const ended = new std::shared_ptr<std::atomic<bool>>(std::make_shared<std::atomic<bool>>(false));
  const std::shared_ptr<std::atomic<bool>> seen = *ended;
  const auto tell = [](void* p) {
    const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> own(static_cast<std::shared_ptr<std::atomic<bool>>*>(p));
    **own = true;
  };
  must(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), tell, ended));
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double> most(seconds);
  while (!*seen && std::chrono::steady_clock::now() - begin < most) std::this_thread::yield();
  return *seen;
}

}  // namespace smla::test
