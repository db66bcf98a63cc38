#include "sparsemla/parallel_engine.h"

#include <omp.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "core/check.h"
#include "device/memory.h"
#include "sparsemla/communicator.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "parallel engine";

/// Threads that run one function at a time, each with its number.
class Team {
 public:
  explicit Team(int size) {
    failures_.resize(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) threads_.emplace_back([this, rank] { work(rank); });
  }
  ~Team() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// Calls f(rank) on every thread and waits for all. @throws what one threw: a reason of its own before a
  /// CommunicatorError, which only tells of another's.
  void run(const std::function<void(int)>& f) {
    std::unique_lock lock(mutex_);
    task_ = &f;
    left_ = static_cast<int>(threads_.size());
    std::ranges::fill(failures_, nullptr);
    ++turn_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return left_ == 0; });
    rethrow();
  }

 private:
  void rethrow() const {
    std::exception_ptr told;
    for (const std::exception_ptr& failure : failures_) {
      if (failure == nullptr) continue;
      try {
        std::rethrow_exception(failure);
      } catch (const CommunicatorError&) {
        if (told == nullptr) told = failure;
      }
    }
    if (told != nullptr) std::rethrow_exception(told);
  }

  void work(int rank) {
    std::uint64_t seen = 0;
    while (true) {
      const std::function<void(int)>* task = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ends_ || turn_ != seen; });
        if (turn_ == seen) return;
        seen = turn_;
        task = task_;
      }
      std::exception_ptr failure;
      try {
        (*task)(rank);
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      failures_[static_cast<std::size_t>(rank)] = failure;
      if (--left_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* task_ = nullptr;
  std::uint64_t turn_ = 0;
  int left_ = 0;
  bool ends_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

/// The groups of `count` ranks each, `groups` of them: element [group][rank].
std::vector<std::vector<std::shared_ptr<Communicator>>> make_groups(int groups, int count, DeviceKind device,
                                                                    double timeout_seconds) {
  std::vector<std::vector<std::shared_ptr<Communicator>>> out(static_cast<std::size_t>(groups));
  if (count == 1) {
    for (auto& group : out) group.push_back(nullptr);
    return out;
  }
  for (auto& group : out) {
    for (auto& rank : thread_communicators(count, {.device = device, .timeout_seconds = timeout_seconds}))
      group.push_back(std::move(rank));
  }
  return out;
}

}  // namespace

struct ParallelEngine::State {
  std::vector<std::unique_ptr<Engine>> engines;
  std::unique_ptr<Team> team;  ///< null with one rank

  void run(const std::function<void(int)>& f) { team == nullptr ? f(0) : team->run(f); }
};

ParallelEngine::ParallelEngine(const EngineOptions& options, const ParallelOptions& parallel, EngineObserver* observer)
    : state_(std::make_unique<State>()) {
  check_that(parallel.tensor >= 1, kWhat, "tensor", parallel.tensor, "1 or more");
  check_that(parallel.context >= 1, kWhat, "context", parallel.context, "1 or more");
  const int ranks = parallel.ranks();
  State& s = *state_;
  s.engines.resize(static_cast<std::size_t>(ranks));
  if (ranks == 1) {
    s.engines[0] = std::make_unique<Engine>(options, observer);
    return;
  }
  const DeviceKind device = options.layer.device;
  check_that(parallel.gpus.empty() || static_cast<int>(parallel.gpus.size()) == ranks, kWhat, "gpus",
             static_cast<std::int64_t>(parallel.gpus.size()), words(ranks, ", one for each rank"));
  if (device == DeviceKind::kCuda) {
    const auto present = static_cast<int>(gpus().size());
    for (int r = 0; r < ranks; ++r) {
      const int gpu = parallel.gpus.empty() ? r : parallel.gpus[static_cast<std::size_t>(r)];
      check_that(gpu >= 0 && gpu < present, kWhat, words("GPU of rank ", r), gpu,
                 words("0 to ", present - 1, ", the GPUs of this machine"));
    }
  }
  const auto tensor = make_groups(parallel.context, parallel.tensor, device, parallel.timeout_seconds);
  const auto context = make_groups(parallel.tensor, parallel.context, device, parallel.timeout_seconds);
  const int threads = options.layer.threads > 0 ? options.layer.threads : omp_get_max_threads();
  s.team = std::make_unique<Team>(ranks);
  s.run([&](int rank) {
    const auto c = static_cast<std::size_t>(rank % parallel.context);
    const auto t = static_cast<std::size_t>(rank / parallel.context);
    EngineOptions own = options;
    own.layer.threads = std::max(1, threads / ranks);
    own.layer.tensor_parallel = tensor[c][t];
    own.layer.context_parallel = context[t][c];
    // Current for as long as the thread lives: an engine belongs to it.
    if (device == DeviceKind::kCuda)
      make_current(parallel.gpus.empty() ? rank : parallel.gpus[static_cast<std::size_t>(rank)]);
    s.engines[static_cast<std::size_t>(rank)] = std::make_unique<Engine>(own, rank == 0 ? observer : nullptr);
  });
}

ParallelEngine::~ParallelEngine() {
  try {
    state_->run([&](int rank) { state_->engines[static_cast<std::size_t>(rank)].reset(); });
  } catch (const std::exception&) {  // a destructor has nobody to tell
  }
}

void ParallelEngine::submit(const RequestSpec& request) {
  state_->run([&](int rank) { state_->engines[static_cast<std::size_t>(rank)]->submit(request); });
}

bool ParallelEngine::step(const std::function<double()>& now) {
  std::vector<char> more(state_->engines.size(), 0);
  state_->run([&](int rank) {
    more[static_cast<std::size_t>(rank)] = state_->engines[static_cast<std::size_t>(rank)]->step(now) ? 1 : 0;
  });
  return more[0] != 0;
}

void ParallelEngine::cancel(std::int64_t id) {
  state_->run([&](int rank) { state_->engines[static_cast<std::size_t>(rank)]->cancel(id); });
}

std::vector<RequestResult> ParallelEngine::take_ended() {
  std::vector<RequestResult> out;
  state_->run([&](int rank) {
    std::vector<RequestResult> own = state_->engines[static_cast<std::size_t>(rank)]->take_ended();
    if (rank == 0) out = std::move(own);
  });
  return out;
}

bool ParallelEngine::idle() const { return state_->engines[0]->idle(); }
int ParallelEngine::ranks() const { return static_cast<int>(state_->engines.size()); }
const Engine& ParallelEngine::engine(int rank) const { return *state_->engines.at(static_cast<std::size_t>(rank)); }

}  // namespace smla
