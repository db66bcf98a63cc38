#pragma once

#include <vector>

#include "core/host_tensor.h"
#include "device/device_tensor.h"

namespace smla {

/// What lies on a device, on the host; what lies there already, itself.
class HostView {
 public:
  HostView(DeviceKind device, const ConstTensorView& v, Stream stream) : view_(v) {
    if (device == DeviceKind::kCpu || v.absent()) return;
    copy_ = HostTensor(v.dtype, std::vector<std::int64_t>(v.shape.begin(), v.shape.begin() + v.rank));
    copy_bytes(device, copy_.data(), v.data, copy_.bytes(), stream);
    view_ = std::as_const(copy_).view();
  }
  const ConstTensorView& get() const { return view_; }

 private:
  ConstTensorView view_;
  HostTensor copy_;
};

/// Memory of `like`'s type and shape, where it is there.
inline void reserve_like(DeviceKind device, const ConstTensorView& like, DeviceTensor& to) {
  if (!like.absent()) to.reshape(device, like.dtype, {like.size(0), like.size(1)});
}

}  // namespace smla
