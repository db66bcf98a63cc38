#include "allocations/counter.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::int64_t made = 0;

void* counted(std::size_t bytes) noexcept {
  ++made;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* p = counted(bytes); p != nullptr) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept { return counted(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t /*bytes*/) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t& /*tag*/) noexcept { std::free(p); }

namespace smla::test {

std::int64_t allocations() { return made; }

}  // namespace smla::test
