#include "cases/tolerance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "core/codecs.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
HostTensor tensor(std::initializer_list<T> values, std::vector<std::int64_t> shape = {}) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
  HostTensor t(dtype_of<T>, shape);
  std::copy(values.begin(), values.end(), t.as<T>());
  return t;
}

HostTensor bf16(std::initializer_list<float> values) {
  HostTensor t(DType::kBF16, {static_cast<std::int64_t>(values.size())});
  std::transform(values.begin(), values.end(), t.as<BF16>(), [](float v) { return to_bf16(v); });
  return t;
}

Tolerance parse(const std::string& json) { return parse_tolerance("test", parse_json("test", json)); }
bool passes(const HostTensor& got, const HostTensor& want, const std::string& json) {
  return compare(got, want, parse(json)).pass;
}

TEST(Tolerance, NothingGivenMeansEqualBytes) {
  const HostTensor a = tensor<float>({1.0F, 2.0F});
  EXPECT_TRUE(passes(a, a.clone(), "{}"));
  const Comparison c = compare(tensor<float>({1.0F, std::nextafter(2.0F, 3.0F)}), a, {});
  EXPECT_FALSE(c.pass);
  EXPECT_EQ(c.where, (std::vector<std::int64_t>{1}));
  EXPECT_FALSE(passes(tensor<float>({-0.0F}), tensor<float>({0.0F}), "{}"));
  EXPECT_TRUE(passes(tensor<float>({kNan, kInf}), tensor<float>({kNan, kInf}), "{}"));
  EXPECT_FALSE(passes(tensor<std::int32_t>({1, 2}), tensor<std::int32_t>({2, 1}), "{}"));
  EXPECT_TRUE(passes(HostTensor(DType::kF32, {0, 4}), HostTensor(DType::kF32, {0, 4}), "{}"));
  EXPECT_TRUE(passes(HostTensor(DType::kF32, {0, 4}), HostTensor(DType::kF32, {0, 4}), "{\"l2\": 0}"));
}

TEST(Tolerance, AbsAndRelAdd) {
  const HostTensor want = tensor<float>({100.0F, 1.0F});
  EXPECT_TRUE(passes(tensor<float>({101.0F, 1.0F}), want, "{\"abs\": 1}"));
  EXPECT_FALSE(passes(tensor<float>({101.5F, 1.0F}), want, "{\"abs\": 1}"));
  EXPECT_TRUE(passes(tensor<float>({101.0F, 1.0F}), want, "{\"rel\": 0.01}"));
  EXPECT_FALSE(passes(tensor<float>({100.0F, 1.1F}), want, "{\"rel\": 0.01}"));
  EXPECT_TRUE(passes(tensor<float>({102.0F, 1.0F}), want, "{\"abs\": 1, \"rel\": 0.01}"));
  const Comparison c =
      compare(tensor<float>({100.5F, 4.0F}, {2, 1}), tensor<float>({100.0F, 1.0F}, {2, 1}), parse("{\"abs\": 1}"));
  EXPECT_FALSE(c.pass);
  EXPECT_DOUBLE_EQ(c.worst, 3.0);
  EXPECT_EQ(c.where, (std::vector<std::int64_t>{1, 0}));
  EXPECT_THAT(c.detail, AllOf(HasSubstr("got 4"), HasSubstr("want 1")));
}

TEST(Tolerance, L2OverTheWholeTensor) {
  const HostTensor want = tensor<float>({3.0F, 4.0F});  // norm 5
  EXPECT_TRUE(passes(tensor<float>({3.0F, 4.05F}), want, "{\"l2\": 0.0101}"));
  EXPECT_FALSE(passes(tensor<float>({3.0F, 4.06F}), want, "{\"l2\": 0.0101}"));
  EXPECT_NEAR(compare(tensor<float>({3.0F, 4.5F}), want, parse("{\"l2\": 0.5}")).l2, 0.1, 1e-7);
  // Infinite elements of want stand outside of both sums, but must be in place.
  const HostTensor with_inf = tensor<float>({3.0F, 4.0F, kInf});
  EXPECT_TRUE(passes(tensor<float>({3.0F, 4.0F, kInf}), with_inf, "{\"l2\": 0}"));
  EXPECT_FALSE(passes(tensor<float>({3.0F, 4.2F, kInf}), with_inf, "{\"l2\": 0.01}"));
}

TEST(Tolerance, InfinitiesAndNanMatchInPlaceWhateverTheBound) {
  for (const char* bound :
       {"{\"abs\": 1e30}", "{\"rel\": 1e9}", "{\"l2\": 0.999}", "{\"cos\": 0.999}", "{\"ulp\": 2000000000}"}) {
    EXPECT_TRUE(passes(tensor<float>({1.0F, kInf, -kInf, kNan}), tensor<float>({1.0F, kInf, -kInf, kNan}), bound))
        << bound;
    EXPECT_FALSE(passes(tensor<float>({1.0F, -kInf}), tensor<float>({1.0F, kInf}), bound)) << bound;
    EXPECT_FALSE(passes(tensor<float>({1.0F, 3e38F}), tensor<float>({1.0F, kInf}), bound)) << bound;
    EXPECT_FALSE(passes(tensor<float>({1.0F, kInf}), tensor<float>({1.0F, 3e38F}), bound)) << bound;
    EXPECT_FALSE(passes(tensor<float>({1.0F, kNan}), tensor<float>({1.0F, 2.0F}), bound)) << bound;
    EXPECT_FALSE(passes(tensor<float>({1.0F, 2.0F}), tensor<float>({1.0F, kNan}), bound)) << bound;
  }
}

TEST(Tolerance, AllZerosWantAllZeros) {
  const HostTensor zeros = tensor<float>({0.0F, 0.0F});
  for (const char* bound : {"{\"abs\": 1}", "{\"cos\": 0.999}", "{\"l2\": 0.999}", "{\"ulp\": 2000000000}"}) {
    EXPECT_TRUE(passes(tensor<float>({0.0F, -0.0F}), zeros, bound)) << bound;
    EXPECT_FALSE(passes(tensor<float>({0.0F, 1e-30F}), zeros, bound)) << bound;
  }
}

/// Zeros in place of a result are 1 off by l2 and by cosine.
TEST(Tolerance, BoundsThatCannotFailAreRefused) {
  for (const char* bound : {"{\"l2\": 1}", "{\"l2\": 1e9}", "{\"cos\": 1}", "{\"cos\": 2}"}) {
    try {
      parse(bound);
      ADD_FAILURE() << bound;
    } catch (const InvalidArgument& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("expected a bound below 1"), HasSubstr("zeros")));
    }
  }
}

TEST(Tolerance, TextSaysEveryBound) {
  EXPECT_EQ(describe(parse("{}")), "exact");
  EXPECT_EQ(describe(parse("{\"l2\": 0.0022}")), "l2 0.0022");
  EXPECT_EQ(describe(parse("{\"abs\": 0.001, \"ulp\": 1}")), "abs 0.001 + rel 0, ulp 1");
  EXPECT_EQ(describe(parse("{\"cos\": 0.5, \"set\": true}")), "cos 0.5, set");
  EXPECT_EQ(describe(parse("{\"rows\": {\"format\": \"bf16\", \"block_size\": 2, \"ulp\": 3}}")),
            "rows of bf16, steps 0, ulp 3");
}

TEST(Tolerance, Cosine) {
  const HostTensor want = tensor<float>({1.0F, 0.0F});
  EXPECT_TRUE(passes(tensor<float>({5.0F, 0.0F}), want, "{\"cos\": 1e-12}"));
  EXPECT_TRUE(passes(tensor<float>({1.0F, 0.1F}), want, "{\"cos\": 0.005}"));
  EXPECT_FALSE(passes(tensor<float>({1.0F, 0.1F}), want, "{\"cos\": 0.004}"));
  EXPECT_FALSE(passes(tensor<float>({0.0F, 0.0F}), want, "{\"cos\": 0.9}"));
}

TEST(Tolerance, UlpCountsStoredValues) {
  EXPECT_EQ(ulp_distance(1.0F, std::nextafter(1.0F, 2.0F)), 1);
  EXPECT_EQ(ulp_distance(0.0F, -0.0F), 0);
  EXPECT_EQ(ulp_distance(std::numeric_limits<float>::denorm_min(), -std::numeric_limits<float>::denorm_min()), 2);
  EXPECT_EQ(ulp_distance(BF16{0x3F80}, BF16{0x3F7F}), 1);
  EXPECT_EQ(ulp_distance(E4M3{0x08}, E4M3{0x06}), 2);
  EXPECT_EQ(ulp_distance(E4M3{0x80}, E4M3{0x00}), 0);
  EXPECT_EQ(ulp_distance(E4M3{0xFE}, E4M3{0x7E}), 252);
  EXPECT_TRUE(passes(bf16({1.0F, 1.0078125F}), bf16({1.0F, 1.0F}), "{\"ulp\": 1}"));
  EXPECT_FALSE(passes(bf16({1.0F, 1.015625F}), bf16({1.0F, 1.0F}), "{\"ulp\": 1}"));
  EXPECT_TRUE(passes(tensor<E4M3>({E4M3{0x39}}), tensor<E4M3>({E4M3{0x38}}), "{\"ulp\": 1}"));
  EXPECT_FALSE(passes(tensor<E4M3>({E4M3{0x7F}}), tensor<E4M3>({E4M3{0x7E}}), "{\"ulp\": 1}"));  // NaN is no neighbour
  EXPECT_THROW(passes(tensor<std::int32_t>({1}), tensor<std::int32_t>({1}), "{\"ulp\": 1}"), InvalidArgument);
}

TEST(Tolerance, EveryGivenBoundMustHold) {
  const HostTensor want = tensor<float>({1000.0F, 1.0F});
  const HostTensor got = tensor<float>({1000.0F, 1.5F});
  EXPECT_TRUE(passes(got, want, "{\"l2\": 1e-3}"));
  EXPECT_TRUE(passes(got, want, "{\"abs\": 0.5}"));
  EXPECT_FALSE(passes(got, want, "{\"l2\": 1e-3, \"abs\": 0.4}"));
  EXPECT_FALSE(passes(got, want, "{\"l2\": 1e-4, \"abs\": 0.5}"));
}

TEST(Tolerance, RowsAsSets) {
  const auto ints = [](std::initializer_list<std::int32_t> v) { return tensor<std::int32_t>(v, {2, 3}); };
  const HostTensor want = ints({1, 2, 3, 4, -1, -1});
  EXPECT_TRUE(passes(ints({3, 1, 2, -1, 4, -1}), want, "{\"set\": true}"));
  EXPECT_FALSE(passes(ints({3, 1, 2, -1, 4, -1}), want, "{\"set\": false}"));
  EXPECT_FALSE(passes(ints({3, 1, 2, 4, 4, -1}), want, "{\"set\": true}"));    // duplicate
  EXPECT_FALSE(passes(ints({3, 1, 2, -1, -1, -1}), want, "{\"set\": true}"));  // missing
  EXPECT_FALSE(passes(ints({3, 1, 2, 4, 5, -1}), want, "{\"set\": true}"));    // extra
  EXPECT_FALSE(passes(ints({3, 1, 2, -2, 4, -1}), want, "{\"set\": true}"));   // only -1 is padding
  const Comparison c = compare(ints({1, 2, 3, 7, -1, -1}), want, parse("{\"set\": true}"));
  EXPECT_EQ(c.where, (std::vector<std::int64_t>{1}));
  EXPECT_THROW(passes(tensor<float>({1.0F}), tensor<float>({1.0F}), "{\"set\": true}"), InvalidArgument);
}

TEST(Tolerance, ShapesAndDtypesMustAgree) {
  const Comparison shape =
      compare(tensor<float>({1.0F, 2.0F}), tensor<float>({1.0F, 2.0F}, {1, 2}), parse("{\"l2\": 0.5}"));
  EXPECT_FALSE(shape.pass);
  EXPECT_THAT(shape.failure, AllOf(HasSubstr("[2] F32"), HasSubstr("[1, 2] F32")));
  EXPECT_TRUE(passes(bf16({1.0F}), tensor<float>({1.0F}), "{\"l2\": 0}"));  // floats by value
  EXPECT_FALSE(passes(bf16({1.0F}), tensor<float>({1.0F}), "{}"));
  EXPECT_FALSE(passes(bf16({1.0F}), tensor<float>({1.0F}), "{\"ulp\": 1}"));
  EXPECT_FALSE(passes(tensor<std::int64_t>({1}), tensor<std::int32_t>({1}), "{\"abs\": 1}"));
}

TEST(Tolerance, HostileBounds) {
  for (const char* json :
       {"{\"l2\": -1}", "{\"l2\": \"x\"}", "{\"ulp\": 1.5}", "{\"ulp\": -1}", "{\"set\": 1}", "{\"unknown\": 1}", "[]",
        "3", "{\"rows\": {}}", "{\"abs\": null}", "{\"rows\": {\"format\": \"e5m2\", \"block_size\": 1}}",
        "{\"rows\": {\"format\": \"bf16\", \"block_size\": 0}}",
        "{\"rows\": {\"format\": \"bf16\", \"block_size\": 1, \"steps\": -1}}"}) {
    EXPECT_THROW(parse(json), InvalidArgument) << json;
  }
}

/// Two blocks of two records with a little padding, filled with a pattern that has no NaN.
class Rows : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    format_ = &row_format(GetParam());
    stride_ = block_bytes(*format_, 2) + 24;
    want_ = HostTensor(DType::kU8, {2, stride_});
    for (std::int64_t i = 0; i < want_.numel(); ++i)
      want_.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(0x21 + i % 9);
    bound_ =
        std::string("{\"rows\": {\"format\": \"") + GetParam() + "\", \"block_size\": 2, \"steps\": 1, \"ulp\": 1}}";
  }
  /// The caches with `add` on the byte at `offset` of block 1.
  bool passes_with(std::int64_t offset, int add) {
    HostTensor got = want_.clone();
    auto& byte = got.as<std::uint8_t>()[stride_ + offset];
    byte = static_cast<std::uint8_t>(byte + add);
    return passes(got, want_, bound_);
  }
  const RowFormat* format_ = nullptr;
  std::int64_t stride_ = 0;
  HostTensor want_;
  std::string bound_;
};

TEST_P(Rows, CodesMayDifferByASteps) {
  EXPECT_TRUE(passes_with(0, 0));
  EXPECT_TRUE(passes_with(0, 1));
  EXPECT_FALSE(passes_with(0, 2));
  EXPECT_TRUE(passes_with(format_->data_bytes, 1)) << "second row of the block";
}

TEST_P(Rows, EveryOtherByteIsEqual) {
  const std::int64_t used = block_bytes(*format_, 2);
  for (std::int64_t i = 2 * format_->data_bytes; i < used; ++i) EXPECT_FALSE(passes_with(i, 1)) << "scale byte " << i;
  for (std::int64_t i = used; i < stride_; ++i) EXPECT_FALSE(passes_with(i, 1)) << "padding byte " << i;
}

class RowsWithBf16 : public Rows {};

TEST_P(RowsWithBf16, TheBf16PartCountsInUlp) {
  const std::int64_t last = format_->data_bytes - 2;  // the last bf16 of row 0
  EXPECT_TRUE(passes_with(last, 1));
  EXPECT_FALSE(passes_with(last, 2));
  EXPECT_FALSE(passes_with(last + 1, 1)) << "an exponent step is 128 ulp and more";
}

TEST_P(Rows, ABlockMustFitItsStride) {
  const HostTensor narrow(DType::kU8, {2, block_bytes(*format_, 2) - 1});
  EXPECT_THROW(passes(narrow, narrow.clone(), bound_), InvalidArgument);
  const HostTensor flat(DType::kU8, {64});
  EXPECT_THROW(passes(flat, flat.clone(), bound_), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Formats, RowsWithBf16, ::testing::Values("fp8_ds_mla", "bf16"));
INSTANTIATE_TEST_SUITE_P(Formats, Rows,
                         ::testing::Values("fp8_ds_mla", "bf16", "fp8_per_tensor", "index_fp8", "index_mxfp4"));

TEST(RowsTolerance, NibblesCountOneByOne) {
  HostTensor want(DType::kU8, {1, block_bytes(index_mxfp4_rows(), 1)});
  want.as<std::uint8_t>()[0] = 0x80;  // low nibble +0, high nibble -0
  const std::string bound = "{\"rows\": {\"format\": \"index_mxfp4\", \"block_size\": 1, \"steps\": 1}}";
  const auto with = [&](int byte) {
    HostTensor got = want.clone();
    got.as<std::uint8_t>()[0] = static_cast<std::uint8_t>(byte);
    return passes(got, want, bound);
  };
  EXPECT_TRUE(with(0x08));
  EXPECT_TRUE(with(0x91));
  EXPECT_TRUE(with(0x99));
  EXPECT_FALSE(with(0x82));
  EXPECT_FALSE(with(0xA0));
}

TEST(RowsTolerance, NanCodesMatchInPlace) {
  HostTensor want(DType::kU8, {1, block_bytes(fp8_per_tensor_rows(), 1)});
  want.as<std::uint8_t>()[0] = 0x7F;
  HostTensor got = want.clone();
  const std::string bound = "{\"rows\": {\"format\": \"fp8_per_tensor\", \"block_size\": 1, \"steps\": 200}}";
  EXPECT_TRUE(passes(got, want, bound));
  got.as<std::uint8_t>()[0] = 0x7E;
  EXPECT_FALSE(passes(got, want, bound));
}

}  // namespace
}  // namespace smla
