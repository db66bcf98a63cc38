#pragma once

// What the driver (indexer_logits_cpu.cpp) asks of one instruction set. Raw pointers only: files of other instruction
// sets include this.

#include <cstdint>

namespace smla {

constexpr int kTileKeys = 64;  ///< keys decoded together; a kernel's step divides it

struct LogitsKernel {
  /// E4M3 bytes [dim][kTileKeys] -> floats of the same shape. `group_scales` [dim/group][kTileKeys] multiplies them;
  /// null: not scaled.
  void (*decode)(const std::uint8_t* bytes, const float* group_scales, int dim, int group, float* keys);

  /// out[j] = key_scales[j] * sum_h max(sum_d q[h][d] * keys[d][j], 0) * weights[h] for j < n (more of the kTileKeys
  /// may be written). Both sums run in ascending order, so that no blocking shows in the bits.
  void (*score)(const float* q, const float* weights, std::int64_t heads, int dim, const float* keys,
                const float* key_scales, int n, float* out);
};

LogitsKernel indexer_logits_kernel_generic();
LogitsKernel indexer_logits_kernel_avx2();
LogitsKernel indexer_logits_kernel_avx512();

}  // namespace smla
