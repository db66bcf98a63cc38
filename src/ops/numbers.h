#pragma once

// Checks of the numbers inside tensors, for validate (ops and steps): each names tensor, row, column and value.

#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/check.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/tensor_view.h"

namespace smla {

inline constexpr std::int64_t kNoColumn = -1;

[[noreturn]] inline void bad_number(std::string_view op, std::string_view tensor, std::int64_t row, std::int64_t column,
                                    const std::string& got, const std::string& expected) {
  std::string what = std::string(tensor) + " row " + std::to_string(row);
  if (column != kNoColumn) what += " column " + std::to_string(column);
  throw InvalidArgument(std::string(op) + ": " + what + ": got " + got + ", expected " + expected);
}

/// "0..4095", or "nothing" where there is no such number.
inline std::string range_of(std::int64_t lo, std::int64_t hi) {
  return hi < lo ? "nothing" : std::to_string(lo) + ".." + std::to_string(hi);
}

/// One tensor of integers of an op, I32 or I64, up to two dimensions.
class Numbers {
 public:
  Numbers(std::string_view op, std::string_view name, const ConstTensorView& view)
      : op_(op), name_(name), view_(view) {}
  std::int64_t operator()(std::int64_t row, std::int64_t column = kNoColumn) const {
    const std::int64_t at = row * view_.stride[0] + (column == kNoColumn ? 0 : column * view_.stride[1]);
    return view_.dtype == DType::kI64 ? view_.as<std::int64_t>()[at] : view_.as<std::int32_t>()[at];
  }
  bool absent() const { return view_.absent(); }
  std::int64_t rows() const { return view_.size(0); }
  std::int64_t columns() const { return view_.size(1); }

  [[noreturn]] void bad(std::int64_t row, std::int64_t column, const std::string& expected) const {
    bad_number(op_, name_, row, column, std::to_string((*this)(row, column)), expected);
  }
  /// The number, which must lie in lo..hi.
  std::int64_t in(std::int64_t lo, std::int64_t hi, std::int64_t row, std::int64_t column = kNoColumn) const {
    const std::int64_t v = (*this)(row, column);
    if (v < lo || v > hi) bad(row, column, range_of(lo, hi));
    return v;
  }
  /// The number, which must be -1 or lie in 0..count-1.
  std::int64_t index(std::int64_t count, std::int64_t row, std::int64_t column = kNoColumn) const {
    const std::int64_t v = (*this)(row, column);
    if (v < -1 || v >= count) bad(row, column, count == 0 ? "-1" : "-1 or " + range_of(0, count - 1));
    return v;
  }

 private:
  std::string_view op_;
  std::string_view name_;
  ConstTensorView view_;
};

inline constexpr std::int64_t kAnyBlock = std::numeric_limits<std::int32_t>::max();

/// Block table of an op: looks entries up and names the one that leads nowhere.
class TableNumbers {
 public:
  TableNumbers(std::string_view op, std::string_view name, const ConstTensorView& table, std::int64_t block_size,
               std::int64_t num_blocks = kAnyBlock)
      : op_(op),
        name_(name),
        numbers_(op, name, table),
        block_size_(block_size),
        num_blocks_(num_blocks),
        requests_(table.absent() ? 0 : table.size(0)),
        columns_(table.absent() ? 0 : table.size(1)) {}
  /// Rows [begin, end) of request r must stand in blocks that are there. `who` says what needs them.
  void check(std::int64_t r, std::int64_t begin, std::int64_t end, const std::string& who) const {
    if (begin >= end) return;
    for (std::int64_t column = begin / block_size_; column <= (end - 1) / block_size_; ++column) {
      if (column >= columns_) {
        bad_number(op_, name_, r, column, "a table of " + std::to_string(columns_) + " columns", "the block of " + who);
      }
      numbers_.in(0, num_blocks_ - 1, r, column);
    }
  }
  std::int64_t requests() const { return requests_; }

 private:
  std::string_view op_;
  std::string_view name_;
  Numbers numbers_;
  std::int64_t block_size_;
  std::int64_t num_blocks_;
  std::int64_t requests_;
  std::int64_t columns_;
};

/// query_start_loc ascends from 0 (or from `first` on where it may start anywhere) to at most `tokens` later.
inline void check_starts(std::string_view op, const Numbers& start, std::int64_t requests, std::int64_t tokens,
                         bool from_zero = true) {
  const std::int64_t first = start(0);
  if (from_zero && first != 0) bad_number(op, "query_start_loc", 0, kNoColumn, std::to_string(first), "0");
  for (std::int64_t r = 0; r < requests; ++r) {
    start.in(start(r), first + tokens, r + 1);
  }
}

/// Slots of rows that a call writes: -1 or in the cache, each once.
inline void check_written(const Numbers& slots, std::int64_t rows, std::int64_t num_slots) {
  std::unordered_map<std::int64_t, std::int64_t> seen;
  for (std::int64_t t = 0; t < rows; ++t) {
    const std::int64_t slot = slots.index(num_slots, t);
    if (slot < 0) continue;
    const auto [other, fresh] = seen.emplace(slot, t);
    if (!fresh) slots.bad(t, kNoColumn, "a slot of its own (row " + std::to_string(other->second) + " writes it too)");
  }
}

}  // namespace smla
