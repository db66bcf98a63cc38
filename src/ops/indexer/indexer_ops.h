#pragma once

#include "ops/op_description.h"
#include "ops/topk/slots_fields.h"
#include "sparsemla/ops/indexer.h"

namespace smla {

template <>
struct OpDescription<IndexerQ> {
  static constexpr std::string_view kFamily = "indexer";
  static constexpr std::string_view kTypical = "64 tokens, 64 heads, index_fp8";
  static IndexerQ::Problem typical() { return {.tokens = 64, .format = &index_fp8_rows()}; }
  static constexpr auto kShapes = std::to_array<TensorShape>(
      {{"q", "in: BF16 | F32", "tokens, heads, dim"},
       {"weights", "in: BF16 | F32", "tokens, heads"},
       {"positions", "I64", "tokens"},
       {"cos_sin", "F32", "positions, rope_dim"},
       {"q_out", "E4M3@index_fp8 | U8@index_mxfp4 | F32@index_f32", "tokens, heads, dim or dim/2"},
       {"q_scale", "U8@index_mxfp4", "tokens, heads, dim/32"},
       {"weights_out", "F32", "tokens, heads"}});
  static void fields(IndexerQ::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("heads", p.heads), f("dim", p.dim), f("rope_dim", p.rope_dim), f("in", p.in),
        f("format", p.format), f("hadamard", p.hadamard);
  }
  static void tensors(IndexerQ::Args& a, auto&& t) {
    t.in("q", a.q), t.in("weights", a.weights), t.in("positions", a.positions), t.in("cos_sin", a.cos_sin),
        t.out("q_out", a.q_out), t.out("q_scale", a.q_scale), t.out("weights_out", a.weights_out);
  }
};

template <>
struct OpDescription<IndexerLogits> {
  static constexpr std::string_view kFamily = "indexer";
  static constexpr std::string_view kTypical = "64 rows, 64 heads, 4096 entries, index_fp8";
  static IndexerLogits::Problem typical() { return {.rows = 64, .width = 4096, .format = &index_fp8_rows()}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"q", "E4M3@index_fp8 | U8@index_mxfp4 | F32@index_f32", "rows, heads, dim or dim/2"},
                                  {"q_scale", "U8@index_mxfp4", "rows, heads, dim/32"},
                                  {"weights", "F32", "rows, heads"},
                                  {"row_to_req", "I32", "rows"},
                                  {"lens", "I32", "rows"},
                                  {"block_table", "I32", "requests, columns"},
                                  {"cache", "cache", "format, -"},
                                  {"logits", "F32", "rows, width"}});
  static void fields(IndexerLogits::Problem& p, auto&& f) {
    f("rows", p.rows), f("heads", p.heads), f("dim", p.dim), f("width", p.width), f("format", p.format);
  }
  static void tensors(IndexerLogits::Args& a, auto&& t) {
    t.in("q", a.q), t.in("q_scale", a.q_scale), t.in("weights", a.weights), t.in("row_to_req", a.row_to_req),
        t.in("lens", a.lens), t.in("block_table", a.block_table), t.cache("cache", a.cache, CacheAccess::kRead),
        t.out("logits", a.logits);
  }
};

template <>
struct OpDescription<IndexerTopK> {
  static constexpr std::string_view kFamily = "indexer";
  static constexpr std::string_view kTypical = "64 rows, 64 heads, 512 of 4096 entries, index_fp8";
  static IndexerTopK::Problem typical() { return {.rows = 64, .width = 4096, .k = 512, .format = &index_fp8_rows()}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"q", "E4M3@index_fp8 | U8@index_mxfp4 | F32@index_f32", "rows, heads, dim or dim/2"},
                                  {"q_scale", "U8@index_mxfp4", "rows, heads, dim/32"},
                                  {"weights", "F32", "rows, heads"},
                                  {"row_to_req", "I32", "rows"},
                                  {"lens", "I32", "rows"},
                                  {"block_table", "I32", "requests, columns"},
                                  {"cache", "cache", "format, -"},
                                  {"indices", "I32", "rows, k"},
                                  {"slots.token_to_req", "I32", "rows"},
                                  {"slots.block_table", "I32", "requests, columns"},
                                  {"slots.valid", "BOOL", "rows"},
                                  {"slots.slots", "I32", "rows, k"},
                                  {"slots.lens", "I32", "rows"}});
  static void fields(IndexerTopK::Problem& p, auto&& f) {
    f("rows", p.rows), f("heads", p.heads), f("dim", p.dim), f("width", p.width), f("k", p.k), f("format", p.format);
    topk_slots_fields(p.slots, f);
  }
  static void tensors(IndexerTopK::Args& a, auto&& t) {
    t.in("q", a.q), t.in("q_scale", a.q_scale), t.in("weights", a.weights), t.in("row_to_req", a.row_to_req),
        t.in("lens", a.lens), t.in("block_table", a.block_table), t.cache("cache", a.cache, CacheAccess::kRead),
        t.out("indices", a.indices);
    topk_slots_tensors(a.slots, t);
  }
};

template <>
struct OpDescription<GatherIndexRows> {
  static constexpr std::string_view kFamily = "indexer";
  static constexpr std::string_view kTypical = "8 requests, 4096 entries, index_fp8";
  static GatherIndexRows::Problem typical() { return {.requests = 8, .rows = 4096, .format = &index_fp8_rows()}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"cache", "cache", "format, -"},
                                                              {"cu_seq_lens", "I32", "requests+1"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"values", "U8", "rows, data bytes"},
                                                              {"scales", "U8", "rows, scale bytes"}});
  static void fields(GatherIndexRows::Problem& p, auto&& f) {
    f("requests", p.requests), f("rows", p.rows), f("format", p.format);
  }
  static void tensors(GatherIndexRows::Args& a, auto&& t) {
    t.cache("cache", a.cache, CacheAccess::kRead), t.in("cu_seq_lens", a.cu_seq_lens),
        t.in("block_table", a.block_table), t.out("values", a.values), t.out("scales", a.scales);
  }
};

template <>
struct OpDescription<RaggedIndexerLogits> {
  static constexpr std::string_view kFamily = "indexer";
  static constexpr std::string_view kTypical = "64 rows, 64 heads, 4096 entries, index_fp8";
  static RaggedIndexerLogits::Problem typical() { return {.rows = 64, .keys = 4096, .format = &index_fp8_rows()}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"q", "E4M3@index_fp8 | U8@index_mxfp4 | F32@index_f32", "rows, heads, dim or dim/2"},
                                  {"q_scale", "U8@index_mxfp4", "rows, heads, dim/32"},
                                  {"weights", "F32", "rows, heads"},
                                  {"values", "U8", "keys, data bytes"},
                                  {"scales", "U8", "keys, scale bytes"},
                                  {"starts", "I32", "rows"},
                                  {"ends", "I32", "rows"},
                                  {"logits", "F32", "rows, keys"}});
  static void fields(RaggedIndexerLogits::Problem& p, auto&& f) {
    f("rows", p.rows), f("keys", p.keys), f("heads", p.heads), f("dim", p.dim), f("format", p.format);
  }
  static void tensors(RaggedIndexerLogits::Args& a, auto&& t) {
    t.in("q", a.q), t.in("q_scale", a.q_scale), t.in("weights", a.weights), t.in("values", a.values),
        t.in("scales", a.scales), t.in("starts", a.starts), t.in("ends", a.ends), t.out("logits", a.logits);
  }
};

}  // namespace smla
