#include "sparsemla/tensor_view.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace smla {
namespace {

TEST(TensorView, ContiguousShapesAndStrides) {
  std::vector<float> data(24);
  const TensorView v = view_of(data.data(), {2, 3, 4});
  EXPECT_EQ(v.rank, 3);
  EXPECT_EQ(v.numel(), 24);
  EXPECT_EQ(v.stride[0], 12);
  EXPECT_EQ(v.stride[2], 1);
  EXPECT_TRUE(v.contiguous());
  EXPECT_EQ(v.as<float>(), data.data());
  EXPECT_EQ(describe(v), "[2, 3, 4] F32");
}

TEST(TensorView, ConstViewsGiveConstPointers) {
  const std::vector<std::int32_t> data(4);
  const ConstTensorView v = view_of(data.data(), {4});
  static_assert(std::is_same_v<decltype(v.as<std::int32_t>()), const std::int32_t*>);
  std::vector<std::int32_t> writable(4);
  const ConstTensorView from_mutable = view_of(writable.data(), {4});
  EXPECT_EQ(from_mutable.as<std::int32_t>(), writable.data());
}

TEST(TensorView, SliceKeepsStridesAndMovesThePointer) {
  std::vector<BF16> data(60);
  TensorView v = view_of(data.data(), {3, 5, 4});
  const TensorView rows = v.slice(1, 2, 4);
  EXPECT_EQ(rows.size(1), 2);
  EXPECT_EQ(rows.stride[0], 20);
  EXPECT_EQ(rows.as<BF16>(), data.data() + 8);
  EXPECT_FALSE(rows.contiguous());
  EXPECT_TRUE(v.slice(0, 1, 2).contiguous());
  EXPECT_EQ(v.slice(0, 3, 3).numel(), 0);
}

TEST(TensorView, AbsentIsNotEmpty) {
  EXPECT_TRUE(TensorView().absent());
  EXPECT_EQ(TensorView().numel(), 0);
  const TensorView empty(nullptr, DType::kF32, {0, 4});
  EXPECT_FALSE(empty.absent());
  EXPECT_EQ(empty.numel(), 0);
}

TEST(TensorView, StridesPastTwoToThe31) {
  const TensorView v(nullptr, DType::kU8, {3, 1 << 20, 1 << 12});
  EXPECT_EQ(v.stride[0], std::int64_t{1} << 32);
  EXPECT_EQ(v.numel(), std::int64_t{3} << 32);
}

TEST(TensorView, WrongDtypeAndRankThrow) {
  std::vector<float> data(4);
  const TensorView v = view_of(data.data(), {4});
  try {
    v.as<BF16>();
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("got dtype F32, expected BF16"), std::string::npos) << error.what();
  }
  EXPECT_THROW(TensorView(data.data(), DType::kF32, {1, 1, 1, 1, 4}), InvalidArgument);
}

TEST(DType, NamesGoBothWays) {
  for (const DType d :
       {DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3, DType::kU8, DType::kI32, DType::kI64, DType::kBool}) {
    EXPECT_EQ(dtype_from_name(name_of(d)), d);
    EXPECT_GT(size_of(d), 0);
  }
  EXPECT_EQ(name_of(DType::kE4M3), "F8_E4M3");
  try {
    dtype_from_name("F8_E5M2");
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("F8_E5M2"), std::string::npos) << text;
    EXPECT_NE(text.find("BF16"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace smla
