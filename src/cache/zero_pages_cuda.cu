// New blocks of a step are zeroed by one launch: a thread block for each page of each of them.
#include "cache/zero_pages.h"
#include "device/launch.cuh"

namespace smla {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    zero_pages(std::uint8_t* slab, std::int64_t stride, const UsedBytes* pages, const std::int32_t* first,
               const GroupBlock* blocks, std::int64_t most) {
  const GroupBlock item = blocks[blockIdx.x / most];
  const std::int64_t page = first[item.group] + static_cast<std::int64_t>(blockIdx.x % most);
  if (page >= first[item.group + 1]) return;
  const UsedBytes used = pages[page];
  std::uint8_t* const start = slab + item.block * stride + used.offset;
  if ((reinterpret_cast<std::uintptr_t>(start) | static_cast<std::uintptr_t>(used.bytes)) % sizeof(uint4) == 0) {
    auto* const words = reinterpret_cast<uint4*>(start);
    const auto count = static_cast<std::int64_t>(used.bytes / sizeof(uint4));
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) words[i] = make_uint4(0, 0, 0, 0);
  } else {
    for (std::int64_t i = threadIdx.x; i < used.bytes; i += kThreads) start[i] = 0;
  }
}

template <class T>
T* put(DeviceTensor& to, const T* from, std::size_t count, Stream stream) {
  to.reshape(DeviceKind::kCuda, DType::kU8, {static_cast<std::int64_t>(count * sizeof(T))});
  copy_bytes(DeviceKind::kCuda, to.data(), from, count * sizeof(T), stream);
  return static_cast<T*>(to.data());
}

}  // namespace

void cuda_zero_pages(std::uint8_t* slab, std::int64_t stride, const PagesOfGroups& pages,
                     std::span<const GroupBlock> blocks, PagesOnDevice& place, Stream stream) {
  if (blocks.empty() || pages.most == 0) return;
  if (place.pages.absent()) {
    put(place.pages, pages.pages.data(), pages.pages.size(), stream);
    put(place.first, pages.first.data(), pages.first.size(), stream);
  }
  const GroupBlock* const items = put(place.blocks, blocks.data(), blocks.size(), stream);
  const unsigned grid = blocks_for(static_cast<std::int64_t>(blocks.size()) * pages.most, 1);
  zero_pages<<<grid, kThreads, 0, stream_of(stream)>>>(slab, stride, static_cast<const UsedBytes*>(place.pages.data()),
                                                       static_cast<const std::int32_t*>(place.first.data()), items,
                                                       pages.most);
  check_launch("zero_pages");
}

}  // namespace smla
