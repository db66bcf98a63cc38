// 3. A faster implementation: threads split rows. Of a real op: src/ops/<family>/<op>_cpu.cpp; on a GPU <op>_cuda.cu.
#include <algorithm>

#include "core/codecs.h"
#include "implementations.h"

namespace smla {

namespace {

float from(float x) { return x; }
float from(BF16 x) { return to_float(x); }
void store(float& y, float value) { y = value; }
void store(BF16& y, float value) { y = to_bf16(value); }

template <class Number>
void pick(const PickRows::Problem& problem, const PickRows::Args& args, int threads) {
#pragma omp parallel for num_threads(threads)
  for (std::int64_t r = 0; r < problem.rows; ++r) {
    const std::int64_t source = args.index.as<std::int32_t>()[r];
    Number* y = static_cast<Number*>(args.y.data) + r * args.y.stride[0];
    if (source < 0 || source >= problem.sources) {
      std::fill_n(y, problem.dim, Number{});
      continue;
    }
    const Number* x = args.x.as<Number>() + source * args.x.stride[0];
    for (std::int64_t i = 0; i < problem.dim; ++i) store(y[i], from(x[i]) * problem.scale);
  }
}

}  // namespace

void pick_rows_cpu(const PickRows::Problem& problem, const PickRows::Args& args, const RunContext& context) {
  if (problem.dtype == DType::kF32) return pick<float>(problem, args, context.threads);
  pick<BF16>(problem, args, context.threads);
}

}  // namespace smla
