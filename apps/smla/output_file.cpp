#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "sparsemla/error.h"

namespace smla {

OutputFile::OutputFile(std::string option, std::string path) : option_(std::move(option)), path_(std::move(path)) {
  if (!wanted() || is_stdout()) return;
  constexpr mode_t kMode = 0666;
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  made_ = file_ >= 0;
  // O_NONBLOCK: a named pipe that nobody reads must not hang the program.
  if (!made_ && errno == EEXIST) file_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) fail(errno);
  ::fcntl(file_, F_SETFL, ::fcntl(file_, F_GETFL) & ~O_NONBLOCK);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) ::close(file_);
  if (made_) ::unlink(path_.c_str());
}

void OutputFile::write(const std::string& text) {
  if (is_stdout()) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) fail(errno);
    return;
  }
  struct stat info {};
  if (::fstat(file_, &info) == 0 && S_ISREG(info.st_mode) && ::ftruncate(file_, 0) != 0) fail(errno);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno);
    done += static_cast<std::size_t>(n);
  }
  made_ = false;
  if (::close(std::exchange(file_, -1)) != 0) fail(errno);
}

void OutputFile::fail(int error) const {
  throw IoError(fmt::format("{}: {} could not be written: {}", option_, path_, std::strerror(error)));
}

}  // namespace smla
