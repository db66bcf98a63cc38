#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sparsemla/error.h"
#include "sparsemla/validate.h"

/// Each rule of validate: a call that keeps it passes, one number changed is named with its tensor, row and column.
namespace smla::testing_validate {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

inline std::int64_t count(const auto& v) { return static_cast<std::int64_t>(v.size()); }
inline auto view(const auto& v) { return view_of(v.data(), {count(v)}); }
inline auto rows_of(const auto& v, std::int64_t rows) { return view_of(v.data(), {rows, count(v) / rows}); }

/// Memory of any shape whose numbers do not matter.
inline TensorView blank(DType dtype, std::initializer_list<std::int64_t> shape) {
  static std::vector<std::uint8_t> memory(1 << 20);
  return {memory.data(), dtype, shape};
}

inline PagedCache cache_of(const RowFormat& format, std::int64_t blocks, std::int64_t block_size) {
  return {.format = &format,
          .base = static_cast<std::uint8_t*>(blank(DType::kU8, {1}).data),
          .num_blocks = blocks,
          .block_size = block_size,
          .block_stride_bytes = block_bytes(format, block_size)};
}

}  // namespace smla::testing_validate
