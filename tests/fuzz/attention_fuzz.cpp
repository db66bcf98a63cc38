// Sparse attention: every implementation against `ref`, over hostile indices and lengths, strided rows and caches whose
// unused rows are NaN.
#include <algorithm>
#include <cmath>

#include "parity/attention_cases.h"
#include "support.h"

namespace smla::fuzz {
namespace {

using namespace attention_cases;

AttentionCase make_case(Input& in) {
  const std::string formats[] = {"fp8_ds_mla", "bf16",        "fp8_per_tensor", "f32",
                                 "index_fp8",  "index_mxfp4", "index_f32",      "fp8_v32"};
  constexpr std::int64_t kHeads[] = {1, 2, 3, 5, 8, 9, 16};
  constexpr std::int64_t kBlocks[] = {1, 2, 3, 53, 64};
  constexpr DType kQ[] = {DType::kBF16, DType::kE4M3, DType::kF32};
  constexpr float kSinks[] = {-kInf, -20.0F, 0.0F, 20.0F, kInf};
  AttentionCase c{
      .tokens = in.range(0, 3), .heads = in.choice(kHeads), .q_gap = in.range(0, 3) * 8, .q = in.choice(kQ)};
  if (in.flag()) c.out_heads = c.heads + in.range(0, 4);
  if (in.flag()) c.q_heads = c.heads + in.range(0, 4);
  if (c.q == DType::kE4M3) c.q_scale = 0.25F;
  c.partial = in.byte() % 4 == 0;
  c.o = c.partial || in.flag() ? DType::kF32 : DType::kBF16;
  if (!c.partial && in.flag()) c.sink = in.choice(kSinks);
  const std::uint8_t rows = in.byte() % 8;  // 0: rows of 128 numbers, 7: of 576, else of 512
  constexpr int kValues[] = {0, 32, 100, 128};
  c.value_dim = rows == 0 ? in.choice(kValues) : rows == 7 ? 512 : 0;
  const std::int64_t scopes = in.range(1, 2);
  for (std::int64_t i = 0; i < scopes; ++i) {
    ScopeCase s{.format = formats[rows == 0   ? 4 + in.byte() % 3
                                  : rows == 7 ? 7
                                              : in.byte() % 4],
                .width = in.range(0, 70),
                .block_size = in.choice(kBlocks)};
    s.num_blocks = in.range(0, 4);
    s.block_gap = in.range(0, 2) * 64;
    s.index_gap = in.range(0, 3);
    s.lens = in.flag() ? Lens::kMixed : Lens::kAbsent;
    s.invalid = 1;  // the fuzzer's own indices come below
    s.kv_scale = in.flag() ? 0.37F : 1.0F;
    c.scopes.push_back(s);
  }
  c.seed = in.raw<std::uint16_t>();
  constexpr int kSharing[] = {1, 1, 2, 3};
  c.tokens_per_list = in.choice(kSharing);
  if (c.tokens_per_list > 1) {
    c.tokens *= c.tokens_per_list;
    c.out_heads = c.q_heads = c.q_gap = 0;
    for (ScopeCase& s : c.scopes) s.starts = in.flag() ? Lens::kMixed : Lens::kAbsent;
  }
  return c;
}

/// The fuzzer's indices and lengths; rows that they select are given numbers, all others stay NaN.
void plant(Input& in, const AttentionCase& c, AttentionInputs& inputs) {
  std::mt19937_64 random(c.seed);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < c.scopes.size(); ++i) {
    ScopeInputs& s = inputs.scopes[i];
    const RowFormat& format = *s.cache.format;
    s.cache.base = s.memory.data();
    for (std::int32_t& n : s.lens) n = in.hostile32(c.scopes[i].width);
    for (std::int32_t& n : s.starts) n = in.hostile32(c.scopes[i].width);
    // A few bytes say where a run of slots begins and how it steps; a wild one stands in between.
    std::vector<bool> written(static_cast<std::size_t>(s.cache.num_slots()));
    std::vector<float> row(static_cast<std::size_t>(format.dim));
    for (std::int64_t t = 0; t < c.tokens; t += c.tokens_per_list) {
      const auto counts = [&](std::int64_t column) {
        for (std::int64_t k = t; k < t + c.tokens_per_list; ++k) {
          if (s.counts(k, column, c.scopes[i].width)) return true;
        }
        return false;
      };
      std::int64_t slot = in.hostile32(s.cache.num_slots());
      const std::int64_t step = in.range(0, 5) - 1;
      const std::int64_t every = in.range(1, 9);
      for (std::int64_t column = 0; column < s.index_stride; ++column) {
        s.index(t, column) = static_cast<std::int32_t>(slot);
        slot += step;
        if (column % every == 0) slot = in.hostile32(s.cache.num_slots());
        const std::int32_t chosen = s.index(t, column);
        if (!s.valid(chosen) || !counts(column) || written[static_cast<std::size_t>(chosen)]) continue;
        written[static_cast<std::size_t>(chosen)] = true;
        for (float& v : row) v = normal(random);
        encode_row(s.cache, chosen, row.data());
      }
    }
  }
}

void compare(const AttentionOutputs& want, const AttentionOutputs& got) {
  const SparseAttention::Problem& p = want.problem;
  require(got.gaps_untouched(), "sparse_attention wrote outside its heads");
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t h = 0; h < p.padded_heads(); ++h) {
      double largest = 0;
      for (std::int64_t d = 0; d < p.out_dim(); ++d)
        largest = std::max(largest, std::fabs(static_cast<double>(want.value(t, h, d))));
      for (std::int64_t d = 0; d < p.out_dim(); ++d) {
        const float w = want.value(t, h, d);
        const float g = got.value(t, h, d);
        require(std::isfinite(w) && std::isfinite(g), "sparse_attention: a row that nobody selected was read");
        require(h < p.heads || (g == 0 && !std::signbit(g)), "sparse_attention: a padded head is not +0");
        require(std::fabs(static_cast<double>(w) - g) <= (p.o == DType::kBF16 ? 8e-3 : 1e-4) * largest,
                "sparse_attention: another number");
      }
      if (h >= p.heads) continue;
      const float w = want.lse_of(t, h);
      const float g = got.lse_of(t, h);
      require(
          w == g || std::fabs(static_cast<double>(w) - g) <= 1e-4 * std::max(1.0, std::fabs(static_cast<double>(w))),
          "sparse_attention: another lse");
    }
  }
}

void run(Input in) {
  const AttentionCase c = make_case(in);
  AttentionInputs inputs = make_inputs(c);
  plant(in, c, inputs);
  const AttentionOutputs want = attention_cases::run(inputs, "ref", 1);
  compare(want, want);
  for (std::int64_t t = 0; t < c.tokens; ++t) {  // a row without a key is exactly empty
    bool any = false;
    for (std::size_t i = 0; i < c.scopes.size(); ++i) {
      const std::int64_t width = c.scopes[i].width;
      ScopeInputs& s = inputs.scopes[i];
      for (std::int64_t column = 0; column < width; ++column)
        any = any || (s.counts(t, column, width) && s.valid(s.index(t, column)));
    }
    for (std::int64_t h = 0; !any && h < c.heads; ++h) {
      require(want.lse_of(t, h) == (c.partial ? -kInf : kInf) && want.value(t, h, 0) == 0,
              "sparse_attention: an empty row is not empty");
    }
  }
  for (const Candidate& candidate : explain<SparseAttention>(inputs.problem)) {
    if (candidate.refusal.empty() && candidate.name != "ref")
      compare(want, attention_cases::run(inputs, candidate.name, 1));
  }
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::run({data, size});
  return 0;
}
