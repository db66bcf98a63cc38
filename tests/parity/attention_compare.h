#pragma once

// How results of attention and of merges are compared, for tests of any device.

#include <gtest/gtest.h>

#include <cstring>

#include "core/host_tensor.h"
#include "parity/attention_cases.h"

namespace smla::attention_cases {

/// Place of a float on the line of bfloat16 numbers.
inline int bf16_place(float v) {
  const int bits = to_bf16(v).bits;
  return (bits & 0x8000) != 0 ? -(bits & 0x7FFF) : bits;
}

inline void expect_same_lse(float want, float got) {
  if (std::isinf(want) || std::isinf(got)) {
    ASSERT_EQ(want, got);
  } else {
    ASSERT_LE(std::fabs(want - got), 1e-5F * std::max(1.0F, std::fabs(want)));
  }
}

/// The heads that `to` has, out of q.
inline void copy_heads(const ConstTensorView& q, HostTensor& to) {
  const auto bytes = static_cast<std::size_t>(to.size(2) * size_of(to.dtype()));
  for (std::int64_t t = 0; t < to.size(0); ++t) {
    for (std::int64_t h = 0; h < to.size(1); ++h) {
      std::memcpy(to.view().slice(0, t, t + 1).slice(1, h, h + 1).data, q.slice(0, t, t + 1).slice(1, h, h + 1).data,
                  bytes);
    }
  }
}

/// BF16: l2 2.2e-3 over the tensor, each element within one ulp or 4e-3 of its row's largest. F32: l2 `f32_bound`.
/// Padded heads are +0.
inline void expect_parity(const AttentionOutputs& want, const AttentionOutputs& got, double f32_bound = 1e-5) {
  const SparseAttention::Problem& p = want.problem;
  const bool bf16 = p.o == DType::kBF16;
  double error = 0;
  double norm = 0;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t h = 0; h < p.padded_heads(); ++h) {
      float largest = 0;
      for (std::int64_t d = 0; d < p.out_dim(); ++d) largest = std::max(largest, std::fabs(want.value(t, h, d)));
      for (std::int64_t d = 0; d < p.out_dim(); ++d) {
        const float w = want.value(t, h, d);
        const float g = got.value(t, h, d);
        ASSERT_TRUE(std::isfinite(w) && std::isfinite(g))
            << "token " << t << " head " << h << " dim " << d << ": " << w << " and " << g;
        ASSERT_TRUE(h < p.heads || (g == 0 && !std::signbit(g))) << "padded head " << h;
        if (bf16 && std::abs(bf16_place(w) - bf16_place(g)) > 1) {
          ASSERT_LE(std::fabs(w - g), 4e-3F * largest) << "token " << t << " head " << h << " dim " << d;
        }
        error += (static_cast<double>(w) - g) * (static_cast<double>(w) - g);
        norm += static_cast<double>(w) * w;
      }
      if (h < p.heads) expect_same_lse(want.lse_of(t, h), got.lse_of(t, h));
    }
  }
  ASSERT_LE(std::sqrt(error), (bf16 ? 2.2e-3 : f32_bound) * std::sqrt(norm));
  ASSERT_TRUE(got.gaps_untouched());
}

}  // namespace smla::attention_cases
