// A checkpoint folder: the index, its shards and the layer that is loaded from them. The input is text parts separated
// by lines "%%": numbers of the layer (bytes), the index, the header of a.safetensors, the header of b.safetensors, and
// bytes that the shards' data is made of.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "checkpoint/index.h"
#include "sparsemla/checkpoint.h"
#include "sparsemla/weights.h"
#include "support.h"

namespace smla::fuzz {
namespace {

/// A folder that goes with the process.
class Folder {
 public:
  Folder() {
    char memory[] = "/dev/shm/smla_fuzz_XXXXXX";
    char disk[] = "/tmp/smla_fuzz_XXXXXX";
    const char* made = ::mkdtemp(memory);
    if (made == nullptr) made = ::mkdtemp(disk);
    require(made != nullptr, "mkdtemp failed");
    path_ = made;
  }
  ~Folder() {
    for (const char* name : {"model.safetensors.index.json", "a.safetensors", "b.safetensors"})
      ::unlink(at(name).c_str());
    ::rmdir(path_.c_str());
  }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(at(name), std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string next_part(std::string& text) {
  constexpr std::string_view kLine = "\n%%\n";
  const std::size_t end = text.find(kLine);
  std::string part = text.substr(0, end);
  text = end == std::string::npos ? "" : text.substr(end + kLine.size());
  return part;
}

LayerConfig layer_of(Input numbers) {
  LayerConfig c;
  c.hidden_size = 16 * numbers.range(1, 9);
  c.num_heads = numbers.range(1, 4);
  c.q_lora_rank = 16 * numbers.range(1, 9);
  c.o_lora_rank = 16 * numbers.range(1, 2);
  c.o_groups = numbers.range(1, 2);
  constexpr int kRatios[] = {1, 4, 128};
  c.compress_ratio = numbers.choice(kRatios);
  c.index_n_heads = numbers.range(1, 2);
  c.index_topk = 8;
  return c;
}

void run(const std::string& whole) {
  static const Folder folder;
  std::string text = whole;
  const std::string numbers = next_part(text);
  const std::string index = next_part(text);
  const std::string a = next_part(text);
  const std::string b = next_part(text);
  Input input(reinterpret_cast<const std::uint8_t*>(numbers.data()), numbers.size());
  const std::uint8_t mode = input.byte();
  const int rank = static_cast<int>(input.range(0, 1));
  const int size = static_cast<int>(input.range(1, 2));
  const LayerConfig layer = layer_of(input);
  folder.write("model.safetensors.index.json", index);
  folder.write("a.safetensors", safetensors_bytes(a, text));
  folder.write("b.safetensors", safetensors_bytes(b, text, mode % 16 == 0 ? -1 : 0));
  survives([&] {
    for (const auto& [name, file] : parse_checkpoint_index("index", index))
      require(file.find('/') == std::string::npos, "a shard outside the folder");
  });
  survives([&] {
    const Checkpoint checkpoint(folder.path());
    require(!checkpoint.names().empty() || index.find(':') != std::string::npos, "a checkpoint of nothing");
    if ((mode & 2) != 0) ::truncate(folder.at("a.safetensors").c_str(), static_cast<off_t>(a.size() + 20));
    const LayerTensors loaded = checkpoint.load_layer(0, layer, rank, size);
    // What was loaded is what the layer asks for: the views of the layer's weights can be had.
    layer_weights(loaded);
  });
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::run(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
