// smla-case/1 files: read, replayed and judged. First byte 'R': the rest is the file. Otherwise a description of one
// (described_case.h).
#include "cases/replay.h"
#include "described_case.h"
#include "support.h"

namespace smla::fuzz {
namespace {

void run(Input input) {
  static const MemoryFile file;
  const std::uint8_t mode = input.byte();
  const std::string text = input.rest();
  survives([&] {
    if (mode == 'R') {
      file.write(text);
    } else if (!write_described(text, file.path())) {
      return;
    }
    const CaseFile read = read_case(file.path());
    if (too_large(read.params)) return;
    ReplayOptions options;
    options.plan.threads = 1;
    if ((mode & 1) != 0) options.plan.implementation = "ref";
    const ReplayResult made = replay(read, options);
    survives([&] { judge(read, made); });
    // The same call gives the same bits.
    const ReplayResult again = replay(read, options);
    for (const auto& [name, tensor] : made.results) {
      const HostTensor& other = again.results.at(name);
      require(tensor.bytes() == other.bytes() &&
                  (tensor.bytes() == 0 || std::memcmp(tensor.data(), other.data(), tensor.bytes()) == 0),
              "a second replay has other bits");
    }
  });
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::run({data, size});
  return 0;
}
