#include "ops/attention/attention_task.h"

#if defined(__AVX2__)
#include "device/simd_avx2.h"
#include "ops/attention/attention_kernel.h"

namespace smla {

void attend_row_avx2(const AttentionTask& task) { attend_row<Avx2Word>(task); }

}  // namespace smla
#else
namespace smla {

void attend_row_avx2(const AttentionTask&) {}  // never reached: the CPU features of other processors refuse

}  // namespace smla
#endif
