// Requests that move between processes, and peers that vanish half-way.
#include "sparsemla/hand_over.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "property/small_model.h"

namespace smla {
namespace {

using testing::HasSubstr;

constexpr auto kNow = [] { return 0.0; };

EngineOptions small_options(std::int64_t blocks = 400) {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer.deterministic = true;
  o.max_batched_tokens = 64;
  o.max_seqs = 4;
  o.num_blocks = blocks;
  o.max_model_len = 400;
  return o;
}

const RequestSpec kRequest{.id = 5, .prompt_tokens = 200, .output_tokens = 30};

/// A pipe whose ends close with it.
class Pipe {
 public:
  Pipe() {
    if (pipe(ends_.data()) != 0) throw IoError("no pipe");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void close_end(std::size_t end) {
    if (ends_[end] >= 0) close(std::exchange(ends_[end], -1));
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// Two ways between this process and a child that runs `body` with its channel and ends without a word.
class Child {
 public:
  explicit Child(const std::function<void(const Channel&)>& body) : id_(fork()) {
    if (id_ == 0) {
      omp_set_num_threads(1);  // the parent's threads are not here
      there_.close_end(1);
      back_.close_end(0);
      int status = 0;
      try {
        body({.in = there_.read_end(), .out = back_.write_end(), .timeout_seconds = 60});
      } catch (const std::exception&) {
        status = 1;
      }
      _exit(status);
    }
    there_.close_end(0);
    back_.close_end(1);
  }
  ~Child() { wait(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  Channel channel(double timeout = 60) const {
    return {.in = back_.read_end(), .out = there_.write_end(), .timeout_seconds = timeout};
  }
  /// Its exit status; -1: a signal ended it.
  int wait() {
    int status = 0;
    if (id_ > 0 && waitpid(std::exchange(id_, 0), &status, 0) > 0)
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return status_;
  }

 private:
  Pipe there_;
  Pipe back_;
  pid_t id_ = 0;
  int status_ = -1;
};

std::uint64_t digest_of(Engine& engine) {
  while (engine.step(kNow)) {
  }
  const RequestResult result = engine.results().back();
  EXPECT_EQ(result.state, RequestResult::State::kFinished);
  return result.digest;
}

std::uint64_t digest_alone() {
  Engine engine(small_options());
  engine.submit(kRequest);
  return digest_of(engine);
}

/// A running request after `steps` steps.
void start(Engine& engine, int steps) {
  engine.submit(kRequest);
  for (int i = 0; i < steps; ++i) engine.step(kNow);
}

template <class E, class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}

void put(int fd, const void* data, std::size_t size) {
  const auto* p = static_cast<const char*>(data);
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = write(fd, p + done, size - done);
    if (n <= 0) _exit(3);
    done += static_cast<std::size_t>(n);
  }
}

TEST(HandOver, ARequestGoesOnInAnotherProcessBitForBit) {
  const std::uint64_t want = digest_alone();
  for (const int steps : {1, 4, 10}) {  // in its prompt, at its end, among its outputs
    Engine engine(small_options());
    start(engine, steps);
    Child child([](const Channel& channel) {
      Engine other(small_options(500));
      if (take_over(other, channel) != kRequest.id) _exit(2);
      const std::uint64_t digest = digest_of(other);
      put(channel.out, &digest, sizeof(digest));
    });
    hand_over(engine, kRequest.id, child.channel());
    EXPECT_EQ(engine.results()[0].state, RequestResult::State::kCancelled);
    EXPECT_EQ(engine.pool().free_blocks(), engine.pool().num_blocks());
    std::uint64_t got = 0;
    ASSERT_EQ(read(child.channel().in, &got, sizeof(got)), static_cast<ssize_t>(sizeof(got)));
    EXPECT_EQ(got, want) << steps;
    EXPECT_EQ(child.wait(), 0);
  }
}

TEST(HandOver, ASenderThatVanishesLeavesTheReceiverWhole) {
  Engine donor(small_options());
  start(donor, 6);
  const std::vector<std::uint8_t> bytes = donor.save_request(kRequest.id);
  const std::uint64_t size = bytes.size();
  std::vector<std::uint8_t> stream{'S', 'M', 'L', 'A', 'M', 'O', 'V', 'E'};
  for (int i = 0; i < 8; ++i) stream.push_back(static_cast<std::uint8_t>(size >> (8 * i)));
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  Engine engine(small_options());
  engine.submit({.id = 1, .prompt_tokens = 20, .output_tokens = 3});
  engine.step(kNow);
  const std::int64_t free = engine.pool().free_blocks();
  for (const std::size_t sent :
       {std::size_t{0}, std::size_t{7}, std::size_t{16}, stream.size() / 2, stream.size() - 1}) {
    Child child([&](const Channel& channel) { put(channel.out, stream.data(), sent); });
    EXPECT_THAT(error_of<IoError>([&] { take_over(engine, child.channel()); }), HasSubstr("closed its end")) << sent;
    EXPECT_EQ(engine.pool().free_blocks(), free) << sent;
    EXPECT_EQ(engine.results().size(), 1U) << sent;
  }
  while (engine.step(kNow)) {
  }
  EXPECT_EQ(engine.pool().free_blocks(), engine.pool().num_blocks());
}

TEST(HandOver, AReceiverThatVanishesLeavesTheRequestRunning) {
  const std::uint64_t want = digest_alone();
  Engine engine(small_options());
  start(engine, 6);
  const std::size_t size = engine.save_request(kRequest.id).size();
  for (const std::size_t taken : {std::size_t{0}, std::size_t{16}, size / 2, size + 16}) {
    const std::int64_t free = engine.pool().free_blocks();
    Child child([&](const Channel& channel) {
      std::vector<char> some(taken);
      for (std::size_t done = 0; done < taken;) {
        const ssize_t n = read(channel.in, some.data() + done, taken - done);
        if (n <= 0) _exit(3);
        done += static_cast<std::size_t>(n);
      }
    });
    EXPECT_THAT(error_of<IoError>([&] { hand_over(engine, kRequest.id, child.channel()); }),
                HasSubstr("closed its end"))
        << taken;
    EXPECT_EQ(engine.pool().free_blocks(), free) << taken;
    EXPECT_EQ(engine.results()[0].state, RequestResult::State::kRunning) << taken;
    engine.step(kNow);
  }
  EXPECT_EQ(digest_of(engine), want);
}

TEST(HandOver, APeerThatStandsStillIsGivenUp) {
  Engine engine(small_options());
  start(engine, 6);
  const Pipe there;
  const Pipe back;
  const Channel channel{.in = back.read_end(), .out = there.write_end(), .timeout_seconds = 0.05};
  EXPECT_THAT(error_of<IoError>([&] { hand_over(engine, kRequest.id, channel); }), HasSubstr("stood still"));
  EXPECT_THAT(error_of<IoError>([&] { take_over(engine, channel); }), HasSubstr("stood still"));
  EXPECT_EQ(fcntl(there.write_end(), F_GETFL) & O_NONBLOCK, 0) << "descriptors are as they were";
  EXPECT_EQ(engine.results()[0].state, RequestResult::State::kRunning);
}

TEST(HandOver, ARefusalNamesThePeersReason) {
  const std::uint64_t want = digest_alone();
  Engine engine(small_options());
  start(engine, 6);
  Child child([](const Channel& channel) {
    Engine other(small_options(40));
    const std::int64_t free = other.pool().free_blocks();
    try {
      take_over(other, channel);
    } catch (const InvalidArgument&) {
      _exit(other.pool().free_blocks() == free ? 7 : 8);
    }
  });
  EXPECT_THAT(error_of<InvalidArgument>([&] { hand_over(engine, kRequest.id, child.channel()); }),
              testing::AllOf(HasSubstr("hand over: request 5: the peer says request 5: needs"), HasSubstr("has 40")));
  EXPECT_EQ(child.wait(), 7);
  EXPECT_EQ(digest_of(engine), want);
}

TEST(HandOver, DamagedBytesAreRefusedAndThePeerIsTold) {
  Engine donor(small_options());
  start(donor, 6);
  std::vector<std::uint8_t> bytes = donor.save_request(kRequest.id);
  bytes[bytes.size() / 2] ^= 1;
  Engine engine(small_options());
  Child child([&](const Channel& channel) {
    send_snapshot(channel, bytes);
    _exit(receive_verdict(channel).find("checksum") != std::string::npos ? 7 : 8);
  });
  EXPECT_THAT(error_of<IoError>([&] { take_over(engine, child.channel()); }), HasSubstr("checksum"));
  EXPECT_EQ(child.wait(), 7);
  EXPECT_EQ(engine.pool().free_blocks(), engine.pool().num_blocks());
}

TEST(SnapshotStream, RefusesWhatIsNoneOrTooLarge) {
  Pipe way;
  const Channel channel{.in = way.read_end(), .out = way.write_end(), .timeout_seconds = 1};
  std::vector<std::uint8_t> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  send_snapshot(channel, bytes);
  std::vector<std::uint8_t> memory;
  EXPECT_THAT(receive_snapshot(channel, memory), testing::ElementsAreArray(bytes));
  bytes.resize(10);
  send_snapshot(channel, bytes);
  EXPECT_THAT(receive_snapshot(channel, memory), testing::ElementsAreArray(bytes)) << "memory that is larger";
  EXPECT_EQ(memory.size(), 1000U);
  bytes.resize(1000);
  send_snapshot(channel, bytes);
  EXPECT_THAT(error_of<InvalidArgument>([&] { receive_snapshot(channel, memory, 999); }),
              HasSubstr("got 1000 bytes, expected at most 999"));
  Pipe other;
  put(other.write_end(), "GET / HTTP/1.1\r\n", 16);
  EXPECT_THAT(error_of<IoError>([&] { receive_snapshot({.in = other.read_end()}, memory); }),
              HasSubstr("expected SMLAMOVE"));
  // A peer that says more than it sends: memory is taken as it comes.
  Pipe liar;
  put(liar.write_end(), "SMLAMOVE\0\0\0\0\0\1\0\0", 16);
  liar.close_end(1);
  EXPECT_THAT(error_of<IoError>([&] { receive_snapshot({.in = liar.read_end()}, memory); }),
              HasSubstr("0 of 1099511627776"));
  EXPECT_THAT(error_of<IoError>([&] { send_snapshot({.out = -1}, bytes); }), HasSubstr("descriptor -1"));
  Pipe back;
  const Channel verdicts{.in = back.read_end(), .out = back.write_end()};
  send_verdict(verdicts, "no room");
  EXPECT_EQ(receive_verdict(verdicts), "no room");
}

}  // namespace
}  // namespace smla
