#pragma once

#include <cstdint>

#include "sparsemla/engine.h"
#include "sparsemla/export.h"
#include "sparsemla/snapshot_stream.h"

namespace SMLA_API smla {

/// Moves a running request to the engine at the other end of the channel, which calls take_over: sends its snapshot
/// (Engine::save_request), waits until it was taken, and cancels it here. Call it between two steps.
///
/// Until the peer says that it has the request, the request stays: after an error it runs on here as before. A peer
/// that vanishes between taking it and saying so has it, too; the host tells the two apart by their id.
/// @throws InvalidArgument for an id that is not running, or with the peer's reason not to take it; IoError when the
/// peer vanishes or stands still.
void hand_over(Engine& engine, std::int64_t id, const Channel& channel);

/// Takes a request from hand_over at the other end and runs it on. All or nothing: after an error the engine is as
/// before. @return its id. @throws as receive_snapshot and Engine::restore_request, whose reason the peer is told.
std::int64_t take_over(Engine& engine, const Channel& channel, std::uint64_t max_bytes = std::uint64_t{1} << 40);

}  // namespace smla
