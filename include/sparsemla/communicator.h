#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/device.h"
#include "sparsemla/dtype.h"
#include "sparsemla/export.h"

namespace SMLA_API smla {

/// One rank's way to the others of its group, for tensor parallel (sum) and context parallel (gather). Used by one
/// thread at a time; every rank makes the same calls in the same order (docs/parallel.md).
///
/// Every call throws CommunicatorError when a rank has gone, stands still or does something else, and after the first
/// failure always, with the text of that failure. No call waits for ever.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;  ///< leaves the group: ranks that wait for this one get an error

  virtual int rank() const = 0;           ///< 0 to ranks() - 1
  virtual int ranks() const = 0;          ///< 1 or more
  virtual DeviceKind device() const = 0;  ///< whose memory sum and gather take

  /// Waits until every rank is here with the same `text`: what the next step computes. On the host; call it before a
  /// step's first sum or gather, so that no rank begins a step that others see otherwise.
  virtual void agree(std::string_view text) = 0;
  /// Numbers of BF16 or F32 at `data` become the sums over all ranks, the same bits on each. On a GPU queued on
  /// `stream`, also into a CUDA graph.
  virtual void sum(void* data, std::int64_t count, DType dtype, Stream stream) = 0;
  /// `data` has a part of `bytes` bytes for each rank, in their order: the own part is there, the others are filled in.
  /// On a GPU queued on `stream`.
  virtual void gather(void* data, std::size_t bytes, Stream stream) = 0;
  /// Waits until all that is queued on `stream` is done; what it computed is whole when this returns.
  virtual void wait(Stream stream) = 0;
  /// Ends the group: this rank's calls and those of the others fail with `reason`, also those that wait already. May be
  /// called from any thread.
  virtual void abort(std::string_view reason) noexcept = 0;
};

/// What the ranks of a group have in common.
struct CommunicatorOptions {
  /// kCpu: numbers are summed in the order of ranks, in float32, rounded once. kCuda: NCCL, opened at run time, on the
  /// GPU that is current when the rank first calls agree, sum or gather.
  DeviceKind device = DeviceKind::kCpu;
  /// Seconds that the slowest rank may stay behind the first one that waits for it on the host. A rank that dies is
  /// noticed at once.
  double timeout_seconds = 8;
  /// kCuda: seconds from agree to the end of wait, after which a step counts as hung although every rank lives.
  double step_seconds = 60;
};

/// The group of one rank: agrees, sums and gathers nothing.
std::unique_ptr<Communicator> single_communicator(DeviceKind device = DeviceKind::kCpu);

/// A group of this process: element r is for the thread that is rank r.
/// @throws InvalidArgument for less than 1 rank; Unsupported for a GPU where there is no CUDA or no NCCL.
std::vector<std::unique_ptr<Communicator>> thread_communicators(int ranks, const CommunicatorOptions& options = {});

/// A group of processes, one for each rank. Rank 0 opens a port and makes the group's id, which the host hands over to
/// the others by whatever way it has; they join by it.
class SMLA_API ProcessGroup {
 public:
  /// In the process of rank 0. `host` is the address of this machine that the others can reach.
  /// @throws InvalidArgument for less than 1 rank; IoError when no port can be opened there.
  explicit ProcessGroup(int ranks, const std::string& host = "127.0.0.1");
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// "<address>:<port>:<ranks>:<a secret>".
  const std::string& id() const;
  /// Rank 0's communicator, once all others have joined. Once a group.
  /// @throws CommunicatorError when they have not within options.timeout_seconds.
  std::unique_ptr<Communicator> join(const CommunicatorOptions& options = {});
  /// In the process of another rank, which may call it before rank 0 waits.
  /// @throws InvalidArgument for an id or rank that cannot be; CommunicatorError when nobody answers there.
  static std::unique_ptr<Communicator> join(const std::string& id, int rank, const CommunicatorOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace smla
