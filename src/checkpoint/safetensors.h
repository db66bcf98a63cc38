#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/host_tensor.h"
#include "sparsemla/dtype.h"

namespace smla {

/// Where a tensor stands in a safetensors file.
struct SafetensorsEntry {
  std::string dtype;  ///< as written; see `SafetensorsFile::read` for those that can be read
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< bytes from the start of the file
  std::int64_t end = 0;
};

/// A safetensors file, checked when opened: header size, names, dtypes, shapes, offsets (in the file, no overlap, no
/// hole). Tensors are read on demand by bounds-checked pread, never mapped, so a file that shrinks meanwhile is an
/// IoError and not a signal. Errors name the file and the tensor.
class SafetensorsFile {
 public:
  /// @throws IoError when the file cannot be read or is damaged.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }

  /// BOOL, U8, I32, I64, F32, F64, BF16, F8_E4M3, and F8_E8M0 as U8.
  /// @throws InvalidArgument when there is no such tensor, Unsupported for another dtype, IoError when the file
  /// changed.
  HostTensor read(const std::string& name) const;
  /// Rows [begin, end) of the first dimension. @throws as `read`; InvalidArgument for rows that are not there.
  HostTensor read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;

 private:
  const SafetensorsEntry& entry(const std::string& name) const;
  HostTensor read_part(const std::string& name, std::vector<std::int64_t> shape, std::int64_t begin) const;
  void read_header();
  void add_tensor(const std::string& name, SafetensorsEntry entry, std::int64_t data_begin);
  void check_layout(std::int64_t data_begin) const;
  void read_bytes(std::int64_t offset, void* to, std::int64_t bytes, const std::string& what) const;
  [[noreturn]] void damaged(const std::string& what) const;

  std::string path_;
  int file_ = -1;
  std::int64_t size_ = 0;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, SafetensorsEntry> tensors_;
};

/// A tensor of a file that is to be written: its safetensors dtype ("BF16", "F8_E8M0") and shape.
struct SafetensorsPlan {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  /// Of its data. @throws InvalidArgument for an unknown dtype or a size that does not fit 63 bits.
  std::int64_t bytes() const;
};

/// Writes a file from front to back: an 8-byte aligned header of all tensors, then their bytes as they come.
class SafetensorsWriter {
 public:
  /// @throws IoError; InvalidArgument for an unknown dtype, a repeated or a reserved name.
  SafetensorsWriter(const std::string& path, const std::map<std::string, std::string>& metadata,
                    const std::vector<SafetensorsPlan>& tensors);
  /// The next bytes of the data. @throws IoError.
  void append(const void* data, std::size_t bytes);
  /// @throws IoError; InvalidArgument unless all bytes of all tensors were appended.
  void finish();

 private:
  void put(const void* data, std::size_t bytes);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::int64_t missing_ = 0;
};

/// A tensor to write. `dtype`: its name in the file where that is not `name_of(tensor->dtype())` (F8_E8M0 for U8).
struct SafetensorsItem {
  std::string name;
  const HostTensor* tensor = nullptr;
  std::string dtype;
};
/// Writes whole tensors in the given order. @throws as SafetensorsWriter; InvalidArgument for a dtype of another size.
void write_safetensors_items(const std::string& path, const std::map<std::string, std::string>& metadata,
                             const std::vector<SafetensorsItem>& tensors);
void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       const std::vector<std::pair<std::string, const HostTensor*>>& tensors);

}  // namespace smla
