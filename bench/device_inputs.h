#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/gpu.h"
#include "core/host_tensor.h"
#include "device/device_tensor.h"

namespace smla::bench {

/// A BF16, E4M3 or F32 tensor of uniform numbers in [-width, width) in a GPU's memory.
DeviceTensor device_numbers(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, float width,
                            Stream stream);
/// An I32 tensor [n] that holds `value` everywhere, in a GPU's memory.
DeviceTensor device_constant(std::int64_t n, std::int64_t value);
/// A copy of a GPU's tensor on the host; complete on return.
HostTensor to_host(const ConstTensorView& from, Stream stream);

/// A cache in a GPU's memory: every row is one of a few thousand random valid rows, page padding is 0xFF.
class DeviceCache {
 public:
  DeviceCache() = default;
  DeviceCache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::uint64_t seed, Stream stream);
  const PagedCache& cache() const { return cache_; }
  static std::int64_t bytes_of(const RowFormat& format, std::int64_t blocks, std::int64_t block_size) {
    return blocks * page_bytes(format, block_size);
  }

 private:
  DeviceMemory memory_;
  PagedCache cache_;
};

/// A cache on the host of one block with the rows that a call read, in the order of `slots` (which are in a GPU's
/// memory).
struct PackedRows {
  HostTensor bytes;
  PagedCache cache;
};
PackedRows pack_rows(const PagedCache& from, const std::int32_t* slots, std::int64_t count, Stream stream);

/// Checks that |got - want|_2 / |want|_2 is at most `l2`, and that infinities and NaN are at the same places.
Check check_result(const HostTensor& got, const HostTensor& want, double l2);
/// Checks that `chosen` (followed by -1) holds the highest of `scores`: as many as possible, each once, and no score
/// left out is higher than a chosen one by more than `slack` times the largest magnitude. Check::l2 is the largest such
/// difference, as a share of the largest magnitude.
Check check_selection(std::span<const std::int32_t> chosen, const std::vector<float>& scores, double slack);
/// How many input sets, `most` at most, fit in four fifths of the GPU's free memory. Returns 0, and says so in
/// row.skipped, when not even two fit.
std::int64_t fitting_sets(std::int64_t most, const std::function<double(std::int64_t sets)>& bytes_of, Row& row);
/// An exception's text on one line.
std::string one_line(const std::exception& error);
/// The worse of two checks.
Check worse(const Check& a, const Check& b);

}  // namespace smla::bench
