// Ranks on GPUs: NCCL moves the numbers, the host link says who lives and what is computed. NCCL is opened at run time
// and needs none of its headers; a thread of each communicator watches the link and ends NCCL's work when a rank goes.
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "core/check.h"
#include "device/communicators.h"
#include "device/memory.h"
#include "device/toolkit_library.h"

namespace smla::device {

namespace {

/// NCCL's 128 bytes that bring a group together; passed by value, as its header has it.
struct NcclId {
  std::array<char, 128> bytes;
};

// Numbers of NCCL's interface, which never change.
constexpr int kSuccess = 0;
constexpr int kSum = 0;
constexpr int kUint8 = 1;
constexpr int kFloat32 = 7;
constexpr int kBfloat16 = 9;
constexpr int kLeastVersion = 21800;  ///< 2.18

/// What is called of NCCL, whose status and enumerations are ints and whose handles are pointers.
struct Nccl {
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(NcclId*) = nullptr;
  int (*init_rank)(void**, int, NcclId, int) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, void*, void*) = nullptr;
  int (*get_async_error)(void*, int*) = nullptr;
  int (*comm_abort)(void*) = nullptr;
  int (*comm_destroy)(void*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  std::string missing;  ///< why it cannot be used; empty when it can
};

Nccl open() {
  Nccl nccl;
  ToolkitLibrary library("libnccl.so.2", "NCCL");
  library.bind("ncclGetVersion", nccl.get_version);
  library.bind("ncclGetUniqueId", nccl.get_unique_id);
  library.bind("ncclCommInitRank", nccl.init_rank);
  library.bind("ncclAllReduce", nccl.all_reduce);
  library.bind("ncclAllGather", nccl.all_gather);
  library.bind("ncclCommGetAsyncError", nccl.get_async_error);
  library.bind("ncclCommAbort", nccl.comm_abort);
  library.bind("ncclCommDestroy", nccl.comm_destroy);
  library.bind("ncclGetErrorString", nccl.error_string);
  nccl.missing = library.missing();
  if (!nccl.missing.empty()) return nccl;
  int version = 0;
  if (nccl.get_version(&version) != kSuccess || version < kLeastVersion)
    nccl.missing = "NCCL " + std::to_string(version) + " is older than " + std::to_string(kLeastVersion);
  return nccl;
}

const Nccl& nccl() {
  static const Nccl opened = open();
  return opened;
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<HostLink> link, double step_seconds)
      : link_(std::move(link)), step_seconds_(step_seconds) {}

  /// Collectives that were queued must be done by then, or the group be broken: the last wait() saw to it.
  ~NcclCommunicator() override {
    stop_watch();
    if (busy_since_.load() != kIdle) link_->leave("ended in the middle of a step");
    const std::lock_guard lock(comm_mutex_);
    if (comm_ == nullptr) return;
    // Destroying waits for the other ranks; after a failure, or with work in flight, only abort ends.
    (void)(busy_since_.load() == kIdle ? nccl().comm_destroy(comm_) : nccl().comm_abort(comm_));
  }

  int rank() const override { return link_->rank(); }
  int ranks() const override { return link_->ranks(); }
  DeviceKind device() const override { return DeviceKind::kCuda; }

  void agree(std::string_view text) override {
    failure_.check();
    connect();
    try {
      device::agree(*link_, text);
    } catch (const CommunicatorError& e) {
      fail(e.what());
    }
    failure_.check();
    busy_since_.store(now());
  }

  void sum(void* data, std::int64_t count, DType dtype, Stream stream) override {
    check_sum(count, dtype);
    queue("ncclAllReduce", [&](void* comm) {
      return nccl().all_reduce(data, data, static_cast<std::size_t>(count),
                               dtype == DType::kBF16 ? kBfloat16 : kFloat32, kSum, comm, stream.handle);
    });
  }

  void gather(void* data, std::size_t bytes, Stream stream) override {
    const void* own = static_cast<const std::uint8_t*>(data) + static_cast<std::size_t>(rank()) * bytes;
    queue("ncclAllGather",
          [&](void* comm) { return nccl().all_gather(own, data, bytes, kUint8, comm, stream.handle); });
  }

  void wait(Stream stream) override {
    failure_.check();
    // A rank that goes makes the watch abort NCCL's kernels, and this returns.
    try {
      synchronize(DeviceKind::kCuda, stream);
    } catch (const CudaError& e) {
      failure_.check();  // the group's reason comes first
      fail(std::string("rank ") + std::to_string(rank()) + ": " + e.what());
    }
    failure_.check();
    busy_since_.store(kIdle);
  }

  void abort(std::string_view reason) noexcept override {
    try {
      fail("rank " + std::to_string(rank()) + ": " + std::string(reason));
    } catch (...) {  // no memory for the reason
    }
  }

 private:
  static constexpr std::int64_t kIdle = -1;
  static constexpr auto kLook = std::chrono::milliseconds(50);

  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  /// Queues a collective.
  void queue(const char* what, const std::function<int(void*)>& call) {
    failure_.check();
    connect();
    void* comm = nullptr;
    {
      const std::lock_guard lock(comm_mutex_);
      comm = comm_;
      if (comm != nullptr) ++in_call_;
    }
    if (comm == nullptr) {
      failure_.check();
      throw CommunicatorError(std::string(what) + ": the group has ended");
    }
    const int status = call(comm);
    {
      const std::lock_guard lock(comm_mutex_);
      --in_call_;
    }
    call_ended_.notify_all();
    failure_.check();
    if (status != kSuccess) {
      fail("rank " + std::to_string(rank()) + ": " + what + ": " + nccl().error_string(status));
      failure_.check();
    }
  }

  /// Brings the group together: rank 0's unique id over the link, then NCCL's own meeting, which has no deadline and so
  /// runs on a thread that is left behind when it does not come back.
  void connect() {
    if (connected_) return;
    connected_ = true;
    ordinal_ = current_device(DeviceKind::kCuda);
    NcclId id{};
    int status = kSuccess;
    if (rank() == 0) status = nccl().get_unique_id(&id);
    if (status != kSuccess) fail(std::string("ncclGetUniqueId: ") + nccl().error_string(status));
    try {
      link_->exchange(
          {reinterpret_cast<const std::uint8_t*>(id.bytes.data()), id.bytes.size()},
          [&](std::span<const Bytes> all) { std::memcpy(id.bytes.data(), all[0].data(), id.bytes.size()); });
    } catch (const CommunicatorError& e) {
      fail(e.what());
    }
    failure_.check();
    struct Made {
      int status = kSuccess;
      void* comm = nullptr;
    };
    std::promise<Made> promise;
    std::future<Made> made = promise.get_future();
    std::thread([id, promise = std::move(promise), ranks = ranks(), rank = rank(), ordinal = ordinal_]() mutable {
      Made result;
      try {
        const CurrentDevice current(DeviceKind::kCuda, ordinal);
        result.status = nccl().init_rank(&result.comm, ranks, id, rank);
        promise.set_value(result);
      } catch (...) {
        promise.set_exception(std::current_exception());
      }
    }).detach();
    const std::int64_t begun = now();
    while (made.wait_for(kLook) != std::future_status::ready) {
      try {
        link_->check();
        if (static_cast<double>(now() - begun) > step_seconds_ * 1e3)
          throw CommunicatorError("ncclCommInitRank does not come back");
      } catch (const CommunicatorError& e) {
        fail(e.what());
        failure_.check();
      }
    }
    const Made result = made.get();
    if (result.status != kSuccess) {
      fail("rank " + std::to_string(rank()) + ": ncclCommInitRank: " + nccl().error_string(result.status));
      failure_.check();
    }
    {
      const std::lock_guard lock(comm_mutex_);
      comm_ = result.comm;
    }
    watch_ = std::thread([this] { watch(); });
  }

  /// The first failure stays, is told to all ranks, and ends what NCCL has in flight.
  void fail(const std::string& text) {
    if (!failure_.set(text)) return;
    // The link says by itself whose reason it is.
    std::string_view reason = text;
    const std::string own = "rank " + std::to_string(rank()) + ": ";
    if (reason.starts_with(own)) reason.remove_prefix(own.size());
    link_->leave(reason);
    end_work();
  }

  /// Aborts NCCL's kernels and calls. A call that another thread is in may end first; one that waits for a rank that
  /// has gone ends only by this.
  void end_work() {
    void* comm = nullptr;
    {
      std::unique_lock lock(comm_mutex_);
      comm = std::exchange(comm_, nullptr);
      call_ended_.wait_for(lock, std::chrono::seconds(1), [&] { return in_call_ == 0; });
    }
    if (comm != nullptr) (void)nccl().comm_abort(comm);
  }

  void watch() {
    const CurrentDevice current(DeviceKind::kCuda, ordinal_);
    std::unique_lock lock(watch_mutex_);
    while (!watch_wake_.wait_for(lock, kLook, [&] { return watch_ends_; })) {
      try {
        link_->check();
        const std::int64_t since = busy_since_.load();
        if (since != kIdle && static_cast<double>(now() - since) > step_seconds_ * 1e3) {
          throw CommunicatorError("rank " + std::to_string(rank()) + ": a step hangs for more than " +
                                  std::to_string(step_seconds_) + " s");
        }
        int status = kSuccess;
        void* comm = nullptr;
        {
          const std::lock_guard comm_lock(comm_mutex_);
          comm = comm_;
          if (comm == nullptr) return;
          if (nccl().get_async_error(comm, &status) != kSuccess) status = kSuccess;
        }
        constexpr int kInProgress = 7;
        if (status != kSuccess && status != kInProgress)
          throw CommunicatorError("rank " + std::to_string(rank()) + ": NCCL: " + nccl().error_string(status));
      } catch (const std::exception& e) {
        fail(e.what());
        return;
      }
    }
  }

  void stop_watch() {
    if (!watch_.joinable()) return;
    {
      const std::lock_guard lock(watch_mutex_);
      watch_ends_ = true;
    }
    watch_wake_.notify_all();
    watch_.join();
  }

  std::unique_ptr<HostLink> link_;
  double step_seconds_;
  Failure failure_;
  bool connected_ = false;
  int ordinal_ = 0;
  std::mutex comm_mutex_;
  void* comm_ = nullptr;  ///< null before the group came together and after it ended
  int in_call_ = 0;
  std::condition_variable call_ended_;
  std::atomic<std::int64_t> busy_since_ = kIdle;
  std::thread watch_;
  std::mutex watch_mutex_;
  std::condition_variable watch_wake_;
  bool watch_ends_ = false;
};

}  // namespace

void check_nccl() {
  std::string reason;
  if (!built_with_cuda()) throw Unsupported("communicator: cuda: this build has no CUDA");
  if (gpus(&reason).empty()) throw Unsupported("communicator: cuda: " + reason);
  if (!nccl().missing.empty()) throw Unsupported("communicator: cuda: " + nccl().missing);
}

std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<HostLink> link, double step_seconds) {
  return std::make_unique<NcclCommunicator>(std::move(link), step_seconds);
}

}  // namespace smla::device
