#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "core/host_tensor.h"
#include "parity/norm_cases.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {
namespace {

TEST(AddRows, RoundsOnceAndLeavesGapsAlone) {
  const BF16 one = to_bf16(1.0F);
  const BF16 small = to_bf16(0x1p-8F);  // half of 1's last place
  const BF16 gap = to_bf16(-3.0F);
  const std::array<BF16, 6> y{small, to_bf16(0x1.8p-8F), gap, small, one, gap};
  std::array<BF16, 6> x{one, one, gap, to_bf16(-1.0F), one, gap};
  TensorView x_rows(x.data(), DType::kBF16, {2, 2});
  ConstTensorView y_rows(y.data(), DType::kBF16, {2, 2});
  x_rows.stride[0] = y_rows.stride[0] = 3;
  Plan<AddRows>({.rows = 2, .dim = 2}).run({.y = y_rows, .x = x_rows});
  EXPECT_EQ(to_float(x[0]), 1.0F);
  EXPECT_EQ(to_float(x[1]), 1.0078125F);
  EXPECT_EQ(to_float(x[3]), -0.99609375F);
  EXPECT_EQ(to_float(x[4]), 2.0F);
  EXPECT_EQ(x[2].bits, gap.bits);
  EXPECT_EQ(x[5].bits, gap.bits);
}

/// The two ops that a normed one stands for.
void norm_then_add(const AddRows::Problem& p, const ConstTensorView& y, const TensorView& x) {
  HostTensor normed(p.dtype, {p.rows, p.dim});
  Plan<RmsNorm>({.rows = p.rows, .dim = p.dim, .in = p.dtype, .out = p.dtype, .has_weight = false, .eps = p.eps},
                {.implementation = "ref"})
      .run({.x = y, .weight = {}, .y = normed.view()});
  Plan<AddRows>({.rows = p.rows, .dim = p.dim, .dtype = p.dtype}).run({.y = std::as_const(normed).view(), .x = x});
}

TEST(AddRows, NormedIsTheNormAndTheSum) {
  int different = 0;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t dim : {0, 1, 3, 64, 1021, 4096}) {
      const AddRows::Problem p{.rows = 5, .dim = dim, .dtype = dtype, .normed = true, .eps = 0.25F};
      std::mt19937_64 random(7);
      HostTensor y(dtype, {p.rows, dim + 3});
      HostTensor x(dtype, {p.rows, dim + 1});
      norm_rope_cases::fill_activations(y, random);
      norm_rope_cases::fill_activations(x, random);
      HostTensor want(dtype, x.shape());
      std::memcpy(want.data(), x.data(), x.bytes());
      const auto rows = [&](HostTensor& t) { return t.view().slice(1, 0, dim); };
      norm_then_add(p, rows(y), rows(want));
      Plan<AddRows>(p).run({.y = rows(y), .x = rows(x)});
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        if (dtype == DType::kF32) {
          EXPECT_NEAR(x.as<float>()[i], want.as<float>()[i], 1e-6F * std::abs(want.as<float>()[i]) + 1e-6F) << i;
        } else {
          different += x.as<BF16>()[i].bits != want.as<BF16>()[i].bits ? 1 : 0;
        }
      }
    }
  }
  EXPECT_LE(different, 3) << "sums of squares are added in another order";
}

}  // namespace
}  // namespace smla
