// What stands in for `_sm90.cu` files where the build has no code for Hopper (no CUDA, or architectures without 90): a
// row for each op that refuses every problem, so that it is never run.
#include "ops/cuda_row.h"
#include "ops/op_list.h"

namespace smla {

namespace {

template <class Op>
Decision refuse(const typename Op::Problem& /*problem*/, const PlanOptions& /*options*/, const Machine& machine) {
  std::string missing = needs_gpu(machine);
  return refused(missing.empty() ? "this build has no code for sm_90 (CMAKE_CUDA_ARCHITECTURES)" : std::move(missing));
}

template <class Op>
void run_nothing(const typename Op::Problem& /*problem*/, const typename Op::Args& /*args*/,
                 const RunContext& /*context*/) {
  throw Unsupported(std::string(Op::kName) + ": this build has no code for sm_90");
}

}  // namespace

template <class Op>
Implementation<Op> sm90_row() {
  return hopper_row<Op>(run_nothing<Op>, refuse<Op>);
}

// Instantiates sm90_row() for every op; the tables of other files call it.
void sm90_rows_of_every_op() {
  for_each_op([]<class Op>() { (void)sm90_row<Op>(); });
}

}  // namespace smla
