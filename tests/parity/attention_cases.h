#pragma once

// The cases of the attention family: parameters, and seeded inputs made from them. Shared by parity, property, fuzz and
// bench programs.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "sparsemla/ops/attention.h"

namespace smla::attention_cases {

constexpr std::uint8_t kPoison = 0xA5;
constexpr std::int64_t kOutputGap =
    8;  ///< elements between the heads of o, and between the rows of lse, that nobody may write
constexpr float kInf = std::numeric_limits<float>::infinity();

/// What a row's length is.
enum class Lens { kAbsent, kMixed, kHostile };

struct ScopeCase {
  std::string format = "fp8_ds_mla";
  std::int64_t width = 0;
  std::int64_t block_size = 64;
  std::int64_t num_blocks = 8;
  std::int64_t block_gap = 0;  ///< bytes between one page's end and the next page
  std::int64_t index_gap = 0;  ///< columns of the matrix that the index matrix is a slice of
  Lens lens = Lens::kMixed;
  double invalid = 0.1;  ///< share of entries that point nowhere
  float kv_scale = 1.0F;
  Lens starts = Lens::kAbsent;  ///< first columns, of tokens that share rows
};

struct AttentionCase {
  std::int64_t tokens = 3;
  std::int64_t heads = 8;
  std::int64_t out_heads = 0;
  std::int64_t q_heads = 0;  ///< heads of the q buffer; 0 means H
  std::int64_t q_gap = 0;    ///< elements between the rows of q
  DType q = DType::kBF16;
  DType o = DType::kBF16;
  float q_scale = 1.0F;
  float q_magnitude = 1.0F;
  float scale = 0.0F;  ///< of the softmax; 0: dim^-0.5
  int value_dim = 0;   ///< numbers of a row that are its value; 0: all
  bool partial = false;
  std::int64_t tokens_per_list = 1;
  std::optional<float> sink = std::nullopt;  ///< of every second head; the others' are random. Absent: no sink tensor
  std::vector<ScopeCase> scopes{};
  unsigned seed = 1;

  friend std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
    out << "T=" << c.tokens << " H=" << c.heads << " Hp=" << c.out_heads << " q heads=" << c.q_heads
        << " q gap=" << c.q_gap << " q " << name_of(c.q) << " x " << c.q_scale << " magnitude " << c.q_magnitude
        << " softmax scale " << c.scale << " o " << name_of(c.o) << (c.partial ? " partial" : "") << " value dim "
        << c.value_dim << " tokens per list " << c.tokens_per_list << " seed " << c.seed;
    if (c.sink) out << " sink " << *c.sink;
    for (const ScopeCase& s : c.scopes) {
      out << " | " << s.format << " W=" << s.width << " blocks " << s.num_blocks << "x" << s.block_size << " gap "
          << s.block_gap << " index gap " << s.index_gap << " lens " << static_cast<int>(s.lens) << " starts "
          << static_cast<int>(s.starts) << " invalid " << s.invalid << " scale " << s.kv_scale;
    }
    return out;
  }
};

inline SparseAttention::Problem problem_of(const AttentionCase& c) {
  SparseAttention::Problem p{.tokens = c.tokens,
                             .heads = c.heads,
                             .out_heads = c.out_heads,
                             .dim = row_format(c.scopes.at(0).format).dim,
                             .value_dim = c.value_dim,
                             .q = c.q,
                             .o = c.o,
                             .scopes = static_cast<int>(c.scopes.size()),
                             .scale = c.scale,
                             .q_scale = c.q_scale,
                             .partial = c.partial,
                             .tokens_per_list = c.tokens_per_list};
  for (std::size_t i = 0; i < c.scopes.size(); ++i) {
    p.scope.at(i) = {
        .format = &row_format(c.scopes[i].format), .block_size = c.scopes[i].block_size, .width = c.scopes[i].width};
  }
  return p;
}

struct ScopeInputs {
  std::vector<std::uint8_t> memory;
  PagedCache cache;  ///< its base is set by AttentionInputs::args()
  std::int64_t index_stride = 0;
  std::vector<std::int32_t> indices;
  std::vector<std::int32_t> lens;
  std::vector<std::int32_t> starts;
  std::int64_t tokens_per_list = 1;

  /// Columns of its row that count for a token which shares it with no other.
  std::int64_t entries(std::int64_t token, std::int64_t width) const {
    return lens.empty() ? width : std::clamp<std::int64_t>(lens[static_cast<std::size_t>(token)], 0, width);
  }
  /// Whether a column of its row counts for a token.
  bool counts(std::int64_t token, std::int64_t column, std::int64_t width) const {
    const auto t = static_cast<std::size_t>(token);
    const std::int64_t start = starts.empty() ? 0 : starts[t];
    return column < width && column >= start && column < start + (lens.empty() ? width : lens[t]);
  }
  std::int32_t& index(std::int64_t token, std::int64_t column) {
    return indices[static_cast<std::size_t>(token / tokens_per_list * index_stride + column)];
  }
  bool valid(std::int32_t slot) const { return slot >= 0 && slot < cache.num_slots(); }
};

struct AttentionInputs {
  SparseAttention::Problem problem;
  std::vector<std::uint8_t> q;
  std::int64_t q_heads = 0;
  std::int64_t q_stride = 0;
  std::vector<ScopeInputs> scopes;
  std::vector<float> sink;

  SparseAttention::Args args() {
    SparseAttention::Args a;
    a.q = ConstTensorView(q.data(), problem.q, {problem.tokens, q_heads, problem.dim});
    a.q.stride[0] = q_stride;
    for (std::size_t i = 0; i < scopes.size(); ++i) {
      ScopeInputs& s = scopes[i];
      s.cache.base = s.memory.data();
      a.scopes.at(i).cache = s.cache;
      a.scopes.at(i).indices =
          ConstTensorView(s.indices.data(), DType::kI32, {problem.lists(), problem.scope.at(i).width});
      a.scopes.at(i).indices.stride[0] = s.index_stride;
      if (!s.lens.empty() || problem.tokens == 0)
        a.scopes.at(i).lens = ConstTensorView(s.lens.data(), DType::kI32, {problem.tokens});
      if (!s.starts.empty()) a.scopes.at(i).starts = ConstTensorView(s.starts.data(), DType::kI32, {problem.tokens});
    }
    if (!sink.empty()) a.sink = view_of(static_cast<const float*>(sink.data()), {problem.heads});
    return a;
  }
};

inline void put(DType dtype, std::uint8_t* bytes, std::int64_t i, float v) {
  if (dtype == DType::kF32) {
    std::memcpy(bytes + 4 * i, &v, 4);
  } else if (dtype == DType::kBF16) {
    const BF16 x = to_bf16(v);
    std::memcpy(bytes + 2 * i, &x, 2);
  } else {
    bytes[i] = to_e4m3(v).bits;
  }
}

/// Cache and index matrix of one scope. Rows that no valid entry within its row's length names stay 0xFF: NaN in every
/// format.
inline ScopeInputs make_scope(const ScopeCase& c, std::int64_t tokens, std::int64_t tokens_per_list,
                              std::mt19937_64& random) {
  const RowFormat& format = row_format(c.format);
  ScopeInputs s;
  s.tokens_per_list = tokens_per_list;
  s.cache = {.format = &format,
             .num_blocks = c.num_blocks,
             .block_size = c.block_size,
             .block_stride_bytes = page_bytes(format, c.block_size) + c.block_gap,
             .scale = c.kv_scale};
  s.memory.assign(static_cast<std::size_t>(c.num_blocks * s.cache.block_stride_bytes), 0xFF);
  s.cache.base = s.memory.data();
  s.index_stride = c.width + c.index_gap;
  const std::int64_t slots = s.cache.num_slots();

  const auto draw = [&](Lens kind, std::int32_t whole, std::vector<std::int32_t>& to) {
    constexpr std::int32_t kHostile[] = {std::numeric_limits<std::int32_t>::max(), -1,
                                         std::numeric_limits<std::int32_t>::min(), 1000000};
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto some = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(c.width + 1));
      to.push_back(kind == Lens::kHostile ? kHostile[t % 4] : t % 3 == 0 ? whole : some);
    }
  };
  if (c.lens != Lens::kAbsent) draw(c.lens, static_cast<std::int32_t>(c.width), s.lens);
  if (c.starts != Lens::kAbsent) draw(c.starts, 0, s.starts);
  const std::int32_t hostile[] = {std::numeric_limits<std::int32_t>::min(),
                                  -123456,
                                  -1,
                                  static_cast<std::int32_t>(slots),
                                  std::max(114514, static_cast<std::int32_t>(slots)),
                                  2147480000,
                                  std::numeric_limits<std::int32_t>::max()};
  std::vector<float> row(static_cast<std::size_t>(format.dim));
  std::vector<bool> written(static_cast<std::size_t>(slots));
  std::normal_distribution<float> normal;
  s.indices.assign(static_cast<std::size_t>(tokens / tokens_per_list * s.index_stride), 0);
  for (std::int64_t t = 0; t < tokens; t += tokens_per_list) {
    const auto counts = [&](std::int64_t column) {
      for (std::int64_t i = t; i < t + tokens_per_list; ++i) {
        if (s.counts(i, column, c.width)) return true;
      }
      return false;
    };
    for (std::int64_t column = 0; column < s.index_stride; ++column) {
      const bool nowhere = slots == 0 || static_cast<double>(random() % 1000) < 1000 * c.invalid;
      std::int32_t& slot = s.index(t, column);
      slot = nowhere ? hostile[random() % 7] : static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(slots));
      if (!s.valid(slot) || !counts(column) || written[static_cast<std::size_t>(slot)]) continue;
      written[static_cast<std::size_t>(slot)] = true;
      const float magnitude = std::ldexp(1.0F, static_cast<int>(random() % 3) - 1);
      for (float& v : row) v = magnitude * normal(random);
      encode_row(s.cache, slot, row.data());
    }
  }
  return s;
}

inline AttentionInputs make_inputs(const AttentionCase& c) {
  std::mt19937_64 random(c.seed);
  std::normal_distribution<float> normal;
  AttentionInputs in;
  in.problem = problem_of(c);
  in.q_heads = c.q_heads == 0 ? c.heads : c.q_heads;
  in.q_stride = in.q_heads * in.problem.dim + c.q_gap;
  in.q.assign(static_cast<std::size_t>(c.tokens * in.q_stride * size_of(c.q)), 0xFF);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t i = 0; i < c.heads * in.problem.dim; ++i)
      put(c.q, in.q.data(), t * in.q_stride + i, c.q_magnitude * normal(random));
  }
  for (const ScopeCase& s : c.scopes) in.scopes.push_back(make_scope(s, c.tokens, c.tokens_per_list, random));
  for (std::int64_t h = 0; c.sink && h < c.heads; ++h) in.sink.push_back(h % 2 == 0 ? *c.sink : normal(random));
  return in;
}

/// Poisoned buffers with gaps between the heads of o and, unless tokens share lists, the rows of lse.
struct AttentionOutputs {
  SparseAttention::Problem problem;
  std::vector<std::uint8_t> o;
  std::vector<float> lse;

  explicit AttentionOutputs(const SparseAttention::Problem& p)
      : problem(p),
        o(static_cast<std::size_t>(p.tokens * p.padded_heads() * head_bytes())),
        lse(static_cast<std::size_t>(p.tokens * lse_row())) {
    std::fill(o.begin(), o.end(), kPoison);
    if (!lse.empty()) std::memset(lse.data(), kPoison, lse.size() * sizeof(float));
  }
  std::int64_t lse_row() const { return problem.heads + (problem.tokens_per_list == 1 ? kOutputGap : 0); }
  std::int64_t head_bytes() const { return (problem.out_dim() + kOutputGap) * size_of(problem.o); }
  const std::uint8_t* head(std::int64_t t, std::int64_t h) const {
    return o.data() + (t * problem.padded_heads() + h) * head_bytes();
  }
  float lse_of(std::int64_t t, std::int64_t h) const { return lse[static_cast<std::size_t>(t * lse_row() + h)]; }
  float value(std::int64_t t, std::int64_t h, std::int64_t d) const {
    if (problem.o == DType::kBF16) {
      BF16 x;
      std::memcpy(&x, head(t, h) + 2 * d, 2);
      return to_float(x);
    }
    float x = 0;
    std::memcpy(&x, head(t, h) + 4 * d, 4);
    return x;
  }
  void attach(SparseAttention::Args& args) {
    args.o = TensorView(o.data(), problem.o, {problem.tokens, problem.padded_heads(), problem.out_dim()});
    args.o.stride[1] = problem.out_dim() + kOutputGap;
    args.o.stride[0] = problem.padded_heads() * args.o.stride[1];
    args.lse = view_of(lse.data(), {problem.tokens, problem.heads});
    args.lse.stride[0] = lse_row();
  }
  /// Whether the gaps still hold the poison.
  bool gaps_untouched() const {
    const auto poisoned = [](const std::uint8_t* p, std::int64_t n) {
      return std::all_of(p, p + n, [](std::uint8_t b) { return b == kPoison; });
    };
    bool ok = true;
    for (std::int64_t t = 0; t < problem.tokens; ++t) {
      for (std::int64_t h = 0; h < problem.padded_heads(); ++h) {
        ok = ok && poisoned(head(t, h) + problem.out_dim() * size_of(problem.o), kOutputGap * size_of(problem.o));
      }
      const float* row = lse.data() + t * lse_row();
      const auto* gap = reinterpret_cast<const std::uint8_t*>(row + problem.heads);
      ok = ok && poisoned(gap, (lse_row() - problem.heads) * 4);
    }
    return ok;
  }
};

inline AttentionOutputs run(AttentionInputs& in, const std::string& implementation, int threads) {
  const Plan<SparseAttention> plan(in.problem, {.implementation = implementation, .threads = threads});
  // NaN in the scratch memory: whatever is read before it is written shows.
  std::vector<float> scratch(plan.workspace_bytes() / sizeof(float) + 16, std::numeric_limits<float>::quiet_NaN());
  void* aligned = scratch.data();
  std::size_t space = scratch.size() * sizeof(float);
  std::align(64, plan.workspace_bytes(), aligned, space);
  AttentionOutputs out(in.problem);
  SparseAttention::Args args = in.args();
  out.attach(args);
  plan.run(args, {.data = aligned, .bytes = plan.workspace_bytes()});
  return out;
}

/// Heads by lengths; formats, dtypes, block sizes and sinks take turns.
inline std::vector<AttentionCase> grid_cases() {
  const std::string formats[] = {"fp8_ds_mla", "bf16", "fp8_per_tensor", "f32"};
  const DType dtypes[] = {DType::kBF16, DType::kE4M3, DType::kF32};
  const std::int64_t block_sizes[] = {1, 2, 3, 53, 64, 256};
  const float sinks[] = {-kInf, -20.0F, 0.0F, 20.0F, kInf};
  std::vector<AttentionCase> cases;
  std::size_t i = 0;
  for (const std::int64_t heads : {1, 7, 8, 16, 64, 128}) {
    for (const std::int64_t width : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
      AttentionCase c{.tokens = heads > 16 ? 2 : 3, .heads = heads, .seed = static_cast<unsigned>(1000 + i)};
      const std::int64_t block = block_sizes[i % 6];
      c.scopes.push_back({.format = formats[i % 4],
                          .width = width,
                          .block_size = block,
                          .num_blocks = 1 + 400 / block,
                          .block_gap = i % 3 == 0 ? 64 : 0});
      c.scopes[0].lens = i % 5 == 0 ? Lens::kAbsent : Lens::kMixed;
      c.scopes[0].kv_scale = i % 2 == 0 ? 0.37F : 1.0F;
      c.q = dtypes[i % 3];
      c.q_scale = c.q == DType::kE4M3 ? 0.71F : 1.0F;
      c.q_magnitude = i % 7 == 0 ? 12.0F : 1.0F;
      c.o = i % 4 == 3 ? DType::kF32 : DType::kBF16;
      if (i % 6 != 5) c.sink = sinks[i % 5];
      cases.push_back(c);
      ++i;
    }
  }
  return cases;
}

/// One thing at a time, and the long lists.
inline std::vector<AttentionCase> special_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) {
    c.seed = static_cast<unsigned>(5000 + cases.size());
    cases.push_back(c);
  };
  for (const std::int64_t width : {4095, 4096, 4097}) {
    add({.tokens = 1, .heads = 3, .scopes = {{.width = width, .num_blocks = 40, .lens = Lens::kAbsent}}});
    add({.tokens = 1,
         .heads = 2,
         .o = DType::kF32,
         .sink = 0.0F,
         .scopes = {{.format = "f32", .width = width, .num_blocks = 40, .invalid = 0}}});
  }
  for (const float sink : {-kInf, -20.0F, 0.0F, 20.0F, kInf}) {
    for (const DType o : {DType::kBF16, DType::kF32}) {
      add({.heads = 5, .o = o, .sink = sink, .scopes = {{.width = 70}}});
      add({.heads = 2, .o = o, .sink = sink, .scopes = {{.width = 40, .invalid = 1.0}}});  // no key at all
    }
  }
  for (const char* first : {"fp8_ds_mla", "bf16", "fp8_per_tensor", "f32"}) {
    for (const char* second : {"fp8_ds_mla", "bf16", "fp8_per_tensor", "f32"}) {
      add({.heads = 7,
           .sink = 0.5F,
           .scopes = {{.format = first, .width = 128, .kv_scale = 0.5F},
                      {.format = second,
                       .width = 67,
                       .block_size = 2,
                       .num_blocks = 53,
                       .block_gap = 32,
                       .lens = Lens::kHostile,
                       .kv_scale = 1.7F}}});
    }
  }
  for (const std::int64_t block : {1, 2, 3, 53, 64, 256}) {
    add({.heads = 4,
         .scopes = {{.width = 90, .block_size = block, .num_blocks = 3},
                    {.width = 33, .block_size = block, .num_blocks = 2, .block_gap = 4096}}});
  }
  for (const Lens lens : {Lens::kAbsent, Lens::kMixed, Lens::kHostile}) {
    add({.tokens = 9,
         .heads = 6,
         .scopes = {{.width = 65, .index_gap = 7, .lens = lens, .invalid = 0.5},
                    {.width = 1, .index_gap = 3, .lens = lens}}});
  }
  for (const std::int64_t heads : {1, 5, 6, 11, 13, 100, 127}) {
    add({.tokens = 2, .heads = heads, .out_heads = 128, .q_heads = 128, .sink = 1.0F, .scopes = {{.width = 66}}});
    add({.tokens = 2,
         .heads = heads,
         .q_gap = 40,
         .o = DType::kF32,
         .partial = true,
         .scopes = {{.width = 66, .invalid = 0.6}}});
  }
  for (const DType q : {DType::kBF16, DType::kE4M3, DType::kF32}) {
    add({.heads = 9,
         .q_heads = 12,
         .q_gap = 24,
         .q = q,
         .q_scale = 0.013F,
         .q_magnitude = 100.0F,
         .scopes = {{.format = "bf16", .width = 150}}});
    add({.heads = 9, .q = q, .o = DType::kF32, .q_magnitude = 60.0F, .scopes = {{.format = "f32", .width = 150}}});
  }
  // Softmax scales below zero, where masked columns must still count for nothing; widths around the words of a CPU.
  for (const float scale : {-0.05F, -1e-30F, 1e-30F}) {
    for (const std::int64_t width : {1, 13, 64, 70})
      add({.heads = 5, .scale = scale, .sink = 0.5F, .scopes = {{.width = width}, {.format = "bf16", .width = 3}}});
    add({.heads = 2, .scale = scale, .scopes = {{.width = 40, .invalid = 1.0}}});
  }
  // Rows that are not 512 numbers, one of them with groups of four-bit numbers; an empty cache; no token.
  for (const char* format : {"index_fp8", "index_mxfp4", "index_f32"})
    add({.heads = 7, .scopes = {{.format = format, .width = 130}}});
  add({.heads = 3, .sink = 0.0F, .scopes = {{.width = 20, .num_blocks = 0}}});
  add({.heads = 3, .scopes = {{.width = 0}, {.width = 30}}});
  add({.tokens = 0, .heads = 3, .scopes = {{.width = 20}}});
  // Keys of which only the first numbers are values: DeepSeek-V3.2's rows, and others.
  for (const std::int64_t heads : {1, 7, 16, 128}) {
    for (const std::int64_t width : {0, 1, 65, 200}) {
      add({.tokens = 2,
           .heads = heads,
           .out_heads = heads == 7 ? 9 : 0,
           .q = width == 65 ? DType::kE4M3 : DType::kBF16,
           .o = width == 1 ? DType::kF32 : DType::kBF16,
           .q_magnitude = 0.5F,
           .value_dim = 512,
           .sink = 0.3F,
           .scopes = {{.format = "fp8_v32", .width = width, .block_gap = heads == 16 ? 16 : 0}}});
    }
  }
  for (const std::int64_t block : {1, 2, 3, 53, 64, 256}) {
    add({.heads = 4,
         .q = DType::kF32,
         .o = DType::kF32,
         .value_dim = 512,
         .scopes = {{.format = "fp8_v32", .width = 90, .block_size = block, .num_blocks = 3, .lens = Lens::kHostile},
                    {.format = "fp8_v32", .width = 33, .block_size = block, .num_blocks = 2, .block_gap = 4096}}});
  }
  add({.heads = 5, .value_dim = 512, .scopes = {{.format = "fp8_v32", .width = 40, .invalid = 1.0}}});
  add({.heads = 5, .value_dim = 512, .scopes = {{.format = "fp8_v32", .width = 20, .num_blocks = 0}}});
  add({.heads = 5, .scopes = {{.format = "fp8_v32", .width = 70}}});  // values as wide as the keys
  add({.heads = 7,
       .o = DType::kF32,
       .value_dim = 512,
       .partial = true,
       .scopes = {{.format = "fp8_v32", .width = 66, .invalid = 0.6}}});
  for (const int value_dim : {32, 96, 448}) {
    for (const char* format : {"fp8_ds_mla", "f32", "bf16"})
      add({.heads = 7, .value_dim = value_dim, .sink = 0.0F, .scopes = {{.format = format, .width = 70}}});
  }
  return cases;
}

/// Tokens that share rows of indices, each with columns of its own: as drafts do, of any lengths and starts, of none,
/// and of hostile ones.
inline std::vector<AttentionCase> sharing_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) {
    c.seed = static_cast<unsigned>(9000 + cases.size());
    cases.push_back(c);
  };
  const DType dtypes[] = {DType::kBF16, DType::kE4M3};
  int i = 0;
  for (const std::int64_t n : {2, 3, 8}) {
    for (const std::int64_t heads : {1, 5, 8, 16, 33}) {
      const char* format = i % 3 == 1 ? "bf16" : i % 3 == 2 ? "fp8_per_tensor" : "fp8_ds_mla";
      AttentionCase c{.tokens = 2 * n,
                      .heads = heads,
                      .q = dtypes[i % 2],
                      .o = i % 4 == 3 ? DType::kF32 : DType::kBF16,
                      .tokens_per_list = n,
                      .sink = i % 5 == 4 ? std::optional<float>() : std::optional<float>(0.3F)};
      c.scopes.push_back({.format = format, .width = 150, .index_gap = i % 2 == 0 ? 5 : 0, .starts = Lens::kMixed});
      if (i % 2 == 0) c.scopes.push_back({.format = format, .width = 200, .block_size = 53});
      add(c);
      ++i;
    }
  }
  for (const Lens lens : {Lens::kAbsent, Lens::kMixed, Lens::kHostile}) {
    for (const Lens starts : {Lens::kAbsent, Lens::kMixed, Lens::kHostile})
      add({.tokens = 8, .heads = 7, .tokens_per_list = 4, .scopes = {{.width = 70, .lens = lens, .starts = starts}}});
  }
  add({.tokens = 4, .heads = 3, .tokens_per_list = 4, .scopes = {{.width = 0}}});
  add({.tokens = 4, .heads = 3, .tokens_per_list = 2, .scopes = {{.width = 40, .invalid = 1.0}, {.width = 0}}});
  add({.tokens = 0, .heads = 3, .tokens_per_list = 5, .scopes = {{.width = 20}}});
  add({.tokens = 6, .heads = 2, .o = DType::kF32, .partial = true, .tokens_per_list = 3, .scopes = {{.width = 130}}});
  add({.tokens = 4, .heads = 5, .q = DType::kF32, .tokens_per_list = 2, .scopes = {{.format = "f32", .width = 66}}});
  add({.tokens = 2, .heads = 128, .tokens_per_list = 2, .scopes = {{.width = 100, .starts = Lens::kMixed}}});
  add({.tokens = 70, .heads = 1, .tokens_per_list = 70, .scopes = {{.width = 90, .starts = Lens::kMixed}}});
  add({.tokens = 4, .heads = 8, .tokens_per_list = 4, .scopes = {{.width = 4096, .num_blocks = 40}}});
  return cases;
}

inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases = grid_cases();
  for (const AttentionCase& c : special_cases()) cases.push_back(c);
  for (const AttentionCase& c : sharing_cases()) cases.push_back(c);
  return cases;
}

}  // namespace smla::attention_cases
