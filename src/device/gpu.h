#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace smla::device {

/// What decisions depend on of one GPU. Plain facts, so that a test or a bench can make a GPU of its own.
struct Gpu {
  int ordinal = -1;              ///< its number in the CUDA runtime; -1: there is no GPU
  int capability = 0;            ///< compute capability, 10 * major + minor: 90 for sm_90
  int multiprocessors = 1;       ///< how many
  std::size_t shared_bytes = 0;  ///< shared memory that a block may ask for (opt-in limit)
  std::size_t l2_bytes = 0;      ///< size of the L2 cache
  std::string_view name;         ///< the driver's name for it; lives as long as the process

  bool present() const { return ordinal >= 0; }
};

/// The calling thread's current GPU; not present() where there is none. The facts of a GPU are read once.
/// SMLA_CUDA_SHARED_BYTES in the environment and limit_shared_bytes() lower its shared_bytes, so that a large GPU runs
/// what a small one would.
Gpu current_gpu();

/// Lowers shared_bytes of every GPU for tests, until called with 0.
void limit_shared_bytes(std::size_t bytes);

/// Why no kernel of this library can run there; empty for a GPU of sm_80 or later.
std::string needs_gpu(const Gpu& gpu);

}  // namespace smla::device
