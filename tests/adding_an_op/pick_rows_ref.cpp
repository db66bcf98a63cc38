// 2. The reference: y_r = scale * x_{index_r}, in double, one rounding. Of a real op: src/ops/<family>/<op>_ref.cpp.
#include "core/codecs.h"
#include "implementations.h"

namespace smla {

namespace {

double number_at(const ConstTensorView& x, std::int64_t at) {
  return x.dtype == DType::kF32 ? static_cast<double>(x.as<float>()[at])
                                : static_cast<double>(to_float(x.as<BF16>()[at]));
}

}  // namespace

void pick_rows_ref(const PickRows::Problem& problem, const PickRows::Args& args, const RunContext& /*context*/) {
  for (std::int64_t r = 0; r < problem.rows; ++r) {
    const std::int64_t source = args.index.as<std::int32_t>()[r];
    const bool there = source >= 0 && source < problem.sources;
    for (std::int64_t i = 0; i < problem.dim; ++i) {
      const double x = there ? number_at(args.x, source * args.x.stride[0] + i) : 0.0;
      const float y = there ? static_cast<float>(x * static_cast<double>(problem.scale)) : 0.0F;
      const std::int64_t at = r * args.y.stride[0] + i;
      if (problem.dtype == DType::kF32) {
        static_cast<float*>(args.y.data)[at] = y;
      } else {
        static_cast<BF16*>(args.y.data)[at] = to_bf16(y);
      }
    }
  }
}

}  // namespace smla
