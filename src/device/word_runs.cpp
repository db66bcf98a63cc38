#include "device/word_runs.h"

#include <cstring>

namespace smla {

void WordRuns::add(std::int64_t to, std::span<const std::int32_t> words) {
  if (words.empty()) return;
  runs_.push_back(
      {.to = to, .from = static_cast<std::int32_t>(words_.size()), .count = static_cast<std::int32_t>(words.size())});
  words_.insert(words_.end(), words.begin(), words.end());
}

std::int64_t WordRuns::write(DeviceKind device, std::int32_t* memory, Stream stream) {
  const std::size_t of_words = words_.size() * sizeof(std::int32_t);
  std::size_t moved = of_words;
  if (device == DeviceKind::kCpu) {
    for (const WordRun& run : runs_)
      std::memcpy(memory + run.to, words_.data() + run.from,
                  static_cast<std::size_t>(run.count) * sizeof(std::int32_t));
  } else if (!runs_.empty()) {
    const std::size_t of_runs = runs_.size() * sizeof(WordRun);
    moved += of_runs;
    packed_.resize(moved);
    std::memcpy(packed_.data(), runs_.data(), of_runs);
    std::memcpy(packed_.data() + of_runs, words_.data(), of_words);
    staged_.reshape(device, DType::kU8, {static_cast<std::int64_t>(moved)});
    copy_bytes(device, staged_.data(), packed_.data(), moved, stream);
    cuda_write_runs(memory, staged_.data(), static_cast<std::int64_t>(runs_.size()), stream);
  }
  runs_.clear();
  words_.clear();
  return static_cast<std::int64_t>(moved);
}

}  // namespace smla
