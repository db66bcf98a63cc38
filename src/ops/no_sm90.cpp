// What stands in for `_sm90.cu` files where the build has no code for Hopper (no CUDA, or architectures without 90): a
// row for each op that refuses every problem, so that it is never run.
#include <array>

#include "ops/attention/implementations.h"
#include "ops/cuda_row.h"
#include "ops/op_list.h"
#include "ops/projection/implementations.h"

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

Implementation<SparseAttention> sparse_attention_widened_row() {
  Implementation<SparseAttention> row = sm90_row<SparseAttention>();
  row.name = "sm90_widened";
  return row;
}
Implementation<SparseAttention> sparse_attention_small_row() {
  Implementation<SparseAttention> row = sm90_row<SparseAttention>();
  row.name = "sm90_small";
  return row;
}

namespace {

template <class Op>
Implementation<Op> stream_row() {
  Implementation<Op> row = sm90_row<Op>();
  row.name = kStreamSm90Name;
  return row;
}

}  // namespace

Implementation<Projection> projection_stream_sm90_row() { return stream_row<Projection>(); }
Implementation<JointProjection> joint_projection_stream_sm90_row() { return stream_row<JointProjection>(); }
Implementation<OutputProjection> output_projection_stream_sm90_row() { return stream_row<OutputProjection>(); }

// sm90_row() of every op, whose tables in other files call it. Taking its address is what puts it into this object: a
// call alone is inlined and leaves nothing.
template <class... Ops>
std::array<void (*)(), sizeof...(Ops)> sm90_rows(TypeList<Ops...> /*list*/) {
  return {reinterpret_cast<void (*)()>(&sm90_row<Ops>)...};
}
std::array<void (*)(), AllOps::kSize> sm90_rows_of_every_op() { return sm90_rows(AllOps{}); }

}  // namespace smla
