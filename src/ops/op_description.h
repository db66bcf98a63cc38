#pragma once

// How code that treats all ops alike sees one op: the catalogue, case files, recording, copies to a GPU and the C
// interface's calls by name.

#include <concepts>
#include <cstdint>
#include <string_view>

#include "sparsemla/kv_format.h"
#include "sparsemla/tensor_view.h"

namespace smla {

/// What an op does to a cache.
enum class CacheAccess : std::uint8_t { kRead, kWrite };

/// The description of an op, specialised for each op of the library in `src/ops/<family>/<family>_ops.h`:
///   kFamily            the op's folder under src/ops
///   kTypical           a typical problem in words: what a V4-Flash layer asks at 64 tokens
///   typical()          the same problem
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
  OpDescription<Op>::fields(problem, IgnoreMembers{});
  OpDescription<Op>::tensors(args, IgnoreMembers{});
};

}  // namespace smla
