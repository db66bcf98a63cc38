#include "device/simd_generic.h"

namespace smla {
namespace {

using Word = GenericWord;
constexpr int kVectors = 2;  // 12 sums + 2 words of keys + 1 of q of 16 registers

}  // namespace
}  // namespace smla

#include "ops/indexer/logits_kernel.h"

namespace smla {

LogitsKernel indexer_logits_kernel_generic() { return {.decode = decode_keys, .score = score_keys}; }

}  // namespace smla
