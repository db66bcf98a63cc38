#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace smla {

namespace {
constexpr double kTerminalSeconds = 0.1;
constexpr double kPlainSeconds = 5.0;
constexpr int kBarWidth = 24;

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::lround(seconds));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}
}  // namespace

Progress::Progress(std::string title, std::string unit, std::int64_t total, bool quiet)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(std::max<std::int64_t>(total, 1)),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

void Progress::update(std::int64_t done, const std::string& note) {
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  const double since = std::chrono::duration<double>(now - last_).count();
  if (since < (terminal_ ? kTerminalSeconds : kPlainSeconds) && !(terminal_ && !drawn_)) return;
  last_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const double rate = elapsed > 0 ? static_cast<double>(done) / elapsed : 0;
  const std::string left = share > 0 ? duration(elapsed * (1 - share) / share) : "?";
  const std::string text = fmt::format("{:.0f} {}/s, {} left{}{}", rate, unit_, left, note.empty() ? "" : ", ", note);
  if (terminal_) {
    const int filled = static_cast<int>(share * kBarWidth);
    fmt::print(stderr, "\r{} [{}{}] {:>3.0f} % {}\033[K", title_, std::string(static_cast<std::size_t>(filled), '#'),
               std::string(static_cast<std::size_t>(kBarWidth - filled), '.'), 100 * share, text);
    std::fflush(stderr);
    drawn_ = true;
  } else {
    fmt::print(stderr, "{}: {:.0f} % ({} of {} {}), {}\n", title_, 100 * share, done, total_, unit_, text);
  }
}

void Progress::finish() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace smla
