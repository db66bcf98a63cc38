#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "sparsemla/device.h"

namespace smla {

/// Gives memory back to the device it is of.
struct FreeDeviceMemory {
  FreeDeviceMemory() noexcept = default;
  explicit FreeDeviceMemory(DeviceKind kind) noexcept : device(kind) {}
  void operator()(void* p) const;
  DeviceKind device = DeviceKind::kCpu;
};

/// Memory of a device. @throws Unsupported for a GPU where there is none; CudaError; std::bad_alloc.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceKind device, std::size_t bytes, bool zeroed = true);
  void* data() const { return data_.get(); }  ///< 64-byte aligned, also of no bytes; null when default-constructed
  std::size_t bytes() const { return bytes_; }
  DeviceKind device() const { return data_.get_deleter().device; }

 private:
  std::unique_ptr<void, FreeDeviceMemory> data_;
  std::size_t bytes_ = 0;
};

/// Between memories of `device` and the host, in either direction, or within one. On a GPU queued on `stream`; host
/// memory that was copied from may be used again when the call returns, and a copy to the host is complete then.
void copy_bytes(DeviceKind device, void* to, const void* from, std::size_t bytes, Stream stream = {});
/// Every byte of memory of `device`.
void fill_bytes(DeviceKind device, void* to, int byte, std::size_t bytes, Stream stream = {});
/// Waits until all that is queued on `stream` is done; nothing to do on the CPU. @throws CudaError when something
/// queued failed.
void synchronize(DeviceKind device, Stream stream = {});

/// The calling thread's current GPU by number, -1 where there is none; 0 on the CPU.
int current_device(DeviceKind device);
/// For what belongs to one GPU. @throws InvalidArgument when the calling thread's current one is not `expected`.
void check_current_device(std::string_view what, DeviceKind device, int expected);

/// Makes GPU `ordinal` the calling thread's current one. @throws CudaError; Unsupported where there is none.
void make_current(int ordinal);

/// While it lives, GPU `ordinal` is the calling thread's current one; nothing to do on the CPU. @throws CudaError.
class CurrentDevice {
 public:
  CurrentDevice(DeviceKind device, int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;  ///< what to go back to; -1: nothing was changed
};

}  // namespace smla
