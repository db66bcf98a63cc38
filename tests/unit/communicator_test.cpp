#include "sparsemla/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "device/host_link.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Runs f(communicator) on a thread for each rank; the text of what each threw, empty for none. A rank that returns or
/// throws leaves its group.
std::vector<std::string> on_threads(int ranks, const CommunicatorOptions& options,
                                    const std::function<void(Communicator&)>& f) {
  auto group = thread_communicators(ranks, options);
  std::vector<std::string> thrown(group.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r, own = std::move(group[r])]() mutable {
      try {
        f(*own);
      } catch (const std::exception& e) {
        thrown[r] = e.what();
      }
      own.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// Runs f(communicator) in a process for each rank but 0, which is this one: exit status 0 when f returns, 3 when it
/// throws a CommunicatorError, 4 for another; then f(rank 0's).
struct ProcessResult {
  std::string thrown;         ///< of rank 0
  std::vector<int> statuses;  ///< of waitpid, ranks 1 and up
  double seconds = 0;
};
ProcessResult on_processes(int ranks, const CommunicatorOptions& options, const std::function<void(Communicator&)>& f) {
  ProcessGroup group(ranks);
  std::vector<pid_t> children;
  for (int r = 1; r < ranks; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      int status = 0;
      try {
        const auto own = ProcessGroup::join(group.id(), r, options);
        f(*own);
      } catch (const CommunicatorError&) {
        status = 3;
      } catch (...) {
        status = 4;
      }
      _exit(status);
    }
    children.push_back(child);
  }
  ProcessResult result;
  const auto start = Clock::now();
  try {
    const auto own = group.join(options);
    f(*own);
  } catch (const std::exception& e) {
    result.thrown = e.what();
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    result.statuses.push_back(status);
  }
  result.seconds = seconds_since(start);
  return result;
}

int exit_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

/// Sums, gathers and agreements that every rank checks for itself.
void check_collectives(Communicator& c) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw Error(what);
  };
  for (int round = 0; round < 20; ++round) {
    c.agree("round " + std::to_string(round));
    std::vector<float> numbers(37 * static_cast<std::size_t>(round));
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = static_cast<float>(i) + 1000.0F * static_cast<float>(c.rank() + round);
    c.sum(numbers.data(), static_cast<std::int64_t>(numbers.size()), DType::kF32, {});
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      float want = 0;
      for (int r = 0; r < c.ranks(); ++r) want += static_cast<float>(i) + 1000.0F * static_cast<float>(r + round);
      require(numbers[i] == want, "sum of F32");
    }
    // 1 + 2^-8 rounds to 1 in bf16; the ranks' parts are summed before they are rounded.
    std::vector<BF16> small(3, to_bf16(c.rank() == 0 ? 1.0F : 0x1p-8F));
    c.sum(small.data(), 3, DType::kBF16, {});
    const float sum = 1.0F + static_cast<float>(c.ranks() - 1) * 0x1p-8F;
    for (const BF16 x : small) require(x == to_bf16(sum), "sum of BF16");

    const auto bytes = static_cast<std::size_t>(5 * round + 1);
    std::vector<std::uint8_t> parts(bytes * static_cast<std::size_t>(c.ranks()), 0xEE);
    std::memset(parts.data() + bytes * static_cast<std::size_t>(c.rank()), c.rank() + round, bytes);
    c.gather(parts.data(), bytes, {});
    for (std::size_t i = 0; i < parts.size(); ++i)
      require(parts[i] == i / bytes + static_cast<std::size_t>(round), "gather");
    c.wait({});
  }
  c.agree("the end");
}

TEST(Communicator, ThreadsSumGatherAndAgree) {
  for (const int ranks : {1, 2, 3, 4, 8})
    EXPECT_THAT(on_threads(ranks, {}, check_collectives), testing::Each("")) << ranks;
}

TEST(Communicator, ProcessesSumGatherAndAgree) {
  for (const int ranks : {1, 2, 4}) {
    const ProcessResult result = on_processes(ranks, {}, check_collectives);
    EXPECT_EQ(result.thrown, "") << ranks;
    for (const int status : result.statuses) EXPECT_EQ(exit_of(status), 0) << ranks;
  }
}

TEST(Communicator, ASingleRankIsAGroup) {
  const auto one = single_communicator();
  EXPECT_EQ(one->ranks(), 1);
  one->agree("anything");
  float number = 3;
  one->sum(&number, 1, DType::kF32, {});
  EXPECT_EQ(number, 3);
  one->abort("enough");
  EXPECT_THROW(one->wait({}), CommunicatorError);
}

TEST(Communicator, EveryRankIsToldWhenOneDisagrees) {
  const auto start = Clock::now();
  const auto thrown = on_threads(4, {}, [](Communicator& c) {
    c.agree("step 1: 7 tokens");
    c.agree(c.rank() == 2 ? "step 2: 8 tokens" : "step 2: 9 tokens");
  });
  EXPECT_LT(seconds_since(start), 2);
  EXPECT_THAT(thrown,
              testing::Each(testing::HasSubstr("rank 0 is at \"step 2: 9 tokens\", rank 2 at \"step 2: 8 tokens\"")));
}

/// A rank that fails on what it read comes back only when the others have read its own bytes: its caller frees them.
TEST(Communicator, AThreadThatFailsWaitsForThoseWhoRead) {
  auto links = device::thread_links(3, 10);
  std::array<std::uint8_t, 3> bytes{10, 11, 12};
  std::array<int, 3> read{};
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      EXPECT_THROW(links[r]->exchange({&bytes[r], 1},
                                      [&](std::span<const device::Bytes> all) {
                                        if (r == 0) throw CommunicatorError("this one fails at once");
                                        std::this_thread::sleep_for(std::chrono::milliseconds(50 * r));
                                        for (const device::Bytes& one : all) read[r] += one[0];
                                      }),
                   CommunicatorError);
      bytes[r] = 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(read, testing::ElementsAre(0, 33, 33));
}

TEST(Communicator, EveryRankIsToldWhenSizesDiffer) {
  const auto sums = on_threads(3, {}, [](Communicator& c) {
    std::vector<float> numbers(c.rank() == 1 ? 8 : 9);
    c.sum(numbers.data(), static_cast<std::int64_t>(numbers.size()), DType::kF32, {});
  });
  EXPECT_THAT(sums, testing::Each(testing::HasSubstr("bytes")));
  const auto gathers = on_threads(3, {}, [](Communicator& c) {
    std::vector<std::uint8_t> parts(30);
    c.gather(parts.data(), c.rank() == 2 ? 10 : 9, {});
  });
  EXPECT_THAT(gathers, testing::Each(testing::HasSubstr("bytes")));
}

TEST(Communicator, EveryRankIsToldWhenAThreadEnds) {
  for (const int dies : {0, 1, 3}) {
    const auto start = Clock::now();
    const auto thrown = on_threads(4, {}, [dies](Communicator& c) {
      c.agree("alive");
      if (c.rank() == dies) throw Error("a fault of its own");
      float number = 1;
      c.sum(&number, 1, DType::kF32, {});
    });
    EXPECT_LT(seconds_since(start), 2);
    for (int r = 0; r < 4; ++r) {
      const std::string& text = thrown[static_cast<std::size_t>(r)];
      EXPECT_EQ(text, r == dies ? "a fault of its own" : "rank " + std::to_string(dies) + ": left the group");
    }
  }
}

TEST(Communicator, AnAbortTellsItsReasonToThoseWhoWait) {
  const auto thrown = on_threads(3, {}, [](Communicator& c) {
    if (c.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      c.abort("out of memory");
    }
    c.agree("never");
  });
  EXPECT_THAT(thrown, testing::Each("rank 1: out of memory"));
}

TEST(Communicator, ARankThatStandsStillIsAnErrorInTime) {
  const CommunicatorOptions options{.timeout_seconds = 0.3};
  std::vector<double> waited(3, -1);
  const auto thrown = on_threads(3, options, [&](Communicator& c) {
    if (c.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
    }
    const auto start = Clock::now();
    try {
      c.agree("here");
    } catch (...) {
      waited[static_cast<std::size_t>(c.rank())] = seconds_since(start);
      throw;
    }
  });
  EXPECT_THAT(thrown, testing::Each(testing::HasSubstr("waited")));
  for (const double seconds : waited) EXPECT_LT(seconds, 3);
}

TEST(Communicator, AfterAFailureEveryCallFails) {
  const auto thrown = on_threads(2, {}, [](Communicator& c) {
    try {
      c.agree(c.rank() == 0 ? "a" : "b");
    } catch (const CommunicatorError&) {
    }
    float number = 1;
    EXPECT_THROW(c.wait({}), CommunicatorError);
    EXPECT_THROW(c.gather(&number, 0, {}), CommunicatorError);
    c.sum(&number, 1, DType::kF32, {});
  });
  EXPECT_THAT(thrown, testing::Each(testing::HasSubstr("disagree")));
}

/// The default limits: what the issue asks for with room to spare.
TEST(Communicator, AKilledProcessIsAnErrorForAll) {
  for (const int dies : {1, 3}) {
    const ProcessResult result = on_processes(4, {}, [dies](Communicator& c) {
      c.agree("alive");
      if (c.rank() == dies) std::raise(SIGKILL);
      std::vector<float> numbers(1000, 1.0F);
      for (int i = 0; i < 1000; ++i) c.sum(numbers.data(), 1000, DType::kF32, {});
    });
    EXPECT_LT(result.seconds, 9);
    EXPECT_THAT(result.thrown, testing::HasSubstr("rank " + std::to_string(dies)));
    for (int r = 1; r < 4; ++r) {
      const int status = result.statuses[static_cast<std::size_t>(r) - 1];
      EXPECT_EQ(exit_of(status), r == dies ? -1 : 3) << "rank " << r;
    }
  }
}

TEST(Communicator, AStoppedProcessIsAnErrorInTime) {
  const ProcessResult result = on_processes(3, {.timeout_seconds = 0.5}, [](Communicator& c) {
    c.agree("alive");
    if (c.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
    c.agree("still alive");
  });
  EXPECT_THAT(result.thrown, testing::HasSubstr("rank 2 stands still"));
  EXPECT_EQ(exit_of(result.statuses[0]), 3);
  EXPECT_EQ(exit_of(result.statuses[1]), 3);
}

TEST(Communicator, DisagreeingProcessesAreToldWhatEachSays) {
  const ProcessResult result =
      on_processes(3, {}, [](Communicator& c) { c.agree(c.rank() == 1 ? "5 tokens" : "6 tokens"); });
  EXPECT_THAT(result.thrown, testing::HasSubstr("rank 0 is at \"6 tokens\", rank 1 at \"5 tokens\""));
  EXPECT_THAT(result.statuses, testing::Each(testing::ResultOf(exit_of, 3)));
}

TEST(Communicator, AnAbsentProcessIsAnErrorInTime) {
  ProcessGroup group(2);
  const auto start = Clock::now();
  EXPECT_THROW(group.join({.timeout_seconds = 0.2}), CommunicatorError);
  EXPECT_LT(seconds_since(start), 2);
}

TEST(Communicator, AStrangerDoesNotJoin) {
  ProcessGroup group(2);
  std::string id = group.id();
  id.back() = id.back() == '0' ? '1' : '0';
  std::thread stranger([&] { EXPECT_THROW(ProcessGroup::join(id, 1, {.timeout_seconds = 0.5}), CommunicatorError); });
  EXPECT_THROW(group.join({.timeout_seconds = 0.5}), CommunicatorError);
  stranger.join();
}

TEST(Communicator, ImpossibleGroupsAreRefused) {
  EXPECT_THROW(thread_communicators(0), InvalidArgument);
  EXPECT_THROW(thread_communicators(2, {.timeout_seconds = 0}), InvalidArgument);
  EXPECT_THROW(ProcessGroup(0), InvalidArgument);
  EXPECT_THROW(ProcessGroup::join("nonsense", 1), InvalidArgument);
  ProcessGroup group(2);
  EXPECT_THROW(ProcessGroup::join(group.id(), 0), InvalidArgument);
  EXPECT_THROW(ProcessGroup::join(group.id(), 2), InvalidArgument);
  const auto one = thread_communicators(1);
  std::int32_t number = 1;
  EXPECT_THROW(one[0]->sum(&number, 1, DType::kI32, {}), InvalidArgument);
  if (!built_with_cuda()) {
    EXPECT_THROW(thread_communicators(2, {.device = DeviceKind::kCuda}), Unsupported);
  }
}

}  // namespace
}  // namespace smla
