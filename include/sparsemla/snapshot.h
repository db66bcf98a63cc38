#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparsemla/export.h"
#include "sparsemla/kv_pool.h"

namespace SMLA_API smla {

/// The part of a snapshot that comes from one cache: whole blocks, oldest first.
struct SnapshotCache {
  std::int64_t layer = 0;  ///< position in the list of layers
  CacheRole role = CacheRole::kWindow;
  const RowFormat* format = nullptr;  ///< how rows are stored
  float scale = 1.0F;                 ///< kPerTensor rows: number = e4m3 * scale
  std::int64_t block_size = 0;        ///< rows in a block
  std::int64_t block_tokens = 0;      ///< source tokens a block covers
  std::int64_t window = 0;            ///< tokens that the cache keeps; 0: all
  std::int64_t first_block = 0;       ///< first block held; block 0 begins at position 0
  std::int64_t blocks = 0;
};

/// The description at the head of a snapshot.
struct SnapshotInfo {
  std::int64_t tokens = 0;            ///< computed positions of the request
  std::int64_t num_layers = 0;        ///< layers of the layout that it was saved from
  std::vector<SnapshotCache> caches;  ///< in the order of their offsets in the buffer
  std::vector<std::uint8_t> note;     ///< the bytes that the host gave to save_snapshot
};

/// The state of a request of `tokens` computed positions as one self-describing buffer (docs/snapshot.md): the rows of
/// every cache of every layer that it needs to go on, compressor states included. Rows of positions from `tokens` on
/// (rejected drafts) and those that nothing reads any more are saved as zeros. The same state gives the same bytes,
/// whatever blocks it stands in.
/// @param note  bytes of the host's own, such as how far its sampler is. @throws InvalidArgument when `blocks` lacks a
/// block that the request needs.
std::vector<std::uint8_t> save_snapshot(const KvPool& pool, const RequestBlocks& blocks, std::int64_t tokens,
                                        std::span<const std::uint8_t> note = {});

/// Checks a snapshot as far as that goes without a pool. Allocates no more than the buffer's size.
/// @throws IoError when it is damaged or truncated, InvalidArgument when it is of another version or of a row format
/// that this library does not have.
SnapshotInfo inspect_snapshot(std::span<const std::uint8_t> bytes);

/// Puts the request into another pool: other blocks, groups or strides, but the same layers, formats, block sizes and
/// scales; rows of index_fp8 and of index_fp8_ue8m0 become each other. `blocks` must hold none. All or nothing: on an
/// error pool and blocks hold what they held. @throws as inspect_snapshot; InvalidArgument, naming got and expected,
/// for a layout that differs, too few free blocks, or a scale that the pool's format cannot hold.
SnapshotInfo load_snapshot(std::span<const std::uint8_t> bytes, KvPool& pool, RequestBlocks& blocks);

/// Write and read a snapshot as a file. It is written under another name first and then renamed, so that `path` never
/// holds half a snapshot. @throws IoError.
void write_snapshot_file(const std::string& path, std::span<const std::uint8_t> bytes);
std::vector<std::uint8_t> read_snapshot_file(const std::string& path);

}  // namespace smla
