#include "sparsemla/prefix_keys.h"

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::uint64_t kFactor = 0x9E37'79B9'7F4A'7C15U;

constexpr std::uint64_t scatter(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9U;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EBU;
  return x ^ (x >> 31);
}

/// Four sums side by side, so that a word need not wait for the one before it. The sums find a block, they prove
/// nothing: whoever finds one compares its words.
std::uint64_t chain_hash(std::uint64_t before, std::span<const std::uint64_t> words) {
  std::array<std::uint64_t, 4> lanes{before ^ 1, before ^ 2, before ^ 3, before ^ 4};
  std::size_t i = 0;
  for (; i + 4 <= words.size(); i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] = std::rotl((lanes[lane] ^ words[i + lane]) * kFactor, 29);
  }
  for (; i < words.size(); ++i) lanes[i % 4] = std::rotl((lanes[i % 4] ^ words[i]) * kFactor, 29);
  std::uint64_t sum = scatter(before ^ words.size());
  for (const std::uint64_t lane : lanes) sum = scatter(sum ^ lane) + kFactor;
  return sum;
}

}  // namespace

void PrefixKeys::close_block() {
  const std::size_t begin = ends_.empty() ? 0 : ends_.back();
  const std::uint64_t before = hashes_.empty() ? 0 : hashes_.back();
  ends_.push_back(words_.size());
  hashes_.push_back(chain_hash(before, std::span<const std::uint64_t>(words_).subspan(begin)));
}

void PrefixKeys::append(std::span<const std::uint64_t> words) {
  words_.insert(words_.end(), words.begin(), words.end());
  close_block();
}

std::int64_t PrefixKeys::append_tokens(std::span<const std::int32_t> tokens, std::int64_t block_tokens) {
  if (block_tokens < 1)
    throw InvalidArgument("prefix keys: block_tokens: got " + std::to_string(block_tokens) + ", expected 1 or more");
  const auto each = static_cast<std::size_t>(block_tokens);
  const std::size_t blocks = tokens.size() / each;
  const std::size_t words = (each + 1) / 2;  // two tokens a word, the last perhaps alone
  words_.reserve(words_.size() + blocks * words);
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t begin = words_.size();
    words_.resize(begin + words, 0);
    std::memcpy(words_.data() + begin, tokens.data() + b * each, each * sizeof(std::int32_t));
    close_block();
  }
  return static_cast<std::int64_t>(blocks);
}

}  // namespace smla
