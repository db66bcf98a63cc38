#pragma once

#include <stdexcept>
#include <string>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// Base of every exception that leaves the library. The text names the tensor or file, what was got and what was
/// expected.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument has the wrong shape, dtype, stride, range or name.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A valid request that no implementation on this machine accepts; the text lists each refusal.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// A CUDA runtime or driver call failed; the text has the call, the error's name and its text.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// A rank of a group has gone, stands still or does something else than the others; the text says which and what.
class CommunicatorError : public Error {
 public:
  using Error::Error;
};

/// A file could not be read or written, or its contents are damaged.
class IoError : public Error {
 public:
  using Error::Error;
};

}  // namespace smla
