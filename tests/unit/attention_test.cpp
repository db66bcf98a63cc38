#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/attention_cases.h"

namespace smla {
namespace {

using namespace attention_cases;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> implementations(const SparseAttention::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<SparseAttention>(problem)) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

/// Two fp32 keys, k0 = e0 * 3 and k1 = e1 * 6, and a q that sees neither: both scores are 0.
AttentionInputs two_keys(std::optional<float> sink) {
  AttentionInputs in = make_inputs(
      {.tokens = 1,
       .heads = 1,
       .q = DType::kF32,
       .o = DType::kF32,
       .sink = sink,
       .scopes = {
           {.format = "f32", .width = 2, .block_size = 2, .num_blocks = 1, .lens = Lens::kAbsent, .invalid = 0}}});
  std::fill(in.q.begin(), in.q.end(), std::uint8_t{0});
  std::vector<float> keys(static_cast<std::size_t>(2 * in.problem.dim));
  keys[0] = 3;
  keys[static_cast<std::size_t>(in.problem.dim) + 1] = 6;
  in.args();
  encode_row(in.scopes[0].cache, 0, keys.data());
  encode_row(in.scopes[0].cache, 1, keys.data() + in.problem.dim);
  in.scopes[0].indices = {0, 1};
  return in;
}

TEST(SparseAttention, SinkCountsAsOneMoreKeyWithoutAValue) {
  for (const std::string& name : implementations(two_keys({}).problem)) {
    SCOPED_TRACE(name);
    AttentionInputs in = two_keys(0.0F);
    const AttentionOutputs third = run(in, name, 1);
    EXPECT_FLOAT_EQ(third.value(0, 0, 0), 1.0F);  // (k0 + k1) / 3
    EXPECT_FLOAT_EQ(third.value(0, 0, 1), 2.0F);
    EXPECT_EQ(third.value(0, 0, 2), 0.0F);
    EXPECT_FLOAT_EQ(third.lse_of(0, 0), std::log(2.0F));

    AttentionInputs none = two_keys(-kInf);
    AttentionInputs absent = two_keys({});
    const AttentionOutputs half = run(none, name, 1);
    EXPECT_FLOAT_EQ(half.value(0, 0, 0), 1.5F);
    EXPECT_EQ(half.o, run(absent, name, 1).o);

    AttentionInputs all = two_keys(kInf);
    const AttentionOutputs nothing = run(all, name, 1);
    for (std::int64_t d = 0; d < in.problem.dim; ++d)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(nothing.value(0, 0, d)), 0U);
    EXPECT_FLOAT_EQ(nothing.lse_of(0, 0), std::log(2.0F));
  }
}

TEST(SparseAttention, RowWithoutKeys) {
  for (const bool partial : {false, true}) {
    for (const std::string& name : implementations(two_keys({}).problem)) {
      SCOPED_TRACE(name);
      AttentionInputs in = two_keys(partial ? std::optional<float>() : 5.0F);
      in.problem.partial = partial;
      in.scopes[0].indices = {-1, 2};
      const AttentionOutputs out = run(in, name, 1);
      for (std::int64_t d = 0; d < in.problem.dim; ++d) EXPECT_EQ(std::bit_cast<std::uint32_t>(out.value(0, 0, d)), 0U);
      EXPECT_EQ(out.lse_of(0, 0), partial ? -kInf : kInf);
    }
  }
}

TEST(SparseAttention, RepeatedSlotsCountRepeatedly) {
  for (const std::string& name : implementations(two_keys({}).problem)) {
    SCOPED_TRACE(name);
    AttentionInputs in = two_keys({});
    in.problem.scope[0].width = 3;
    in.scopes[0].index_stride = 3;
    in.scopes[0].indices = {0, 1, 1};
    const AttentionOutputs out = run(in, name, 1);
    EXPECT_FLOAT_EQ(out.value(0, 0, 0), 1.0F);
    EXPECT_FLOAT_EQ(out.value(0, 0, 1), 4.0F);
    EXPECT_FLOAT_EQ(out.lse_of(0, 0), std::log(3.0F));
  }
}

TEST(SparseAttention, LargeScoresDoNotOverflow) {
  for (const std::string& name : implementations(two_keys({}).problem)) {
    SCOPED_TRACE(name);
    AttentionInputs in = two_keys(0.0F);
    in.problem.scale = 1.0F;
    put(DType::kF32, in.q.data(), 0, 1000.0F);  // scores 3000 and -6000
    put(DType::kF32, in.q.data(), 1, -1000.0F);
    const AttentionOutputs out = run(in, name, 1);
    EXPECT_FLOAT_EQ(out.value(0, 0, 0), 3.0F);
    EXPECT_EQ(out.value(0, 0, 1), 0.0F);
    EXPECT_FLOAT_EQ(out.lse_of(0, 0), 3000.0F);
  }
}

TEST(SparseAttention, NotANumberInASelectedRowShows) {
  for (const std::string& name : implementations(two_keys({}).problem)) {
    AttentionInputs in = two_keys({});
    put(DType::kF32, in.scopes[0].memory.data(), 7, std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(run(in, name, 1).value(0, 0, 7))) << name;
  }
}

void plan(const SparseAttention::Problem& problem) { const Plan<SparseAttention> made(problem); }

TEST(SparseAttention, ProblemErrorsNameTheThing) {
  const auto with = [](auto change) {
    SparseAttention::Problem p = two_keys({}).problem;
    change(p);
    return [p] { plan(p); };
  };
  using P = SparseAttention::Problem;
  EXPECT_THAT(with([](P& p) { p.tokens = -1; }),
              ThrowsMessage<InvalidArgument>("sparse_attention: tokens: got -1, expected 0 or more"));
  EXPECT_THAT(with([](P& p) { p.heads = 129; }),
              ThrowsMessage<InvalidArgument>("sparse_attention: heads: got 129, expected 1 to 128"));
  EXPECT_THAT(with([](P& p) { p.heads = 0; }), ThrowsMessage<InvalidArgument>(HasSubstr("heads: got 0")));
  EXPECT_THAT(with([](P& p) { p.heads = 4, p.out_heads = 2; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("out_heads: got 2, expected 0 or at least")));
  EXPECT_THAT(with([](P& p) { p.q = DType::kI32; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("q dtype: got I32, expected BF16, F8_E4M3 or F32")));
  EXPECT_THAT(with([](P& p) { p.o = DType::kE4M3; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("o dtype: got F8_E4M3, expected BF16 or F32")));
  EXPECT_THAT(with([](P& p) { p.partial = true, p.o = DType::kBF16; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("o dtype: got BF16, expected F32")));
  EXPECT_THAT(with([](P& p) { p.scopes = 3; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("scopes: got 3, expected 1 or 2")));
  EXPECT_THAT(with([](P& p) { p.scopes = 2; }), ThrowsMessage<InvalidArgument>(HasSubstr("scope 1 format: got none")));
  EXPECT_THAT(
      with([](P& p) { p.dim = 256; }),
      ThrowsMessage<InvalidArgument>(HasSubstr("scope 0 format: got f32 rows of 512 numbers, expected rows of 256")));
  EXPECT_THAT(with([](P& p) { p.scope[0].block_size = 0; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("scope 0 block_size: got 0")));
  EXPECT_THAT(with([](P& p) { p.scope[0].width = -2; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("scope 0 width: got -2")));
  EXPECT_THAT(with([](P& p) { p.scale = kInf; }), ThrowsMessage<InvalidArgument>(HasSubstr("scale: got inf")));
  EXPECT_THAT([] { Plan<SparseAttention>(two_keys({}).problem, {.implementation = "abacus"}); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("got implementation \"abacus\", expected one of avx512, avx2, cpu, ref")));
}

TEST(SparseAttention, ArgumentErrorsNameTheThing) {
  AttentionInputs in = two_keys(0.0F);
  const auto with = [&in](auto change) {
    return [&in, change] {
      AttentionOutputs out(in.problem);
      SparseAttention::Args args = in.args();
      out.attach(args);
      change(args);
      Plan<SparseAttention>(in.problem, {.implementation = "ref"}).run(args);
    };
  };
  using A = SparseAttention::Args;
  const auto fails = [](const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); };
  EXPECT_THAT(with([](A& a) { a.q = {}; }), fails("sparse_attention: q: got no tensor, expected [1, *, 512] F32"));
  EXPECT_THAT(with([](A& a) { a.q.dtype = DType::kBF16; }), fails("q: got [1, 1, 512] BF16, expected [1, *, 512] F32"));
  EXPECT_THAT(with([](A& a) { a.q.shape[1] = 0; }), fails("q heads: got 0, expected at least 1"));
  EXPECT_THAT(with([](A& a) { a.q.stride[2] = 2; }), fails("q: got [1, 1, 512] F32 with last stride 2"));
  EXPECT_THAT(with([](A& a) { a.o.shape[1] = 2; }), fails("o: got [1, 2, 512] F32"));
  EXPECT_THAT(with([](A& a) { a.lse.shape[0] = 3; }), fails("lse: got [3, 1] F32"));
  EXPECT_THAT(with([](A& a) { a.sink.dtype = DType::kBF16; }), fails("sink: got [1] BF16, expected [1] F32"));
  EXPECT_THAT(with([](A& a) { a.scopes[0].indices.shape[1] = 1; }),
              fails("scope 0 indices: got [1, 1] I32, expected [1, 2] I32"));
  EXPECT_THAT(with([](A& a) { a.scopes[0].indices.dtype = DType::kI64; }),
              fails("scope 0 indices: got [1, 2] I64, expected [1, 2] I32"));
  EXPECT_THAT(with([&in](A& a) { a.scopes[0].lens = ConstTensorView(in.scopes[0].indices.data(), DType::kI32, {2}); }),
              fails("scope 0 lens: got [2] I32"));
  EXPECT_THAT(with([](A& a) { a.scopes[0].cache.format = nullptr; }), fails("scope 0 cache: got no row format"));
  EXPECT_THAT(with([](A& a) { a.scopes[0].cache.format = &bf16_rows(); }),
              fails("scope 0 cache: got bf16 rows, expected f32 rows"));
  EXPECT_THAT(with([](A& a) { a.scopes[0].cache.block_size = 1; }),
              fails("scope 0 cache: got block size 1, expected 2"));
  EXPECT_THAT(with([](A& a) { a.scopes[0].cache.base = nullptr; }), fails("scope 0 cache: got no memory"));

  in.problem.partial = true;
  EXPECT_THAT(with([](A&) {}), fails("sink: got a tensor, expected none"));
}

TEST(SparseAttention, OptionsThatDoNotGoTogetherAreRefused) {
  const auto plan = [](auto&& change) {
    return [change] {
      SparseAttention::Problem p{.tokens = 1, .heads = 1};
      p.scope[0] = {.format = &bf16_rows(), .block_size = 64, .width = 1};
      change(p);
      Plan<SparseAttention> made(p, {.implementation = "ref"});
    };
  };
  using P = SparseAttention::Problem;
  const auto fails = [](const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); };
  using Prologue = SparseAttention::QueryPrologue;
  using Epilogue = SparseAttention::OutputEpilogue;
  EXPECT_NO_THROW(plan([](P& p) { p.query_prologue = Prologue{}, p.output_epilogue = Epilogue{}; })());
  EXPECT_NO_THROW(plan([](P& p) { p.query_prologue = {.rope_dim = 32}, p.output_epilogue = {.rope_dim = 64}; })());
  for (const int rope_dim : {63, 514, 0, -2}) {
    const std::string got = "rope_dim: got " + std::to_string(rope_dim) + ", expected an even number from 2 to 512";
    EXPECT_THAT(plan([=](P& p) { p.query_prologue = {.rope_dim = rope_dim}; }),
                fails(("query_prologue." + got).c_str()));
    EXPECT_THAT(plan([=](P& p) { p.output_epilogue = {.rope_dim = rope_dim}; }),
                fails(("output_epilogue." + got).c_str()));
  }
  EXPECT_THAT(plan([](P& p) { p.output_epilogue = {.rope_dim = 64}, p.value_dim = 32; }),
              fails("output_epilogue.rope_dim: got 64, expected an even number from 2 to 32"));
  EXPECT_THAT(plan([](P& p) { p.query_prologue = Prologue{}, p.q = DType::kE4M3; }),
              fails("q dtype: got F8_E4M3, expected BF16 or F32 with query_prologue"));
  EXPECT_THAT(plan([](P& p) { p.output_epilogue = Epilogue{}, p.partial = true, p.o = DType::kF32; }),
              fails("output_epilogue: got one, expected none (partial results)"));
}

TEST(SparseAttention, WorkspaceMustBeLargeEnough) {
  AttentionInputs in = two_keys({});
  AttentionOutputs out(in.problem);
  SparseAttention::Args args = in.args();
  out.attach(args);
  const Plan<SparseAttention> plan(in.problem, {.implementation = "cpu", .threads = 1});
  EXPECT_GT(plan.workspace_bytes(), 0U);
  EXPECT_THAT([&] { plan.run(args, {.data = nullptr, .bytes = plan.workspace_bytes() - 1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("sparse_attention: workspace: got")));
}

TEST(MergePartials, NeutralElementAndSink) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> partial_o{2.0F, nan, 4.0F};
  const float zero = 0;
  for (const char* name : {"cpu", "ref"}) {
    float o = -1;
    float lse = -1;
    const auto merge = [&](const std::vector<float>& partial_lse, bool sink) {
      MergePartials::Args args{.partial_o = view_of(partial_o.data(), {3, 1, 1, 1}),
                               .partial_lse = view_of(partial_lse.data(), {3, 1, 1}),
                               .sink = {},
                               .o = view_of(&o, {1, 1, 1}),
                               .lse = view_of(&lse, {1, 1})};
      if (sink) args.sink = view_of(&zero, {1});
      Plan<MergePartials>({.slices = 3, .tokens = 1, .heads = 1, .dim = 1, .o = DType::kF32}, {.implementation = name})
          .run(args);
    };
    merge({0.0F, -kInf, 0.0F}, true);
    EXPECT_FLOAT_EQ(o, 2.0F) << name;  // (2 + 4) / 3
    EXPECT_FLOAT_EQ(lse, std::log(2.0F)) << name;
    merge({0.0F, -kInf, -kInf}, false);
    EXPECT_FLOAT_EQ(o, 2.0F) << name;
    EXPECT_EQ(lse, 0.0F) << name;
    merge({-kInf, -kInf, -kInf}, true);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(o), 0U) << name;
    EXPECT_EQ(lse, kInf) << name;
  }
}

TEST(MergePartials, ErrorsNameTheThing) {
  EXPECT_THAT([] { Plan<MergePartials>({.slices = -1, .tokens = 1, .heads = 1}); },
              ThrowsMessage<InvalidArgument>("merge_partials: slices: got -1, expected 0 or more"));
  EXPECT_THAT([] { Plan<MergePartials>({.slices = 1, .tokens = 1, .heads = 1, .o = DType::kU8}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("o dtype: got U8, expected BF16 or F32")));
  float x[4] = {};
  const MergePartials::Args args{.partial_o = view_of(x, {2, 1, 1, 2}),
                                 .partial_lse = view_of(x, {3, 1, 1}),
                                 .sink = {},
                                 .o = view_of(x, {1, 1, 2}),
                                 .lse = {}};
  EXPECT_THAT(
      [&] { Plan<MergePartials>({.slices = 2, .tokens = 1, .heads = 1, .dim = 2, .o = DType::kF32}).run(args); },
      ThrowsMessage<InvalidArgument>("merge_partials: partial_lse: got [3, 1, 1] F32, expected [2, 1, 1] F32"));
}

}  // namespace
}  // namespace smla
