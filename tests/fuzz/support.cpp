#include "support.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace smla::fuzz {

void fail(const std::string& text) {
  std::fprintf(stderr, "fuzz: %s\n", text.c_str());
  std::abort();
}

void tell(const char* text) {
  static const bool verbose = std::getenv("SMLA_FUZZ_VERBOSE") != nullptr;
  if (verbose) std::fprintf(stderr, "error: %s\n", text);
}

std::int64_t Input::hostile(std::int64_t limit, bool wide) {
  constexpr std::int32_t kEnds[] = {INT32_MIN, INT32_MIN + 1, -123456, -1, 114514, 1919810, 2147480000, INT32_MAX};
  constexpr std::int64_t kWideEnds[] = {
      INT64_MIN, INT64_MIN + 1, std::int64_t{INT32_MIN} - 1, std::int64_t{INT32_MAX} + 1, INT64_MAX - 1, INT64_MAX};
  const std::uint8_t kind = byte();
  if (kind < 200) return limit <= 192 ? -2 + kind % (limit + 5) : raw<std::uint16_t>() % (limit + 5) - 2;
  if (kind < 240) return kEnds[kind % 8];
  if (!wide) return raw<std::int32_t>();
  return kind < 248 ? kWideEnds[kind % 6] : raw<std::int64_t>();
}

std::vector<std::int32_t> Input::hostile_list(std::int64_t count, std::int64_t limit) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  for (std::int32_t& v : out) v = hostile32(limit);
  return out;
}

std::vector<std::int64_t> Input::hostile_longs(std::int64_t count, std::int64_t limit) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  for (std::int64_t& v : out) v = hostile(limit, true);
  return out;
}

std::string Input::rest() {
  std::string out(bytes_.begin(), bytes_.end());
  bytes_ = {};
  return out;
}

MemoryFile::MemoryFile()
    : file_(::memfd_create("smla_fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(file_)) {
  require(file_ >= 0, "memfd_create failed");
}

MemoryFile::~MemoryFile() { ::close(file_); }

void MemoryFile::truncate(std::int64_t bytes) const { require(::ftruncate(file_, bytes) == 0, "ftruncate failed"); }

void MemoryFile::write(std::string_view bytes) const {
  truncate(0);
  require(::pwrite(file_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "pwrite failed");
}

std::string safetensors_bytes(const std::string& header, const std::string& pool, int extra) {
  constexpr std::string_view kKey = "\"data_offsets\":";
  constexpr long long kMaxBytes = 1 << 20;
  long long end = 0;
  for (std::size_t at = header.find(kKey); at != std::string::npos; at = header.find(kKey, at + 1)) {
    const std::size_t comma = header.find(',', at + kKey.size());
    if (comma != std::string::npos) end = std::max(end, std::strtoll(header.c_str() + comma + 1, nullptr, 10));
  }
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  out += header;
  const auto data = static_cast<std::size_t>(std::max(std::clamp(end, 0LL, kMaxBytes) + extra, 0LL));
  for (std::size_t i = 0; i < data; ++i) out += pool.empty() ? '\0' : pool[i % pool.size()];
  return out;
}

}  // namespace smla::fuzz
