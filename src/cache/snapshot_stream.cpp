// Snapshots between processes, over whatever file descriptors there are.
#include "sparsemla/snapshot_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>

#include "sparsemla/error.h"

namespace smla {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMark{'S', 'M', 'L', 'A', 'M', 'O', 'V', 'E'};
constexpr std::array<char, 8> kVerdict{'S', 'M', 'L', 'A', 'D', 'O', 'N', 'E'};
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::uint64_t kReserved = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxRefusal = 1 << 16;

/// A descriptor that does not block while this lives, so that a peer that stands still is noticed.
class NotBlocking {
 public:
  explicit NotBlocking(int fd) : fd_(fd), flags_(fcntl(fd, F_GETFL)) {
    if (flags_ < 0 || fcntl(fd_, F_SETFL, flags_ | O_NONBLOCK) < 0)
      throw IoError("snapshot stream: descriptor " + std::to_string(fd_) + ": " + std::strerror(errno));
  }
  ~NotBlocking() { fcntl(fd_, F_SETFL, flags_); }
  NotBlocking(const NotBlocking&) = delete;
  NotBlocking& operator=(const NotBlocking&) = delete;

 private:
  int fd_;
  int flags_;
};

/// No SIGPIPE on this thread while this lives; one that came of our writes is taken back.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

[[noreturn]] void vanished(const char* what, std::uint64_t done, std::uint64_t all, const std::string& why) {
  throw IoError(std::string("snapshot stream: ") + what + ": got " + std::to_string(done) + " of " +
                std::to_string(all) + " bytes through, then the peer " + why);
}

/// Waits until the descriptor is ready; what happened to the peer otherwise.
void wait_for(int fd, short events, double seconds, const char* what, std::uint64_t done, std::uint64_t all) {
  pollfd one{.fd = fd, .events = events, .revents = 0};
  int ready = -1;
  do {
    ready = poll(&one, 1, static_cast<int>(std::ceil(std::clamp(seconds, 0.0, 2e6) * 1e3)));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) vanished(what, done, all, "stood still for " + std::to_string(seconds) + " s");
  if (ready < 0) vanished(what, done, all, std::string("was lost: ") + std::strerror(errno));
}

void write_all(const Channel& c, const void* data, std::size_t size, const char* what) {
  const auto* from = static_cast<const std::uint8_t*>(data);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = write(c.out, from + done, std::min(size - done, kPiece));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      wait_for(c.out, POLLOUT, c.timeout_seconds, what, done, size);
    } else if (n == 0 || errno != EINTR) {
      vanished(what, done, size, errno == EPIPE ? "closed its end" : std::string("was lost: ") + std::strerror(errno));
    }
  }
}

/// Reads `size` bytes to `to`, `before` of `all` were there already.
void read_all(const Channel& c, void* data, std::size_t size, const char* what, std::uint64_t before,
              std::uint64_t all) {
  auto* to = static_cast<std::uint8_t*>(data);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = read(c.in, to + done, size - done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (n == 0) {
      vanished(what, before + done, all, "closed its end");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(c.in, POLLIN, c.timeout_seconds, what, before + done, all);
    } else if (errno != EINTR) {
      vanished(what, before + done, all, std::string("was lost: ") + std::strerror(errno));
    }
  }
}

struct Head {
  std::array<char, 8> mark;
  std::uint64_t bytes;
};

void send(const Channel& c, const std::array<char, 8>& mark, std::span<const std::uint8_t> bytes, const char* what) {
  const NotBlocking not_blocking(c.out);
  const NoSigpipe quiet;
  const Head head{.mark = mark, .bytes = bytes.size()};
  write_all(c, &head, sizeof(head), what);
  write_all(c, bytes.data(), bytes.size(), what);
}

std::span<const std::uint8_t> receive(const Channel& c, const std::array<char, 8>& mark, std::uint64_t most,
                                      const char* what, std::vector<std::uint8_t>& memory) {
  const NotBlocking not_blocking(c.in);
  Head head{};
  read_all(c, &head, sizeof(head), what, 0, sizeof(head));
  if (head.mark != mark)
    throw IoError(std::string("snapshot stream: ") + what + ": got other first bytes, expected " +
                  std::string(mark.data(), mark.size()));
  if (head.bytes > most)
    throw InvalidArgument(std::string("snapshot stream: ") + what + ": got " + std::to_string(head.bytes) +
                          " bytes, expected at most " + std::to_string(most));
  for (std::uint64_t done = 0; done < head.bytes;) {
    // Not as large as the peer says: it may never send that much. What is only reserved is not yet there.
    if (memory.size() < head.bytes && memory.capacity() < done + kPiece)
      memory.reserve(std::min<std::uint64_t>(head.bytes, std::max<std::uint64_t>(2 * done, kReserved)));
    if (memory.size() < std::min<std::uint64_t>(head.bytes, done + kPiece))
      memory.resize(std::min<std::uint64_t>(head.bytes, done + kPiece));
    const std::uint64_t piece = std::min<std::uint64_t>(memory.size(), head.bytes) - done;
    read_all(c, memory.data() + done, piece, what, done, head.bytes);
    done += piece;
  }
  return std::span<const std::uint8_t>(memory).first(head.bytes);
}

}  // namespace

void send_snapshot(const Channel& channel, std::span<const std::uint8_t> bytes) {
  send(channel, kMark, bytes, "sending");
}

std::span<const std::uint8_t> receive_snapshot(const Channel& channel, std::vector<std::uint8_t>& memory,
                                               std::uint64_t max_bytes) {
  return receive(channel, kMark, max_bytes, "receiving", memory);
}

void send_verdict(const Channel& channel, const std::string& refusal) {
  const std::string text = refusal.substr(0, kMaxRefusal);
  send(channel, kVerdict, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, "sending the verdict");
}

std::string receive_verdict(const Channel& channel) {
  std::vector<std::uint8_t> memory;
  const auto text = receive(channel, kVerdict, kMaxRefusal, "receiving the verdict", memory);
  return {text.begin(), text.end()};
}

}  // namespace smla
