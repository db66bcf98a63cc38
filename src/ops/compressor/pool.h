#pragma once

namespace smla {

/// out[c] = sum_j softmax_j(logits[j][c]) * values[j][c] for c < dim (a multiple of 64); one function for each
/// instruction set.
using PoolFunction = void (*)(const float* const* values, const float* const* logits, int rows, int dim, float* out);

void pool_generic(const float* const* values, const float* const* logits, int rows, int dim, float* out);
void pool_avx2(const float* const* values, const float* const* logits, int rows, int dim, float* out);
void pool_avx512(const float* const* values, const float* const* logits, int rows, int dim, float* out);

}  // namespace smla
