#include "ops/indexer/logits_tile.h"

#if defined(__AVX512F__)

#include "device/simd_avx512.h"

namespace smla {
namespace {

using Word = Avx512Word;
constexpr int kVectors = 4;  // 24 sums + 4 words of keys + 1 of q of 32 registers

}  // namespace
}  // namespace smla

#include "ops/indexer/logits_kernel.h"

namespace smla {

LogitsKernel indexer_logits_kernel_avx512() { return {.decode = decode_keys, .score = score_keys}; }

}  // namespace smla

#else

namespace smla {

LogitsKernel indexer_logits_kernel_avx512() { return {}; }  // never called: needs_avx512() refuses

}  // namespace smla

#endif
