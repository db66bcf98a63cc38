#pragma once

#include <bit>
#include <cstdint>

namespace smla::device {

/// A number that the host knows and by which kernels divide: a multiplication takes its place. A division by a kernel's
/// argument is some 20 instructions otherwise, of which three wait for the unit of reciprocals and conversions.
class Divisor {
 public:
  Divisor() = default;  ///< 1
  /// 1 to 2^31.
  explicit Divisor(std::uint32_t by)
      : shift_(std::bit_width(by - 1)),
        reciprocal_(static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + shift_)) + by - 1) / by)) {}

  /// n / by, of numbers below 2^31.
  __device__ std::uint32_t quotient(std::uint32_t n) const { return __umulhi(2 * n, reciprocal_) >> shift_; }

 private:
  int shift_ = 0;                        ///< the smallest number with 2^shift >= by
  std::uint32_t reciprocal_ = 1U << 31;  ///< 2^(31 + shift) / by, rounded up
};

}  // namespace smla::device
