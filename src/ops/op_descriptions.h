#pragma once

// The descriptions of all ops.

#include "ops/attention/attention_ops.h"
#include "ops/compressor/compressor_ops.h"
#include "ops/index/index_ops.h"
#include "ops/indexer/indexer_ops.h"
#include "ops/norm_rope/norm_rope_ops.h"
#include "ops/op_list.h"
#include "ops/projection/projection_ops.h"
#include "ops/sequences/sequences_ops.h"
#include "ops/topk/topk_ops.h"

namespace smla {

/// Fails to compile for an op of the list that has no description.
template <class... Ops>
constexpr bool check_descriptions(TypeList<Ops...> /*list*/) {
  static_assert(
      (DescribedOp<Ops> && ...),
      "an op of AllOps has no complete OpDescription: give it kFamily, kTypical, typical(), kShapes, fields() "
      "and tensors() in src/ops/<family>/<family>_ops.h");
  return true;
}
static_assert(check_descriptions(AllOps{}));

}  // namespace smla
