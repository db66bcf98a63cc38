#pragma once

#include "ops/entry_share_fields.h"
#include "ops/op_description.h"
#include "sparsemla/ops/index.h"

namespace smla {

template <>
struct OpDescription<TokenToReq> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 64 tokens";
  static TokenToReq::Problem typical() { return {.requests = 8, .tokens = 64}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"query_start_loc", "I32", "requests+1"}, {"token_to_req", "I32", "tokens"}});
  static void fields(TokenToReq::Problem& p, auto&& f) { f("requests", p.requests), f("tokens", p.tokens); }
  static void tensors(TokenToReq::Args& a, auto&& t) {
    t.in("query_start_loc", a.query_start_loc), t.out("token_to_req", a.token_to_req);
  }
};

template <>
struct OpDescription<SlotMapping> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 64 tokens";
  static SlotMapping::Problem typical() { return {.requests = 8, .tokens = 64, .block_size = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"query_start_loc", "I32", "requests+1"},
                                                              {"positions", "I64", "tokens"},
                                                              {"token_to_req", "I32", "tokens"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"slots", "I64", "tokens"}});
  static void fields(SlotMapping::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("block_size", p.block_size);
  }
  static void tensors(SlotMapping::Args& a, auto&& t) {
    t.in("query_start_loc", a.query_start_loc), t.in("positions", a.positions), t.in("token_to_req", a.token_to_req),
        t.in("block_table", a.block_table), t.out("slots", a.slots);
  }
};

template <>
struct OpDescription<CompressedSlotMapping> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 64 tokens, C4A";
  static CompressedSlotMapping::Problem typical() { return {.requests = 8, .tokens = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"query_start_loc", "I32", "requests+1"},
                                                              {"seq_lens", "I32", "requests"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"slots", "I64", "tokens"}});
  static void fields(CompressedSlotMapping::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("ratio", p.ratio), f("storage_block", p.storage_block);
    entry_share_fields(p.share, f);
  }
  static void tensors(CompressedSlotMapping::Args& a, auto&& t) {
    t.in("query_start_loc", a.query_start_loc), t.in("seq_lens", a.seq_lens), t.in("block_table", a.block_table),
        t.out("slots", a.slots);
  }
};

template <>
struct OpDescription<WindowIndices> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 64 tokens, window 128";
  static WindowIndices::Problem typical() { return {.requests = 8, .tokens = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"query_start_loc", "I32", "requests+1"},
                                                              {"seq_lens", "I32", "requests"},
                                                              {"token_to_req", "I32", "tokens"},
                                                              {"slot_mapping", "I64", "tokens"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"indices", "I32", "tokens, window or more"},
                                                              {"lens", "I32", "tokens"}});
  static void fields(WindowIndices::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("window", p.window), f("block_size", p.block_size),
        f("noncausal_tokens", p.noncausal_tokens);
  }
  static void tensors(WindowIndices::Args& a, auto&& t) {
    t.in("query_start_loc", a.query_start_loc), t.in("seq_lens", a.seq_lens), t.in("token_to_req", a.token_to_req),
        t.in("slot_mapping", a.slot_mapping), t.in("block_table", a.block_table), t.out("indices", a.indices),
        t.out("lens", a.lens);
  }
};

template <>
struct OpDescription<DenseCompressedIndices> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 64 tokens, C128A, 128 columns";
  static DenseCompressedIndices::Problem typical() { return {.requests = 8, .tokens = 64, .width = 128}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"positions", "I64", "tokens"},
                                                              {"token_to_req", "I32", "tokens"},
                                                              {"slot_mapping", "I64", "tokens"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"indices", "I32", "tokens, width"},
                                                              {"lens", "I32", "tokens"}});
  static void fields(DenseCompressedIndices::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("ratio", p.ratio), f("storage_block", p.storage_block),
        f("width", p.width), f("global", p.global);
    entry_share_fields(p.share, f);
  }
  static void tensors(DenseCompressedIndices::Args& a, auto&& t) {
    t.in("positions", a.positions), t.in("token_to_req", a.token_to_req), t.in("slot_mapping", a.slot_mapping),
        t.in("block_table", a.block_table), t.out("indices", a.indices), t.out("lens", a.lens);
  }
};

template <>
struct OpDescription<GlobalTopk> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 64 tokens, top 512";
  static GlobalTopk::Problem typical() { return {.requests = 8, .tokens = 64, .k = 512}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"topk", "I32", "tokens, k"},
                                                              {"token_to_req", "I32", "tokens"},
                                                              {"block_table", "I32", "requests, columns"},
                                                              {"valid", "BOOL", "tokens"},
                                                              {"indices", "I32", "tokens, k"},
                                                              {"lens", "I32", "tokens"}});
  static void fields(GlobalTopk::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("k", p.k), f("storage_block", p.storage_block),
        f("compact", p.compact);
  }
  static void tensors(GlobalTopk::Args& a, auto&& t) {
    t.in("topk", a.topk), t.in("token_to_req", a.token_to_req), t.in("block_table", a.block_table),
        t.in("valid", a.valid), t.out("indices", a.indices), t.out("lens", a.lens);
  }
};

template <>
struct OpDescription<ShortContextTopk> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "64 tokens, top 512";
  static ShortContextTopk::Problem typical() { return {.tokens = 64, .k = 512}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"positions", "I64", "tokens"}, {"indices", "I32", "tokens, k"}});
  static void fields(ShortContextTopk::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("ratio", p.ratio), f("k", p.k);
  }
  static void tensors(ShortContextTopk::Args& a, auto&& t) {
    t.in("positions", a.positions), t.out("indices", a.indices);
  }
};

template <>
struct OpDescription<VisibleEntries> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "64 tokens, C4A";
  static VisibleEntries::Problem typical() { return {.tokens = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"positions", "I64", "tokens"},
                                                              {"slot_mapping", "I64", "tokens"},
                                                              {"valid", "BOOL", "tokens"},
                                                              {"lens", "I32", "tokens"},
                                                              {"topk_lens", "I32", "tokens"}});
  static void fields(VisibleEntries::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("ratio", p.ratio), f("top_k", p.top_k);
    entry_share_fields(p.share, f);
  }
  static void tensors(VisibleEntries::Args& a, auto&& t) {
    t.in("positions", a.positions), t.in("slot_mapping", a.slot_mapping), t.out("valid", a.valid),
        t.out("lens", a.lens), t.out("topk_lens", a.topk_lens);
  }
};

template <>
struct OpDescription<PrefillLens> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, window 128, C4A";
  static PrefillLens::Problem typical() { return {.requests = 8}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"query_start_loc", "I32", "requests+1"},
                                                              {"seq_lens", "I32", "requests"},
                                                              {"gather_lens", "I32", "requests - decodes"},
                                                              {"entry_counts", "I32", "requests - decodes"}});
  static void fields(PrefillLens::Problem& p, auto&& f) {
    f("requests", p.requests), f("decodes", p.decodes), f("window", p.window), f("ratio", p.ratio);
  }
  static void tensors(PrefillLens::Args& a, auto&& t) {
    t.in("query_start_loc", a.query_start_loc), t.in("seq_lens", a.seq_lens), t.out("gather_lens", a.gather_lens),
        t.out("entry_counts", a.entry_counts);
  }
};

template <>
struct OpDescription<DraftPositions> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests";
  static DraftPositions::Problem typical() { return {.requests = 8}; }
  static constexpr auto kShapes = std::to_array<TensorShape>(
      {{"seq_lens", "I32", "requests"}, {"positions", "I64", "requests"}, {"next_lens", "I32", "requests"}});
  static void fields(DraftPositions::Problem& p, auto&& f) { f("requests", p.requests), f("longer", p.longer); }
  static void tensors(DraftPositions::Args& a, auto&& t) {
    t.in("seq_lens", a.seq_lens), t.out("positions", a.positions), t.out("next_lens", a.next_lens);
  }
};

template <>
struct OpDescription<CombineTopkWindow> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "4 requests, 64 tokens, top 512, window 128";
  static CombineTopkWindow::Problem typical() {
    return {.requests = 4, .tokens = 64, .top_k = 512, .m = 2048, .n = 1024};
  }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"topk", "I32", "tokens, top_k or more"},
                                                              {"query_start_loc", "I32", "requests+1"},
                                                              {"seq_lens", "I32", "requests"},
                                                              {"gather_lens", "I32", "requests"},
                                                              {"indices", "I32", "tokens, top_k + window or more"},
                                                              {"lens", "I32", "tokens"}});
  static void fields(CombineTopkWindow::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("window", p.window), f("ratio", p.ratio), f("top_k", p.top_k),
        f("m", p.m), f("n", p.n);
    f("clear_rest", p.clear_rest);
  }
  static void tensors(CombineTopkWindow::Args& a, auto&& t) {
    t.in("topk", a.topk), t.in("query_start_loc", a.query_start_loc), t.in("seq_lens", a.seq_lens),
        t.in("gather_lens", a.gather_lens), t.out("indices", a.indices), t.out("lens", a.lens);
  }
};

template <>
struct OpDescription<MixedSparseIndices> {
  static constexpr std::string_view kFamily = "index";
  static constexpr std::string_view kTypical = "8 requests, 4 decode and 60 prefill tokens, top 512";
  static MixedSparseIndices::Problem typical() {
    return {.requests = 8, .tokens = 64, .decode_tokens = 4, .top_k = 512, .compressed_width = 512};
  }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"decode_window", "I32", "decode_tokens, window_width"},
                                  {"decode_compressed", "I32", "decode_tokens, columns"},
                                  {"decode_lens", "I32", "decode_tokens"},
                                  {"decode_valid", "BOOL", "decode_tokens"},
                                  {"prefill_topk", "I32", "tokens - decode_tokens, columns"},
                                  {"query_start_loc", "I32", "requests+1"},
                                  {"seq_lens", "I32", "requests"},
                                  {"token_to_req", "I32", "tokens"},
                                  {"window_table", "I32", "requests, columns"},
                                  {"compressed_table", "I32", "requests, columns"},
                                  {"indices", "I32", "tokens, window_width + compressed_width"},
                                  {"lens", "I32", "tokens"}});
  static void fields(MixedSparseIndices::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("decode_tokens", p.decode_tokens), f("window", p.window),
        f("window_width", p.window_width), f("ratio", p.ratio);
    f("top_k", p.top_k), f("compressed_width", p.compressed_width), f("window_block", p.window_block),
        f("compressed_block", p.compressed_block), f("window_span", p.window_span);
    f("compressed_span", p.compressed_span), f("local", p.local);
  }
  static void tensors(MixedSparseIndices::Args& a, auto&& t) {
    t.in("decode_window", a.decode_window), t.in("decode_compressed", a.decode_compressed),
        t.in("decode_lens", a.decode_lens), t.in("decode_valid", a.decode_valid), t.in("prefill_topk", a.prefill_topk);
    t.in("query_start_loc", a.query_start_loc), t.in("seq_lens", a.seq_lens), t.in("token_to_req", a.token_to_req),
        t.in("window_table", a.window_table), t.in("compressed_table", a.compressed_table);
    t.out("indices", a.indices), t.out("lens", a.lens);
  }
};

}  // namespace smla
