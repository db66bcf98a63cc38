// Ranks that are processes: a star of sockets with rank 0 in the middle, which collects everybody's bytes and sends all
// of them to all.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>

#include "device/host_link.h"

namespace smla::device {

void Sockets::close_all() noexcept {
  for (int& fd : fds_) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

namespace {

enum class FrameKind : std::uint32_t { kBytes = 0x534D4C41, kFailure = 0x4C414D53, kGoodbye = 0x534D4259 };

struct FramePrefix {
  FrameKind kind;
  std::uint32_t reserved;
  std::uint64_t bytes;
};

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 36;
constexpr std::uint64_t kMostText = 1 << 16;
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr double kGrace = 1;  ///< seconds that other ranks give rank 0 to tell them of a failure

/// A moment until which somebody waits.
class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds))) {}
  int milliseconds() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

class SocketLink : public HostLink {
 public:
  SocketLink(int rank, int ranks, Sockets sockets, double timeout_seconds)
      : rank_(rank), ranks_(ranks), sockets_(std::move(sockets)), timeout_(timeout_seconds), parted_(sockets_.size()) {}
  ~SocketLink() override { tell(FrameKind::kGoodbye, "rank " + std::to_string(rank_) + ": left the group"); }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void exchange(Bytes own, const std::function<void(std::span<const Bytes>)>& use) override {
    const std::lock_guard lock(at_work_);
    throw_if_broken();
    try {
      rank_ == 0 ? collect(own) : ask(own);
      std::vector<Bytes> all;
      for (const auto& part : parts_) all.emplace_back(part);
      all[static_cast<std::size_t>(rank_)] = own;
      use(all);
    } catch (const std::exception& e) {
      break_with(e.what());
      throw;
    }
  }

  void check() override {
    const std::unique_lock lock(at_work_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // an exchange is under way and has deadlines of its own
    throw_if_broken();
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      if (sockets_[i] < 0 || !parted_[i].empty()) continue;
      FramePrefix prefix{};
      const ssize_t n = recv(sockets_[i], &prefix, sizeof(prefix), MSG_PEEK | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
      try {
        if (n <= 0) throw CommunicatorError(peer(i) + " has gone");
        if (n < static_cast<ssize_t>(sizeof(prefix)) || prefix.kind == FrameKind::kBytes) continue;
        (void)receive(i, Deadline(timeout_));
      } catch (const std::exception& e) {
        if (!parted_[i].empty()) continue;
        break_with(e.what());
        throw;
      }
    }
  }

  void leave(std::string_view reason) noexcept override {
    try {
      const std::string text = "rank " + std::to_string(rank_) + ": " + std::string(reason);
      {
        const std::lock_guard lock(text_mutex_);
        if (failure_) return;
        failure_ = text;
      }
      tell(FrameKind::kFailure, text);
      // Wakes whoever of this process waits on them.
      for (std::size_t i = 0; i < sockets_.size(); ++i) {
        if (sockets_[i] >= 0) shutdown(sockets_[i], SHUT_RDWR);
      }
    } catch (...) {  // nobody is left to be told
    }
  }

 private:
  std::string peer(std::size_t i) const { return "rank " + std::to_string(rank_ == 0 ? i : 0); }

  void throw_if_broken() {
    const std::lock_guard lock(text_mutex_);
    if (failure_) throw CommunicatorError(*failure_);
  }

  /// The first failure stays, and rank 0 tells it to all.
  void break_with(const std::string& text) {
    {
      const std::lock_guard lock(text_mutex_);
      if (failure_) return;
      failure_ = text;
    }
    tell(FrameKind::kFailure, text);
  }

  /// Best effort: a socket that takes nothing is left alone.
  void tell(FrameKind kind, const std::string& text) noexcept {
    const FramePrefix prefix{.kind = kind, .reserved = 0, .bytes = std::min(text.size(), kMostText)};
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      if (sockets_[i] < 0) continue;
      std::string frame(sizeof(prefix), '\0');
      std::memcpy(frame.data(), &prefix, sizeof(prefix));
      frame += text.substr(0, prefix.bytes);
      (void)send(sockets_[i], frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  void wait_for(std::size_t i, short events, const Deadline& deadline) {
    pollfd one{.fd = sockets_[i], .events = events, .revents = 0};
    int ready = -1;
    do {
      ready = poll(&one, 1, deadline.milliseconds());
    } while (ready < 0 && errno == EINTR);
    if (ready == 0)
      throw CommunicatorError(peer(i) + " stands still: rank " + std::to_string(rank_) + " waited for it");
    if (ready < 0) throw CommunicatorError(peer(i) + ": poll: " + std::strerror(errno));
  }

  void write_all(std::size_t i, const void* data, std::size_t size, const Deadline& deadline) {
    const auto* from = static_cast<const std::uint8_t*>(data);
    for (std::size_t done = 0; done < size;) {
      const ssize_t n = send(sockets_[i], from + done, std::min(size - done, kPiece), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        wait_for(i, POLLOUT, deadline);
      } else if (n == 0 || errno != EINTR) {
        throw CommunicatorError(gone(i));
      }
    }
  }

  void read_all(std::size_t i, void* data, std::size_t size, const Deadline& deadline) {
    auto* to = static_cast<std::uint8_t*>(data);
    for (std::size_t done = 0; done < size;) {
      const ssize_t n = recv(sockets_[i], to + done, size - done, MSG_DONTWAIT);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        wait_for(i, POLLIN, deadline);
      } else if (n == 0 || errno != EINTR) {
        throw CommunicatorError(gone(i));
      }
    }
  }

  /// What to say of a socket that closed; this rank's own reason first, where it left while it waited.
  std::string gone(std::size_t i) {
    const std::lock_guard lock(text_mutex_);
    return failure_ ? *failure_ : peer(i) + " has gone";
  }

  void send_bytes(std::size_t i, Bytes bytes, const Deadline& deadline) {
    const FramePrefix prefix{.kind = FrameKind::kBytes, .reserved = 0, .bytes = bytes.size()};
    write_all(i, &prefix, sizeof(prefix), deadline);
    write_all(i, bytes.data(), bytes.size(), deadline);
  }

  /// The next frame of socket i. @throws CommunicatorError with its text when it tells of a failure.
  std::vector<std::uint8_t> receive(std::size_t i, const Deadline& deadline) {
    if (!parted_[i].empty()) throw CommunicatorError(parted_[i]);
    FramePrefix prefix{};
    read_all(i, &prefix, sizeof(prefix), deadline);
    const bool failure = prefix.kind == FrameKind::kFailure || prefix.kind == FrameKind::kGoodbye;
    if ((!failure && prefix.kind != FrameKind::kBytes) || prefix.bytes > (failure ? kMostText : kMostBytes))
      throw CommunicatorError(peer(i) + " sent something else than a message");
    std::vector<std::uint8_t> bytes(prefix.bytes);
    read_all(i, bytes.data(), bytes.size(), deadline);
    if (prefix.kind == FrameKind::kGoodbye) parted_[i].assign(bytes.begin(), bytes.end());
    if (failure) throw CommunicatorError(std::string(bytes.begin(), bytes.end()));
    return bytes;
  }

  /// Rank 0: everybody's bytes, then all of them to all.
  void collect(Bytes own) {
    const Deadline deadline(timeout_);
    parts_.resize(static_cast<std::size_t>(ranks_));
    for (std::size_t i = 1; i < parts_.size(); ++i) parts_[i] = receive(i, deadline);
    const Deadline later(timeout_);
    for (std::size_t to = 1; to < parts_.size(); ++to) {
      for (std::size_t from = 0; from < parts_.size(); ++from) {
        if (from != to) send_bytes(to, from == 0 ? own : Bytes(parts_[from]), later);
      }
    }
  }

  /// Another rank: its own to rank 0, the others' from there.
  void ask(Bytes own) {
    const Deadline deadline(timeout_ + kGrace);
    parts_.resize(static_cast<std::size_t>(ranks_));
    send_bytes(0, own, deadline);
    for (std::size_t from = 0; from < parts_.size(); ++from) {
      if (static_cast<int>(from) != rank_) parts_[from] = receive(0, deadline);
    }
  }

  int rank_;
  int ranks_;
  Sockets sockets_;
  double timeout_;
  std::vector<std::string> parted_;  ///< what the peer of each socket said when it left in good order
  std::mutex at_work_;
  std::mutex text_mutex_;
  std::optional<std::string> failure_;
  std::vector<std::vector<std::uint8_t>> parts_;  ///< of the exchange at work
};

}  // namespace

std::unique_ptr<HostLink> socket_link(int rank, int ranks, Sockets sockets, double timeout_seconds) {
  return std::make_unique<SocketLink>(rank, ranks, std::move(sockets), timeout_seconds);
}

}  // namespace smla::device
