#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/read_file.h"
#include "sparsemla/error.h"
#include "sparsemla/snapshot.h"

namespace smla {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& got, const std::string& expected) {
  throw IoError("snapshot: " + path + ": got " + got + ", expected " + expected);
}

/// A file of its own beside the target, removed unless it was renamed.
class PartFile {
 public:
  explicit PartFile(const std::string& target) {
    static std::atomic<unsigned> count{0};
    path_ = target + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".part";
    constexpr mode_t kMode = 0666;
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    if (file_ < 0) fail(target, std::strerror(errno), "a folder that can be written");
  }
  ~PartFile() {
    if (file_ >= 0) ::close(file_);
    if (!renamed_) ::unlink(path_.c_str());
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  bool write(std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(file_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    const int file = file_;
    file_ = -1;
    return ::close(file) == 0;
  }
  bool rename_to(const std::string& target) { return renamed_ = ::rename(path_.c_str(), target.c_str()) == 0; }

 private:
  std::string path_;
  int file_ = -1;
  bool renamed_ = false;
};

}  // namespace

void write_snapshot_file(const std::string& path, std::span<const std::uint8_t> bytes) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    fail(path, "something that is no regular file", "a new name or a file to replace");
  PartFile part(path);
  if (!part.write(bytes)) {
    fail(path, std::string("a file that cannot be written (") + std::strerror(errno) + ")",
         "room for " + std::to_string(bytes.size()) + " bytes");
  }
  if (!part.rename_to(path)) fail(path, std::strerror(errno), "a file that can be written");
}

std::vector<std::uint8_t> read_snapshot_file(const std::string& path) {
  try {
    const ReadableFile file(path, "a snapshot");
    std::vector<std::uint8_t> bytes(file.size());
    const std::size_t got = file.read(0, bytes.data(), bytes.size());
    if (got != bytes.size()) fail(path, std::to_string(got) + " bytes", std::to_string(bytes.size()));
    return bytes;
  } catch (const IoError& e) {
    const std::string text = e.what();
    throw IoError(text.starts_with("snapshot: ") ? text : "snapshot: " + text);
  }
}

}  // namespace smla
