#include <filesystem>
#include <fstream>
#include <system_error>

#include "sparsemla/error.h"
#include "sparsemla/snapshot.h"

namespace smla {

void write_snapshot_file(const std::string& path, std::span<const std::uint8_t> bytes) {
  const std::string part = path + ".part";
  std::error_code error;
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) {
      std::filesystem::remove(part, error);
      throw IoError("snapshot: " + path + ": got a file that cannot be written, expected room for " +
                    std::to_string(bytes.size()) + " bytes");
    }
  }
  std::filesystem::rename(part, path, error);
  if (error) {
    const std::string reason = error.message();
    std::filesystem::remove(part, error);
    throw IoError("snapshot: " + path + ": got " + reason + ", expected a file that can be written");
  }
}

std::vector<std::uint8_t> read_snapshot_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw IoError("snapshot: " + path + ": got no such file, expected one");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw IoError("snapshot: " + path + ": got a file that cannot be read, expected a snapshot");
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (static_cast<std::uintmax_t>(file.gcount()) != size) {
    throw IoError("snapshot: " + path + ": got " + std::to_string(file.gcount()) + " bytes, expected " +
                  std::to_string(size));
  }
  return bytes;
}

}  // namespace smla
