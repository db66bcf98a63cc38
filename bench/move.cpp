// A snapshot on its way to another process: how much of the way's own rate is left.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bench/bench.h"
#include "sparsemla/error.h"
#include "sparsemla/snapshot_stream.h"

namespace smla::bench {

namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr std::size_t kPiece = std::size_t{1} << 20;

/// A way from one end to the other.
class Way {
 public:
  explicit Way(bool socket) {
    const int made = socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) : pipe(ends_.data());
    if (made != 0) throw IoError("bench move: no pipe or socket could be made");
    if (!socket) (void)fcntl(ends_[1], F_SETPIPE_SZ, static_cast<int>(kPiece));  // where it is allowed
  }
  ~Way() {
    for (const int end : ends_) close(end);
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  int in() const { return ends_[0]; }
  int out() const { return ends_[1]; }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// Reads and writes with nothing around them.
void plain(const Way& way, const std::vector<std::uint8_t>& from, std::vector<std::uint8_t>& to) {
  std::thread writer([&] {
    for (std::size_t done = 0; done < from.size();) {
      const ssize_t n = write(way.out(), from.data() + done, std::min(from.size() - done, kPiece));
      if (n <= 0) return;
      done += static_cast<std::size_t>(n);
    }
  });
  for (std::size_t done = 0; done < to.size();) {
    const ssize_t n = read(way.in(), to.data() + done, std::min(to.size() - done, kPiece));
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  writer.join();
}

void moved(const Way& way, const std::vector<std::uint8_t>& from, std::vector<std::uint8_t>& to) {
  std::thread writer([&] { send_snapshot({.out = way.out()}, from); });
  const auto got = receive_snapshot({.in = way.in()}, to);
  writer.join();
  if (got.size() != from.size()) throw IoError("bench move: got other bytes than were sent");
}

}  // namespace

void bench_move(const Options& options, const Emit& emit) {
  std::vector<std::uint8_t> from(kBytes);
  std::iota(from.begin(), from.end(), std::uint8_t{0});
  std::vector<std::uint8_t> to(kBytes);
  for (const bool socket : {false, true}) {
    const Way way(socket);
    const std::string shape = socket ? "256 MiB through a socket" : "256 MiB through a pipe";
    const auto row = [&](const char* name, const auto& once) {
      Row r{.group = "move", .name = name, .shape = shape, .implementation = "host", .time = {}};
      r.time = measure(options.measure, [&](std::int64_t) { once(); });
      r.bytes = static_cast<double>(kBytes);
      emit(r);
    };
    row("plain", [&] { plain(way, from, to); });
    row("snapshot", [&] { moved(way, from, to); });
  }
}

}  // namespace smla::bench
