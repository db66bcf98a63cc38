#include "sparsemla/hand_over.h"

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
  std::int64_t id = 0;
  try {
    std::vector<std::uint8_t> memory;
    id = engine.restore_request(receive_snapshot(channel, memory, max_bytes));
  } catch (const InvalidArgument& refusal) {
    send_verdict(channel, refusal.what());
    throw;
  }
  try {
    send_verdict(channel, {});
  } catch (const IoError&) {
    // Nobody is there to be told: the request is here now.
  }
  return id;
}

}  // namespace smla
