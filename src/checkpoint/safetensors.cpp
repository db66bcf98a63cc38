#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "model/json.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::int64_t kPrefixBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxRank = 16;

/// Every dtype of the format with whole bytes; `readable` where a tensor can be made of it.
struct StoredType {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> readable;
};
constexpr std::array<StoredType, 16> kTypes{{{"BOOL", 1, DType::kBool},
                                             {"U8", 1, DType::kU8},
                                             {"I8", 1, std::nullopt},
                                             {"F8_E4M3", 1, DType::kE4M3},
                                             {"F8_E5M2", 1, std::nullopt},
                                             {"F8_E8M0", 1, DType::kU8},
                                             {"I16", 2, std::nullopt},
                                             {"U16", 2, std::nullopt},
                                             {"F16", 2, std::nullopt},
                                             {"BF16", 2, DType::kBF16},
                                             {"I32", 4, DType::kI32},
                                             {"U32", 4, std::nullopt},
                                             {"F32", 4, DType::kF32},
                                             {"F64", 8, DType::kF64},
                                             {"I64", 8, DType::kI64},
                                             {"U64", 8, std::nullopt}}};

const StoredType* stored_type(std::string_view name) {
  const auto* found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const StoredType& type) { return type.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

std::string readable_types() {
  std::string names;
  for (const StoredType& type : kTypes) {
    if (type.readable) names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  return names;
}

/// Bytes of a tensor, or -1 when the product does not fit 63 bits.
std::int64_t tensor_bytes(const StoredType& type, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = type.bytes;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const std::int64_t n : shape) {
    if (bytes > INT64_MAX / n) return -1;
    bytes *= n;
  }
  return bytes;
}

std::uint64_t from_little_endian(const std::array<unsigned char, 8>& bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not hang the caller
  if (file_ < 0) throw IoError(path + ": " + std::strerror(errno));
  try {
    struct stat info {};
    if (::fstat(file_, &info) != 0) throw IoError(path + ": " + std::strerror(errno));
    if (!S_ISREG(info.st_mode))
      throw IoError(path + ": got something that is no regular file, expected a safetensors file");
    size_ = info.st_size;
    read_header();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      size_(other.size_),
      metadata_(std::move(other.metadata_)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (file_ >= 0) ::close(file_);
}

void SafetensorsFile::damaged(const std::string& what) const { throw IoError(path_ + ": " + what); }

void SafetensorsFile::read_bytes(std::int64_t offset, void* to, std::int64_t bytes, const std::string& what) const {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n =
        ::pread(file_, out, static_cast<std::size_t>(std::min<std::int64_t>(bytes, std::int64_t{1} << 30)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) damaged(what + ": " + std::strerror(errno));
    if (n == 0)
      damaged(what + ": got the end of the file at byte " + std::to_string(offset) + ", expected " +
              std::to_string(bytes) + " more (the file shrank)");
    out += n;
    offset += n;
    bytes -= n;
  }
}

void SafetensorsFile::read_header() {
  if (size_ < kPrefixBytes)
    damaged("got " + std::to_string(size_) + " bytes, expected a safetensors file of at least 8");
  std::array<unsigned char, 8> prefix{};
  read_bytes(0, prefix.data(), kPrefixBytes, "header size");
  const std::uint64_t header_bytes = from_little_endian(prefix);
  const auto room = static_cast<std::uint64_t>(std::min(size_ - kPrefixBytes, kMaxHeaderBytes));
  if (header_bytes > room)
    damaged("header size: got " + std::to_string(header_bytes) + " bytes, expected at most " + std::to_string(room));
  std::string text(static_cast<std::size_t>(header_bytes), '\0');
  read_bytes(kPrefixBytes, text.data(), static_cast<std::int64_t>(header_bytes), "header");

  const std::int64_t data_begin = kPrefixBytes + static_cast<std::int64_t>(header_bytes);
  try {
    const JsonValue header =
        parse_json("header", text, {.max_bytes = static_cast<std::size_t>(kMaxHeaderBytes), .max_depth = 8});
    const JsonReader reader("header", header);  // throws unless it is an object
    for (const auto& [name, value] : header.members) {
      if (name == "__metadata__") {
        const JsonReader metadata("__metadata__", value);
        for (const auto& [key, item] : value.members) metadata_[key] = metadata.text(key);
        continue;
      }
      const JsonReader tensor("tensor " + name, value);
      const std::vector<std::int64_t> offsets = tensor.integers("data_offsets", 0, INT64_MAX, 2);
      if (offsets.size() != 2)
        tensor.fail("data_offsets", "an array of " + std::to_string(offsets.size()), "an array of 2");
      add_tensor(name,
                 {.dtype = tensor.text("dtype"),
                  .shape = tensor.integers("shape", 0, INT64_MAX, kMaxRank),
                  .begin = offsets[0],
                  .end = offsets[1]},
                 data_begin);
    }
  } catch (const InvalidArgument& e) {
    damaged(e.what());
  }
  check_layout(data_begin);
}

void SafetensorsFile::add_tensor(const std::string& name, SafetensorsEntry entry, std::int64_t data_begin) {
  const std::string what = "tensor " + name + ": ";
  const StoredType* type = stored_type(entry.dtype);
  if (type == nullptr)
    damaged(what + "dtype: got \"" + entry.dtype + "\", which is no safetensors dtype; readable are " +
            readable_types());
  const std::int64_t bytes = tensor_bytes(*type, entry.shape);
  if (bytes < 0) damaged(what + "shape: got a size that does not fit 63 bits");
  const std::string offsets = "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end || entry.end > size_ - data_begin) {
    damaged(what + "data_offsets: got " + offsets + ", expected them ascending and within the file's " +
            std::to_string(size_ - data_begin) + " bytes of data");
  }
  if (entry.end - entry.begin != bytes) {
    damaged(what + "data_offsets: got " + offsets + ", " + std::to_string(entry.end - entry.begin) +
            " bytes, expected " + std::to_string(bytes) + " for its shape and dtype");
  }
  entry.begin += data_begin;
  entry.end += data_begin;
  tensors_.emplace(name, std::move(entry));
}

/// The data must be covered once: an overlap or a hole means that the header and the data do not belong together.
void SafetensorsFile::check_layout(std::int64_t data_begin) const {
  std::vector<std::pair<std::int64_t, const std::pair<const std::string, SafetensorsEntry>*>> order;
  for (const auto& item : tensors_) order.emplace_back(item.second.begin, &item);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second->second.end) < std::pair(b.first, b.second->second.end);
  });
  std::int64_t expected = data_begin;
  for (const auto& [begin, item] : order) {
    if (begin != expected) {
      damaged("tensor " + item->first + ": data_offsets: got a start " + std::to_string(begin - data_begin) + " that " +
              (begin < expected ? "overlaps another tensor" : "leaves a hole") + ", expected " +
              std::to_string(expected - data_begin));
    }
    expected = item->second.end;
  }
  if (expected != size_) {
    damaged("got " + std::to_string(size_ - expected) + " bytes after the last tensor, expected none");
  }
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw InvalidArgument(path_ + ": tensor " + name + ": got no such tensor, expected it in the file");
  return found->second;
}

HostTensor SafetensorsFile::read(const std::string& name) const {
  return read_part(name, entry(name).shape, entry(name).begin);
}

HostTensor SafetensorsFile::read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const SafetensorsEntry& stored = entry(name);
  const std::int64_t rows = stored.shape.empty() ? 0 : stored.shape[0];
  if (begin < 0 || begin > end || end > rows) {
    throw InvalidArgument(path_ + ": tensor " + name + ": got rows " + std::to_string(begin) + " to " +
                          std::to_string(end) + ", expected some of its " + std::to_string(rows));
  }
  std::vector<std::int64_t> shape = stored.shape;
  if (!shape.empty()) shape[0] = end - begin;
  return read_part(name, std::move(shape), stored.begin + (rows == 0 ? 0 : (stored.end - stored.begin) / rows * begin));
}

HostTensor SafetensorsFile::read_part(const std::string& name, std::vector<std::int64_t> shape,
                                      std::int64_t begin) const {
  const SafetensorsEntry& stored = entry(name);
  const StoredType* type = stored_type(stored.dtype);
  if (type == nullptr || !type->readable) {
    throw Unsupported(path_ + ": tensor " + name + ": dtype: got " + stored.dtype + ", expected one of " +
                      readable_types());
  }
  HostTensor tensor(*type->readable, std::move(shape));
  read_bytes(begin, tensor.data(), static_cast<std::int64_t>(tensor.bytes()), "tensor " + name);
  if (tensor.dtype() == DType::kBool) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    if (std::any_of(bytes, bytes + tensor.bytes(), [](unsigned char b) { return b > 1; }))
      damaged("tensor " + name + ": got a BOOL that is neither 0 nor 1");
  }
  return tensor;
}

void write_safetensors(const std::string& path, const std::map<std::string, std::string>& metadata,
                       const std::vector<std::pair<std::string, const HostTensor*>>& tensors) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) items.push_back({.name = name, .tensor = tensor, .dtype = {}});
  write_safetensors_items(path, metadata, items);
}

void write_safetensors_items(const std::string& path, const std::map<std::string, std::string>& metadata,
                             const std::vector<SafetensorsItem>& tensors) {
  std::vector<SafetensorsPlan> plans;
  for (const auto& [name, tensor, as_dtype] : tensors) {
    SafetensorsPlan plan{.name = name,
                         .dtype = as_dtype.empty() ? std::string(name_of(tensor->dtype())) : as_dtype,
                         .shape = tensor->shape()};
    const StoredType* type = stored_type(plan.dtype);
    if (type == nullptr || type->bytes != size_of(tensor->dtype())) {
      throw InvalidArgument(path + ": tensor " + name + ": dtype: got " + plan.dtype +
                            ", expected a safetensors dtype of its size");
    }
    plans.push_back(std::move(plan));
  }
  SafetensorsWriter writer(path, metadata, plans);
  for (const SafetensorsItem& item : tensors) writer.append(item.tensor->data(), item.tensor->bytes());
  writer.finish();
}

std::int64_t SafetensorsPlan::bytes() const {
  const StoredType* type = stored_type(dtype);
  const std::int64_t bytes = type == nullptr ? -1 : tensor_bytes(*type, shape);
  if (bytes < 0)
    throw InvalidArgument("tensor " + name + ": got " + dtype + ", expected a safetensors dtype and a size of 63 bits");
  return bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::map<std::string, std::string>& metadata,
                                     const std::vector<SafetensorsPlan>& tensors)
    : path_(path), file_(nullptr, [](std::FILE* f) { return f != nullptr ? std::fclose(f) : 0; }) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      header += (header.back() == '{' ? "" : ",") + json_string(key) + ":" + json_string(value);
    header += "}";
  }
  std::set<std::string> names{"__metadata__"};
  for (const SafetensorsPlan& plan : tensors) {
    if (!names.insert(plan.name).second)
      throw InvalidArgument(path + ": tensor " + plan.name + ": got a reserved or repeated name, expected another");
    header +=
        (header.size() == 1 ? "" : ",") + json_string(plan.name) + ":{\"dtype\":\"" + plan.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < plan.shape.size(); ++i) header += (i == 0 ? "" : ",") + std::to_string(plan.shape[i]);
    const std::int64_t end = missing_ + plan.bytes();
    header += "],\"data_offsets\":[" + std::to_string(missing_) + "," + std::to_string(end) + "]}";
    missing_ = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  file_.reset(std::fopen(path.c_str(), "wb"));
  if (file_ == nullptr) throw IoError(path + ": " + std::strerror(errno));
  std::array<unsigned char, 8> prefix{};
  for (std::size_t i = 0; i < 8; ++i) prefix[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  put(prefix.data(), prefix.size());
  put(header.data(), header.size());
}

void SafetensorsWriter::put(const void* data, std::size_t bytes) {
  if (bytes != 0 && std::fwrite(data, 1, bytes, file_.get()) != bytes)
    throw IoError(path_ + ": writing failed: " + std::strerror(errno));
}

void SafetensorsWriter::append(const void* data, std::size_t bytes) {
  put(data, bytes);
  missing_ -= static_cast<std::int64_t>(bytes);
}

void SafetensorsWriter::finish() {
  if (missing_ != 0)
    throw InvalidArgument(path_ + ": got tensors that differ by " + std::to_string(missing_) +
                          " bytes from the header, expected those it names");
  if (std::fflush(file_.get()) != 0) throw IoError(path_ + ": writing failed: " + std::strerror(errno));
}

}  // namespace smla
