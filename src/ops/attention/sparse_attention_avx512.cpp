#include "ops/attention/attention_task.h"

#if defined(__AVX512F__)
#include "device/simd_avx512.h"
#include "ops/attention/attention_kernel.h"

namespace smla {

void attend_row_avx512(const AttentionTask& task) { attend_row<Avx512Word>(task); }

}  // namespace smla
#else
namespace smla {

void attend_row_avx512(const AttentionTask&) {}  // never reached: the CPU features of other processors refuse

}  // namespace smla
#endif
