#pragma once

#include <cstdint>
#include <span>

#include "sparsemla/engine.h"
#include "sparsemla/prefix_keys.h"

namespace smla {

/// Where a run of a request's tokens comes from: hidden states are a function of (seed, stream, id, position).
struct TokenRun {
  std::uint64_t stream = 0;  ///< 0: the request's own; 2: a block of prompts that share it; 1 is for rejected drafts
  std::int64_t id = 0;       ///< the request's, or the block's (RequestSpec::prompt_ids)
  std::int64_t end = 0;      ///< position where the run ends
};

/// The run that a position belongs to; runs of one's own have no end.
TokenRun run_at(const RequestSpec& spec, std::int64_t position);

/// The number of tokens that two prompts have in common at their beginnings.
std::int64_t common_prefix(const RequestSpec& a, const RequestSpec& b);

/// Brings the keys of a request's blocks of `unit` tokens up to position `tokens`; a block that is not whole is left.
void extend_keys(PrefixKeys& keys, const RequestSpec& spec, std::int64_t unit, std::int64_t tokens);

}  // namespace smla
