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

// What the bench needs of CUDA and the library does not have: defined in gpu_*.cu, or in no_cuda.cpp, where everything
// throws Unsupported. All functions use the first GPU; those that take a stream queue work on it and return.

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
  int runtime_cuda = 0;  ///< CUDA version of the runtime in this program
};
GpuFacts gpu_facts();
std::size_t gpu_free_bytes();

/// A CUDA graph of an event, `before`, a call, and another event. `before` and the call do not overlap.
class GpuRecording {
 public:
  /// `call` must have run once before, so that nothing is loaded or chosen while it is recorded.
  GpuRecording(Stream stream, const std::function<void()>& before, const std::function<void()>& call);
  void launch(Stream stream) const;
  double seconds() const;  ///< between the two events of the last launch, which must be complete. @throws CudaError

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> handle_;
};

/// How many nodes of each kind a recorded call has.
struct GpuNodes {
  int kernels = 0;  ///< kernels of this library
  int library = 0;  ///< kernels of other libraries, which are cuBLASLt's
  int memsets = 0;
  int copies = 0;
  std::map<std::string, int> names{};  ///< this library's kernels by their mangled names
};
/// Records `call`, which must have run before, and counts its nodes. Events and forks between streams are left out.
GpuNodes gpu_count_nodes(Stream stream, const std::function<void()>& call);

/// Reads `bytes` bytes in order and keeps nothing: what a cache held before is gone.
void gpu_sweep(const void* memory, std::size_t bytes, Stream stream);
/// Copies whole 16-byte words with a kernel. (A recorded memcpy may use a copy engine, which is slower.)
void gpu_copy(void* to, const void* from, std::size_t bytes, Stream stream);
/// Reads the rows at `slots`, without any arithmetic; records must consist of 8-byte words. Measures the gather
/// ceiling.
void gpu_gather(const PagedCache& cache, const std::int32_t* slots, std::int64_t rows, Stream stream);
/// A kernel of one thread that reads `reads` numbers one after the other, each at the index that the one before holds,
/// and writes the last. With 0 reads it measures the start and end of a kernel.
void gpu_follow(const std::int32_t* next, int reads, std::int32_t* last, Stream stream);
/// mma.sync m16n8k16 over bf16 in registers, `rounds` rounds in every warp. Returns the number of floating-point
/// operations.
double gpu_multiply_add(std::int64_t rounds, Stream stream);

/// Fills a contiguous BF16, E4M3 or F32 tensor with uniform numbers in [-width, width); each depends on the seed and
/// its index alone.
void gpu_random(const TensorView& to, std::uint64_t seed, float width, Stream stream);
/// Copies rows between caches of one format: slot i of `to` (i < rows) gets the row in slot slots[i] of `from`, or in a
/// random slot (by seed and i) when `slots` is null.
void gpu_copy_rows(const PagedCache& to, const PagedCache& from, const std::int32_t* slots, std::int64_t rows,
                   std::uint64_t seed, Stream stream);
/// How many elements of a contiguous BF16, F32 or E4M3 tensor are NaN. Waits for the stream.
std::int64_t gpu_count_nan(const ConstTensorView& values, Stream stream);

/// How gpu_make_indices chooses the entries of a query among those of its request.
struct IndexRule {
  std::int64_t queries_of_request =
      1;  ///< query t belongs to request t / queries_of_request and is its query t % queries_of_request
  std::int64_t entries = 0;  ///< entries of a request
  enum class Kind : std::uint8_t {
    kAll,      ///< column c holds entry c
    kSliding,  ///< consecutive entries; the first is random below `first_below`, one later for each further query
    kRandom,   ///< distinct random entries, drawn anew for each query
  } kind = Kind::kAll;
  std::uint64_t seed = 0;
  std::int64_t first_below = 1;
  std::int64_t page = 64;  ///< entries in a block
};
/// Fills slots [queries, width] I32 from block tables [requests, blocks of a request] I32: the slot of an entry is
/// table[entry / page] * page + entry % page.
void gpu_make_indices(const TensorView& slots, const ConstTensorView& tables, const IndexRule& rule, Stream stream);

}  // namespace smla::bench
