#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "sparsemla/device.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/tensor_view.h"

// What the bench needs of CUDA beside the library: gpu_*.cu, or no_cuda.cpp, where everything throws Unsupported. All
// of it works on the first GPU, and what takes a stream only queues.

namespace smla::bench {

/// The first GPU as the runtime reports it.
struct GpuFacts {
  std::string name;
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  std::size_t memory_bytes = 0;
  int driver_cuda = 0;   ///< newest CUDA that the driver knows, 13000 for 13.0
  int runtime_cuda = 0;  ///< of the runtime in this program
};
GpuFacts gpu_facts();
std::size_t gpu_free_bytes();

/// A call recorded behind something that it shall not overlap, with an event before and after both.
class GpuRecording {
 public:
  /// `call` must have run once before, so that nothing is loaded or chosen while it is recorded.
  GpuRecording(Stream stream, const std::function<void()>& before, const std::function<void()>& call);
  void launch(Stream stream) const;
  double seconds() const;  ///< between the two events of the latest launch, which must be complete. @throws CudaError

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> handle_;
};

/// Nodes of a recorded call by kind.
struct GpuNodes {
  int kernels = 0;  ///< of this library
  int library = 0;  ///< kernels of other libraries: cuBLASLt's
  int memsets = 0;
  int copies = 0;
  std::map<std::string, int> names{};  ///< this library's kernels by their mangled names
};
/// Records `call`, which must have run before, and counts. Events and forks between streams are no nodes that do
/// anything.
GpuNodes gpu_count_nodes(Stream stream, const std::function<void()>& call);

/// Reads all of it, in order, and keeps nothing.
void gpu_sweep(const void* memory, std::size_t bytes, Stream stream);
/// Copies memory of whole 16-byte words with a kernel: a recorded memcpy may go through a copy engine, which is slower.
void gpu_copy(void* to, const void* from, std::size_t bytes, Stream stream);
/// Whole rows of a cache with 8-byte records, at these slots: what reading without any arithmetic takes.
void gpu_gather(const PagedCache& cache, const std::int32_t* slots, std::int64_t rows, Stream stream);
/// One thread that reads `reads` numbers, each where the one before says, and writes the last: with 0 what starting and
/// ending a kernel takes.
void gpu_follow(const std::int32_t* next, int reads, std::int32_t* last, Stream stream);
/// mma.sync m16n8k16 over bf16 in registers, `rounds` rounds of every warp; returns the floating-point operations.
double gpu_multiply_add(std::int64_t rounds, Stream stream);

/// Uniform numbers in [-width, width), a function of (seed, place); BF16, E4M3 or F32, contiguous.
void gpu_random(const TensorView& to, std::uint64_t seed, float width, Stream stream);
/// Slot i of `to`, i < rows, becomes the row of `from` in slot slots[i]; without slots in one that (seed, i) chooses.
void gpu_copy_rows(const PagedCache& to, const PagedCache& from, const std::int32_t* slots, std::int64_t rows,
                   std::uint64_t seed, Stream stream);
/// Elements of a contiguous BF16, F32 or E4M3 tensor that are NaN. Waits.
std::int64_t gpu_count_nan(const ConstTensorView& values, Stream stream);

/// Which entries of its request's list a query names.
struct IndexRule {
  std::int64_t queries_of_request =
      1;  ///< query t belongs to request t / queries_of_request and is its query t % queries_of_request
  std::int64_t entries = 0;  ///< of a request
  enum class Kind : std::uint8_t {
    kAll,      ///< entry c in column c
    kSliding,  ///< in order, beginning below `first_below` as (seed, request) chooses, one later for each further query
    kRandom,   ///< distinct random entries, another draw for each query
  } kind = Kind::kAll;
  std::uint64_t seed = 0;
  std::int64_t first_below = 1;
  std::int64_t page = 64;  ///< entries of a block
};
/// slots [queries, width] I32 from tables [requests, blocks of `entries`] I32: slot = table[entry / page] * page +
/// entry % page.
void gpu_make_indices(const TensorView& slots, const ConstTensorView& tables, const IndexRule& rule, Stream stream);

}  // namespace smla::bench
