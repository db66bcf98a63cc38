#include "bench/device_inputs.h"

#include <algorithm>
#include <cmath>

#include "bench/inputs.h"
#include "cases/tolerance.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kRandomRows = 4096;

}  // namespace

DeviceTensor device_numbers(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, float width, Stream stream) {
  DeviceTensor out(DeviceKind::kCuda, dtype, std::move(shape));
  gpu_random(out.view(), seed, width, stream);
  return out;
}

DeviceTensor device_constant(std::int64_t n, std::int64_t value) {
  HostTensor host(DType::kI32, {n});
  std::fill_n(host.as<std::int32_t>(), n, static_cast<std::int32_t>(value));
  return DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(host).view());
}

HostTensor to_host(const ConstTensorView& from, Stream stream) {
  HostTensor out(from.dtype, std::vector<std::int64_t>(from.shape.begin(), from.shape.begin() + from.rank));
  copy_bytes(DeviceKind::kCuda, out.data(), from.data, out.bytes(), stream);
  synchronize(DeviceKind::kCuda, stream);
  return out;
}

DeviceCache::DeviceCache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::uint64_t seed, Stream stream)
    : memory_(DeviceKind::kCuda, static_cast<std::size_t>(bytes_of(format, blocks, block_size)), false) {
  const OwnedCache host = random_cache(format, 1, kRandomRows, seed);
  const DeviceTensor rows = DeviceTensor::copy_of(DeviceKind::kCuda, host.bytes.view());
  PagedCache source = host.cache;
  source.base = static_cast<std::uint8_t*>(rows.data());
  cache_ = source;
  cache_.base = static_cast<std::uint8_t*>(memory_.data());
  cache_.num_blocks = blocks;
  cache_.block_size = block_size;
  cache_.block_stride_bytes = page_bytes(format, block_size);
  fill_bytes(DeviceKind::kCuda, memory_.data(), 0xFF, memory_.bytes(), stream);
  gpu_copy_rows(cache_, source, nullptr, cache_.num_slots(), seed, stream);
  synchronize(DeviceKind::kCuda, stream);
}

PackedRows pack_rows(const PagedCache& from, const std::int32_t* slots, std::int64_t count, Stream stream) {
  PackedRows out{.bytes = HostTensor(DType::kU8, {block_bytes(*from.format, count)}), .cache = from};
  out.cache.num_blocks = 1;
  out.cache.block_size = count;
  out.cache.block_stride_bytes = static_cast<std::int64_t>(out.bytes.bytes());
  const DeviceMemory packed(DeviceKind::kCuda, out.bytes.bytes());
  out.cache.base = static_cast<std::uint8_t*>(packed.data());
  gpu_copy_rows(out.cache, from, slots, count, 0, stream);
  copy_bytes(DeviceKind::kCuda, out.bytes.data(), packed.data(), packed.bytes(), stream);
  synchronize(DeviceKind::kCuda, stream);
  out.cache.base = out.bytes.as<std::uint8_t>();
  return out;
}

Check check_result(const HostTensor& got, const HostTensor& want, double l2) {
  // compare() takes NaN for NaN; a reference that is one has read what nobody wrote.
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    if (want.dtype() == DType::kBF16 ? std::isnan(to_float(want.as<BF16>()[i])) : want.dtype() == DType::kF32 && std::isnan(want.as<float>()[i])) {
      return {.done = true, .l2 = 0, .failure = "the reference is not a number"};
    }
  }
  const Comparison found = compare(got, want, {.l2 = l2});
  return {.done = true, .l2 = found.l2, .failure = found.pass ? "" : found.failure + (found.detail.empty() ? "" : ", " + found.detail)};
}

Check worse(const Check& a, const Check& b) {
  if (!a.done || !b.done) return a.done ? a : b;
  Check out{.done = true, .l2 = std::max(a.l2, b.l2), .failure = a.failure};
  if (out.failure.empty()) out.failure = b.failure;
  return out;
}

}  // namespace smla::bench
