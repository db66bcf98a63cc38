#pragma once

#include <optional>

#include "sparsemla/ops/topk.h"

namespace smla {

/// Calls f(name, member) for the scalars of the slots that a selection may write too.
void topk_slots_fields(std::optional<TopK::Slots>& wanted, auto&& f) {
  TopK::Slots slots = wanted.value_or(TopK::Slots{.storage_block = 0});  // 0: none are wanted
  f("slots.storage_block", slots.storage_block);
  if (slots.storage_block != 0) wanted = slots;
}

/// The same for their tensors, as OpDescription::tensors().
void topk_slots_tensors(TopK::Slots::Args& slots, auto&& t) {
  t.in("slots.token_to_req", slots.token_to_req), t.in("slots.block_table", slots.block_table);
  t.in("slots.valid", slots.valid), t.out("slots.slots", slots.slots), t.out("slots.lens", slots.lens);
}

}  // namespace smla
