#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/word_runs.h"
#include "engine/scheduler.h"
#include "sparsemla/kv_layout.h"

namespace smla {

/// The block tables of a step in the memory of the device that runs it, one a cache group: row r belongs to request r
/// of the batch. They stay there from step to step, at the same addresses, and a step moves what changed: the blocks
/// that a request got since its row was written, and the live columns of a request that comes to a row.
///
/// Column c of a row is the block of positions c * block_tokens and on, as everywhere. Columns that no token of the
/// step reads are not kept up: they hold 0, the null block, or a block of an earlier step.
class BlockTables {
 public:
  /// For at most `rows` requests in a batch, padding requests included, of at most `max_model_len` positions.
  BlockTables(const KvLayout& layout, DeviceKind device, std::int64_t rows, std::int64_t max_model_len);

  /// Puts decodes that are in a row already back there, as far as the batch has that row; the others fill what is left.
  void keep_rows(std::span<Scheduled> decodes) const;
  /// Brings the batch's rows up to date, queued on `stream`. Longer requests than before need wider tables in new
  /// memory, twice as wide at least.
  /// @param lost  a group whose blocks are all written as the null block, -1: none; a fault to plant
  /// @return whether the tables moved, so that no address of an earlier step is good any more
  bool update(std::span<const Scheduled> batch, Stream stream, int lost = -1);

  /// Rows [0, requests) and the columns of `max_seq_len` positions, or those there are, of each group's table; they are
  /// good until the tables move.
  std::vector<ConstTensorView> views(std::int64_t requests, std::int64_t max_seq_len) const;

  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }  ///< of all tables
  std::int64_t moved() const { return moved_; }  ///< bytes that the last update took from the host to the device

 private:
  /// What a row of the tables holds: columns before `end` of a request that has not changed since.
  struct Row {
    std::uint64_t request = 0;  ///< Request::serial; 0: none
    std::uint64_t changes = 0;
    std::vector<std::int64_t> end;
  };
  bool widen(std::int64_t tokens);
  std::int64_t columns(std::size_t group, std::int64_t tokens) const {
    return (tokens + layout_.groups[group].block_tokens - 1) / layout_.groups[group].block_tokens;
  }

  KvLayout layout_;
  DeviceKind device_;
  std::int64_t max_model_len_;
  std::int64_t tokens_ = 0;  ///< that a row has columns for
  DeviceTensor memory_;
  std::vector<std::int64_t> first_;  ///< of each group's table in memory_, in words
  std::vector<std::int64_t> width_;  ///< columns of each
  std::vector<Row> rows_;
  std::unordered_map<std::uint64_t, std::int64_t> row_of_;  ///< where a request was last, unless others came there
  WordRuns runs_;
  std::int64_t moved_ = 0;
};

}  // namespace smla
