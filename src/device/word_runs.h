#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device_tensor.h"

namespace smla {

/// Words that go from one place of a list to one place of a device's memory.
struct WordRun {
  std::int64_t to = 0;     ///< the first word's place in the memory
  std::int32_t from = 0;   ///< and in the list
  std::int32_t count = 0;  ///< how many
};

/// Short runs of 32-bit words for many places of a device's memory, written together: by one copy and one kernel.
class WordRuns {
 public:
  /// `words` for places `to` and on. Of two runs for one place neither is sure to be the one that stays.
  void add(std::int64_t to, std::span<const std::int32_t> words);
  /// Writes what was added into `memory`, queued on `stream`, and forgets it.
  /// @return bytes that went from the host to the device: on a GPU the words and their places, on the CPU the words.
  std::int64_t write(DeviceKind device, std::int32_t* memory, Stream stream);

 private:
  std::vector<WordRun> runs_;
  std::vector<std::int32_t> words_;
  std::vector<std::uint8_t> packed_;
  DeviceTensor staged_;
};

/// `staged` holds `runs` WordRuns and then their words. @throws Unsupported without CUDA; CudaError.
void cuda_write_runs(std::int32_t* memory, const void* staged, std::int64_t runs, Stream stream);

}  // namespace smla
