#pragma once

// 5. The description: members by name, and a typical problem. Of a real op: src/ops/<family>/<family>_ops.h, and its
// name in the list of src/ops/op_list.h.

#include "ops/op_description.h"
#include "pick_rows.h"

namespace smla {

template <>
struct OpDescription<PickRows> {
  static constexpr std::string_view kFamily = "example";
  static constexpr std::string_view kTypical = "64 rows of 4096, bf16";
  static PickRows::Problem typical() { return {.rows = 64, .sources = 64, .dim = 4096}; }
  static constexpr auto kShapes = std::to_array<TensorShape>(
      {{"x", "dtype: BF16 | F32", "sources, dim"}, {"index", "I32", "rows"}, {"y", "dtype: BF16 | F32", "rows, dim"}});
  static void fields(PickRows::Problem& p, auto&& f) {
    f("rows", p.rows), f("sources", p.sources), f("dim", p.dim), f("dtype", p.dtype), f("scale", p.scale);
  }
  static void tensors(PickRows::Args& a, auto&& t) { t.in("x", a.x), t.in("index", a.index), t.out("y", a.y); }
};
static_assert(DescribedOp<PickRows>);

}  // namespace smla
