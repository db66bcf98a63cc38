#pragma once

// The scoring kernel, a template over the SIMD word. Included by indexer_logits_{generic,avx2,avx512}.cpp only, after
// the word, `using Word` and
//   constexpr int kVectors   words of keys in a register block; kVectors * Word::kLanes divides kTileKeys
// Internal linkage throughout: see device/simd_generic.h.

#include "ops/indexer/logits_tile.h"

namespace smla {
namespace {

constexpr int kHeadBlock = 6;  // heads in a register block
constexpr int kStep = kVectors * Word::kLanes;
static_assert(kTileKeys % kStep == 0);

void decode_keys(const std::uint8_t* bytes, const float* group_scales, int dim, int group, float* keys) {
  for (int d = 0; d < dim; ++d) {
    const std::uint8_t* from = bytes + d * kTileKeys;
    float* to = keys + d * kTileKeys;
    for (int j = 0; j < kTileKeys; j += Word::kLanes) {
      const Word v = Word::load_e4m3(from + j);
      (group_scales == nullptr ? v : v * Word::load(group_scales + d / group * kTileKeys + j)).store(to + j);
    }
  }
}

/// scores += relu(q . keys) * weight, head after head.
template <int kHeads>
inline void add_heads(const float* q, const float* weights, int dim, const float* keys, Word* scores) {
  Word sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) sums[h][v] = Word::zero();
  }
  for (int d = 0; d < dim; ++d) {
    Word k[kVectors];
    for (int v = 0; v < kVectors; ++v) k[v] = Word::load(keys + d * kTileKeys + v * Word::kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const Word x = Word::all(q[h * dim + d]);
      for (int v = 0; v < kVectors; ++v) sums[h][v] = fma(x, k[v], sums[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const Word w = Word::all(weights[h]);
    for (int v = 0; v < kVectors; ++v) scores[v] = fma(max(sums[h][v], Word::zero()), w, scores[v]);
  }
}

void score_keys(const float* q, const float* weights, std::int64_t heads, int dim, const float* keys,
                const float* key_scales, int n, float* out) {
  for (int j = 0; j < n; j += kStep) {
    Word scores[kVectors];
    for (int v = 0; v < kVectors; ++v) scores[v] = Word::zero();
    std::int64_t h = 0;
    for (; h + kHeadBlock <= heads; h += kHeadBlock)
      add_heads<kHeadBlock>(q + h * dim, weights + h, dim, keys + j, scores);
    switch (heads - h) {
      case 1: add_heads<1>(q + h * dim, weights + h, dim, keys + j, scores); break;
      case 2: add_heads<2>(q + h * dim, weights + h, dim, keys + j, scores); break;
      case 3: add_heads<3>(q + h * dim, weights + h, dim, keys + j, scores); break;
      case 4: add_heads<4>(q + h * dim, weights + h, dim, keys + j, scores); break;
      case 5: add_heads<5>(q + h * dim, weights + h, dim, keys + j, scores); break;
      default: break;
    }
    for (int v = 0; v < kVectors; ++v) {
      const int at = j + v * Word::kLanes;
      (scores[v] * Word::load(key_scales + at)).store(out + at);
    }
  }
}

}  // namespace
}  // namespace smla
