#pragma once

// How code that treats all ops alike sees one op: the catalogue, case files, recording, copies to a GPU and the C
// interface's calls by name.

#include <array>
#include <concepts>
#include <cstdint>
#include <string_view>

#include "sparsemla/kv_format.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// What an op does to a cache.
enum class CacheAccess : std::uint8_t { kRead, kWrite };

/// What a tensor or cache of an op looks like, for people and for who fills in the scalars that tensors determine
/// (op_table.h). Words of `dtype`, alternatives separated by " | ":
///   "F32"            that type
///   "in: BF16 | F32" one of these, and the scalar `in` says which
///   "U8@index_mxfp4" that type with rows of that format
///   "U8 beside s"    that type where the tensor `s` is given too
///   "cache"          a cache; `dims` are the scalars of its row format and block size, "-" for none
///   "state cache"    a cache of state rows; `dims` are the scalars of their dim and ratio
/// Words of `dims`, a dimension each:
///   "rows", "requests+1", "2*coff*dim", "a + b", "a - b"   what the scalars of these names say
///   ">= heads"                                             at least so many; so many where nothing else says
/// Other words are for people. `flag`: the scalar that says whether the tensor is given.
struct TensorShape {
  std::string_view name;
  std::string_view dtype;
  std::string_view dims;
  std::string_view flag{};
};

/// The description of an op, specialised for each op of the library in `src/ops/<family>/<family>_ops.h`:
///   kFamily            the op's folder under src/ops
///   kTypical           a typical problem in words: what a V4-Flash layer asks at 64 tokens
///   typical()          the same problem
///   kShapes            an array of the TensorShape of each tensor and cache, in the order of tensors()
///   fields(p, f)       calls f(name, member) for each scalar of a Problem
///   tensors(a, t)      calls t.in(name, view), t.out(name, view) or t.cache(name, cache, access) for each tensor of
///   Args
/// Names are those of the members, as errors print them ("scopes[0].format"), and are literals.
template <class Op>
struct OpDescription;

/// A visitor of fields and tensors that does nothing.
struct IgnoreMembers {
  void operator()(const char* /*name*/, auto& /*field*/) const {}
  void in(const char* /*name*/, ConstTensorView& /*view*/) const {}
  void out(const char* /*name*/, TensorView& /*view*/) const {}
  void cache(const char* /*name*/, PagedCache& /*cache*/, CacheAccess /*access*/) const {}
};

/// Whether an op has a complete description.
template <class Op>
concept DescribedOp = requires(typename Op::Problem& problem, typename Op::Args& args) {
  { OpDescription<Op>::kFamily } -> std::convertible_to<std::string_view>;
  { OpDescription<Op>::kTypical } -> std::convertible_to<std::string_view>;
  { OpDescription<Op>::typical() } -> std::same_as<typename Op::Problem>;
  { OpDescription<Op>::kShapes[0] } -> std::convertible_to<TensorShape>;
  OpDescription<Op>::fields(problem, IgnoreMembers{});
  OpDescription<Op>::tensors(args, IgnoreMembers{});
};

}  // namespace smla
