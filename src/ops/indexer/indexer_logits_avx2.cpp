#include "ops/indexer/logits_tile.h"

#if defined(__AVX2__)

#include "device/simd_avx2.h"

namespace smla {
namespace {

using Word = Avx2Word;
constexpr int kVectors = 2;  // 12 sums + 2 words of keys + 1 of q of 16 registers

}  // namespace
}  // namespace smla

#include "ops/indexer/logits_kernel.h"

namespace smla {

LogitsKernel indexer_logits_kernel_avx2() { return {.decode = decode_keys, .score = score_keys}; }

}  // namespace smla

#else

namespace smla {

LogitsKernel indexer_logits_kernel_avx2() { return {}; }  // never called: needs_avx2() refuses

}  // namespace smla

#endif
