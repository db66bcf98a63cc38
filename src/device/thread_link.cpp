// Ranks that are threads of one process: each posts where its bytes are, and all meet before and after they are read.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "device/host_link.h"

namespace smla::device {

namespace {

/// What the links of a group share.
class Meeting {
 public:
  Meeting(int ranks, double timeout_seconds) : timeout_(timeout_seconds), posted_(static_cast<std::size_t>(ranks)) {}

  int ranks() const { return static_cast<int>(posted_.size()); }
  std::span<const Bytes> posted() const { return posted_; }

  /// Posts `own` and waits until all have; then everybody reads, and calls finish().
  void arrive(int rank, Bytes own) {
    std::unique_lock lock(mutex_);
    throw_if_broken();
    posted_[static_cast<std::size_t>(rank)] = own;
    if (here_ + 1 == ranks()) reading_ = ranks();
    pass(lock, rank);
  }
  /// Waits until all have read. When the group breaks meanwhile, it still waits for those who read: they look at memory
  /// that the caller may free.
  void finish(int rank) {
    std::unique_lock lock(mutex_);
    --reading_;
    changed_.notify_all();
    try {
      throw_if_broken();
      pass(lock, rank);
    } catch (...) {
      changed_.wait(lock, [&] { return reading_ == 0; });
      throw;
    }
  }
  /// In place of finish(), by one that failed. It waits for those who read, as finish() does.
  void stop_reading() {
    std::unique_lock lock(mutex_);
    --reading_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return reading_ == 0; });
  }
  void check() {
    const std::unique_lock lock(mutex_);
    if (!failure_.empty()) throw CommunicatorError(failure_);
  }
  /// In good order.
  void part(int rank) noexcept {
    const std::unique_lock lock(mutex_);
    if (parted_.empty()) parted_ = "rank " + std::to_string(rank) + ": left the group";
    changed_.notify_all();
  }
  void leave(int rank, std::string_view reason) noexcept {
    const std::unique_lock lock(mutex_);
    if (failure_.empty()) failure_ = "rank " + std::to_string(rank) + ": " + std::string(reason);
    changed_.notify_all();
  }

 private:
  void throw_if_broken() const {
    if (!failure_.empty()) throw CommunicatorError(failure_);
    if (!parted_.empty()) throw CommunicatorError(parted_);
  }

  void pass(std::unique_lock<std::mutex>& lock, int rank) {
    const std::uint64_t turn = turn_;
    if (++here_ == ranks()) {
      here_ = 0;
      ++turn_;
      changed_.notify_all();
      return;
    }
    const bool in_time = changed_.wait_for(lock, std::chrono::duration<double>(timeout_),
                                           [&] { return turn_ != turn || !failure_.empty() || !parted_.empty(); });
    // Whoever saw the turn pass goes on: what it reads was posted.
    if (turn_ != turn) return;
    if (!in_time)
      failure_ = "rank " + std::to_string(rank) + " waited " + std::to_string(timeout_) + " s for " +
                 std::to_string(ranks() - here_) + " of " + std::to_string(ranks()) + " ranks";
    changed_.notify_all();
    throw_if_broken();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  double timeout_;
  std::vector<Bytes> posted_;
  int here_ = 0;
  int reading_ = 0;
  std::uint64_t turn_ = 0;
  std::string failure_;
  std::string parted_;  ///< who left in good order
};

class ThreadLink : public HostLink {
 public:
  ThreadLink(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
  ~ThreadLink() override { meeting_->part(rank_); }

  int rank() const override { return rank_; }
  int ranks() const override { return meeting_->ranks(); }
  void exchange(Bytes own, const std::function<void(std::span<const Bytes>)>& use) override {
    meeting_->arrive(rank_, own);
    try {
      use(meeting_->posted());
    } catch (const std::exception& e) {
      meeting_->leave(rank_, e.what());
      meeting_->stop_reading();
      throw;
    }
    meeting_->finish(rank_);
  }
  void check() override { meeting_->check(); }
  void leave(std::string_view reason) noexcept override { meeting_->leave(rank_, reason); }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<HostLink>> thread_links(int ranks, double timeout_seconds) {
  const auto meeting = std::make_shared<Meeting>(ranks, timeout_seconds);
  std::vector<std::unique_ptr<HostLink>> links;
  for (int r = 0; r < ranks; ++r) links.push_back(std::make_unique<ThreadLink>(meeting, r));
  return links;
}

}  // namespace smla::device
