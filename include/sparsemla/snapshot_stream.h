#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// The two ends of a way to another process: a socket twice, or two pipes. The file descriptors stay the caller's.
struct Channel {
  int in = -1;   ///< what the peer writes is read here
  int out = -1;  ///< and this is what it reads
  /// Seconds in which something must move; then the peer counts as vanished.
  double timeout_seconds = 10;
};

/// Sends a snapshot (docs/snapshot.md): its size, then its bytes. Nobody's SIGPIPE is raised.
/// @throws IoError when the peer vanishes or stands still, naming how far it got.
void send_snapshot(const Channel& channel, std::span<const std::uint8_t> bytes);

/// Receives what send_snapshot sends to the head of `memory`, which grows with what arrives and never shrinks: memory
/// that was used before is faster than fresh one. @return the snapshot, a part of `memory`.
/// @param max_bytes  the largest snapshot that is taken
/// @throws IoError when the peer vanishes or stands still half-way; InvalidArgument for a larger one.
std::span<const std::uint8_t> receive_snapshot(const Channel& channel, std::vector<std::uint8_t>& memory,
                                               std::uint64_t max_bytes = std::uint64_t{1} << 40);

/// Says whether a snapshot was taken; empty: it was, else why not.
/// @throws IoError as send_snapshot.
void send_verdict(const Channel& channel, const std::string& refusal);

/// Receives that. @throws IoError as receive_snapshot.
std::string receive_verdict(const Channel& channel);

}  // namespace smla
