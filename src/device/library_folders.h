#pragma once

#include <string>
#include <vector>

namespace smla::device {

/// Further folders where shared libraries of the CUDA toolkit may lie, for hosts that bring them along. They are looked
/// at after the loader's own, when such a library is first opened.
void add_library_folders(const std::vector<std::string>& folders);
std::vector<std::string> library_folders();

}  // namespace smla::device
