#pragma once

#include <cstdint>
#include <string>

#include "bench/bench.h"
#include "core/host_tensor.h"
#include "sparsemla/device.h"
#include "sparsemla/op.h"

namespace smla::bench {

/// A BF16, F32 or E4M3 tensor of uniform numbers in [-width, width), or a U8 one of any bytes; each depends on the seed
/// and its index alone.
HostTensor random_numbers(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, float width);

/// [rows, columns] I32: in each row distinct numbers below `limit`, in random order; columns <= limit.
HostTensor random_choices(std::int64_t rows, std::int64_t columns, std::int64_t limit, std::uint64_t seed);

/// A cache with random valid rows, and its memory.
struct OwnedCache {
  HostTensor bytes;
  PagedCache cache;
};
OwnedCache random_cache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::uint64_t seed);
/// Fills every row of a cache with random numbers; its page padding stays as it is.
void fill_cache(const PagedCache& cache, std::uint64_t seed);

/// The plan options of Op: device, threads and the implementation that Options force. One that is forced for all ops
/// ("*") counts where Op has it and it accepts the problem.
template <class Op>
PlanOptions plan_options(const Options& options, const typename Op::Problem& problem) {
  PlanOptions plan{.device = options.device, .implementation = "", .deterministic = false, .threads = options.threads};
  if (const auto named = options.implementations.find(Op::kName); named != options.implementations.end()) {
    plan.implementation = named->second;
  } else if (const auto all = options.implementations.find("*"); all != options.implementations.end()) {
    // Some run only where they are asked for by name.
    PlanOptions wanted = plan;
    wanted.implementation = all->second;
    for (const Candidate& c : explain<Op>(problem, wanted)) {
      if (c.name == all->second && c.refusal.empty()) plan.implementation = c.name;
    }
  }
  return plan;
}

/// Scratch memory of a plan.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : memory_(DType::kU8, {static_cast<std::int64_t>(bytes)}) {}
  Workspace get() { return {.data = memory_.data(), .bytes = memory_.bytes()}; }

 private:
  HostTensor memory_;
};

}  // namespace smla::bench
