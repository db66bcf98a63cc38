// A plan that was made before is found, and runs, without an allocation.
#include <gtest/gtest.h>

#include "allocations/counter.h"
#include "core/host_tensor.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {
namespace {

TEST(PlanAllocations, APlanThatWasMadeBeforeIsFoundWithoutAny) {
  SparseAttention::Problem p{.tokens = 5, .heads = 64, .scopes = 2};
  p.scope[0] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 128};
  p.scope[1] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 512};
  const PlanOptions options{.implementation = "cpu", .threads = 1};
  const std::int64_t begin = test::allocations();
  const Plan<SparseAttention> first(p, options);
  EXPECT_GT(test::allocations(), begin);  // the counter counts: the first plan is decided
  const std::int64_t before = test::allocations();
  const Plan<SparseAttention> again(p, options);
  const Plan<SparseAttention> copy = again;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(before, test::allocations());
  EXPECT_EQ(first.workspace_bytes(), copy.workspace_bytes());
}

TEST(PlanAllocations, ARunsChecksMakeNone) {
  HostTensor x(DType::kF32, {2, 8});
  HostTensor y(DType::kF32, {2, 8});
  const AddRows::Problem p{.rows = 2, .dim = 8, .dtype = DType::kF32};
  const AddRows::Args args{.y = y.view(), .x = x.view()};
  Plan<AddRows>(p, {.threads = 1}).run(args);
  const std::int64_t before = test::allocations();
  Plan<AddRows>(p, {.threads = 1}).run(args);
  EXPECT_EQ(before, test::allocations());
}

}  // namespace
}  // namespace smla
