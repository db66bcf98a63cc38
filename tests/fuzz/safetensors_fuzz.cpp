// Safetensors. First byte 'R': the rest is the file. Otherwise: its header's text, a 0 byte, and bytes that its data is
// made of; the first byte also says how many data bytes are missing or too many, and whether the file shrinks after it
// was opened.
#include "checkpoint/safetensors.h"
#include "support.h"

namespace smla::fuzz {
namespace {

void read_all(const SafetensorsFile& file) {
  for (const auto& item : file.tensors()) {
    survives([&file, &name = item.first, &entry = item.second] {
      const HostTensor whole = file.read(name);
      require(static_cast<std::int64_t>(whole.bytes()) == entry.end - entry.begin, "a tensor of another size");
      if (whole.rank() == 0 || whole.size(0) == 0) return;
      // Its rows one by one are the whole.
      const std::int64_t rows = std::min<std::int64_t>(whole.size(0), 4);
      const std::size_t row_bytes = whole.bytes() / static_cast<std::size_t>(whole.size(0));
      for (std::int64_t r = 0; r < rows; ++r) {
        const HostTensor row = file.read_rows(name, r, r + 1);
        require(
            row.bytes() == row_bytes && (row_bytes == 0 || std::memcmp(row.data(),
                                                                       static_cast<const std::uint8_t*>(whole.data()) +
                                                                           static_cast<std::size_t>(r) * row_bytes,
                                                                       row_bytes) == 0),
            "a row is not the row of the whole");
      }
    });
  }
}

void run(Input input) {
  static const MemoryFile file;
  const std::uint8_t mode = input.byte();
  const std::string text = input.rest();
  std::string bytes = text;
  if (mode != 'R') {
    const std::size_t end = std::min(text.find('\0'), text.size());
    constexpr int kExtra[] = {0, 0, 0, 0, 0, -1, 1, -64};
    bytes = safetensors_bytes(text.substr(0, end), end < text.size() ? text.substr(end + 1) : "", kExtra[mode % 8]);
  }
  file.write(bytes);
  survives([&] {
    const SafetensorsFile opened(file.path());
    if (mode != 'R' && (mode & 0x20) != 0) file.truncate(static_cast<std::int64_t>(bytes.size() / 2));
    read_all(opened);
  });
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::run({data, size});
  return 0;
}
