#pragma once

// The ops of the library as data: what a call by name needs to know without an op's types.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/op_description.h"
#include "sparsemla/dtype.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// What a member of a Problem or of Args is.
enum class MemberKind : std::uint8_t { kInteger = 1, kFlag, kDType, kNumber, kFormat, kRule, kInput, kOutput, kCache };

/// A scalar, tensor or cache of an op.
struct OpMember {
  std::string_view name;  ///< as errors print it; a literal
  MemberKind kind = MemberKind::kInteger;
  bool written = false;                ///< tensors and caches: whether a call may write it
  const TensorShape* shape = nullptr;  ///< of tensors and caches
  std::string fallback;                ///< of scalars: what counts when none is given, in words

  bool is_tensor() const { return kind >= MemberKind::kInput; }
};

/// An op: scalars first, then tensors and caches.
struct OpRow {
  std::string_view name;
  std::string_view family;   ///< folder under src/ops
  std::string_view typical;  ///< a typical problem in words
  std::vector<OpMember> members;

  /// The scalar of that name; null when there is none.
  const OpMember* scalar(std::string_view member) const;
  /// The tensor or cache of that name; null when there is none. A scalar may have the same name.
  const OpMember* tensor(std::string_view member) const;
};

/// Every op of the library, in the order of a layer.
std::span<const OpRow> op_table();

/// A scalar of a call by name: integers and flags, numbers, or the word for a dtype, row format or rule.
struct NamedScalar {
  std::string_view name;
  std::variant<std::int64_t, double, std::string_view> value;
};

/// A tensor or cache of a call by name. Bytes may stand for E4M3 numbers or for flags.
struct NamedTensor {
  std::string_view name;
  DType dtype = DType::kU8;             ///< of a tensor
  std::span<const std::int64_t> shape;  ///< of a tensor
  const RowFormat* format = nullptr;    ///< of a cache
  std::int64_t block_size = 0;          ///< of a cache
};

/// The scalars that are not `given` and that the tensors determine: sizes, dtypes, formats, how many scopes or
/// compressors there are. Bytes get the dtype that they stand for. Nothing is checked: that tensors and scalars fit is
/// seen by the op.
std::vector<NamedScalar> determine_scalars(const OpRow& op, std::span<const NamedScalar> given,
                                           std::span<NamedTensor> tensors);

}  // namespace smla
