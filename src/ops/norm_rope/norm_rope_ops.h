#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {

template <>
struct OpDescription<RmsNorm> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 rows of 1024, bf16";
  static RmsNorm::Problem typical() { return {.rows = 64, .dim = 1024}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"x", "in: BF16 | F32", "rows, dim"},
                                                              {"weight", "BF16 | F32", "dim", "has_weight"},
                                                              {"y", "out: BF16 | F32", "rows, dim"}});
  static void fields(RmsNorm::Problem& p, auto&& f) {
    f("rows", p.rows), f("dim", p.dim), f("in", p.in), f("out", p.out), f("has_weight", p.has_weight), f("eps", p.eps);
  }
  static void tensors(RmsNorm::Args& a, auto&& t) { t.in("x", a.x), t.in("weight", a.weight), t.out("y", a.y); }
};

template <>
struct OpDescription<LatentNorms> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 rows of 1024 and of 512, bf16";
  static LatentNorms::Problem typical() { return {.rows = 64, .qr_dim = 1024, .kv_dim = 512}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"qr", "in: BF16 | F32", "rows, qr_dim"},
                                  {"qr_weight", "BF16 | F32", "qr_dim", "has_weight"},
                                  {"qr_out", "out: BF16 | F32", "rows, qr_dim"},
                                  {"qr_values", "E4M3", "rows, qr_dim", "quantises_qr"},
                                  {"qr_scales", "F32", "1, groups, padded rows", "quantises_qr"},
                                  {"kv", "in: BF16 | F32", "rows, kv_dim"},
                                  {"kv_weight", "BF16 | F32", "kv_dim", "has_weight"},
                                  {"kv_out", "out: BF16 | F32", "rows, kv_dim"},
                                  {"insert.positions", "I64", "rows"},
                                  {"insert.cos_sin", "F32", "positions, insert.rope_dim"},
                                  {"insert.slot_mapping", "I64", "<= rows"},
                                  {"insert.cache", "cache", "insert.format, -"}});
  static void fields(LatentNorms::Problem& p, auto&& f) {
    f("rows", p.rows), f("qr_dim", p.qr_dim), f("kv_dim", p.kv_dim), f("in", p.in), f("out", p.out);
    f("has_weight", p.has_weight), f("eps", p.eps), f("quantises_qr", p.quantises_qr);
    LatentNorms::Insert insert = p.insert.value_or(LatentNorms::Insert{});  // without a format: absent
    f("insert.format", insert.format), f("insert.rope_dim", insert.rope_dim), f("insert.clamp", insert.clamp);
    if (insert.format != nullptr) p.insert = insert;
  }
  static void tensors(LatentNorms::Args& a, auto&& t) {
    t.in("qr", a.qr), t.in("qr_weight", a.qr_weight), t.out("qr_out", a.qr_out);
    t.out("qr_values", a.qr_values), t.out("qr_scales", a.qr_scales);
    t.in("kv", a.kv), t.in("kv_weight", a.kv_weight), t.out("kv_out", a.kv_out);
    LatentNorms::Insert::Args& insert = a.insert;
    t.in("insert.positions", insert.positions), t.in("insert.cos_sin", insert.cos_sin);
    t.in("insert.slot_mapping", insert.slot_mapping), t.cache("insert.cache", insert.cache, CacheAccess::kWrite);
  }
};

template <>
struct OpDescription<AddRows> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 rows of 4096, bf16";
  static AddRows::Problem typical() { return {.rows = 64, .dim = 4096}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"y", "dtype: BF16 | F32", "rows, dim"}, {"x", "dtype: BF16 | F32", "rows, dim"}});
  static void fields(AddRows::Problem& p, auto&& f) {
    f("rows", p.rows), f("dim", p.dim), f("dtype", p.dtype), f("normed", p.normed), f("eps", p.eps);
  }
  static void tensors(AddRows::Args& a, auto&& t) { t.in("y", a.y), t.out("x", a.x); }
};

template <>
struct OpDescription<QuantizeRows> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 rows of 4096, bf16";
  static QuantizeRows::Problem typical() { return {.rows = 64, .dim = 4096}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"x", "in: BF16 | F32", "rows, dim"},
                                  {"values", "E4M3", "rows, dim"},
                                  {"scales", "scale: F32 | I32", "1, groups, padded rows"}});
  static void fields(QuantizeRows::Problem& p, auto&& f) {
    f("rows", p.rows), f("dim", p.dim), f("in", p.in), f("scale", p.scale);
  }
  static void tensors(QuantizeRows::Args& a, auto&& t) {
    t.in("x", a.x), t.out("values", a.values), t.out("scales", a.scales);
  }
};

template <>
struct OpDescription<QNormRopeInsert> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 tokens, 64 heads, fp8_ds_mla rows";
  static QNormRopeInsert::Problem typical() {
    return {.tokens = 64, .heads = 64, .out_heads = 64, .format = &fp8_ds_mla_rows()};
  }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"q", "in: BF16 | F32", "tokens, heads, dim"},
                                  {"kv", "in: BF16 | F32", "tokens, dim"},
                                  {"positions", "I64", "tokens"},
                                  {"cos_sin", "F32", "positions, rope_dim"},
                                  {"slot_mapping", "I64", "<= tokens"},
                                  {"q_out", "q_out: BF16 | F32 | E4M3", "tokens, out_heads, dim"},
                                  {"cache", "cache", "format, -"}});
  static void fields(QNormRopeInsert::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("heads", p.heads), f("out_heads", p.out_heads), f("dim", p.dim), f("rope_dim", p.rope_dim),
        f("in", p.in), f("q_out", p.q_out);
    f("format", p.format), f("eps", p.eps), f("q_scale_inv", p.q_scale_inv), f("clamp", p.clamp);
  }
  static void tensors(QNormRopeInsert::Args& a, auto&& t) {
    t.in("q", a.q), t.in("kv", a.kv), t.in("positions", a.positions), t.in("cos_sin", a.cos_sin),
        t.in("slot_mapping", a.slot_mapping), t.out("q_out", a.q_out), t.cache("cache", a.cache, CacheAccess::kWrite);
  }
};

template <>
struct OpDescription<InsertRows> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 tokens, fp8_ds_mla rows";
  static InsertRows::Problem typical() { return {.tokens = 64, .format = &fp8_ds_mla_rows()}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"rows", "in: BF16 | F32", "tokens, row"},
                                                              {"slot_mapping", "I64", "<= tokens"},
                                                              {"cache", "cache", "format, -"}});
  static void fields(InsertRows::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("in", p.in), f("format", p.format), f("clamp", p.clamp);
  }
  static void tensors(InsertRows::Args& a, auto&& t) {
    t.in("rows", a.rows), t.in("slot_mapping", a.slot_mapping), t.cache("cache", a.cache, CacheAccess::kWrite);
  }
};

template <>
struct OpDescription<InverseRope> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 tokens, 64 heads";
  static InverseRope::Problem typical() { return {.tokens = 64, .heads = 64}; }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"x", "in: BF16 | F32", "tokens, heads, dim"},
                                                              {"positions", "I64", "tokens"},
                                                              {"cos_sin", "F32", "positions, rope_dim"},
                                                              {"y", "out: BF16 | F32", "tokens, heads, dim"}});
  static void fields(InverseRope::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("heads", p.heads), f("dim", p.dim), f("rope_dim", p.rope_dim), f("in", p.in),
        f("out", p.out);
  }
  static void tensors(InverseRope::Args& a, auto&& t) {
    t.in("x", a.x), t.in("positions", a.positions), t.in("cos_sin", a.cos_sin), t.out("y", a.y);
  }
};

template <>
struct OpDescription<InverseRopeQuant> {
  static constexpr std::string_view kFamily = "norm_rope";
  static constexpr std::string_view kTypical = "64 tokens, 64 heads, 8 groups";
  static InverseRopeQuant::Problem typical() { return {.tokens = 64, .heads = 64, .groups = 8}; }
  static constexpr auto kShapes =
      std::to_array<TensorShape>({{"x", "in: BF16 | F32", "tokens, >= heads, dim"},
                                  {"positions", "I64", "tokens"},
                                  {"cos_sin", "F32", "positions, rope_dim"},
                                  {"values", "E4M3", "groups, tokens, heads/groups*dim"},
                                  {"scales", "scale: F32 | I32", "groups, scales, padded tokens"}});
  static void fields(InverseRopeQuant::Problem& p, auto&& f) {
    f("tokens", p.tokens), f("heads", p.heads), f("groups", p.groups), f("dim", p.dim), f("rope_dim", p.rope_dim),
        f("in", p.in), f("scale", p.scale);
  }
  static void tensors(InverseRopeQuant::Args& a, auto&& t) {
    t.in("x", a.x), t.in("positions", a.positions), t.in("cos_sin", a.cos_sin), t.out("values", a.values),
        t.out("scales", a.scales);
  }
};

}  // namespace smla
