#include "core/check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace smla {
namespace {

/// The text of the InvalidArgument that check_tensor throws; empty when it throws none.
std::string refusal(const ConstTensorView& view, std::initializer_list<std::int64_t> shape,
                    std::initializer_list<DType> dtypes) {
  try {
    check_tensor("norm", "x", view, shape, dtypes);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Check, AcceptsWhatFits) {
  std::vector<float> data(24);
  EXPECT_EQ(refusal(view_of(data.data(), {4, 6}), {4, 6}, {DType::kF32}), "");
  EXPECT_EQ(refusal(view_of(data.data(), {4, 6}), {kAny, 6}, {DType::kBF16, DType::kF32}), "");
  EXPECT_EQ(refusal(view_of(data.data(), {4, 6}).slice(1, 0, 3), {4, 3}, {DType::kF32}), "")
      << "strided rows are welcome";
  EXPECT_EQ(refusal(ConstTensorView(nullptr, DType::kF32, {0, 6}), {0, 6}, {DType::kF32}), "")
      << "no elements need no data";
}

TEST(Check, NamesTensorGotAndExpected) {
  std::vector<float> data(24);
  const TensorView view = view_of(data.data(), {4, 6});
  EXPECT_EQ(refusal(view, {4, 7}, {DType::kF32}), "norm: x: got [4, 6] F32, expected [4, 7] F32");
  EXPECT_EQ(refusal(view, {kAny, 6}, {DType::kBF16, DType::kE4M3}),
            "norm: x: got [4, 6] F32, expected [*, 6] BF16 or F8_E4M3");
  EXPECT_EQ(refusal(view, {4, 6, 1}, {DType::kF32}), "norm: x: got [4, 6] F32, expected [4, 6, 1] F32");
  EXPECT_EQ(refusal({}, {4}, {DType::kF32}), "norm: x: got no tensor, expected [4] F32");
  EXPECT_EQ(refusal(ConstTensorView(nullptr, DType::kF32, {4}), {4}, {DType::kF32}),
            "norm: x: got [4] F32 without data, expected [4] F32");
  TensorView every_second = view_of(data.data(), {4, 3});
  every_second.stride[1] = 2;
  EXPECT_EQ(refusal(every_second, {4, 3}, {DType::kF32}),
            "norm: x: got [4, 3] F32 with last stride 2, expected [4, 3] F32 with last stride 1");
  EXPECT_NE(refusal(ConstTensorView(data.data(), DType::kF32, {-1}), {kAny}, {DType::kF32}), "")
      << "a negative size fits no shape";
}

TEST(Check, ThatNamesGotAndExpected) {
  EXPECT_NO_THROW(check_that(true, "topk", "k", 3, "positive"));
  try {
    check_that(false, "topk", "k", -3, "0 or more");
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "topk: k: got -3, expected 0 or more");
  }
}

}  // namespace
}  // namespace smla
