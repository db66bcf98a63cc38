// 6. The numbers inside tensors that validate reads. Of a real op: src/ops/<family>/validate_<family>.cpp.
#include "ops/validate_op.h"
#include "pick_rows.h"

namespace smla {

// Row numbers.
template <>
void validate<PickRows>(const PickRows::Problem& problem, const PickRows::Args& args) {
  check_shapes<PickRows>(problem, args);
  const Numbers index(PickRows::kName, "index", args.index);
  for (std::int64_t r = 0; r < problem.rows; ++r) index.index(problem.sources, r);
}

}  // namespace smla
