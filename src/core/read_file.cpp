#include "core/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sparsemla/error.h"

namespace smla {

ReadableFile::ReadableFile(const std::string& path, std::string_view expected) : path_(path) {
  const std::string rest = ", expected " + std::string(expected);
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not hang the caller
  if (file_ < 0) throw IoError(path + ": got \"" + std::strerror(errno) + "\"" + rest);
  struct stat info {};
  if (::fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file_);
    throw IoError(path + ": got something that is no regular file" + rest);
  }
  size_ = static_cast<std::size_t>(info.st_size);
}

ReadableFile::~ReadableFile() { ::close(file_); }

std::size_t ReadableFile::read(std::size_t offset, void* to, std::size_t bytes) const {
  std::size_t used = 0;
  while (used < bytes) {
    const ssize_t n = ::pread(file_, static_cast<char*>(to) + used, bytes - used, static_cast<off_t>(offset + used));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw IoError(path_ + ": reading failed: " + std::strerror(errno));
    if (n == 0) break;
    used += static_cast<std::size_t>(n);
  }
  return used;
}

std::string read_text_file(const std::string& path, std::size_t max_bytes, std::string_view expected) {
  const ReadableFile file(path, expected);
  if (file.size() > max_bytes) {
    throw IoError(path + ": got " + std::to_string(file.size()) + " bytes, expected " + std::string(expected) +
                  " of at most " + std::to_string(max_bytes));
  }
  std::string text(file.size(), '\0');
  text.resize(file.read(0, text.data(), text.size()));
  return text;
}

}  // namespace smla
