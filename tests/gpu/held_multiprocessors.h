#pragma once

#include <memory>

namespace smla::test {

/// Multiprocessors of the current GPU that a kernel of a stream of its own holds until this ends. Others have no room
/// beside it for a block of more than 100 KB of shared memory.
class HeldMultiprocessors {
 public:
  /// @throws std::runtime_error if CUDA refuses.
  explicit HeldMultiprocessors(int count);
  HeldMultiprocessors(const HeldMultiprocessors&) = delete;
  HeldMultiprocessors& operator=(const HeldMultiprocessors&) = delete;
  ~HeldMultiprocessors();

  /// Whether all work on a stream ends while they are held, within `seconds`.
  static bool ends_meanwhile(void* stream, double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla::test
