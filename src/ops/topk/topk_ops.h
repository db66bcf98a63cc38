#pragma once

#include "ops/entry_share_fields.h"
#include "ops/op_description.h"
#include "ops/topk/slots_fields.h"
#include "sparsemla/ops/topk.h"

namespace smla {

template <>
struct OpDescription<TopK> {
  static constexpr std::string_view kFamily = "topk";
  static constexpr std::string_view kTypical = "64 rows, 512 of 4096";
  static TopK::Problem typical() { return {.rows = 64, .width = 4096, .k = 512}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"logits", "F32", "rows, width"},
                                                              {"lens", "I32", "rows"},
                                                              {"indices", "I32", "rows, k"},
                                                              {"slots.token_to_req", "I32", "rows"},
                                                              {"slots.block_table", "I32", "requests, columns"},
                                                              {"slots.valid", "BOOL", "rows"},
                                                              {"slots.slots", "I32", "rows, k"},
                                                              {"slots.lens", "I32", "rows"},
                                                              {"scores", "F32", "rows, k"}});
  static void fields(TopK::Problem& p, auto&& f) {
    f("rows", p.rows), f("width", p.width), f("k", p.k);
    topk_slots_fields(p.slots, f);
  }
  static void tensors(TopK::Args& a, auto&& t) {
    t.in("logits", a.logits), t.in("lens", a.lens), t.out("indices", a.indices);
    topk_slots_tensors(a.slots, t);
    t.out("scores", a.scores);
  }
};

template <>
struct OpDescription<MergeTopK> {
  static constexpr std::string_view kFamily = "topk";
  static constexpr std::string_view kTypical = "64 rows, 512 of 4 ranks' 512";
  static MergeTopK::Problem typical() { return {.rows = 64, .k = 512, .share = {.ranks = 4, .interleave = 64}}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"scores", "F32", "share.ranks, rows, k"},
                                                              {"indices", "I32", "share.ranks, rows, k"},
                                                              {"chosen", "I32", "rows, k"},
                                                              {"own", "I32", "rows, k"}});
  static void fields(MergeTopK::Problem& p, auto&& f) {
    f("rows", p.rows), f("k", p.k);
    entry_share_fields(p.share, f);
  }
  static void tensors(MergeTopK::Args& a, auto&& t) {
    t.in("scores", a.scores), t.in("indices", a.indices), t.out("chosen", a.chosen), t.out("own", a.own);
  }
};

}  // namespace smla
