#include "bench/device_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/inputs.h"
#include "cases/tolerance.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kRandomRows = 4096;

/// Random valid rows of a format on the host, made once.
const OwnedCache& rows_to_copy(const RowFormat& format) {
  static std::map<const RowFormat*, OwnedCache> made;
  const auto found = made.find(&format);
  return found != made.end() ? found->second
                             : made.emplace(&format, random_cache(format, 1, kRandomRows, 17)).first->second;
}

}  // namespace

DeviceTensor device_numbers(DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed, float width,
                            Stream stream) {
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

DeviceCache::DeviceCache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::uint64_t seed,
                         Stream stream)
    : memory_(DeviceKind::kCuda, static_cast<std::size_t>(bytes_of(format, blocks, block_size)), false) {
  const OwnedCache& host = rows_to_copy(format);
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
    if (want.dtype() == DType::kBF16 ? std::isnan(to_float(want.as<BF16>()[i]))
                                     : want.dtype() == DType::kF32 && std::isnan(want.as<float>()[i])) {
      return {.done = true, .l2 = 0, .failure = "the reference is not a number"};
    }
  }
  const Comparison found = compare(got, want, {.l2 = l2});
  return {.done = true,
          .l2 = found.l2,
          .failure = found.pass ? "" : found.failure + (found.detail.empty() ? "" : ", " + found.detail)};
}

Check check_selection(std::span<const std::int32_t> chosen, const std::vector<float>& scores, double slack) {
  Check out{.done = true, .l2 = 0, .failure = ""};
  const std::size_t count = std::min(chosen.size(), scores.size());
  std::vector<bool> taken(scores.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::int32_t c = chosen[i];
    const bool fine = i < count
                          ? c >= 0 && static_cast<std::size_t>(c) < scores.size() && !taken[static_cast<std::size_t>(c)]
                          : c == -1;
    if (!fine) {
      out.failure = fmt::format("choice {} is {}, {} entries were visible{}", i, c, scores.size(),
                                i < count && c >= 0 ? " and each counts once" : "");
      return out;
    }
    if (i < count) taken[static_cast<std::size_t>(c)] = true;
  }
  double largest = 0;
  double worst_taken = INFINITY;
  double best_left = -INFINITY;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(scores[i])));
    if (taken[i]) {
      worst_taken = std::min(worst_taken, static_cast<double>(scores[i]));
    } else {
      best_left = std::max(best_left, static_cast<double>(scores[i]));
    }
  }
  if (std::isnan(largest) || std::ranges::any_of(scores, [](float s) { return std::isnan(s); })) {
    out.failure = "the reference is not a number";
  } else if (largest > 0) {
    out.l2 = std::max(0.0, (best_left - worst_taken) / largest);
    if (out.l2 > slack)
      out.failure =
          fmt::format("an entry with score {:.5g} was passed over for one with {:.5g}", best_left, worst_taken);
  }
  return out;
}

std::int64_t fitting_sets(std::int64_t most, const std::function<double(std::int64_t sets)>& bytes_of, Row& row) {
  constexpr double kShare = 0.8;  // of what is free
  const double free = kShare * static_cast<double>(gpu_free_bytes());
  std::int64_t sets = most;
  while (sets > 2 && bytes_of(sets) > free) --sets;
  if (const double bytes = bytes_of(sets); bytes > free) {
    row.skipped = fmt::format("needs {:.1f} GB, {:.1f} GB are free for it", bytes * 1e-9, free * 1e-9);
    return 0;
  }
  return sets;
}

std::string one_line(const std::exception& error) {
  std::string text = error.what();
  std::ranges::replace(text, '\n', ';');
  return text;
}

Check worse(const Check& a, const Check& b) {
  if (!a.done || !b.done) return a.done ? a : b;
  Check out{.done = true, .l2 = std::max(a.l2, b.l2), .failure = a.failure};
  if (out.failure.empty()) out.failure = b.failure;
  return out;
}

}  // namespace smla::bench
