#include "sparsemla/hand_over.h"

#include <span>
#include <string>
#include <vector>

namespace smla {

void hand_over(Engine& engine, std::int64_t id, const Channel& channel) {
  send_snapshot(channel, engine.save_request(id));
  const std::string refusal = receive_verdict(channel);
  if (!refusal.empty())
    throw InvalidArgument("hand over: request " + std::to_string(id) + ": the peer says " + refusal);
  engine.cancel(id);
}

std::int64_t take_over(Engine& engine, const Channel& channel, std::uint64_t max_bytes) {
  const auto tell = [&](const std::string& refusal) {
    try {
      send_verdict(channel, refusal);
    } catch (const IoError&) {
      // Nobody is there to be told: what happened here stands.
    }
  };
  std::vector<std::uint8_t> memory;
  std::span<const std::uint8_t> bytes;
  try {
    bytes = receive_snapshot(channel, memory, max_bytes);
  } catch (const InvalidArgument& too_large) {
    tell(too_large.what());
    throw;
  }
  std::int64_t id = 0;
  try {
    id = engine.restore_request(bytes);
  } catch (const Error& refusal) {
    tell(refusal.what());
    throw;
  }
  tell({});
  return id;
}

}  // namespace smla
