#pragma once

#include <atomic>

namespace smla::device {

/// Called with the name of each kernel that was launched; must be thread-safe.
using LaunchHook = void (*)(const char* kernel);

/// The hook of the process, null when there is none: for programs that want to know which kernels ran.
[[gnu::visibility("hidden")]] inline std::atomic<LaunchHook> launch_hook{nullptr};

}  // namespace smla::device
