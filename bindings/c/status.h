#pragma once

#include <exception>
#include <new>

#include "sparsemla/c_api.h"
#include "sparsemla/error.h"

namespace smla::c {

/// Keeps the text for smla_last_error; never throws.
void set_last_error(const char* text) noexcept;

/// The status of the exception that is being handled, its text kept for smla_last_error. Call only inside a catch
/// block.
smla_status status_of_current_exception() noexcept;

/// Runs the body of a C function: no exception leaves it.
template <class Body>
smla_status guarded(const Body& body) noexcept {
  set_last_error("");
  try {
    body();
    return SMLA_OK;
  } catch (...) {
    return status_of_current_exception();
  }
}

/// @throws InvalidArgument when a pointer argument that must be given is NULL.
inline void need_pointer(const void* pointer, const char* function, const char* name) {
  if (pointer == nullptr) throw InvalidArgument(std::string(function) + ": " + name + ": got NULL, expected a pointer");
}

}  // namespace smla::c
