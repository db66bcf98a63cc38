#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace smla {

/// Progress on stderr: one line that redraws itself on a terminal, a plain line every few seconds elsewhere.
class Progress {
 public:
  /// @param unit what is counted, for the rate: "tokens".
  Progress(std::string title, std::string unit, std::int64_t total, bool quiet);
  void update(std::int64_t done, const std::string& note = "");
  /// Ends the line.
  void finish();

 private:
  std::string title_;
  std::string unit_;
  std::int64_t total_;
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace smla
