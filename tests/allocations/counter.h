#pragma once

#include <cstdint>

namespace smla::test {

/// Calls of operator new by this thread so far; counted in this program alone, which is why it is one of its own.
std::int64_t allocations();

}  // namespace smla::test
