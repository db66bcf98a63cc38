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

/// Uniform numbers in [-width, width) in a GPU's memory; BF16, E4M3 or F32.
DeviceTensor device_numbers(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, float width,
                            Stream stream);
/// n times `value`, I32.
DeviceTensor device_constant(std::int64_t n, std::int64_t value);
/// A copy on the host, complete on return.
HostTensor to_host(const ConstTensorView& from, Stream stream);

/// A cache in a GPU's memory: every row is one of a few thousand random valid ones, page padding is 0xFF.
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

/// The rows that a call read, side by side in one block on the host, in the order of `slots` (in a GPU's memory).
struct PackedRows {
  HostTensor bytes;
  PagedCache cache;
};
PackedRows pack_rows(const PagedCache& from, const std::int32_t* slots, std::int64_t count, Stream stream);

/// |got - want|_2 / |want|_2 within `l2`, infinities and NaN in place.
Check check_result(const HostTensor& got, const HostTensor& want, double l2);
/// Whether `chosen`, -1 behind its end, are the highest of `scores`: as many as there can be, each once, and none
/// passed over that is better by more than `slack` times the largest magnitude. `l2` is by how much the worst one falls
/// short, in the same measure.
Check check_selection(std::span<const std::int32_t> chosen, const std::vector<float>& scores, double slack);
/// The most input sets, from `most` down to 2, that four fifths of the GPU's free memory hold; 0 where they hold not
/// even those, and the row says so.
std::int64_t fitting_sets(std::int64_t most, const std::function<double(std::int64_t sets)>& bytes_of, Row& row);
/// An exception's text on one line.
std::string one_line(const std::exception& error);
/// The worse of two.
Check worse(const Check& a, const Check& b);

}  // namespace smla::bench
