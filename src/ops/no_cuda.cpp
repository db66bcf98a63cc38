// What stands in for `_cuda.cu` files where the build has no CUDA: a row for each op that refuses every problem, so
// that it is never run.
#include <array>

#include "ops/attention/implementations.h"
#include "ops/op_list.h"
#include "ops/projection/implementations.h"

namespace smla {

namespace {

template <class Op>
void run_nothing(const typename Op::Problem& /*problem*/, const typename Op::Args& /*args*/,
                 const RunContext& /*context*/) {
  throw Unsupported(std::string(Op::kName) + ": this build has no CUDA");
}

}  // namespace

template <class Op>
Implementation<Op> cuda_row() {
  return any_gpu_row<Op>(run_nothing<Op>);
}

Implementation<SparseAttention> sparse_attention_simt_row() {
  Implementation<SparseAttention> row = cuda_row<SparseAttention>();
  row.name = "cuda_simt";
  return row;
}

Implementation<Projection> projection_cublaslt_row() {
  Implementation<Projection> row = cuda_row<Projection>();
  row.name = "cublaslt";
  row.machine = "NVIDIA GPU, sm_80 and up, cuBLASLt";
  return row;
}

namespace {

template <class Op>
Implementation<Op> stream_row() {
  Implementation<Op> row = cuda_row<Op>();
  row.name = kStreamName;
  return row;
}

}  // namespace

Implementation<Projection> projection_stream_row() { return stream_row<Projection>(); }
Implementation<JointProjection> joint_projection_stream_row() { return stream_row<JointProjection>(); }

// cuda_row() of every op, whose tables in other files call it. Taking its address is what puts it into this object: a
// call alone is inlined and leaves nothing.
template <class... Ops>
std::array<void (*)(), sizeof...(Ops)> cuda_rows(TypeList<Ops...> /*list*/) {
  return {reinterpret_cast<void (*)()>(&cuda_row<Ops>)...};
}
std::array<void (*)(), AllOps::kSize> cuda_rows_of_every_op() { return cuda_rows(AllOps{}); }

}  // namespace smla
