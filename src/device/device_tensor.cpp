#include "device/device_tensor.h"

#include <cstring>

namespace smla {

namespace {

/// Appends dimensions [dim, rank) of a view, row by row. @return the end of what was written.
std::uint8_t* pack(const ConstTensorView& from, int dim, const std::uint8_t* at, std::uint8_t* to) {
  const std::int64_t element = size_of(from.dtype);
  if (dim == from.rank) {
    std::memcpy(to, at, static_cast<std::size_t>(element));
    return to + element;
  }
  const std::int64_t step = from.stride[static_cast<std::size_t>(dim)] * element;
  if (dim + 1 == from.rank && step == element) {
    std::memcpy(to, at, static_cast<std::size_t>(from.size(dim) * element));
    return to + from.size(dim) * element;
  }
  for (std::int64_t i = 0; i < from.size(dim); ++i) to = pack(from, dim + 1, at + i * step, to);
  return to;
}

}  // namespace

DeviceTensor DeviceTensor::copy_of(DeviceKind device, const ConstTensorView& from) {
  DeviceTensor t;
  if (from.absent()) return t;
  std::vector<std::int64_t> shape(from.shape.begin(), from.shape.begin() + from.rank);
  t.reshape(device, from.dtype, shape);
  const bool packed = from.contiguous() || from.numel() == 0;
  HostTensor rows;
  if (!packed) {
    rows = HostTensor(from.dtype, shape);
    pack(from, 0, static_cast<const std::uint8_t*>(from.data), static_cast<std::uint8_t*>(rows.data()));
  }
  copy_bytes(device, t.data(), packed ? from.data : rows.data(), t.bytes());
  synchronize(device);
  return t;
}

}  // namespace smla
