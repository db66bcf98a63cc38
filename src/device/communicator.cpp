// Communicators on the CPU, and how groups of threads and of processes come together.
#include "sparsemla/communicator.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "core/check.h"
#include "device/communicators.h"
#include "device/host_link.h"
#include "device/memory.h"

namespace smla {

namespace {

using device::Bytes;
using device::HostLink;
using device::Sockets;

constexpr std::string_view kWhat = "communicator";

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(DeviceKind device) : device_(device) {}
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  DeviceKind device() const override { return device_; }
  void agree(std::string_view) override { throw_if_aborted(); }
  void sum(void*, std::int64_t, DType, Stream) override { throw_if_aborted(); }
  void gather(void*, std::size_t, Stream) override { throw_if_aborted(); }
  void wait(Stream stream) override {
    throw_if_aborted();
    synchronize(device_, stream);
  }
  void abort(std::string_view reason) noexcept override {
    try {
      failure_.set(std::string(reason));
    } catch (...) {  // no memory for the reason
    }
  }

 private:
  void throw_if_aborted() const { failure_.check(); }
  DeviceKind device_;
  device::Failure failure_;
};

/// Numbers of every rank added up in the order of ranks, in float32.
template <class T>
void add_up(std::span<const Bytes> all, std::vector<std::uint8_t>& to) {
  const std::size_t count = to.size() / sizeof(T);
  const auto at = [&](std::size_t rank, std::size_t i) {
    T value;
    std::memcpy(&value, all[rank].data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, BF16>) {
      return to_float(value);
    } else {
      return value;
    }
  };
  for (std::size_t i = 0; i < count; ++i) {
    float sum = at(0, i);
    for (std::size_t rank = 1; rank < all.size(); ++rank) sum += at(rank, i);
    if constexpr (std::is_same_v<T, BF16>) {
      const BF16 rounded = to_bf16(sum);
      std::memcpy(to.data() + i * sizeof(T), &rounded, sizeof(T));
    } else {
      std::memcpy(to.data() + i * sizeof(T), &sum, sizeof(T));
    }
  }
}

class HostCommunicator : public Communicator {
 public:
  explicit HostCommunicator(std::unique_ptr<HostLink> link) : link_(std::move(link)) {}
  int rank() const override { return link_->rank(); }
  int ranks() const override { return link_->ranks(); }
  DeviceKind device() const override { return DeviceKind::kCpu; }

  void agree(std::string_view text) override {
    kept([&] { device::agree(*link_, text); });
  }

  void sum(void* data, std::int64_t count, DType dtype, Stream) override {
    device::check_sum(count, dtype);
    const auto bytes = static_cast<std::size_t>(count * size_of(dtype));
    summed_.resize(bytes);
    exchange({static_cast<const std::uint8_t*>(data), bytes}, "sum", [&](std::span<const Bytes> all) {
      dtype == DType::kBF16 ? add_up<BF16>(all, summed_) : add_up<float>(all, summed_);
    });
    if (bytes > 0) std::memcpy(data, summed_.data(), bytes);
  }

  void gather(void* data, std::size_t bytes, Stream) override {
    auto* parts = static_cast<std::uint8_t*>(data);
    const auto own = static_cast<std::size_t>(rank());
    exchange({parts + own * bytes, bytes}, "gather", [&](std::span<const Bytes> all) {
      for (std::size_t r = 0; r < all.size(); ++r) {
        if (r != own && bytes > 0) std::memcpy(parts + r * bytes, all[r].data(), bytes);
      }
    });
  }

  void wait(Stream) override { failure_.check(); }  // what was called is done
  void abort(std::string_view reason) noexcept override {
    try {
      failure_.set("rank " + std::to_string(rank()) + ": " + std::string(reason));
    } catch (...) {  // no memory for the reason
    }
    link_->leave(reason);
  }

 private:
  /// Of as many bytes from each rank.
  void exchange(Bytes own, std::string_view what, const std::function<void(std::span<const Bytes>)>& use) {
    kept([&] {
      link_->exchange(own, [&](std::span<const Bytes> all) {
        for (std::size_t r = 0; r < all.size(); ++r) {
          if (all[r].size() == own.size()) continue;
          throw CommunicatorError(std::string(what) + ": rank " + std::to_string(r) + " gives " +
                                  std::to_string(all[r].size()) + " bytes, rank " + std::to_string(link_->rank()) +
                                  " " + std::to_string(own.size()));
        }
        use(all);
      });
    });
  }

  /// Runs f and keeps its failure for later calls.
  void kept(auto&& f) {
    failure_.check();
    try {
      f();
    } catch (const CommunicatorError& e) {
      failure_.set(e.what());
      throw;
    }
  }

  std::unique_ptr<HostLink> link_;
  device::Failure failure_;
  std::vector<std::uint8_t> summed_;
};

void check_options(int ranks, const CommunicatorOptions& options) {
  check_that(ranks >= 1, kWhat, "ranks", ranks, "1 or more");
  const auto seconds = [](double value, std::string_view name) {
    check_that(std::isfinite(value) && value > 0, kWhat, name, std::to_string(value), "seconds above 0");
  };
  seconds(options.timeout_seconds, "timeout_seconds");
  seconds(options.step_seconds, "step_seconds");
  if (options.device == DeviceKind::kCuda) device::check_nccl();
}

std::unique_ptr<Communicator> over(std::unique_ptr<HostLink> link, const CommunicatorOptions& options) {
  if (options.device == DeviceKind::kCuda) return device::nccl_communicator(std::move(link), options.step_seconds);
  return std::make_unique<HostCommunicator>(std::move(link));
}

}  // namespace

void device::agree(HostLink& link, std::string_view text) {
  link.exchange({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}, [&](std::span<const Bytes> all) {
    for (std::size_t r = 1; r < all.size(); ++r) {
      const auto said = [&](std::size_t rank) { return std::string(all[rank].begin(), all[rank].end()); };
      if (std::ranges::equal(all[0], all[r])) continue;
      throw CommunicatorError("ranks disagree: rank 0 is at \"" + said(0) + "\", rank " + std::to_string(r) + " at \"" +
                              said(r) + "\"");
    }
  });
}

void device::check_sum(std::int64_t count, DType dtype) {
  check_that(count >= 0, kWhat, "count", count, "0 or more");
  check_that(dtype == DType::kBF16 || dtype == DType::kF32, kWhat, "dtype", dtype, "BF16 or F32");
}

std::unique_ptr<Communicator> single_communicator(DeviceKind device) {
  return std::make_unique<SingleCommunicator>(device);
}

std::vector<std::unique_ptr<Communicator>> thread_communicators(int ranks, const CommunicatorOptions& options) {
  check_options(ranks, options);
  std::vector<std::unique_ptr<Communicator>> group;
  for (auto& link : device::thread_links(ranks, options.timeout_seconds))
    group.push_back(over(std::move(link), options));
  return group;
}

// --- processes ---

namespace {

constexpr std::size_t kSecretBytes = 32;  ///< hexadecimal digits

/// What a rank says first to rank 0.
struct Hello {
  std::array<char, 8> mark{'S', 'M', 'L', 'A', 'R', 'A', 'N', 'K'};
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::array<char, kSecretBytes> secret{};
};

std::string new_secret() {
  std::random_device random;
  std::string text;
  for (std::size_t i = 0; i < kSecretBytes; ++i) text += "0123456789abcdef"[random() % 16];
  return text;
}

struct Id {
  std::string host;
  std::string port;
  int ranks = 0;
  std::string secret;
};

/// From the right, for an address may hold colons.
Id parse_id(const std::string& id) {
  Id out;
  std::string rest = id;
  const auto cut = [&]() -> std::string {
    const std::size_t colon = rest.rfind(':');
    check_that(colon != std::string::npos, kWhat, "id", id, "<address>:<port>:<ranks>:<secret>");
    std::string part = rest.substr(colon + 1);
    rest.resize(colon);
    return part;
  };
  out.secret = cut();
  const std::string ranks = cut();
  out.port = cut();
  out.host = rest;
  const auto [end, error] = std::from_chars(ranks.data(), ranks.data() + ranks.size(), out.ranks);
  check_that(
      error == std::errc() && end == ranks.data() + ranks.size() && out.ranks >= 1 && out.secret.size() == kSecretBytes,
      kWhat, "id", id, "<address>:<port>:<ranks>:<secret>");
  return out;
}

/// Addresses of a host, freed with it.
class Addresses {
 public:
  Addresses(const std::string& host, const std::string& port, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list_); error != 0)
      throw IoError("communicator: address " + host + ": " + gai_strerror(error));
  }
  ~Addresses() { freeaddrinfo(list_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  const addrinfo& first() const { return *list_; }

 private:
  addrinfo* list_ = nullptr;
};

void send_at_once(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

using Clock = std::chrono::steady_clock;

int milliseconds_to(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

Clock::time_point in_seconds(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Reads a greeting within a moment; whether there was one.
bool read_hello(int fd, Hello& hello) {
  const Clock::time_point end = in_seconds(1);
  std::size_t done = 0;
  while (done < sizeof(hello)) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&one, 1, milliseconds_to(end)) <= 0) return false;
    const ssize_t n = recv(fd, reinterpret_cast<char*>(&hello) + done, sizeof(hello) - done, MSG_DONTWAIT);
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

struct ProcessGroup::State {
  int ranks = 0;
  Sockets listener{1};
  std::string secret = new_secret();
  std::string id;
};

ProcessGroup::ProcessGroup(int ranks, const std::string& host) : state_(std::make_unique<State>()) {
  check_that(ranks >= 1, kWhat, "ranks", ranks, "1 or more");
  State& s = *state_;
  s.ranks = ranks;
  const Addresses addresses(host, "0", AI_PASSIVE);
  const addrinfo& address = addresses.first();
  const auto fail = [&](const char* call) {
    throw IoError("communicator: " + std::string(call) + " at " + host + ": " + std::strerror(errno));
  };
  s.listener[0] = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (s.listener[0] < 0) fail("socket");
  if (bind(s.listener[0], address.ai_addr, address.ai_addrlen) < 0) fail("bind");
  if (listen(s.listener[0], ranks) < 0) fail("listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(s.listener[0], reinterpret_cast<sockaddr*>(&bound), &size) < 0) fail("getsockname");
  const auto port = bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  s.id = host + ":" + std::to_string(ntohs(port)) + ":" + std::to_string(ranks) + ":" + s.secret;
}

ProcessGroup::~ProcessGroup() = default;

const std::string& ProcessGroup::id() const { return state_->id; }

std::unique_ptr<Communicator> ProcessGroup::join(const CommunicatorOptions& options) {
  State& s = *state_;
  check_options(s.ranks, options);
  check_that(s.listener[0] >= 0, kWhat, "rank 0", "joined already", "to join once");
  Sockets sockets(static_cast<std::size_t>(s.ranks));
  const Clock::time_point end = in_seconds(options.timeout_seconds);
  for (int missing = s.ranks - 1; missing > 0;) {
    pollfd one{.fd = s.listener[0], .events = POLLIN, .revents = 0};
    const int ready = poll(&one, 1, milliseconds_to(end));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      throw CommunicatorError("group of " + std::to_string(s.ranks) + " processes: " + std::to_string(missing) +
                              " have not joined within " + std::to_string(options.timeout_seconds) + " s");
    }
    const int fd = accept4(s.listener[0], nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    Hello hello;
    const Hello want;
    const bool known = read_hello(fd, hello) && hello.mark == want.mark && hello.ranks == s.ranks && hello.rank >= 1 &&
                       hello.rank < s.ranks && std::string_view(hello.secret.data(), hello.secret.size()) == s.secret &&
                       sockets[static_cast<std::size_t>(hello.rank)] < 0;
    if (!known) {  // a stranger, or a rank that is here already
      close(fd);
      continue;
    }
    send_at_once(fd);
    sockets[static_cast<std::size_t>(hello.rank)] = fd;
    --missing;
  }
  s.listener.close_all();
  auto link = device::socket_link(0, s.ranks, std::move(sockets), options.timeout_seconds);
  device::agree(*link, "all ranks are here");
  return over(std::move(link), options);
}

std::unique_ptr<Communicator> ProcessGroup::join(const std::string& text, int rank,
                                                 const CommunicatorOptions& options) {
  const Id id = parse_id(text);
  check_options(id.ranks, options);
  check_that(rank >= 1 && rank < id.ranks, kWhat, "rank", rank,
             "1 to " + std::to_string(id.ranks - 1) + "; rank 0 joins by its ProcessGroup");
  const Addresses addresses(id.host, id.port, AI_NUMERICSERV);
  const addrinfo& address = addresses.first();
  const Clock::time_point end = in_seconds(options.timeout_seconds);
  Sockets sockets(1);
  while (true) {
    sockets[0] = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
    if (sockets[0] >= 0 && connect(sockets[0], address.ai_addr, address.ai_addrlen) == 0) break;
    const std::string why = std::strerror(errno);
    sockets.close_all();
    if (Clock::now() >= end) throw CommunicatorError("rank 0 at " + id.host + ":" + id.port + ": " + why);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  send_at_once(sockets[0]);
  Hello hello;
  hello.rank = rank;
  hello.ranks = id.ranks;
  std::ranges::copy(id.secret, hello.secret.begin());
  if (send(sockets[0], &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello)))
    throw CommunicatorError("rank 0 at " + id.host + ":" + id.port + ": " + std::strerror(errno));
  auto link = device::socket_link(rank, id.ranks, std::move(sockets), options.timeout_seconds);
  device::agree(*link, "all ranks are here");
  return over(std::move(link), options);
}

}  // namespace smla
