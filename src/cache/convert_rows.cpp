#include "cache/convert_rows.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <optional>

namespace smla {

namespace {

constexpr std::uint32_t kFractionBits = 23;
constexpr std::uint32_t kSmallest = std::uint32_t{1} << (kFractionBits - 1);  // 2^-127, as UE8M0 byte 0
constexpr std::uint8_t kNan = 0xFF;

/// The UE8M0 byte of a power of two.
std::optional<std::uint8_t> byte_of(std::uint32_t scale) {
  if (scale == kSmallest) return 0;
  const std::uint32_t exponent = scale >> kFractionBits;  // the sign is above it
  if (scale != exponent << kFractionBits || exponent == 0 || exponent >= kNan) return std::nullopt;
  return static_cast<std::uint8_t>(exponent);
}

std::uint32_t scale_of(std::uint8_t byte) { return byte == 0 ? kSmallest : std::uint32_t{byte} << kFractionBits; }

std::string wrong(std::int64_t row, const std::string& got, const std::string& expected) {
  return "row " + std::to_string(row) + ": got " + got + ", expected " + expected;
}

std::string to_bytes(std::int64_t row, std::uint8_t* word) {
  std::uint32_t scale = 0;
  std::memcpy(&scale, word, sizeof scale);
  const std::optional<std::uint8_t> byte = byte_of(scale);
  if (!byte) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", static_cast<double>(std::bit_cast<float>(scale)));
    return wrong(row, std::string("scale ") + text, "a power of two from 2^-127 to 2^127");
  }
  std::fill_n(word, sizeof scale, *byte);
  return "";
}

std::string to_fp32(std::int64_t row, std::uint8_t* word) {
  const bool same = std::all_of(word, word + 4, [&](std::uint8_t byte) { return byte == word[0]; });
  if (!same || word[0] == kNan) {
    std::string bytes;
    for (int i = 0; i < 4; ++i) bytes += (i == 0 ? "" : " ") + std::to_string(word[i]);
    return wrong(row, "scale bytes " + bytes, "four equal ones of at most 254");
  }
  const std::uint32_t scale = scale_of(word[0]);
  std::memcpy(word, &scale, sizeof scale);
  return "";
}

}  // namespace

bool converts(const RowFormat& from, const RowFormat& to) {
  const RowFormat& bytes = row_format("index_fp8_ue8m0");
  return from == to || (from == index_fp8_rows() && to == bytes) || (from == bytes && to == index_fp8_rows());
}

std::string convert_rows(const RowFormat& from, const RowFormat& to, std::int64_t block_size, std::int64_t first,
                         std::int64_t end, std::span<std::uint8_t> block) {
  if (from == to) return "";
  std::uint8_t* const scales = block.data() + block_size * from.data_bytes;
  const auto zeros = [](const std::uint8_t* bytes, int n) {
    return std::all_of(bytes, bytes + n, [](std::uint8_t byte) { return byte == 0; });
  };
  for (std::int64_t row = first; row < end; ++row) {
    std::uint8_t* const word = scales + row * from.scale_bytes;
    if (zeros(block.data() + row * from.data_bytes, from.data_bytes) && zeros(word, from.scale_bytes)) continue;
    std::string problem = to == index_fp8_rows() ? to_fp32(row, word) : to_bytes(row, word);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace smla
