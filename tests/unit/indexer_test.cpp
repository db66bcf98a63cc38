#include "sparsemla/ops/indexer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "aligned_workspace.h"
#include "cache/row_codec.h"
#include "core/codecs.h"

namespace smla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::string hex(const std::vector<std::uint8_t>& bytes, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) {
    out += "0123456789abcdef"[bytes[i] >> 4];
    out += "0123456789abcdef"[bytes[i] & 15];
  }
  return out;
}

struct Q {
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(512);
  std::vector<std::uint8_t> scales = std::vector<std::uint8_t>(4);
  float weight = 0;
  const float* floats() const { return reinterpret_cast<const float*>(bytes.data()); }
};

/// One head of one token in fp32, weight 3.
Q quantise(const std::vector<float>& x, const RowFormat& format, const std::string& implementation,
           std::int64_t position = 0, bool hadamard = false) {
  const std::vector<float> weight{3};
  const std::vector<std::int64_t> positions{position};
  std::vector<float> cos_sin(2 * 64);
  for (std::size_t i = 0; i < 32; ++i) {
    cos_sin[i] = 1;  // position 0: no rotation
    cos_sin[64 + i] = 0;
    cos_sin[96 + i] = 1;  // position 1: a quarter turn, (e, o) -> (-o, e)
  }
  Q out;
  IndexerQ::Args args{.q = view_of(x.data(), {1, 1, 128}),
                      .weights = view_of(weight.data(), {1, 1}),
                      .positions = view_of(positions.data(), {1}),
                      .cos_sin = view_of(static_cast<const float*>(cos_sin.data()), {2, 64}),
                      .q_out = {},
                      .q_scale = {},
                      .weights_out = view_of(&out.weight, {1, 1})};
  if (format.nope == Element::kE4M3) args.q_out = TensorView(out.bytes.data(), DType::kE4M3, {1, 1, 128});
  if (format.nope == Element::kE2M1) {
    args.q_out = TensorView(out.bytes.data(), DType::kU8, {1, 1, 64});
    args.q_scale = TensorView(out.scales.data(), DType::kU8, {1, 1, 4});
  }
  if (format.nope == Element::kF32) args.q_out = TensorView(out.bytes.data(), DType::kF32, {1, 1, 128});
  Plan<IndexerQ>({.tokens = 1, .heads = 1, .in = DType::kF32, .format = &format, .hadamard = hadamard},
                 {.implementation = implementation})
      .run(args);
  return out;
}

class IndexerQTest : public testing::TestWithParam<const char*> {};

TEST_P(IndexerQTest, Fp8FoldsItsScaleIntoTheWeight) {
  // Largest magnitude 4: scale 2^-6 as in G1, whose block of 64 stands in the first half.
  std::vector<float> x(128, 0.0F);
  for (int i = 0; i < 64; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i - 32) / 8.0F;
  const Q q = quantise(x, index_fp8_rows(), GetParam());
  EXPECT_EQ(hex(q.bytes, 64),
            "f8f8f7f6f6f6f5f4f4f4f3f2f2f2f1f0f0efeeedecebeae9e8e6e4e2e0dcd8d00050585c6062646668696a6b6c6d6e6f7070717272"
            "7273747474757676767778");
  EXPECT_EQ(q.weight, 3.0F * 0x1p-6F * static_cast<float>(std::pow(128.0, -0.5)));
}

TEST_P(IndexerQTest, Fp8OfNothingKeepsTheFloor) {
  const Q q = quantise(std::vector<float>(128, 0.0F), index_fp8_rows(), GetParam());
  EXPECT_EQ(hex(q.bytes, 128), std::string(256, '0'));
  EXPECT_EQ(q.weight, 3.0F * 0x1p-22F * static_cast<float>(std::pow(128.0, -0.5)));  // scale byte 105 of G2
}

TEST_P(IndexerQTest, Mxfp4GoldenG4) {
  std::vector<float> x(128, 0.0F);
  for (int i = 0; i < 32; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i - 16) / 4.0F;
  const Q q = quantise(x, index_mxfp4_rows(), GetParam());
  EXPECT_EQ(q.scales[0], 127);
  EXPECT_EQ(q.scales[1], 1);  // 2^-126: the floor
  EXPECT_EQ(hex(q.bytes, 16), "eededdccccabaa890021224344545566");
  EXPECT_EQ(q.weight, 3.0F * static_cast<float>(std::pow(128.0, -0.5)));
}

TEST_P(IndexerQTest, RotatesTheLastDimsInPairs) {
  std::vector<float> x(128);
  for (std::size_t i = 0; i < 128; ++i) x[i] = static_cast<float>(i) + 0.123F;
  const Q q = quantise(x, index_f32_rows(), GetParam(), 1);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(q.floats()[i], x[i]);
  for (std::size_t i = 64; i < 128; i += 2) {
    EXPECT_EQ(q.floats()[i], -x[i + 1]);
    EXPECT_EQ(q.floats()[i + 1], x[i]);
  }
}

TEST_P(IndexerQTest, HadamardKeepsLengths) {
  std::vector<float> x(128, 0.0F);
  x[0] = 2;
  const Q q = quantise(x, index_f32_rows(), GetParam(), 0, true);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_FLOAT_EQ(q.floats()[i], 2.0F / std::sqrt(128.0F));
}

INSTANTIATE_TEST_SUITE_P(Implementations, IndexerQTest, testing::Values("ref", "cpu"));

/// One request of four entries in blocks of two, fp8, key scales 2: entry j has value 1 in dim j and -1 in dim 127.
class IndexerLogitsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    for (const Candidate& candidate :
         explain<IndexerLogits>({.rows = 1, .heads = 2, .width = 6, .format = &index_fp8_rows()})) {
      if (candidate.name == GetParam() && !candidate.refusal.empty()) GTEST_SKIP() << candidate.refusal;
    }
    const RowFormat& format = index_fp8_rows();
    const std::int64_t stride = page_bytes(format, 2);
    memory_.assign(static_cast<std::size_t>(3 * stride), 0);
    cache_ = {
        .format = &format, .base = memory_.data(), .num_blocks = 3, .block_size = 2, .block_stride_bytes = stride};
    for (std::int64_t j = 0; j < 4; ++j) {
      const std::int64_t block = j < 2 ? 2 : 1;
      row_data(cache_, block, j % 2)[j] = to_e4m3(1.0F).bits;
      row_data(cache_, block, j % 2)[127] = to_e4m3(-1.0F).bits;
      const float two = 2;
      std::memcpy(row_scales(cache_, block, j % 2), &two, 4);
    }
  }
  /// Two heads: the first looks at dims 0..3 with 1, 2, 3, 4 and dim 127 with 2; the second at dim 127 with -5. Weights
  /// 10 and 1.
  std::vector<float> score(const std::vector<std::int32_t>& blocks, std::int32_t len, std::int32_t request = 0) const {
    std::vector<std::uint8_t> q(256, 0);
    for (std::size_t i = 0; i < 4; ++i) q[i] = to_e4m3(static_cast<float>(i + 1)).bits;
    q[127] = to_e4m3(2.0F).bits;
    q[255] = to_e4m3(-5.0F).bits;
    const std::vector<float> weights{10, 1};
    std::vector<float> logits(6, 99);
    const Plan<IndexerLogits> plan({.rows = 1, .heads = 2, .width = 6, .format = cache_.format},
                                   {.implementation = GetParam()});
    const test::AlignedWorkspace workspace(plan.workspace_bytes());
    plan.run({.q = ConstTensorView(q.data(), DType::kE4M3, {1, 2, 128}),
              .q_scale = {},
              .weights = view_of(weights.data(), {1, 2}),
              .row_to_req = view_of(static_cast<const std::int32_t*>(&request), {1}),
              .lens = view_of(static_cast<const std::int32_t*>(&len), {1}),
              .block_table = view_of(blocks.data(), {1, static_cast<std::int64_t>(blocks.size())}),
              .cache = cache_,
              .logits = view_of(logits.data(), {1, 6})},
             workspace.get());
    return logits;
  }
  std::vector<std::uint8_t> memory_;
  PagedCache cache_;
};

TEST_P(IndexerLogitsTest, ByHand) {
  // First head: relu(j + 1 - 2) * 10; second: relu(5) * 1; times the key's scale.
  EXPECT_THAT(score({2, 1, 0}, 4), ElementsAre(10, 10, 30, 50, 99, 99));
}

TEST_P(IndexerLogitsTest, LengthsAreClamped) {
  EXPECT_THAT(score({2, 1, 0}, 0), ElementsAre(99, 99, 99, 99, 99, 99));
  EXPECT_THAT(score({2, 1, 0}, std::numeric_limits<std::int32_t>::min()), ElementsAre(99, 99, 99, 99, 99, 99));
  EXPECT_THAT(score({2, 1, 1}, std::numeric_limits<std::int32_t>::max()), ElementsAre(10, 10, 30, 50, 30, 50));
}

TEST_P(IndexerLogitsTest, EntriesThatDoNotExistScoreMinusInfinity) {
  EXPECT_THAT(score({2, -1, 3}, 6), ElementsAre(10, 10, -kInfinity, -kInfinity, -kInfinity, -kInfinity));
  EXPECT_THAT(score({2}, 3), ElementsAre(10, 10, -kInfinity, 99, 99, 99));
  EXPECT_THAT(score({}, 2), ElementsAre(-kInfinity, -kInfinity, 99, 99, 99, 99));
  EXPECT_THAT(score({2, 1}, 2, 1), ElementsAre(-kInfinity, -kInfinity, 99, 99, 99, 99));
  EXPECT_THAT(score({2, 1}, 2, -1), ElementsAre(-kInfinity, -kInfinity, 99, 99, 99, 99));
}

INSTANTIATE_TEST_SUITE_P(Implementations, IndexerLogitsTest, testing::Values("ref", "cpu", "avx2", "avx512"));

TEST(IndexerErrors, NameTheTensor) {
  const auto text = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(text([] { Plan<IndexerLogits>({.rows = 1, .width = 4}); }),
              HasSubstr("indexer_logits: problem.format: got none"));
  EXPECT_THAT(text([] { Plan<IndexerLogits>({.rows = 1, .width = 4, .format = &fp8_ds_mla_rows()}); }),
              HasSubstr("got fp8_ds_mla, expected index_fp8, index_mxfp4 or index_f32"));
  EXPECT_THAT(text([] { Plan<IndexerLogits>({.rows = 1, .heads = 129, .width = 4, .format = &index_fp8_rows()}); }),
              HasSubstr("problem.heads: got 129, expected 1 to 128"));
  EXPECT_THAT(text([] { Plan<IndexerQ>({.tokens = 1, .dim = 2048, .format = &state_rows(512, 2)}); }),
              HasSubstr("rows of at most 512"));
  EXPECT_THAT(text([] { Plan<IndexerQ>({.tokens = 1, .dim = 64, .format = &index_fp8_rows()}); }),
              HasSubstr("problem.dim: got 64, expected 128"));
  EXPECT_THAT(text([] { Plan<IndexerQ>({.tokens = 1, .in = DType::kI32, .format = &index_fp8_rows()}); }),
              HasSubstr("problem.in: got I32"));
  EXPECT_THAT(text([] {
                IndexerLogits::Args args;
                args.q = ConstTensorView(nullptr, DType::kU8, {0, 64, 64});
                Plan<IndexerLogits>({.rows = 0, .width = 4, .format = &index_fp8_rows()}).run(args);
              }),
              HasSubstr("indexer_logits: q: got [0, 64, 64] U8, expected [0, 64, 128] F8_E4M3"));
}

}  // namespace
}  // namespace smla
