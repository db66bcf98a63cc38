#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace smla {

/// A regular file that is open for reading; closed with the object.
class ReadableFile {
 public:
  /// Never waits, whatever stands at `path`. @throws IoError "<path>: ..., expected <expected>" when it cannot be
  /// opened or is no regular file.
  ReadableFile(const std::string& path, std::string_view expected);
  ~ReadableFile();
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;

  std::size_t size() const { return size_; }
  /// Up to `bytes` from `offset` on; fewer only at the end. @throws IoError.
  std::size_t read(std::size_t offset, void* to, std::size_t bytes) const;

 private:
  std::string path_;
  int file_ = -1;
  std::size_t size_ = 0;
};

/// All of a regular file of at most `max_bytes`. @throws IoError naming the path, what was got and `expected`.
std::string read_text_file(const std::string& path, std::size_t max_bytes, std::string_view expected);

}  // namespace smla
