#pragma once

#include <string>

namespace smla {

/// A file that a command writes when it is done. It is opened when the command starts, so that a path which cannot be
/// written costs no work; what was in it stays until `write`. The path "-" is stdout, an empty one is no file.
class OutputFile {
 public:
  /// @throws IoError naming `option` and the path when it cannot be opened for writing.
  OutputFile(std::string option, std::string path);
  /// Removes a file that was made here and never written.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool wanted() const { return !path_.empty(); }
  bool is_stdout() const { return path_ == "-"; }
  const std::string& path() const { return path_; }
  /// Replaces what the file holds. @throws IoError.
  void write(const std::string& text);

 private:
  [[noreturn]] void fail(int error) const;

  std::string option_;
  std::string path_;
  int file_ = -1;
  bool made_ = false;
};

}  // namespace smla
