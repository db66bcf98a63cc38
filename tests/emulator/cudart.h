#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "machine.h"

/// What the functions of CUDA's runtime keep. Memory of the GPU is the host's; a stream runs what it is given at once;
/// a graph is a list of what was captured.
namespace emulator {

using Clock = std::chrono::steady_clock;

inline constexpr std::size_t kMemory = std::size_t{140} << 30;
inline constexpr int kSharedOptIn = 227 << 10;
inline constexpr int kSharedDefault = 48 << 10;

struct Node {
  cudaGraphNodeType type;
  const void* function;  ///< of a kernel
  std::function<void()> run;
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};
struct GraphExec {
  std::vector<std::function<void()>> work;
};
struct Stream {
  Graph* capture = nullptr;
  bool origin = false;  ///< of the capture
  bool broken = false;  ///< the capture
};
struct Event {
  Clock::time_point time;
  Graph* capture = nullptr;  ///< in which it was recorded
};

struct Function {
  const char* text = nullptr;
  std::size_t size = 0;
  std::string name;
  const Kernel* kernel = nullptr;
  int dynamic_shared = kSharedDefault;
};
struct Image {
  std::string text;
  std::unique_ptr<Module> module;
};

struct Runtime {
  std::recursive_mutex lock;
  std::map<const void*, std::pair<Image*, Function>> functions;
  std::vector<std::unique_ptr<Image>> images;
  std::map<std::uintptr_t, std::size_t> memory;
  std::size_t used = 0;
  cudaError_t broken = cudaSuccess;  ///< by a kernel; every call answers so from then on
  std::uint32_t launches = 0;
  std::vector<Stream*> streams;
};
Runtime& runtime();

/// Of an environment variable.
std::uint32_t setting(const char* name, std::uint32_t otherwise);

/// What a call returns: its status, or that of the kernel that went wrong before it.
cudaError_t answer(cudaError_t status);
Stream& stream_of(cudaStream_t stream);
/// Whether this thread has a capture open in which memory may not be made or freed; the capture is broken then.
bool breaks_a_capture();
/// Runs a piece of work, or notes it where the stream is being captured.
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, const void* function, std::function<void()> work);

}  // namespace emulator
