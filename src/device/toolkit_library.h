#pragma once

#include <string>

namespace smla::device {

/// A shared library that is opened at run time and never closed: where the loader looks, in library_folders(), and in
/// the CUDA toolkit's usual place.
class ToolkitLibrary {
 public:
  /// `file`: libcublasLt.so.13; `name`: what people call it.
  ToolkitLibrary(const std::string& file, std::string name);

  /// Sets a function by its name; null where the library or the function is missing.
  template <class Function>
  void bind(const char* function, Function& to) {
    to = reinterpret_cast<Function>(find(function));
  }
  /// Why it cannot be used; empty when it and all functions so far were found.
  const std::string& missing() const { return missing_; }

 private:
  void* find(const char* function);

  std::string name_;
  void* library_ = nullptr;
  std::string missing_;
};

}  // namespace smla::device
