#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/attention.h"

namespace smla {

template <>
struct OpDescription<GatherRows> {
  static constexpr std::string_view kFamily = "attention";
  static constexpr std::string_view kTypical = "4 requests, 2048 rows each, fp8_ds_mla rows";
  static GatherRows::Problem typical() { return {.requests = 4, .rows = 2048, .format = &fp8_ds_mla_rows()}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"cache", "cache", "format, -"},
                                                              {"seq_lens", "I32", "requests"},
                                                              {"gather_lens", "I32", "requests"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"out", "BF16", "requests, rows, row"}});
  static void fields(GatherRows::Problem& p, auto&& f) {
    f("requests", p.requests), f("rows", p.rows), f("offset", p.offset), f("format", p.format);
  }
  static void tensors(GatherRows::Args& a, auto&& t) {
    t.cache("cache", a.cache, CacheAccess::kRead), t.in("seq_lens", a.seq_lens), t.in("gather_lens", a.gather_lens),
        t.in("block_table", a.block_table), t.out("out", a.out);
  }
};

template <>
struct OpDescription<SparseAttention> {
  static constexpr std::string_view kFamily = "attention";
  static constexpr std::string_view kTypical = "64 tokens, 64 heads, widths 128 + 512, fp8_ds_mla rows";
  static SparseAttention::Problem typical() {
    SparseAttention::Problem problem{.tokens = 64, .heads = 64, .scopes = 2};
    problem.scope[0] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 128};
    problem.scope[1] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 512};
    return problem;
  }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"q", "q: BF16 | E4M3 | F32", "tokens, >= heads, dim"},
                                  {"sink", "F32", "heads"},
                                  {"o", "o: BF16 | F32 | E4M3", "tokens, out_heads, value_dim"},
                                  {"lse", "F32", "tokens, heads"},
                                  {"query_prologue.positions", "I64", "tokens"},
                                  {"query_prologue.cos_sin", "F32", "positions, query_prologue.rope_dim"},
                                  {"output_epilogue.positions", "I64", "tokens"},
                                  {"output_epilogue.cos_sin", "F32", "positions, output_epilogue.rope_dim"},
                                  {"output_epilogue.scales", "F32 | I32", "output_epilogue.groups, scales, tokens"},
                                  {"scopes[0].cache", "cache", "scopes[0].format, scopes[0].block_size"},
                                  {"scopes[0].indices", "I32", "tokens / tokens_per_list, scopes[0].width"},
                                  {"scopes[0].lens", "I32", "tokens"},
                                  {"scopes[0].starts", "I32", "tokens"},
                                  {"scopes[1].cache", "cache", "scopes[1].format, scopes[1].block_size"},
                                  {"scopes[1].indices", "I32", "tokens / tokens_per_list, scopes[1].width"},
                                  {"scopes[1].lens", "I32", "tokens"},
                                  {"scopes[1].starts", "I32", "tokens"}});
  static void fields(SparseAttention::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("heads", p.heads), f("out_heads", p.out_heads), f("dim", p.dim),
        f("value_dim", p.value_dim);
    f("q", p.q), f("o", p.o);
    f("scopes", p.scopes), f("scale", p.scale), f("q_scale", p.q_scale), f("partial", p.partial);
    f("tokens_per_list", p.tokens_per_list);
    // A part of no rotated dims is absent.
    SparseAttention::QueryPrologue prologue = p.query_prologue.value_or(SparseAttention::QueryPrologue{.rope_dim = 0});
    f("query_prologue.rope_dim", prologue.rope_dim), f("query_prologue.eps", prologue.eps);
    if (prologue.rope_dim != 0) p.query_prologue = prologue;
    SparseAttention::OutputEpilogue epilogue =
        p.output_epilogue.value_or(SparseAttention::OutputEpilogue{.rope_dim = 0});
    f("output_epilogue.rope_dim", epilogue.rope_dim), f("output_epilogue.groups", epilogue.groups);
    f("output_epilogue.scale", epilogue.scale);
    if (epilogue.rope_dim != 0) p.output_epilogue = epilogue;
    SparseAttention::ScopeShape& first = p.scope[0];
    SparseAttention::ScopeShape& second = p.scope[1];
    f("scopes[0].format", first.format), f("scopes[0].block_size", first.block_size), f("scopes[0].width", first.width);
    f("scopes[1].format", second.format), f("scopes[1].block_size", second.block_size);
    f("scopes[1].width", second.width);
  }
  static void tensors(SparseAttention::Args& a, auto&& t) {
    t.in("q", a.q), t.in("sink", a.sink), t.out("o", a.o), t.out("lse", a.lse);
    t.in("query_prologue.positions", a.query_prologue.positions);
    t.in("query_prologue.cos_sin", a.query_prologue.cos_sin);
    t.in("output_epilogue.positions", a.output_epilogue.positions);
    t.in("output_epilogue.cos_sin", a.output_epilogue.cos_sin);
    t.out("output_epilogue.scales", a.output_epilogue.scales);
    SparseAttention::Scope& first = a.scopes[0];
    SparseAttention::Scope& second = a.scopes[1];
    t.cache("scopes[0].cache", first.cache, CacheAccess::kRead), t.in("scopes[0].indices", first.indices);
    t.in("scopes[0].lens", first.lens), t.in("scopes[0].starts", first.starts);
    t.cache("scopes[1].cache", second.cache, CacheAccess::kRead), t.in("scopes[1].indices", second.indices);
    t.in("scopes[1].lens", second.lens), t.in("scopes[1].starts", second.starts);
  }
};

template <>
struct OpDescription<MergePartials> {
  static constexpr std::string_view kFamily = "attention";
  static constexpr std::string_view kTypical = "4 slices, 64 tokens, 64 heads";
  static MergePartials::Problem typical() { return {.slices = 4, .tokens = 64, .heads = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"partial_o", "F32", "slices, tokens, heads, dim"},
                                                              {"partial_lse", "F32", "slices, tokens, heads"},
                                                              {"sink", "F32", "heads"},
                                                              {"o", "o: BF16 | F32", "tokens, heads, dim"},
                                                              {"lse", "F32", "tokens, heads"}});
  static void fields(MergePartials::Problem& p, auto&& f) {
    f("slices", p.slices), f("tokens", p.tokens), f("heads", p.heads), f("dim", p.dim), f("o", p.o);
  }
  static void tensors(MergePartials::Args& a, auto&& t) {
    t.in("partial_o", a.partial_o), t.in("partial_lse", a.partial_lse), t.in("sink", a.sink), t.out("o", a.o),
        t.out("lse", a.lse);
  }
};

}  // namespace smla
