#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// What a request's tokens are, as a prefix cache compares them: blocks of equal numbers of tokens, each with words
/// that stand for its contents and a hash of them and of all blocks before.
///
/// A block's words are its tokens, or a host's own name for them, such as the ids of a trace. Equal words in the same
/// place behind equal blocks must mean equal tokens.
class PrefixKeys {
 public:
  /// Appends a block by its words, in any number.
  void append(std::span<const std::uint64_t> words);
  /// Appends as many whole blocks of `block_tokens` tokens as there are; what is left over is ignored.
  /// @return the number of blocks. @throws InvalidArgument for block_tokens below 1.
  std::int64_t append_tokens(std::span<const std::int32_t> tokens, std::int64_t block_tokens);

  std::int64_t blocks() const { return static_cast<std::int64_t>(hashes_.size()); }
  /// The hash of a block and of all before it.
  std::uint64_t hash(std::int64_t block) const { return hashes_[static_cast<std::size_t>(block)]; }
  /// The words of a block.
  std::span<const std::uint64_t> words(std::int64_t block) const {
    const auto b = static_cast<std::size_t>(block);
    const std::size_t begin = b == 0 ? 0 : ends_[b - 1];
    return std::span(words_).subspan(begin, ends_[b] - begin);
  }

 private:
  friend class PrefixCache;
  void close_block();

  std::vector<std::uint64_t> words_;
  std::vector<std::size_t> ends_;      ///< of each block in words_
  std::vector<std::uint64_t> hashes_;  ///< by block
  /// Where the cache last put a block of this request, so that the next one is found without a search.
  struct Place {
    std::int32_t entry = -1;
    std::uint64_t serial = 0;
    std::int64_t block = -1;
  };
  Place place_;
};

}  // namespace smla
