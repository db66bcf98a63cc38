// `planted_fault TOOL`: a program with the fault that compute-sanitizer's TOOL exists to find.
#include <cstdio>
#include <cstring>

namespace {

/// One element past the end.
__global__ void write_outside(int* data, int n) { data[n] = 1; }

/// Neighbours' values without a barrier between writing and reading.
__global__ void race(int* out) {
  __shared__ int shared[64];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = shared[(threadIdx.x + 32) % 64];
}

/// Sums memory that nobody wrote.
__global__ void read_unwritten(const int* data, int* out, int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += data[i];
  *out = sum;
}

/// Every thread of a warp waits at a barrier that only the first belongs to.
__global__ void foreign_barrier(int* out) {
  out[threadIdx.x] = 1;
  __syncwarp(1U);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kThreads = 64;
  const char* tool = argc == 2 ? argv[1] : "";
  int* data = nullptr;
  int* out = nullptr;
  if (cudaMalloc(&data, kThreads * sizeof(int)) != cudaSuccess ||
      cudaMalloc(&out, kThreads * sizeof(int)) != cudaSuccess)
    return 2;
  if (std::strcmp(tool, "memcheck") == 0) {
    write_outside<<<1, 1>>>(data, 1 << 20);
  } else if (std::strcmp(tool, "racecheck") == 0) {
    race<<<1, kThreads>>>(out);
  } else if (std::strcmp(tool, "initcheck") == 0) {
    read_unwritten<<<1, 1>>>(data, out, kThreads);
  } else if (std::strcmp(tool, "synccheck") == 0) {
    foreign_barrier<<<1, kThreads>>>(out);
  } else {
    std::fprintf(stderr, "planted_fault: got \"%s\", expected memcheck, racecheck, initcheck or synccheck\n", tool);
    return 2;
  }
  const cudaError_t status = cudaDeviceSynchronize();
  std::printf("%s: %s\n", tool, cudaGetErrorName(status));
  return 0;
}
