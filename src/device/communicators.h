#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "device/host_link.h"
#include "sparsemla/communicator.h"

namespace smla::device {

/// The first failure of a communicator, which all its later calls repeat.
class Failure {
 public:
  /// Keeps the text unless there is one. @return whether it was the first.
  bool set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_) return false;
    text_ = text;
    return true;
  }
  /// @throws CommunicatorError when there is one.
  void check() const {
    const std::lock_guard lock(mutex_);
    if (text_) throw CommunicatorError(*text_);
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> text_;
};

/// Communicator::agree over a link.
void agree(HostLink& link, std::string_view text);
/// @throws InvalidArgument for what Communicator::sum does not take.
void check_sum(std::int64_t count, DType dtype);

/// @throws Unsupported where there is no CUDA or no NCCL, with the places that were looked at.
void check_nccl();
/// GPUs over NCCL, which the ranks of `link` bring together when they first agree, sum or gather.
std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<HostLink> link, double step_seconds);

}  // namespace smla::device
