#pragma once

// E4M3 output of attention, and what it has to be: InverseRopeQuant of BF16 output.

#include <cmath>
#include <cstring>
#include <vector>

#include "core/host_tensor.h"
#include "parity/attention_cases.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::attention_cases {

struct QuantisedCase {
  AttentionCase attention;
  std::int64_t groups = 1;
  OutputScale scale = OutputScale::kF32;
  std::int64_t more_columns = 0;  ///< of the scales, behind the tokens rounded up to 4
  int rope_dim = 64;
  bool odd_place = false;  ///< o begins at no multiple of 16

  friend std::ostream& operator<<(std::ostream& out, const QuantisedCase& c) {
    return out << c.attention << " groups " << c.groups << " scale " << static_cast<int>(c.scale) << " more columns "
               << c.more_columns << " rope " << c.rope_dim << " odd place " << c.odd_place;
  }
};

/// What a call writes, and the table by which it is rotated.
struct QuantisedRun {
  static constexpr std::int64_t kPositions = 50;

  std::int64_t tokens, groups, width, columns;
  HostTensor table;
  std::vector<std::int64_t> positions;
  std::vector<std::uint8_t> values;
  std::size_t offset;
  std::vector<std::uint32_t> scales;

  QuantisedRun(const QuantisedCase& c, const SparseAttention::Problem& p)
      : tokens(p.tokens),
        groups(c.groups),
        width(p.heads / c.groups * p.out_dim()),
        columns((p.tokens + 3) / 4 * 4 + c.more_columns),
        table(DType::kF32, {kPositions, c.rope_dim}),
        offset(c.odd_place ? 4 : 0) {
    for (std::int64_t i = 0; i < table.numel(); ++i) table.as<float>()[i] = std::cos(0.37F * static_cast<float>(i));
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(t * 7 % kPositions);
    values.assign(static_cast<std::size_t>(groups * tokens * width) + 16, 0x5A);
    const std::int64_t chunks = width / InverseRopeQuant::kGroup;
    rows = c.scale == OutputScale::kUe8m0x4 ? (chunks + 3) / 4 : chunks;
    scales.assign(static_cast<std::size_t>(groups * rows * columns), 0x5A5A'5A5A);
    dtype = c.scale == OutputScale::kUe8m0x4 ? DType::kI32 : DType::kF32;
  }
  TensorView value_view() { return {values.data() + offset, DType::kE4M3, {groups, tokens, width}}; }
  TensorView scale_view(std::int64_t n) {
    TensorView v(scales.data(), dtype, {groups, rows, n});
    v.stride[0] = rows * columns;
    v.stride[1] = columns;
    return v;
  }
  /// The call's problem and tensors.
  SparseAttention::Problem attach(const QuantisedCase& c, SparseAttention::Problem p, SparseAttention::Args& args) {
    p.o = DType::kE4M3;
    p.output_epilogue = {.rope_dim = c.rope_dim, .groups = groups, .scale = c.scale};
    args.o = value_view();
    args.output_epilogue = {.positions = view_of(std::as_const(positions).data(), {tokens}),
                            .cos_sin = std::as_const(table).view(),
                            .scales = scale_view(columns)};
    return p;
  }
  /// What it has to write, from BF16 output [T, H, out_dim].
  void make(const QuantisedCase& c, const SparseAttention::Problem& p, const ConstTensorView& o) {
    const InverseRopeQuant::Problem quantise{.tokens = tokens,
                                             .heads = p.heads,
                                             .groups = groups,
                                             .dim = p.out_dim(),
                                             .rope_dim = c.rope_dim,
                                             .in = DType::kBF16,
                                             .scale = c.scale};
    Plan<InverseRopeQuant>(quantise, {.implementation = "ref"})
        .run({.x = o,
              .positions = view_of(std::as_const(positions).data(), {tokens}),
              .cos_sin = std::as_const(table).view(),
              .values = value_view(),
              .scales = scale_view((tokens + 3) / 4 * 4)});
    for (std::int64_t line = 0; line < groups * rows; ++line) {
      for (std::int64_t t = tokens; t < columns; ++t) scales[static_cast<std::size_t>(line * columns + t)] = 0;
    }
  }

 private:
  std::int64_t rows = 0;
  DType dtype = DType::kF32;
};

/// Groups of one head and of many, both kinds of scales, rows without keys, lists cut into parts, places that no kernel
/// for tensor cores reads.
inline std::vector<QuantisedCase> quantised_cases() {
  std::vector<QuantisedCase> out;
  unsigned seed = 60;
  struct Heads {
    std::int64_t heads, groups;
  };
  for (const Heads h : {Heads{8, 2}, Heads{64, 8}, Heads{128, 16}, Heads{6, 6}, Heads{72, 3}, Heads{1, 1}}) {
    for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
      for (const std::int64_t tokens : {1, 5}) {
        if (h.heads > 8 && (tokens == 1) == (scale == OutputScale::kUe8m0x4)) continue;
        out.push_back({.attention = {.tokens = tokens,
                                     .heads = h.heads,
                                     .sink = 0.3F,
                                     .scopes = {{.width = 70, .lens = Lens::kAbsent}},
                                     .seed = ++seed},
                       .groups = h.groups,
                       .scale = scale,
                       .more_columns = tokens == 5 ? 9 : 0});
      }
    }
  }
  out.push_back({.attention = {.tokens = 2,
                               .heads = 64,
                               .scopes = {{.width = 3000, .num_blocks = 60, .lens = Lens::kAbsent},
                                          {.width = 128, .lens = Lens::kAbsent}},
                               .seed = ++seed},
                 .groups = 8,
                 .scale = OutputScale::kUe8m0x4});
  out.push_back({.attention = {.tokens = 6,
                               .heads = 16,
                               .scopes = {{.width = 40, .lens = Lens::kHostile, .invalid = 0.9}},
                               .seed = ++seed},
                 .groups = 4});
  out.push_back({.attention = {.tokens = 4,
                               .heads = 16,
                               .scopes = {{.format = "fp8_per_tensor", .width = 100, .lens = Lens::kAbsent}},
                               .seed = ++seed},
                 .groups = 2});
  out.push_back({.attention = {.tokens = 3,
                               .heads = 8,
                               .scopes = {{.width = 50, .block_size = 3, .num_blocks = 40, .lens = Lens::kAbsent}},
                               .seed = ++seed},
                 .groups = 2});
  out.push_back(
      {.attention = {.tokens = 3, .heads = 8, .scopes = {{.width = 50, .lens = Lens::kAbsent}}, .seed = ++seed},
       .groups = 2,
       .odd_place = true});
  out.push_back(
      {.attention = {.tokens = 70, .heads = 4, .scopes = {{.width = 20, .lens = Lens::kAbsent}}, .seed = ++seed},
       .groups = 2,
       .rope_dim = 32});
  out.push_back(
      {.attention = {.tokens = 0, .heads = 4, .scopes = {{.width = 20, .lens = Lens::kAbsent}}}, .groups = 2});
  return out;
}

}  // namespace smla::attention_cases
