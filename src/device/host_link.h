#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/error.h"

namespace smla::device {

using Bytes = std::span<const std::uint8_t>;

/// The ranks of a group as they see one another on the host: the one thing that communicators of all kinds are made of.
/// exchange() is for one thread at a time, check() and leave() for any. Its destructor leaves in good order: ranks that
/// wait for this one, or will, get an error; check() of those that are done with it says nothing.
class HostLink {
 public:
  HostLink() = default;
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;
  virtual ~HostLink() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Gives `own` to all and calls `use` with everybody's, in the order of ranks; they are there until it returns. Waits
  /// for the slowest rank. @throws CommunicatorError when one has gone or stands still; then the link is broken.
  virtual void exchange(Bytes own, const std::function<void(std::span<const Bytes>)>& use) = 0;
  /// @throws CommunicatorError when the link is broken or a rank has gone without a word. Does not wait.
  virtual void check() = 0;
  /// Breaks the link for all.
  virtual void leave(std::string_view reason) noexcept = 0;
};

/// The links of `ranks` threads of this process.
std::vector<std::unique_ptr<HostLink>> thread_links(int ranks, double timeout_seconds);

/// Sockets of one process, by rank; -1: none.
class Sockets {
 public:
  explicit Sockets(std::size_t count) : fds_(count, -1) {}
  Sockets(Sockets&& other) noexcept : fds_(std::move(other.fds_)) { other.fds_.clear(); }
  Sockets& operator=(Sockets&&) = delete;
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  ~Sockets() { close_all(); }
  int& operator[](std::size_t i) { return fds_[i]; }
  int operator[](std::size_t i) const { return fds_[i]; }
  std::size_t size() const { return fds_.size(); }
  void close_all() noexcept;

 private:
  std::vector<int> fds_;
};

/// The link of one process of a group. Rank 0 has a socket to each other rank, they have one to it, at place 0.
std::unique_ptr<HostLink> socket_link(int rank, int ranks, Sockets sockets, double timeout_seconds);

}  // namespace smla::device
