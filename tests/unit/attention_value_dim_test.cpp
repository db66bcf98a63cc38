// Keys wider than their values: DeepSeek-V3.2's rows (fp8_v32), against an oracle in float64 that shares no line with
// the library: it reads the bytes of the rows, of q and of the index lists by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parity/accepted.h"
#include "parity/attention_cases.h"

namespace smla {
namespace {

using namespace attention_cases;
using testing::HasSubstr;
using testing::ThrowsMessage;

double e4m3_number(std::uint8_t byte) {
  const int exponent = byte >> 3 & 15;
  const int mantissa = byte & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

double bf16_number(const std::uint8_t* at) {
  const std::uint32_t bits = static_cast<std::uint32_t>(at[0]) << 16 | static_cast<std::uint32_t>(at[1]) << 24;
  float v = 0;
  std::memcpy(&v, &bits, 4);
  return v;
}

/// 512 codes, four fp32 scales of 128 of them, 64 bf16.
std::vector<double> v32_row(const ScopeInputs& s, std::int64_t slot) {
  const std::int64_t block = slot / s.cache.block_size;
  const std::uint8_t* row =
      s.memory.data() + block * s.cache.block_stride_bytes + (slot - block * s.cache.block_size) * 656;
  std::vector<double> numbers;
  for (int d = 0; d < 512; ++d) {
    float scale = 0;
    std::memcpy(&scale, row + 512 + 4 * (d / 128), 4);
    numbers.push_back(e4m3_number(row[d]) * scale);
  }
  for (int d = 0; d < 64; ++d) numbers.push_back(bf16_number(row + 528 + 2 * d));
  return numbers;
}

double q_number(const AttentionInputs& in, std::int64_t token, std::int64_t head, std::int64_t d) {
  const std::int64_t i = token * in.q_stride + head * 576 + d;
  if (in.problem.q == DType::kBF16) return bf16_number(in.q.data() + 2 * i);
  if (in.problem.q == DType::kE4M3)
    return e4m3_number(in.q[static_cast<std::size_t>(i)]) * static_cast<double>(in.problem.q_scale);
  float v = 0;
  std::memcpy(&v, in.q.data() + 4 * i, 4);
  return v;
}

using Row = std::vector<double>;

/// The rows that count for a token.
std::vector<Row> rows_of(const AttentionInputs& in, std::int64_t token) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < in.scopes.size(); ++i) {
    const ScopeInputs& s = in.scopes[i];
    const std::int64_t width = in.problem.scope.at(i).width;
    std::int64_t length = s.lens.empty() ? width : s.lens[static_cast<std::size_t>(token)];
    length = length < 0 ? 0 : length > width ? width : length;
    for (std::int64_t c = 0; c < length; ++c) {
      const std::int64_t slot = s.indices[static_cast<std::size_t>(token * s.index_stride + c)];
      if (slot >= 0 && slot < s.cache.num_blocks * s.cache.block_size) rows.push_back(v32_row(s, slot));
    }
  }
  return rows;
}

struct Answer {
  Row o;
  Row terms;  ///< sums of the magnitudes of what o's sums add
  double lse = 0;
};

Answer oracle(const AttentionInputs& in, const std::vector<Row>& rows, std::int64_t token, std::int64_t head) {
  const auto value_dim = static_cast<std::size_t>(in.problem.out_dim());
  Answer a{.o = Row(value_dim), .terms = Row(value_dim), .lse = in.problem.partial ? -kInf : kInf};
  if (rows.empty()) return a;
  Row q;
  for (std::int64_t d = 0; d < 576; ++d) q.push_back(q_number(in, token, head, d));
  Row scores;
  for (const Row& row : rows) {
    double dot = 0;
    for (std::size_t d = 0; d < 576; ++d) dot += q[d] * row[d];
    scores.push_back(dot / std::sqrt(576.0));
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - top);
  a.lse = top + std::log(sum);
  if (!in.sink.empty()) sum += std::exp(in.sink[static_cast<std::size_t>(head)] - top);
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const double weight = std::exp(scores[j] - top) / sum;
    for (std::size_t d = 0; d < value_dim; ++d) {
      a.o[d] += weight * rows[j][d];
      a.terms[d] += weight * std::fabs(rows[j][d]);
    }
  }
  return a;
}

void expect_oracle(const AttentionInputs& in, const AttentionOutputs& got) {
  const SparseAttention::Problem& p = in.problem;
  ASSERT_TRUE(got.gaps_untouched());
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const std::vector<Row> rows = rows_of(in, t);
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const Answer want = oracle(in, rows, t, h);
      for (int d = 0; d < p.out_dim(); ++d) {
        const double o = want.o[static_cast<std::size_t>(d)];
        const double rounding = p.o == DType::kBF16 ? std::ldexp(std::fabs(o), -8) : 0;
        ASSERT_NEAR(o, got.value(t, h, d), rounding + 1e-5 * want.terms[static_cast<std::size_t>(d)])
            << "token " << t << " head " << h << " dim " << d;
      }
      if (std::isinf(want.lse)) {
        ASSERT_EQ(want.lse, got.lse_of(t, h)) << "token " << t << " head " << h;
      } else {
        ASSERT_NEAR(want.lse, got.lse_of(t, h), 1e-5 * std::max(1.0, std::fabs(want.lse)));
      }
    }
    for (std::int64_t h = p.heads; h < p.padded_heads(); ++h) {
      for (int d = 0; d < p.out_dim(); ++d) ASSERT_EQ(std::bit_cast<std::uint32_t>(got.value(t, h, d)), 0U);
    }
  }
}

TEST(AttentionValueDim, V32RowsAreTheOracle) {
  std::vector<AttentionCase> cases;
  const auto add = [&](AttentionCase c) {
    c.seed = static_cast<unsigned>(100 + cases.size());
    cases.push_back(c);
  };
  for (const std::int64_t heads : {1, 5, 64, 128}) {
    for (const DType o : {DType::kBF16, DType::kF32}) {
      add({.tokens = 2,
           .heads = heads,
           .out_heads = heads + 1,
           .o = o,
           .value_dim = 512,
           .sink = 0.4F,
           .scopes = {{.format = "fp8_v32", .width = 130, .block_size = 53}}});
    }
  }
  for (const DType q : {DType::kBF16, DType::kE4M3, DType::kF32}) {
    add({.heads = 3,
         .q_gap = 8,
         .q = q,
         .o = DType::kF32,
         .q_scale = 0.5F,
         .value_dim = 512,
         .scopes = {{.format = "fp8_v32", .width = 70, .lens = Lens::kHostile}}});
  }
  for (const std::int64_t block : {1, 2, 64, 256}) {
    add({.heads = 2,
         .o = DType::kF32,
         .value_dim = 512,
         .scopes = {{.format = "fp8_v32", .width = 40, .block_size = block, .num_blocks = 3, .block_gap = 48},
                    {.format = "fp8_v32", .width = 9, .block_size = 3}}});
  }
  // No key: no column, no valid entry, no length, no block. Partial results.
  add({.heads = 2, .value_dim = 512, .scopes = {{.format = "fp8_v32", .width = 0}}});
  add({.heads = 2, .value_dim = 512, .scopes = {{.format = "fp8_v32", .width = 30, .invalid = 1.0}}});
  add({.heads = 2, .value_dim = 512, .scopes = {{.format = "fp8_v32", .width = 30, .num_blocks = 0}}});
  add({.heads = 2,
       .o = DType::kF32,
       .value_dim = 512,
       .partial = true,
       .scopes = {{.format = "fp8_v32", .width = 30, .invalid = 0.9}}});
  // Other cuts of the same rows; 0 means the whole row.
  for (const int value_dim : {1, 100, 511, 576, 0}) {
    add({.heads = 4, .o = DType::kF32, .value_dim = value_dim, .scopes = {{.format = "fp8_v32", .width = 66}}});
  }
  for (const AttentionCase& c : cases) {
    AttentionInputs in = make_inputs(c);
    for (const std::string& name : test::accepted<SparseAttention>(in.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      expect_oracle(in, run(in, name, 2));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AttentionValueDim, ANarrowerValueIsTheFirstNumbersOfTheWhole) {
  for (const int value_dim : {1, 96, 448}) {
    AttentionCase c{.heads = 7, .sink = 0.0F, .scopes = {{.width = 150}, {.format = "bf16", .width = 20}}};
    AttentionInputs whole = make_inputs(c);
    c.value_dim = value_dim;
    AttentionInputs first = make_inputs(c);
    for (const std::string& name : test::accepted<SparseAttention>(first.problem)) {
      const AttentionOutputs want = run(whole, name, 1);
      const AttentionOutputs got = run(first, name, 1);
      EXPECT_EQ(want.lse, got.lse) << name;
      for (std::int64_t row = 0; row < c.tokens * c.heads; ++row) {
        EXPECT_EQ(0, std::memcmp(want.head(row / c.heads, row % c.heads), got.head(row / c.heads, row % c.heads),
                                 static_cast<std::size_t>(value_dim * size_of(c.o))))
            << name << " value_dim " << value_dim;
      }
    }
  }
}

TEST(AttentionValueDim, ErrorsNameIt) {
  const auto plan = [](auto&& change) {
    return [change] {
      SparseAttention::Problem p{.tokens = 1, .heads = 1, .dim = 576, .value_dim = 512};
      p.scope[0] = {.format = &fp8_v32_rows(), .block_size = 64, .width = 1};
      change(p);
      Plan<SparseAttention> made(p, {.implementation = "ref"});
    };
  };
  using P = SparseAttention::Problem;
  const auto fails = [](const char* text) { return ThrowsMessage<InvalidArgument>(HasSubstr(text)); };
  EXPECT_NO_THROW(plan([](P&) {})());
  EXPECT_THAT(plan([](P& p) { p.value_dim = 577; }), fails("value_dim: got 577, expected 0 to dim 576"));
  EXPECT_THAT(plan([](P& p) { p.value_dim = -1; }), fails("value_dim: got -1, expected 0 to dim 576"));
  EXPECT_THAT(plan([](P& p) { p.dim = 512; }),
              fails("scope 0 format: got fp8_v32 rows of 576 numbers, expected rows of 512"));

  AttentionInputs in =
      make_inputs({.tokens = 1, .heads = 1, .value_dim = 512, .scopes = {{.format = "fp8_v32", .width = 2}}});
  AttentionOutputs out(in.problem);
  SparseAttention::Args args = in.args();
  out.attach(args);
  args.o.shape[2] = 576;
  EXPECT_THAT([&] { Plan<SparseAttention>(in.problem, {.implementation = "ref"}).run(args); },
              fails("o: got [1, 1, 576] BF16, expected [1, 1, 512] BF16"));
}

}  // namespace
}  // namespace smla
