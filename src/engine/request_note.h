#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"

namespace smla {

/// What a request is beside its rows, as the note of its snapshot: its spec, how far it is, the digests of its outputs,
/// the ids of its prompt's blocks where it has some.
/// Times are not part of it.
std::vector<std::uint8_t> write_note(const Request& request);

/// A request over `layout` as far as the note tells; its blocks are empty and it is not scheduled. `tokens`: the
/// snapshot's.
/// @throws InvalidArgument when the bytes are no such note or contradict themselves or the snapshot.
std::unique_ptr<Request> read_note(std::span<const std::uint8_t> note, std::int64_t tokens, const KvLayout& layout);

}  // namespace smla
