#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/projection.h"

namespace smla {

template <>
struct OpDescription<Projection> {
  static constexpr std::string_view kFamily = "projection";
  static constexpr std::string_view kTypical = "64 rows of bf16, 4096 to 1024";
  static Projection::Problem typical() { return {.m = 64, .n = 1024, .k = 4096}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"x", "x: BF16 | F32 | E4M3", "m, groups, k"},
                                  {"w", "w: BF16 | F32 | E4M3", "groups, n, k"},
                                  {"y", "y: BF16 | F32", "m, groups, n"},
                                  {"x_scale", "x_scale: F32 | I32", "groups, scales, m or more"},
                                  {"w_scale", "F32", "groups, output blocks, input blocks"}});
  static void fields(Projection::Problem& p, auto&& f) {
    f("m", p.m), f("n", p.n), f("k", p.k), f("groups", p.groups), f("x", p.x), f("w", p.w), f("y", p.y),
        f("x_scale", p.x_scale);
  }
  static void tensors(Projection::Args& a, auto&& t) {
    t.in("x", a.x), t.in("w", a.w), t.out("y", a.y), t.in("x_scale", a.x_scale), t.in("w_scale", a.w_scale);
  }
};

}  // namespace smla
