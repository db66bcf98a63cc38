#include "device/toolkit_library.h"

#include <dlfcn.h>

#include <utility>
#include <vector>

#include "device/library_folders.h"

namespace smla::device {

ToolkitLibrary::ToolkitLibrary(const std::string& file, std::string name) : name_(std::move(name)) {
  std::vector<std::string> folders = library_folders();
  folders.insert(folders.begin(), "");  // where the loader looks
  folders.emplace_back("/usr/local/cuda/lib64");
  std::string looked = "LD_LIBRARY_PATH";
  for (const std::string& folder : folders) {
    library_ = dlopen((folder.empty() ? file : folder + "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) return;
    if (!folder.empty()) looked += ", " + folder;
  }
  missing_ = file + " was not found (" + looked + ")";
}

void* ToolkitLibrary::find(const char* function) {
  if (library_ == nullptr) return nullptr;
  void* const found = dlsym(library_, function);
  if (found == nullptr && missing_.empty()) missing_ = name_ + " has no " + function;
  return found;
}

}  // namespace smla::device
