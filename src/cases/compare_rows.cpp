#include "cases/compare_rows.h"

#include <cstring>

#include "core/codecs.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

std::int64_t block_stride(const HostTensor& cache) {
  return cache.size(0) == 0 ? 0 : static_cast<std::int64_t>(cache.bytes()) / cache.size(0);
}

/// Walks two caches and keeps the worst distance.
class RowsComparison {
 public:
  RowsComparison(const HostTensor& got, const HostTensor& want, const RowsTolerance& tolerance)
      : got_(static_cast<const std::uint8_t*>(got.data())),
        want_(static_cast<const std::uint8_t*>(want.data())),
        tolerance_(tolerance),
        stride_(block_stride(want)) {}

  Comparison run(std::int64_t blocks) {
    for (std::int64_t block = 0; block < blocks; ++block) compare_block(block);
    return std::move(result_);
  }

 private:
  void compare_block(std::int64_t block) {
    const RowFormat& format = *tolerance_.format;
    const std::int64_t scales = tolerance_.block_size * format.data_bytes;
    for (std::int64_t row = 0; row < tolerance_.block_size; ++row) {
      std::int64_t at = block * stride_ + row * format.data_bytes;
      if (tolerance_.written && !tolerance_.written->contains(block * tolerance_.block_size + row)) {
        compare_exact(block, row, at, format.data_bytes, "a row that the call does not write differs");
        compare_exact(block, row, block * stride_ + scales + row * format.scale_bytes, format.scale_bytes,
                      "a scale that the call does not write differs");
        continue;
      }
      at = compare_part(block, row, at, format.nope, format.nope_dim);
      compare_exact(block, row, at, format.inline_scale_bytes, "a scale byte differs");
      at += format.inline_scale_bytes;
      compare_part(block, row, at, format.rope, format.rope_dim());
      compare_exact(block, row, block * stride_ + scales + row * format.scale_bytes, format.scale_bytes,
                    "a scale byte differs");
    }
    const std::int64_t used = block_bytes(format, tolerance_.block_size);
    compare_exact(block, tolerance_.block_size, block * stride_ + used, stride_ - used, "a padding byte differs");
  }

  /// `count` numbers from byte `at`; returns the byte behind them.
  std::int64_t compare_part(std::int64_t block, std::int64_t row, std::int64_t at, Element kind, std::int64_t count) {
    switch (kind) {
      case Element::kF32: compare_exact(block, row, at, 4 * count, "a fp32 number differs"); return at + 4 * count;
      case Element::kBF16:
        for (std::int64_t i = 0; i < count; ++i) compare_bf16(block, row, at + 2 * i);
        return at + 2 * count;
      case Element::kE4M3:
        for (std::int64_t i = 0; i < count; ++i) compare_e4m3(block, row, at + i);
        return at + count;
      case Element::kE2M1:
        for (std::int64_t i = 0; i < count / 2; ++i) compare_e2m1(block, row, at + i);
        return at + count / 2;
    }
    return at;
  }

  void compare_bf16(std::int64_t block, std::int64_t row, std::int64_t at) {
    BF16 g;
    BF16 w;
    std::memcpy(&g, got_ + at, sizeof g);
    std::memcpy(&w, want_ + at, sizeof w);
    if (g == w) return;
    const bool special = (g.bits & 0x7F80U) == 0x7F80U || (w.bits & 0x7F80U) == 0x7F80U;
    note(block, row, at, special ? INT32_MAX : ulp_distance(g, w), tolerance_.ulp, "a bf16 number is too far off");
  }
  void compare_e4m3(std::int64_t block, std::int64_t row, std::int64_t at) {
    const E4M3 g{got_[at]};
    const E4M3 w{want_[at]};
    if (g == w) return;
    const bool special = (g.bits & 0x7FU) == 0x7FU || (w.bits & 0x7FU) == 0x7FU;
    note(block, row, at, special ? INT32_MAX : ulp_distance(g, w), tolerance_.steps,
         "an e4m3 code is too many steps off");
  }
  void compare_e2m1(std::int64_t block, std::int64_t row, std::int64_t at) {
    for (const int shift : {0, 4}) {
      const auto line = [&](std::uint8_t byte) {
        const int code = (byte >> shift) & 15;
        return code >= 8 ? 8 - code : code;
      };
      note(block, row, at, std::abs(line(got_[at]) - line(want_[at])), tolerance_.steps,
           "an e2m1 code is too many steps off");
    }
  }
  void compare_exact(std::int64_t block, std::int64_t row, std::int64_t at, std::int64_t bytes, const char* what) {
    if (bytes <= 0 || std::memcmp(got_ + at, want_ + at, static_cast<std::size_t>(bytes)) == 0) return;
    while (got_[at] == want_[at]) ++at;
    note(block, row, at, std::abs(got_[at] - want_[at]), 0, what);
  }

  void note(std::int64_t block, std::int64_t row, std::int64_t at, std::int64_t distance, std::int64_t bound,
            const char* what) {
    if (distance > bound) {
      result_.pass = false;
      if (result_.failure.empty()) result_.failure = what;
    }
    if (static_cast<double>(distance) <= result_.worst) return;
    result_.worst = static_cast<double>(distance);
    result_.where = {block, at - block * stride_};
    result_.detail = "row " + std::to_string(row) + " of the block, byte got " + std::to_string(got_[at]) + ", want " +
                     std::to_string(want_[at]);
  }

  const std::uint8_t* got_;
  const std::uint8_t* want_;
  const RowsTolerance& tolerance_;
  std::int64_t stride_;
  Comparison result_;
};

}  // namespace

Comparison compare_rows(const HostTensor& got, const HostTensor& want, const RowsTolerance& tolerance) {
  // block_size is below 2^31 and a record far below 2^31 bytes, so the product fits.
  const std::int64_t least = block_bytes(*tolerance.format, tolerance.block_size);
  if (want.size(0) > 0 && block_stride(want) < least) {
    throw InvalidArgument("tolerance rows: got a block stride of " + std::to_string(block_stride(want)) +
                          " bytes, expected at least " + std::to_string(least) + " for " +
                          std::to_string(tolerance.block_size) + " rows of " + std::string(tolerance.format->name));
  }
  return RowsComparison(got, want, tolerance).run(want.size(0));
}

}  // namespace smla
