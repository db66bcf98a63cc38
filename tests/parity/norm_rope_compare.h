#pragma once

// How outputs of the norm_rope family are compared, for tests of any device.

#include <gtest/gtest.h>

#include "parity/insert_cases.h"
#include "parity/inverse_rope_cases.h"
#include "parity/quantize_rows_cases.h"

namespace smla::norm_rope_cases {

inline float element(const HostTensor& tensor, std::int64_t i) {
  return tensor.dtype() == DType::kF32 ? tensor.as<float>()[i] : to_float(tensor.as<BF16>()[i]);
}

inline int ordered(std::uint32_t bits, std::uint32_t sign) {
  return (bits & sign) != 0U ? -static_cast<int>(bits & (sign - 1U)) : static_cast<int>(bits);
}

/// Rows behind a norm: F32 l2 1e-6, BF16 1 ulp or 1e-5 of the row's largest, E4M3 one step; and of the rounded ones
/// nearly all equal, or the rounding itself would be another.
inline void expect_close_rows(const HostTensor& want, const HostTensor& got, std::int64_t width) {
  std::int64_t differ = 0;
  for (std::int64_t row = 0; width > 0 && row < want.numel() / width; ++row) {
    double error = 0;
    double norm = 0;
    double largest = 0;
    for (std::int64_t i = row * width; want.dtype() != DType::kE4M3 && i < (row + 1) * width; ++i) {
      const double w = element(want, i);
      error += (element(got, i) - w) * (element(got, i) - w);
      norm += w * w;
      largest = std::max(largest, std::fabs(w));
    }
    if (want.dtype() == DType::kF32) {
      ASSERT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm)) << "row " << row;
      continue;
    }
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      if (want.dtype() == DType::kE4M3) {
        differ += want.as<E4M3>()[i] == got.as<E4M3>()[i] ? 0 : 1;
        ASSERT_LE(std::abs(ordered(want.as<E4M3>()[i].bits, 0x80) - ordered(got.as<E4M3>()[i].bits, 0x80)), 1)
            << "row " << row << " element " << i;
        continue;
      }
      differ += want.as<BF16>()[i] == got.as<BF16>()[i] ? 0 : 1;
      if (std::abs(ordered(want.as<BF16>()[i].bits, 0x8000) - ordered(got.as<BF16>()[i].bits, 0x8000)) > 1) {
        ASSERT_LE(std::fabs(element(want, i) - element(got, i)), 1e-5 * largest) << "row " << row << " element " << i;
      }
    }
  }
  ASSERT_LE(differ, want.numel() / 500 + 1) << "of " << want.numel();
}

/// The rows of RmsNorm, and that nothing was written behind them.
inline void expect_close_norm(const RmsNormCase& c, const RmsNormInputs& want, const RmsNormInputs& got) {
  expect_close_rows(want.y, got.y, c.problem.dim + 8);
  const std::int64_t row_bytes = (c.problem.dim + 8) * size_of(c.problem.out);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(got.y.bytes()); ++i) {
    if (i % row_bytes < c.problem.dim * size_of(c.problem.out)) continue;
    ASSERT_EQ(static_cast<const std::uint8_t*>(got.y.data())[i], kPoison) << "byte " << i << " past a row was written";
  }
}

inline void expect_equal_bytes(const HostTensor& want, const HostTensor& got) {
  ASSERT_EQ(want.bytes(), got.bytes());
  const auto* w = static_cast<const std::uint8_t*>(want.data());
  const auto* g = static_cast<const std::uint8_t*>(got.data());
  const auto* at = std::mismatch(w, w + want.bytes(), g).first;
  ASSERT_EQ(at, w + want.bytes()) << "byte " << at - w;
}

}  // namespace smla::norm_rope_cases
