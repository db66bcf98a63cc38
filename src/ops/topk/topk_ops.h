#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/topk.h"

namespace smla {

template <>
struct OpDescription<TopK> {
  static constexpr std::string_view kFamily = "topk";
  static constexpr std::string_view kTypical = "64 rows, 512 of 4096";
  static TopK::Problem typical() { return {.rows = 64, .width = 4096, .k = 512}; }
  static void fields(TopK::Problem& p, auto&& f) {
    f("rows", p.rows), f("width", p.width), f("k", p.k), f("storage_block", p.storage_block);
  }
  static void tensors(TopK::Args& a, auto&& t) {
    t.in("logits", a.logits), t.in("lens", a.lens), t.out("indices", a.indices), t.in("token_to_req", a.token_to_req),
        t.in("block_table", a.block_table), t.in("valid", a.valid), t.out("slots", a.slots),
        t.out("slot_lens", a.slot_lens);
  }
};

}  // namespace smla
