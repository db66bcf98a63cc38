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
                                  {"w", "w: BF16 | F32 | E4M3 | U8 beside w_global_scale", "groups, n, k or k/2"},
                                  {"y", "y: BF16 | F32", "m, groups, n"},
                                  {"x_scale", "x_scale: F32 | I32", "groups, scales, m or more"},
                                  {"w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"w_global_scale", "F32", "1"},
                                  {"y_values", "E4M3", "m, all outputs", "quantises_y"},
                                  {"y_scales", "F32", "1, output blocks, padded rows", "quantises_y"}});
  static void fields(Projection::Problem& p, auto&& f) {
    f("m", p.m), f("n", p.n), f("k", p.k), f("groups", p.groups), f("x", p.x), f("w", p.w), f("y", p.y),
        f("x_scale", p.x_scale), f("quantises_y", p.quantises_y);
  }
  static void tensors(Projection::Args& a, auto&& t) {
    t.in("x", a.x), t.in("w", a.w), t.out("y", a.y), t.in("x_scale", a.x_scale), t.in("w_scale", a.w_scale),
        t.in("w_global_scale", a.w_global_scale), t.out("y_values", a.y_values), t.out("y_scales", a.y_scales);
  }
};

template <>
struct OpDescription<JointProjection> {
  static constexpr std::string_view kFamily = "projection";
  static constexpr std::string_view kTypical = "64 rows of bf16, 4096 to 1024 and to 512";
  static JointProjection::Problem typical() {
    return {.m = 64, .k = 4096, .parts = 2, .part = {{{.n = 1024}, {.n = 512}}}};
  }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"x", "x: BF16 | F32", "m, groups, k"},
                                  {"parts[0].w", "parts[0].w: BF16 | F32 | E4M3 | U8 beside parts[0].w_global_scale",
                                   "groups, parts[0].n, k or k/2"},
                                  {"parts[0].y", "parts[0].y: BF16 | F32", "m, groups, parts[0].n"},
                                  {"parts[0].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[0].w_global_scale", "F32", "1"},
                                  {"parts[1].w", "parts[1].w: BF16 | F32 | E4M3 | U8 beside parts[1].w_global_scale",
                                   "groups, parts[1].n, k or k/2"},
                                  {"parts[1].y", "parts[1].y: BF16 | F32", "m, groups, parts[1].n"},
                                  {"parts[1].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[1].w_global_scale", "F32", "1"},
                                  {"parts[2].w", "parts[2].w: BF16 | F32 | E4M3 | U8 beside parts[2].w_global_scale",
                                   "groups, parts[2].n, k or k/2"},
                                  {"parts[2].y", "parts[2].y: BF16 | F32", "m, groups, parts[2].n"},
                                  {"parts[2].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[2].w_global_scale", "F32", "1"},
                                  {"parts[3].w", "parts[3].w: BF16 | F32 | E4M3 | U8 beside parts[3].w_global_scale",
                                   "groups, parts[3].n, k or k/2"},
                                  {"parts[3].y", "parts[3].y: BF16 | F32", "m, groups, parts[3].n"},
                                  {"parts[3].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[3].w_global_scale", "F32", "1"},
                                  {"parts[4].w", "parts[4].w: BF16 | F32 | E4M3 | U8 beside parts[4].w_global_scale",
                                   "groups, parts[4].n, k or k/2"},
                                  {"parts[4].y", "parts[4].y: BF16 | F32", "m, groups, parts[4].n"},
                                  {"parts[4].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[4].w_global_scale", "F32", "1"},
                                  {"parts[5].w", "parts[5].w: BF16 | F32 | E4M3 | U8 beside parts[5].w_global_scale",
                                   "groups, parts[5].n, k or k/2"},
                                  {"parts[5].y", "parts[5].y: BF16 | F32", "m, groups, parts[5].n"},
                                  {"parts[5].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[5].w_global_scale", "F32", "1"},
                                  {"parts[6].w", "parts[6].w: BF16 | F32 | E4M3 | U8 beside parts[6].w_global_scale",
                                   "groups, parts[6].n, k or k/2"},
                                  {"parts[6].y", "parts[6].y: BF16 | F32", "m, groups, parts[6].n"},
                                  {"parts[6].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[6].w_global_scale", "F32", "1"},
                                  {"parts[7].w", "parts[7].w: BF16 | F32 | E4M3 | U8 beside parts[7].w_global_scale",
                                   "groups, parts[7].n, k or k/2"},
                                  {"parts[7].y", "parts[7].y: BF16 | F32", "m, groups, parts[7].n"},
                                  {"parts[7].w_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
                                  {"parts[7].w_global_scale", "F32", "1"},
                                  {"x_weight", "BF16 | F32", "k", "norms_x"}});
  static void fields(JointProjection::Problem& p, auto&& f) {
    f("m", p.m), f("k", p.k), f("groups", p.groups), f("x", p.x), f("parts", p.parts);
    f("parts[0].n", p.part[0].n), f("parts[0].w", p.part[0].w), f("parts[0].y", p.part[0].y);
    f("parts[1].n", p.part[1].n), f("parts[1].w", p.part[1].w), f("parts[1].y", p.part[1].y);
    f("parts[2].n", p.part[2].n), f("parts[2].w", p.part[2].w), f("parts[2].y", p.part[2].y);
    f("parts[3].n", p.part[3].n), f("parts[3].w", p.part[3].w), f("parts[3].y", p.part[3].y);
    f("parts[4].n", p.part[4].n), f("parts[4].w", p.part[4].w), f("parts[4].y", p.part[4].y);
    f("parts[5].n", p.part[5].n), f("parts[5].w", p.part[5].w), f("parts[5].y", p.part[5].y);
    f("parts[6].n", p.part[6].n), f("parts[6].w", p.part[6].w), f("parts[6].y", p.part[6].y);
    f("parts[7].n", p.part[7].n), f("parts[7].w", p.part[7].w), f("parts[7].y", p.part[7].y);
    f("norms_x", p.norms_x), f("eps", p.eps), f("leaves_room", p.leaves_room);
  }
  static void tensors(JointProjection::Args& a, auto&& t) {
    t.in("x", a.x);
    t.in("parts[0].w", a.parts[0].w), t.out("parts[0].y", a.parts[0].y);
    t.in("parts[0].w_scale", a.parts[0].w_scale);
    t.in("parts[0].w_global_scale", a.parts[0].w_global_scale);
    t.in("parts[1].w", a.parts[1].w), t.out("parts[1].y", a.parts[1].y);
    t.in("parts[1].w_scale", a.parts[1].w_scale);
    t.in("parts[1].w_global_scale", a.parts[1].w_global_scale);
    t.in("parts[2].w", a.parts[2].w), t.out("parts[2].y", a.parts[2].y);
    t.in("parts[2].w_scale", a.parts[2].w_scale);
    t.in("parts[2].w_global_scale", a.parts[2].w_global_scale);
    t.in("parts[3].w", a.parts[3].w), t.out("parts[3].y", a.parts[3].y);
    t.in("parts[3].w_scale", a.parts[3].w_scale);
    t.in("parts[3].w_global_scale", a.parts[3].w_global_scale);
    t.in("parts[4].w", a.parts[4].w), t.out("parts[4].y", a.parts[4].y);
    t.in("parts[4].w_scale", a.parts[4].w_scale);
    t.in("parts[4].w_global_scale", a.parts[4].w_global_scale);
    t.in("parts[5].w", a.parts[5].w), t.out("parts[5].y", a.parts[5].y);
    t.in("parts[5].w_scale", a.parts[5].w_scale);
    t.in("parts[5].w_global_scale", a.parts[5].w_global_scale);
    t.in("parts[6].w", a.parts[6].w), t.out("parts[6].y", a.parts[6].y);
    t.in("parts[6].w_scale", a.parts[6].w_scale);
    t.in("parts[6].w_global_scale", a.parts[6].w_global_scale);
    t.in("parts[7].w", a.parts[7].w), t.out("parts[7].y", a.parts[7].y);
    t.in("parts[7].w_scale", a.parts[7].w_scale);
    t.in("parts[7].w_global_scale", a.parts[7].w_global_scale);
    t.in("x_weight", a.x_weight);
  }
};

template <>
struct OpDescription<OutputProjection> {
  static constexpr std::string_view kFamily = "projection";
  static constexpr std::string_view kTypical = "64 rows of bf16, 8 groups of 4096 to 1024, to 4096";
  static OutputProjection::Problem typical() { return {.m = 64, .k = 4096, .groups = 8, .rank = 1024, .n = 4096}; }
  static constexpr auto kShapes = std::to_array<TensorShape>(
      {{"x", "x: BF16 | F32", "m, groups, k"},
       {"wo_a", "wo_a: BF16 | F32 | E4M3 | U8 beside wo_a_global_scale", "groups, rank, k or k/2"},
       {"z", "x: BF16 | F32", "m, groups, rank"},
       {"wo_b", "wo_b: BF16 | F32 | E4M3 | U8 beside wo_b_global_scale", "1, n, groups * rank or half"},
       {"y", "y: BF16 | F32", "m, 1, n"},
       {"wo_a_scale", "F32 | E4M3", "groups, output blocks, input blocks"},
       {"wo_a_global_scale", "F32", "1"},
       {"wo_b_scale", "F32 | E4M3", "1, output blocks, input blocks"},
       {"wo_b_global_scale", "F32", "1"}});
  static void fields(OutputProjection::Problem& p, auto&& f) {
    f("m", p.m), f("k", p.k), f("groups", p.groups), f("rank", p.rank), f("n", p.n), f("x", p.x);
    f("wo_a", p.wo_a), f("wo_b", p.wo_b), f("y", p.y);
  }
  static void tensors(OutputProjection::Args& a, auto&& t) {
    t.in("x", a.x), t.in("wo_a", a.wo_a), t.out("z", a.z), t.in("wo_b", a.wo_b), t.out("y", a.y);
    t.in("wo_a_scale", a.wo_a_scale), t.in("wo_a_global_scale", a.wo_a_global_scale);
    t.in("wo_b_scale", a.wo_b_scale), t.in("wo_b_global_scale", a.wo_b_global_scale);
  }
};

}  // namespace smla
