#pragma once

#include "ops/op_description.h"
#include "sparsemla/ops/sequences.h"

namespace smla {

template <>
struct OpDescription<PackSequences> {
  static constexpr std::string_view kFamily = "sequences";
  static constexpr std::string_view kTypical = "8 requests, 20 rows to 8 x 4, 64 x 128 e4m3";
  static PackSequences::Problem typical() {
    return {.requests = 8, .tokens = 20, .max_len = 4, .row = 64 * 128, .dtype = DType::kE4M3};
  }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"rows", "dtype", "tokens, row"},
                                                              {"query_start_loc", "I32", "requests+1"},
                                                              {"packed", "dtype", "requests, max_len, row"}});
  static void fields(PackSequences::Problem& p, auto&& f) {
    f("requests", p.requests), f("tokens", p.tokens), f("max_len", p.max_len), f("row", p.row), f("dtype", p.dtype);
  }
  static void tensors(PackSequences::Args& a, auto&& t) {
    t.in("rows", a.rows), t.in("query_start_loc", a.query_start_loc), t.out("packed", a.packed);
  }
};

template <>
struct OpDescription<UnpackSequences> {
  static constexpr std::string_view kFamily = "sequences";
  static constexpr std::string_view kTypical = "8 requests, 8 x 4 rows to 20, 64 x 128 e4m3";
  static UnpackSequences::Problem typical() { return OpDescription<PackSequences>::typical(); }
  static constexpr auto kShapes = std::to_array<TensorShape>({{"packed", "dtype", "requests, max_len, row"},
                                                              {"query_start_loc", "I32", "requests+1"},
                                                              {"rows", "dtype", "tokens, row"}});
  static void fields(UnpackSequences::Problem& p, auto&& f) { OpDescription<PackSequences>::fields(p, f); }
  static void tensors(UnpackSequences::Args& a, auto&& t) {
    t.in("packed", a.packed), t.in("query_start_loc", a.query_start_loc), t.out("rows", a.rows);
  }
};

}  // namespace smla
