#pragma once

#include <cstddef>

namespace smla::device {

/// Shared memory that every GPU from sm_80 on grants a block: 99 KiB.
inline constexpr std::size_t kLeastSharedBytes = 99 * 1024;

/// Shared memory that a block may ask for: the least of what the machine's GPUs grant. SMLA_CUDA_SHARED_BYTES in the
/// environment, read once, lowers it, so that a large GPU runs what a small one would.
std::size_t shared_limit();

/// Lowers it for tests, until called with 0.
void limit_shared_bytes(std::size_t bytes);

/// The least compute capability of the machine's GPUs, 10 times its major and its minor number: 90 for sm_90; 0 without
/// a GPU.
int least_capability();

/// Multiprocessors of the first GPU.
int multiprocessors();

}  // namespace smla::device
