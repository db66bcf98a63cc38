#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

template <>
struct OpDescription<SaveState> {
  static constexpr std::string_view kFamily = "compressor";
  static constexpr std::string_view kTypical = "64 tokens, C4A";
  static SaveState::Problem typical() { return {.tokens = 64}; }
  static void fields(SaveState::Problem& p, auto&& f) { f("tokens", p.tokens), f("ratio", p.ratio), f("dim", p.dim); }
  static void tensors(SaveState::Args& a, auto&& t) {
    t.in("kv_score", a.kv_score), t.in("ape", a.ape), t.in("positions", a.positions),
        t.in("state_slots", a.state_slots), t.cache("state", a.state, CacheAccess::kWrite);
  }
};

template <>
struct OpDescription<CompressStore> {
  static constexpr std::string_view kFamily = "compressor";
  static constexpr std::string_view kTypical = "64 tokens, C4A, fp8_ds_mla rows";
  static CompressStore::Problem typical() { return {.tokens = 64, .format = &fp8_ds_mla_rows()}; }
  static void fields(CompressStore::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("ratio", p.ratio), f("dim", p.dim), f("rope_dim", p.rope_dim), f("format", p.format),
        f("hadamard", p.hadamard), f("eps", p.eps);
    f("clamp", p.clamp), f("dim2", p.dim2), f("format2", p.format2), f("hadamard2", p.hadamard2);
  }
  static void tensors(CompressStore::Args& a, auto&& t) {
    t.in("positions", a.positions), t.in("token_to_req", a.token_to_req), t.in("state_slots", a.state_slots),
        t.in("entry_slots", a.entry_slots), t.in("block_table", a.block_table), t.in("norm_weight", a.norm_weight);
    t.in("cos_sin", a.cos_sin), t.in("kv_score", a.kv_score), t.in("ape", a.ape);
    t.cache("state", a.state, a.kv_score.absent() ? CacheAccess::kRead : CacheAccess::kWrite);
    t.cache("entries", a.entries, CacheAccess::kWrite);
    t.in("state_slots2", a.state_slots2), t.in("block_table2", a.block_table2), t.in("norm_weight2", a.norm_weight2),
        t.in("kv_score2", a.kv_score2), t.in("ape2", a.ape2);
    t.cache("state2", a.state2, a.kv_score.absent() ? CacheAccess::kRead : CacheAccess::kWrite);
    t.cache("entries2", a.entries2, CacheAccess::kWrite);
  }
};

}  // namespace smla
