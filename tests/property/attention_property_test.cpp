#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "parity/attention_changes.h"

namespace smla {
namespace {

using namespace attention_cases;

ScopeCase any_scope() {
  ScopeCase s;
  s.format = *rc::gen::element<std::string>("fp8_ds_mla", "bf16", "fp8_per_tensor", "f32");
  s.width = *rc::gen::element<std::int64_t>(0, 1, 5, 63, 64, 65, 130);
  s.block_size = *rc::gen::element<std::int64_t>(1, 2, 3, 53, 64);
  s.num_blocks = *rc::gen::inRange<std::int64_t>(1, 7);
  s.block_gap = *rc::gen::element<std::int64_t>(0, 16, 1000);
  s.index_gap = *rc::gen::element<std::int64_t>(0, 3);
  s.lens = *rc::gen::element(Lens::kAbsent, Lens::kMixed, Lens::kHostile);
  s.invalid = *rc::gen::element(0.0, 0.2, 0.9);
  s.kv_scale = *rc::gen::element(1.0F, 0.3F);
  return s;
}

AttentionCase any_case() {
  AttentionCase c;
  c.tokens = *rc::gen::inRange<std::int64_t>(1, 6);
  c.heads = *rc::gen::element<std::int64_t>(1, 2, 5, 6, 7, 13);
  c.out_heads = c.heads + *rc::gen::element<std::int64_t>(0, 3);
  c.q = *rc::gen::element(DType::kBF16, DType::kE4M3, DType::kF32);
  c.o = *rc::gen::element(DType::kBF16, DType::kF32);
  c.q_scale = c.q == DType::kE4M3 ? 0.6F : 1.0F;
  c.q_magnitude = *rc::gen::element(1.0F, 10.0F);
  if (*rc::gen::arbitrary<bool>()) c.sink = *rc::gen::element(-kInf, -20.0F, 0.0F, 20.0F, kInf);
  c.scopes.push_back(any_scope());
  if (*rc::gen::arbitrary<bool>()) c.scopes.push_back(any_scope());
  c.value_dim = *rc::gen::element(0, 0, 1, 100, 448, 512);
  if (*rc::gen::inRange(0, 4) == 0) {
    for (ScopeCase& s : c.scopes) s.format = "fp8_v32";
  }
  c.seed = *rc::gen::inRange(0U, 1'000'000U);
  return c;
}

std::vector<std::string> implementations(const SparseAttention::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<SparseAttention>(problem)) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

bool same_head(const AttentionOutputs& a, std::int64_t token_a, const AttentionOutputs& b, std::int64_t token_b,
               std::int64_t h) {
  const bool lse = h >= a.problem.heads || std::bit_cast<std::uint32_t>(a.lse_of(token_a, h)) ==
                                               std::bit_cast<std::uint32_t>(b.lse_of(token_b, h));
  return lse && std::memcmp(a.head(token_a, h), b.head(token_b, h),
                            static_cast<std::size_t>(a.problem.out_dim() * size_of(a.problem.o))) == 0;
}

bool same_row(const AttentionOutputs& a, std::int64_t token_a, const AttentionOutputs& b, std::int64_t token_b) {
  bool same = true;
  for (std::int64_t h = 0; h < a.problem.padded_heads(); ++h) same = same && same_head(a, token_a, b, token_b, h);
  return same;
}

bool same_bits(const AttentionOutputs& a, const AttentionOutputs& b) {
  bool same = true;
  for (std::int64_t t = 0; t < a.problem.tokens; ++t) same = same && same_row(a, t, b, t);
  return same;
}

/// Calls body(inputs, implementation) for every implementation that runs here, in random cases; `q_magnitude` other
/// than 0 holds for all of them.
template <class Body>
void for_any_case(const std::string& name, const Body& body, float q_magnitude = 0) {
  EXPECT_TRUE(rc::check(name, [&] {
    AttentionCase c = any_case();
    if (q_magnitude != 0) c.q_magnitude = q_magnitude;
    RC_LOG() << c;
    const AttentionInputs made = make_inputs(c);
    for (const std::string& implementation : implementations(made.problem)) {
      AttentionInputs in = made;
      RC_LOG() << " " << implementation;
      body(in, implementation);
    }
  }));
}

TEST(AttentionProperty, PhysicalBlocksMayLieInAnyOrder) {
  for_any_case("a permutation of the blocks changes no bit",
               [](AttentionInputs& in, const std::string& implementation) {
                 const AttentionOutputs want = run(in, implementation, 2);
                 AttentionInputs moved = in;
                 for (std::size_t i = 0; i < in.scopes.size(); ++i) {
                   ScopeInputs& to = moved.scopes[i];
                   const std::int64_t stride = to.cache.block_stride_bytes;
                   std::vector<std::int64_t> place(static_cast<std::size_t>(to.cache.num_blocks));
                   std::iota(place.begin(), place.end(), 0);
                   std::shuffle(place.begin(), place.end(), std::mt19937_64(7 + i));
                   for (std::int64_t b = 0; b < to.cache.num_blocks; ++b) {
                     std::copy_n(in.scopes[i].memory.begin() + b * stride, stride,
                                 to.memory.begin() + place[static_cast<std::size_t>(b)] * stride);
                   }
                   for (std::int32_t& slot : to.indices) {
                     if (!to.valid(slot)) continue;
                     const std::int64_t block = slot / to.cache.block_size;
                     slot = static_cast<std::int32_t>(place[static_cast<std::size_t>(block)] * to.cache.block_size +
                                                      slot % to.cache.block_size);
                   }
                 }
                 RC_ASSERT(same_bits(want, run(moved, implementation, 2)));
               });
}

TEST(AttentionProperty, UnusedBytesDoNotMatter) {
  for_any_case("other bytes in rows that nobody selects, paddings and gaps change no bit",
               [](AttentionInputs& in, const std::string& implementation) {
                 const AttentionOutputs want = run(in, implementation, 2);
                 for (const int fill : {0x00, 0xFF, 0x7F, -1}) {
                   AttentionInputs other = with_unused_bytes(in, fill);
                   RC_ASSERT(same_bits(want, run(other, implementation, 2)));
                 }
               });
}

TEST(AttentionProperty, EntriesThatDoNotCountAreAsIfNotThere) {
  for_any_case("only the valid entries, moved together, change no bit",
               [](AttentionInputs& in, const std::string& implementation) {
                 const AttentionOutputs want = run(in, implementation, 2);
                 AttentionInputs packed = in;
                 for (std::size_t i = 0; i < in.scopes.size(); ++i) {
                   packed.scopes[i].lens.assign(static_cast<std::size_t>(in.problem.tokens), 0);
                   for (std::int64_t t = 0; t < in.problem.tokens; ++t) {
                     const std::vector<std::int32_t> list = list_of(in, i, t);
                     for (std::size_t c = 0; c < list.size(); ++c)
                       packed.scopes[i].index(t, static_cast<std::int64_t>(c)) = list[c];
                     packed.scopes[i].lens[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(list.size());
                   }
                 }
                 RC_ASSERT(same_bits(want, run(packed, implementation, 2)));
               });
}

TEST(AttentionProperty, NeitherNeighboursNorThreadsMatter) {
  for_any_case("batch order, a batch of one and thread counts change no bit of a row",
               [](AttentionInputs& in, const std::string& implementation) {
                 const AttentionOutputs want = run(in, implementation, 1);
                 for (const int threads : {2, 5}) RC_ASSERT(same_bits(want, run(in, implementation, threads)));
                 std::vector<std::int64_t> order(static_cast<std::size_t>(in.problem.tokens));
                 std::iota(order.begin(), order.end(), 0);
                 std::shuffle(order.begin(), order.end(), std::mt19937_64(11));
                 AttentionInputs shuffled = with_tokens(in, order);
                 const AttentionOutputs got = run(shuffled, implementation, 2);
                 for (std::size_t t = 0; t < order.size(); ++t) {
                   RC_ASSERT(same_row(want, order[t], got, static_cast<std::int64_t>(t)));
                   AttentionInputs alone = with_tokens(in, {order[t]});
                   RC_ASSERT(same_row(want, order[t], run(alone, implementation, 4), 0));
                 }
               });
}

TEST(AttentionProperty, HeadsBesideDoNotMatter) {
  for_any_case("the first heads alone have the bits that they have among others",
               [](AttentionInputs& in, const std::string& implementation) {
                 const AttentionOutputs want = run(in, implementation, 1);
                 for (std::int64_t heads = 1; heads < in.problem.heads; ++heads) {
                   AttentionInputs fewer = in;
                   fewer.problem.heads = fewer.problem.out_heads = heads;
                   if (!fewer.sink.empty()) fewer.sink.resize(static_cast<std::size_t>(heads));
                   const AttentionOutputs got = run(fewer, implementation, 1);
                   for (std::int64_t t = 0; t < in.problem.tokens; ++t) {
                     for (std::int64_t h = 0; h < heads; ++h) RC_ASSERT(same_head(want, t, got, t, h));
                   }
                 }
               });
}

TEST(AttentionProperty, TwoScopesOfOneCacheAreOneLongerList) {
  for_any_case("cutting the index matrix in two scopes changes no bit", [](AttentionInputs& in,
                                                                           const std::string& implementation) {
    in.scopes.resize(1);
    in.problem.scopes = 1;
    in.scopes[0].lens.clear();
    const AttentionOutputs want = run(in, implementation, 2);
    const std::int64_t width = in.problem.scope[0].width;
    const std::int64_t cut = width / 3;
    AttentionInputs two = in;
    two.problem.scopes = 2;
    two.problem.scope[1] = two.problem.scope[0];
    two.problem.scope[0].width = cut;
    two.problem.scope[1].width = width - cut;
    two.scopes.push_back(in.scopes[0]);
    std::vector<std::int32_t>& second = two.scopes[1].indices;
    std::rotate(second.begin(), second.begin() + cut, second.end());  // the rows' ends wrap into columns past the width
    second.resize(second.size() + static_cast<std::size_t>(cut), -1);
    RC_ASSERT(same_bits(want, run(two, implementation, 2)));
  });
}

// An lse of 40 has an fp32 step of 4e-6, which is the relative error of exp(lse - sink): queries are moderate here, so
// that lse is.
TEST(AttentionProperty, SplitsMergeToTheWhole) {
  const auto body = [](AttentionInputs& in, const std::string& implementation) {
    in.problem.o = DType::kF32;
    in.problem.out_heads = 0;
    in.scopes.resize(1);
    in.problem.scopes = 1;
    if (in.problem.value_dim < 64) in.problem.value_dim = 0;  // the sum of a few values may cancel
    const SparseAttention::Problem p = in.problem;
    const std::int64_t width = p.scope[0].width;
    const AttentionOutputs want = run(in, implementation, 2);
    const std::int64_t slices = 3;
    std::vector<float> partial_o;
    std::vector<float> partial_lse;
    for (std::int64_t s = 0; s < slices; ++s) {
      AttentionInputs part = in;
      part.problem.partial = true;
      part.sink.clear();
      part.scopes[0].lens.assign(static_cast<std::size_t>(p.tokens), 0);
      for (std::int64_t t = 0; t < p.tokens; ++t) {
        const std::int64_t begin = width * s / slices;
        const std::int64_t end = std::min(width * (s + 1) / slices, in.scopes[0].entries(t, width));
        for (std::int64_t c = begin; c < end; ++c) part.scopes[0].index(t, c - begin) = in.scopes[0].index(t, c);
        part.scopes[0].lens[static_cast<std::size_t>(t)] =
            static_cast<std::int32_t>(std::max<std::int64_t>(0, end - begin));
      }
      const AttentionOutputs got = run(part, implementation, 2);
      for (std::int64_t t = 0; t < p.tokens; ++t) {
        for (std::int64_t h = 0; h < p.heads; ++h) {
          for (std::int64_t d = 0; d < p.out_dim(); ++d) partial_o.push_back(got.value(t, h, d));
          partial_lse.push_back(got.lse_of(t, h));
        }
      }
    }
    for (const char* merger : {"ref", "cpu"}) {
      AttentionOutputs merged(p);
      SparseAttention::Args views;
      merged.attach(views);
      const MergePartials::Args args{
          .partial_o = view_of(static_cast<const float*>(partial_o.data()), {slices, p.tokens, p.heads, p.out_dim()}),
          .partial_lse = view_of(static_cast<const float*>(partial_lse.data()), {slices, p.tokens, p.heads}),
          .sink = in.args().sink,
          .o = views.o,
          .lse = views.lse};
      Plan<MergePartials>(
          {.slices = slices, .tokens = p.tokens, .heads = p.heads, .dim = p.out_dim(), .o = DType::kF32},
          {.implementation = merger, .threads = 2})
          .run(args);
      double error = 0;
      double norm = 0;
      double largest_lse = 0;
      for (std::int64_t t = 0; t < p.tokens; ++t) {
        for (std::int64_t h = 0; h < p.heads; ++h) {
          const float a = want.lse_of(t, h);
          const float b = merged.lse_of(t, h);
          if (std::isfinite(a)) largest_lse = std::max(largest_lse, static_cast<double>(std::fabs(a)));
          RC_ASSERT(a == b || std::fabs(a - b) <= 1e-5F * std::max(1.0F, std::fabs(a)));
          for (std::int64_t d = 0; d < p.out_dim(); ++d) {
            const double w = want.value(t, h, d);
            error += (merged.value(t, h, d) - w) * (merged.value(t, h, d) - w);
            norm += w * w;
          }
        }
      }
      // A part's lse is rounded to fp32, and with it the part's weight against the sink.
      RC_ASSERT(std::sqrt(error) <= (1e-6 + 0x1p-23 * largest_lse) * std::sqrt(norm));
    }
  };
  for_any_case("partial results over slices of the list merge to the whole", body, 0.5F);
}

}  // namespace
}  // namespace smla
