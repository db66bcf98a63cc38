#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/compressor.h"

namespace smla {

template <>
struct OpDescription<SaveState> {
  static constexpr std::string_view kFamily = "compressor";
  static constexpr std::string_view kTypical = "64 tokens, C4A";
  static SaveState::Problem typical() { return {.tokens = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"kv_score", "F32", "tokens, 2*coff*dim"},
                                                              {"ape", "F32 | BF16", "ratio, coff*dim"},
                                                              {"positions", "I64", "tokens"},
                                                              {"state_slots", "I64", "<= tokens"},
                                                              {"state", "state cache", "dim, ratio"}});
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
  static CompressStore::Problem typical() { return {.tokens = 64, .compressor = {{{.format = &fp8_ds_mla_rows()}}}}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"positions", "I64", "tokens"},
                                  {"token_to_req", "I32", "tokens"},
                                  {"entry_slots", "I64", "<= tokens"},
                                  {"cos_sin", "F32", "positions, rope_dim"},
                                  {"compressors[0].state_slots", "I64", "<= tokens"},
                                  {"compressors[0].block_table", "I32", "requests, columns"},
                                  {"compressors[0].norm_weight", "BF16 | F32", "compressors[0].dim"},
                                  {"compressors[0].kv_score", "F32", "tokens, 2*coff*compressors[0].dim"},
                                  {"compressors[0].ape", "F32 | BF16", "ratio, coff*compressors[0].dim"},
                                  {"compressors[0].state", "state cache", "compressors[0].dim, ratio"},
                                  {"compressors[0].entries", "cache", "compressors[0].format, -"},
                                  {"compressors[1].state_slots", "I64", "<= tokens"},
                                  {"compressors[1].block_table", "I32", "requests, columns"},
                                  {"compressors[1].norm_weight", "BF16 | F32", "compressors[1].dim"},
                                  {"compressors[1].kv_score", "F32", "tokens, 2*coff*compressors[1].dim"},
                                  {"compressors[1].ape", "F32 | BF16", "ratio, coff*compressors[1].dim"},
                                  {"compressors[1].state", "state cache", "compressors[1].dim, ratio"},
                                  {"compressors[1].entries", "cache", "compressors[1].format, -"}});
  static void fields(CompressStore::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("ratio", p.ratio), f("rope_dim", p.rope_dim), f("eps", p.eps), f("clamp", p.clamp);
    CompressStore::CompressorShape& first = p.compressor[0];
    CompressStore::CompressorShape& second = p.compressor[1];
    f("compressors", p.compressors), f("compressors[0].dim", first.dim), f("compressors[0].format", first.format);
    f("compressors[0].hadamard", first.hadamard), f("compressors[1].dim", second.dim);
    f("compressors[1].format", second.format), f("compressors[1].hadamard", second.hadamard);
  }
  static void tensors(CompressStore::Args& a, auto&& t) {
    t.in("positions", a.positions), t.in("token_to_req", a.token_to_req), t.in("entry_slots", a.entry_slots);
    t.in("cos_sin", a.cos_sin);
    CompressStore::Compressor& first = a.compressors[0];
    CompressStore::Compressor& second = a.compressors[1];
    const auto state = [](const CompressStore::Compressor& c) {
      return c.kv_score.absent() ? CacheAccess::kRead : CacheAccess::kWrite;
    };
    t.in("compressors[0].state_slots", first.state_slots), t.in("compressors[0].block_table", first.block_table);
    t.in("compressors[0].norm_weight", first.norm_weight), t.in("compressors[0].kv_score", first.kv_score);
    t.in("compressors[0].ape", first.ape), t.cache("compressors[0].state", first.state, state(first));
    t.cache("compressors[0].entries", first.entries, CacheAccess::kWrite);
    t.in("compressors[1].state_slots", second.state_slots), t.in("compressors[1].block_table", second.block_table);
    t.in("compressors[1].norm_weight", second.norm_weight), t.in("compressors[1].kv_score", second.kv_score);
    t.in("compressors[1].ape", second.ape), t.cache("compressors[1].state", second.state, state(second));
    t.cache("compressors[1].entries", second.entries, CacheAccess::kWrite);
  }
};

}  // namespace smla
