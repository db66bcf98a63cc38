#include "device/library_folders.h"

#include <algorithm>
#include <mutex>

namespace smla::device {

namespace {

struct Folders {
  std::mutex mutex;
  std::vector<std::string> list;
};

Folders& folders() {
  static Folders known;
  return known;
}

}  // namespace

void add_library_folders(const std::vector<std::string>& added) {
  Folders& known = folders();
  const std::lock_guard lock(known.mutex);
  for (const std::string& folder : added) {
    if (std::find(known.list.begin(), known.list.end(), folder) == known.list.end()) known.list.push_back(folder);
  }
}

std::vector<std::string> library_folders() {
  Folders& known = folders();
  const std::lock_guard lock(known.mutex);
  return known.list;
}

}  // namespace smla::device
