#include <sparsemla/ops/attention.h>

#include <cstdio>
#include <cstdlib>
#include <vector>
using namespace smla;

int main() {
  std::vector<BF16> rows(2 * 512), q(512), o(512);
  rows[0] = rows[513] = to_bf16(1);           // key 0 lies along dim 0, key 1 along dim 1
  q[0] = to_bf16(16);                         // the query lies along dim 0
  std::vector<std::int32_t> slots{0, 1, -1};  // what it attends to; -1 is skipped

  const PagedCache cache{&bf16_rows(), reinterpret_cast<std::uint8_t*>(rows.data()), 1, 2, 2048};
  const Plan<SparseAttention> plan({.tokens = 1, .heads = 1, .scope = {{{&bf16_rows(), 2, 3}}}});
  const Workspace scratch{std::aligned_alloc(64, plan.workspace_bytes()), plan.workspace_bytes()};
  plan.run({.q = view_of(q.data(), {1, 1, 512}),
            .scopes = {{{cache, view_of(slots.data(), {1, 3}), {}}}},
            .o = view_of(o.data(), {1, 1, 512})},
           scratch);
  std::printf("o = %.3f %.3f %.3f ...\n", to_float(o[0]), to_float(o[1]), to_float(o[2]));
  std::free(scratch.data);
}
