#include "cache/snapshot_records.h"

#include <algorithm>
#include <array>
#include <bit>

#include "sparsemla/error.h"

namespace smla::snapshot_records {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic{'S', 'M', 'L', 'A', 'S', 'N', 'A', 'P'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kNameBytes = 32;
constexpr std::int64_t kMaxLayers = 1 << 20;
constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kRecordBytes = 8 + 4 + 4 + kNameBytes + 4 * 4 + 5 * 8;
constexpr std::size_t kChecksumBytes = 8;

[[noreturn]] void damaged(const std::string& what, const std::string& got, const std::string& expected) {
  throw IoError("snapshot: " + what + ": got " + got + ", expected " + expected);
}
[[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& expected) {
  throw InvalidArgument("snapshot: " + what + ": got " + got + ", expected " + expected);
}

CacheGroup group_form(const SnapshotCache& c) {
  return {.name = {}, .block_tokens = c.block_tokens, .window = c.window, .caches = {}, .page_bytes = 0};
}

void put_record(Writer& w, const SnapshotCache& c) {
  std::array<char, kNameBytes> name{};
  c.format->name.copy(name.data(), kNameBytes - 1);
  w.put(c.layer);
  w.put(static_cast<std::uint32_t>(c.role));
  w.put(c.scale);
  w.append(name.data(), name.size());
  for (const int number : {c.format->dim, c.format->nope_dim, c.format->data_bytes, c.format->scale_bytes})
    w.put(static_cast<std::int32_t>(number));
  for (const std::int64_t number : {c.block_size, c.block_tokens, c.window, c.first_block, c.blocks}) w.put(number);
}

SnapshotCache take_record(Reader& r, std::int64_t num_layers) {
  SnapshotCache c;
  c.layer = r.take<std::int64_t>();
  if (c.layer < 0 || c.layer >= num_layers)
    damaged("layer of a cache", std::to_string(c.layer),
            num_layers == 0 ? "none" : "0 to " + std::to_string(num_layers - 1));
  const auto role = r.take<std::uint32_t>();
  if (role >= kNumCacheRoles)
    damaged("role of a cache of layer " + std::to_string(c.layer), std::to_string(role),
            "below " + std::to_string(kNumCacheRoles));
  c.role = static_cast<CacheRole>(role);
  c.scale = r.take<float>();
  const auto name = r.take(kNameBytes);
  const auto* text = reinterpret_cast<const char*>(name.data());
  const char* end = std::find(text, text + kNameBytes, '\0');
  if (std::any_of(end, text + kNameBytes, [](char byte) { return byte != '\0'; }))
    damaged(cache_name(c) + ": format", "other bytes behind its name", "zeros");
  try {
    c.format = &row_format({text, static_cast<std::size_t>(end - text)});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("snapshot: " + cache_name(c) + ": " + error.what());
  }
  for (const int expected : {c.format->dim, c.format->nope_dim, c.format->data_bytes, c.format->scale_bytes}) {
    const auto got = r.take<std::int32_t>();
    if (got != expected) {
      refuse(cache_name(c) + ": numbers of " + std::string(c.format->name) + " rows", std::to_string(got),
             std::to_string(expected));
    }
  }
  for (std::int64_t* number : {&c.block_size, &c.block_tokens, &c.window, &c.first_block, &c.blocks})
    *number = r.take<std::int64_t>();
  return c;
}

/// Sizes that make sense, and the blocks that `tokens` positions need.
void check_record(const SnapshotCache& c, std::int64_t tokens) {
  constexpr std::int64_t kMaxBlockTokens = 1 << 20;
  const std::string name = cache_name(c);
  if (c.block_size < 1 || c.block_tokens < c.block_size || c.block_tokens > kMaxBlockTokens ||
      c.block_tokens % c.block_size != 0) {
    damaged(name, std::to_string(c.block_size) + " rows of " + std::to_string(c.block_tokens) + " tokens a block",
            "a whole number of tokens a row");
  }
  if (c.window < 0 || c.window > kMaxBlockTokens)
    damaged(name + ": window", std::to_string(c.window), "0 to " + std::to_string(kMaxBlockTokens));
  const auto [first, end] = group_form(c).live_columns(tokens);
  if (c.first_block != first || c.blocks != end - first) {
    damaged(
        name, std::to_string(c.blocks) + " blocks from " + std::to_string(c.first_block),
        std::to_string(end - first) + " from " + std::to_string(first) + " for " + std::to_string(tokens) + " tokens");
  }
}

}  // namespace

/// Each step maps the sum so far one to one, so that a single changed word always changes the result.
std::uint64_t checksum(std::span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0x534D'4C41'534E'4150U ^ bytes.size();
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    sum = (sum ^ word) * 0x9E37'79B9'7F4A'7C15U;
    sum ^= sum >> 32;
  }
  return sum;
}

std::string cache_name(const SnapshotCache& cache) {
  return name_of(cache.role) + " cache of layer " + std::to_string(cache.layer);
}

std::int64_t bytes_of(const SnapshotCache& c) { return c.blocks * block_bytes(*c.format, c.block_size); }

Writer begin(std::int64_t tokens, std::int64_t num_layers, std::span<const SnapshotCache> caches,
             std::span<const std::uint8_t> note) {
  std::size_t size = kHeaderBytes + caches.size() * kRecordBytes + note.size() + kChecksumBytes;
  for (const SnapshotCache& c : caches) size += static_cast<std::size_t>(bytes_of(c));
  Writer w(size);
  w.append(kMagic.data(), kMagic.size());
  w.put(kVersion);
  w.put(static_cast<std::uint32_t>(caches.size()));
  w.put(static_cast<std::uint64_t>(size));
  w.put(tokens);
  w.put(num_layers);
  w.put(static_cast<std::uint64_t>(note.size()));
  for (const SnapshotCache& c : caches) put_record(w, c);
  w.append(note.data(), note.size());
  return w;
}

/// Everything but the blocks, which `r` stands before when it returns.
SnapshotInfo take_info(std::span<const std::uint8_t> bytes, Reader& r) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes) {
    damaged("size", std::to_string(bytes.size()) + " bytes",
            "at least " + std::to_string(kHeaderBytes + kChecksumBytes));
  }
  if (std::memcmp(r.take(kMagic.size()).data(), kMagic.data(), kMagic.size()) != 0)
    damaged("first bytes", "others", "SMLASNAP");
  const auto version = r.take<std::uint32_t>();
  if (version != kVersion) refuse("version", std::to_string(version), std::to_string(kVersion));
  const auto caches = r.take<std::uint32_t>();
  const auto size = r.take<std::uint64_t>();
  if (size != bytes.size()) damaged("size", std::to_string(bytes.size()) + " bytes", std::to_string(size));
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + bytes.size() - kChecksumBytes, kChecksumBytes);
  const std::uint64_t expected = checksum(bytes.first(bytes.size() - kChecksumBytes));
  if (sum != expected) damaged("checksum", std::to_string(sum), std::to_string(expected));

  SnapshotInfo info;
  info.tokens = r.take<std::int64_t>();
  if (info.tokens < 0 || info.tokens > kMaxTokens)
    damaged("tokens", std::to_string(info.tokens), "0 to " + std::to_string(kMaxTokens));
  info.num_layers = r.take<std::int64_t>();
  if (info.num_layers < 0 || info.num_layers > kMaxLayers)
    damaged("layers", std::to_string(info.num_layers), "0 to " + std::to_string(kMaxLayers));
  const auto note = r.take<std::uint64_t>();
  if (caches > r.left() / kRecordBytes) damaged("caches", std::to_string(caches), "as many as fit the file");
  for (std::uint32_t i = 0; i < caches; ++i) {
    info.caches.push_back(take_record(r, info.num_layers));
    const SnapshotCache& c = info.caches.back();
    check_record(c, info.tokens);
    if (i > 0) {
      const SnapshotCache& before = info.caches[i - 1];
      if (std::pair(c.layer, c.role) <= std::pair(before.layer, before.role))
        damaged("order of caches", cache_name(c), "one behind " + cache_name(before));
    }
  }
  if (note > r.left() - kChecksumBytes)
    damaged("note", std::to_string(note) + " bytes", "at most what is left of the file");
  const auto host = r.take(static_cast<std::size_t>(note));
  info.note.assign(host.begin(), host.end());
  auto left = static_cast<std::int64_t>(r.left() - kChecksumBytes);
  for (const SnapshotCache& c : info.caches) {
    // Blocks first: their product with a block's bytes could pass 63 bits.
    if (c.blocks > left || bytes_of(c) > left)
      damaged(cache_name(c), std::to_string(left) + " bytes left", std::to_string(c.blocks) + " blocks");
    left -= bytes_of(c);
  }
  if (left != 0) damaged("blocks", std::to_string(left) + " bytes more", "none");
  return info;
}

}  // namespace smla::snapshot_records
