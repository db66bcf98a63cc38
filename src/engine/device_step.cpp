#include "engine/device_step.h"

#include <algorithm>
#include <utility>

namespace smla {

namespace {

/// Copies `values` into a tensor of `count` elements, the rest `pad`.
template <class T>
void put(DeviceTensor& to, DeviceKind device, const T* values, std::int64_t n, std::int64_t count, T pad,
         Stream stream) {
  std::vector<T> padded(values, values + n);
  padded.resize(static_cast<std::size_t>(count), pad);
  to.reshape(device, dtype_of<T>, {count});
  copy_bytes(device, to.data(), padded.data(), to.bytes(), stream);
}

}  // namespace

std::int64_t padded_count(std::int64_t n) {
  for (std::int64_t size = 1; size <= 16; size *= 2) {
    if (n <= size) return size;
  }
  return (n + 15) / 16 * 16;
}

StepSizes exact_sizes(const StepTensors& batch) {
  return {.tokens = batch.positions.size(0), .requests = batch.seq_lens.size(0), .max_seq_len = batch.max_seq_len};
}

StepSizes padded_sizes(const StepTensors& batch, std::int64_t max_model_len) {
  StepSizes sizes = exact_sizes(batch);
  sizes.tokens = padded_count(sizes.tokens);
  sizes.requests = padded_count(sizes.requests);
  std::int64_t length = 1024;
  while (length < sizes.max_seq_len) length *= 2;
  sizes.max_seq_len = std::min(length, max_model_len);
  return sizes;
}

StepBatch DeviceStep::upload(DeviceKind device, const StepTensors& batch, const HostTensor& hidden,
                             const StepSizes& sizes, std::vector<ConstTensorView> tables, Stream stream) {
  const auto* start = batch.query_start_loc.as<std::int32_t>();
  const std::int64_t requests = batch.seq_lens.size(0);
  host_start_.assign(start, start + requests + 1);
  host_start_.resize(static_cast<std::size_t>(sizes.requests + 1), host_start_.back());
  host_lens_.assign(batch.seq_lens.as<std::int32_t>(), batch.seq_lens.as<std::int32_t>() + requests);
  host_lens_.resize(static_cast<std::size_t>(sizes.requests), 0);
  put(query_start_loc_, device, host_start_.data(), sizes.requests + 1, sizes.requests + 1, 0, stream);
  put(seq_lens_, device, host_lens_.data(), sizes.requests, sizes.requests, 0, stream);
  put(positions_, device, batch.positions.as<std::int64_t>(), batch.positions.size(0), sizes.tokens, std::int64_t{0},
      stream);
  x_.reshape(device, hidden.dtype(), {sizes.tokens, hidden.size(1)});
  y_.reshape(device, hidden.dtype(), {sizes.tokens, hidden.size(1)});
  copy_bytes(device, x_.data(), hidden.data(), hidden.bytes(), stream);
  fill_bytes(device, static_cast<std::uint8_t*>(x_.data()) + hidden.bytes(), 0, x_.bytes() - hidden.bytes(), stream);
  return {.query_start_loc = query_start_loc_.view(),
          .seq_lens = seq_lens_.view(),
          .positions = positions_.view(),
          .block_tables = std::move(tables),
          .max_seq_len = sizes.max_seq_len,
          .host_query_start_loc = host_start_,
          .host_seq_lens = host_lens_};
}

}  // namespace smla
