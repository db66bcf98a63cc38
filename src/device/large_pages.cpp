#include "device/large_pages.h"

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace smla {

#if defined(__linux__)

void prefer_large_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1: now, also what was touched before
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kPage * kPage;
  if (begin >= end) return;
  auto* const first = static_cast<char*>(data) + (begin - reinterpret_cast<std::uintptr_t>(data));
  // Advice: a refusal changes nothing but the speed.
  (void)madvise(first, end - begin, MADV_HUGEPAGE);
  (void)madvise(first, end - begin, kCollapse);
}

#else

void prefer_large_pages(void*, std::size_t) {}

#endif

}  // namespace smla
