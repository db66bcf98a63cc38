#include "c/status.h"

#include <stdexcept>
#include <string>

namespace smla::c {

namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

smla_status keep(smla_status status, const char* text) noexcept {
  set_last_error(text);
  return status;
}

}  // namespace

void set_last_error(const char* text) noexcept {
  try {
    last_error().assign(text);
  } catch (...) {
    last_error().clear();  // no memory for the text: the status alone must do
  }
}

smla_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& e) {
    return keep(SMLA_INVALID_ARGUMENT, e.what());
  } catch (const Unsupported& e) {
    return keep(SMLA_UNSUPPORTED, e.what());
  } catch (const IoError& e) {
    return keep(SMLA_IO_ERROR, e.what());
  } catch (const CudaError& e) {
    return keep(SMLA_CUDA_ERROR, e.what());
  } catch (const std::bad_alloc&) {
    return keep(SMLA_OUT_OF_MEMORY, "out of memory");
  } catch (const std::length_error&) {
    return keep(SMLA_OUT_OF_MEMORY, "out of memory: a size is larger than any memory");
  } catch (const std::exception& e) {
    return keep(SMLA_INTERNAL_ERROR, e.what());
  } catch (...) {
    return keep(SMLA_INTERNAL_ERROR, "an exception of unknown type");
  }
}

}  // namespace smla::c

extern "C" {

const char* smla_last_error(void) { return smla::c::last_error().c_str(); }

const char* smla_status_name(smla_status status) {
  switch (status) {
    case SMLA_OK: return "SMLA_OK";
    case SMLA_INVALID_ARGUMENT: return "SMLA_INVALID_ARGUMENT";
    case SMLA_UNSUPPORTED: return "SMLA_UNSUPPORTED";
    case SMLA_IO_ERROR: return "SMLA_IO_ERROR";
    case SMLA_CUDA_ERROR: return "SMLA_CUDA_ERROR";
    case SMLA_OUT_OF_MEMORY: return "SMLA_OUT_OF_MEMORY";
    case SMLA_INTERNAL_ERROR: return "SMLA_INTERNAL_ERROR";
    default: return "unknown status";
  }
}

}  // extern "C"
