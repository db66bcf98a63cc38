#pragma once

#include <atomic>
#include <functional>

#include "sparsemla/op.h"

namespace smla {

/// Where a call's tensors lie and where it is queued.
struct CallPlace {
  DeviceKind device = DeviceKind::kCpu;
  Stream stream;
};

/// Sees every run of `Op`; it must call `run` exactly once.
template <class Op>
using CallObserver = void (*)(const typename Op::Problem& problem, const typename Op::Args& args,
                              const CallPlace& place, const std::function<void()>& run);

/// The observer of the process, null when there is none: how calls are recorded (cases/record.cpp).
template <class Op>
[[gnu::visibility("hidden")]] inline std::atomic<CallObserver<Op>> call_observer{nullptr};

}  // namespace smla
