#include "engine/prompt.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace smla {

TokenRun run_at(const RequestSpec& spec, std::int64_t position) {
  const std::int64_t each = spec.prompt_id_tokens;
  if (each > 0 && position < spec.prompt_tokens) {
    const std::int64_t block = position / each;
    if (block < std::ssize(spec.prompt_ids)) {
      return {.stream = 2,
              .id = spec.prompt_ids[static_cast<std::size_t>(block)],
              .end = std::min((block + 1) * each, spec.prompt_tokens)};
    }
  }
  return {.stream = 0, .id = spec.id, .end = std::numeric_limits<std::int64_t>::max()};
}

std::int64_t common_prefix(const RequestSpec& a, const RequestSpec& b) {
  if (a.id == b.id) return std::min(a.positions(), b.positions());
  std::int64_t position = 0;
  while (true) {
    const TokenRun one = run_at(a, position);
    const TokenRun other = run_at(b, position);
    if (one.stream != other.stream || one.id != other.id) return position;
    position = std::min(one.end, other.end);
  }
}

void extend_keys(PrefixKeys& keys, const RequestSpec& spec, std::int64_t unit, std::int64_t tokens) {
  std::vector<std::uint64_t> words;
  while ((keys.blocks() + 1) * unit <= tokens) {
    const std::int64_t begin = keys.blocks() * unit;
    words.clear();
    for (std::int64_t position = begin; position < begin + unit;) {
      const TokenRun run = run_at(spec, position);
      position = std::min(run.end, begin + unit);
      const std::array<std::uint64_t, 3> word{run.stream, static_cast<std::uint64_t>(run.id),
                                              static_cast<std::uint64_t>(position - begin)};
      words.insert(words.end(), word.begin(), word.end());
    }
    keys.append(words);
  }
}

}  // namespace smla
