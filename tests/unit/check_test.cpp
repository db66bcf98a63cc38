#include "core/check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/check_distinct.h"

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

TEST(Check, RowsOfAnOutputDoNotOverlap) {
  const auto refusal_of = [](std::initializer_list<std::int64_t> shape, std::vector<std::int64_t> stride) {
    std::vector<float> data(64);
    ConstTensorView view(data.data(), DType::kF32, shape);
    for (std::size_t i = 0; i < stride.size(); ++i) view.stride[i] = stride[i];
    try {
      check_distinct("op", "o", view);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal_of({4, 3, 2}, {6, 2, 1}), "");
  EXPECT_EQ(refusal_of({4, 3, 2}, {2, 8, 1}), "") << "any order of dimensions";
  EXPECT_EQ(refusal_of({4, 3, 2}, {10, 3, 1}), "");
  EXPECT_EQ(refusal_of({1, 3, 2}, {0, 2, 1}), "") << "one row has no next";
  EXPECT_EQ(refusal_of({0, 3, 2}, {0, 0, 1}), "");
  EXPECT_EQ(refusal_of({4, 3, 2}, {0, 2, 1}),
            "op: o: got [4, 3, 2] F32 with stride 0 of dimension 0, expected at least 1 (rows of an output must not "
            "overlap)");
  EXPECT_NE(refusal_of({4, 3, 2}, {5, 2, 1}), "");
  EXPECT_NE(refusal_of({4, 3, 2}, {6, 1, 1}), "");
}

}  // namespace
}  // namespace smla
