#include "engine/block_tables.h"

#include <algorithm>

namespace smla {

BlockTables::BlockTables(const KvLayout& layout, DeviceKind device, std::int64_t rows, std::int64_t max_model_len)
    : layout_(layout), device_(device), max_model_len_(max_model_len), rows_(static_cast<std::size_t>(rows)) {
  widen(1);
}

/// Makes room for `tokens` positions in each row: powers of two from 1,024 on.
bool BlockTables::widen(std::int64_t tokens) {
  if (tokens <= tokens_) return false;
  tokens_ = 1024;
  while (tokens_ < tokens) tokens_ *= 2;
  tokens_ = std::max(std::min(tokens_, max_model_len_), tokens);
  first_.clear();
  width_.clear();
  std::int64_t words = 0;
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    first_.push_back(words);
    width_.push_back(columns(g, tokens_));
    words += width_.back() * static_cast<std::int64_t>(rows_.size());
  }
  memory_ = DeviceTensor(device_, DType::kI32, {words});
  std::ranges::fill(rows_, Row{});
  row_of_.clear();
  return true;
}

void BlockTables::keep_rows(std::span<Scheduled> decodes) const {
  std::vector<Scheduled> placed(decodes.size());
  std::vector<Scheduled> others;
  for (const Scheduled& part : decodes) {
    const auto found = row_of_.find(part.request->serial);
    const auto row = static_cast<std::size_t>(found == row_of_.end() ? -1 : found->second);
    if (row < placed.size() && placed[row].request == nullptr) {
      placed[row] = part;
    } else {
      others.push_back(part);
    }
  }
  auto next = others.begin();
  for (Scheduled& part : placed) {
    if (part.request == nullptr) part = *next++;
  }
  std::ranges::copy(placed, decodes.begin());
}

bool BlockTables::update(std::span<const Scheduled> batch, Stream stream, int lost) {
  std::int64_t longest = 0;
  for (const Scheduled& part : batch) longest = std::max(longest, part.request->computed + part.tokens);
  const bool moved = widen(longest);
  std::vector<std::int32_t> nulls;
  for (std::size_t r = 0; r < batch.size(); ++r) {
    const Request& request = *batch[r].request;
    const std::uint64_t id = request.serial;
    Row& row = rows_[r];
    if (row.request != id) {
      const auto before = row_of_.find(row.request);
      if (before != row_of_.end() && before->second == static_cast<std::int64_t>(r)) row_of_.erase(before);
    }
    if (row.request != id || row.changes != request.blocks.changes()) {
      row = {.request = id, .changes = request.blocks.changes(), .end = std::vector<std::int64_t>(width_.size(), 0)};
    }
    row_of_[id] = static_cast<std::int64_t>(r);
    for (std::size_t g = 0; g < width_.size(); ++g) {
      const CacheGroup& group = layout_.groups[g];
      const std::int64_t begin = std::max(row.end[g], group.first_kept(request.computed) / group.block_tokens);
      const std::int64_t end = columns(g, request.computed + batch[r].tokens);
      if (begin >= end) continue;
      std::span<const std::int32_t> blocks = request.blocks.table(static_cast<int>(g));
      blocks = blocks.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      if (static_cast<int>(g) == lost) {
        nulls.assign(blocks.size(), kNullBlock);
        blocks = nulls;
      }
      runs_.add(first_[g] + static_cast<std::int64_t>(r) * width_[g] + begin, blocks);
      row.end[g] = end;
    }
  }
  moved_ = runs_.write(device_, static_cast<std::int32_t*>(memory_.data()), stream);
  return moved;
}

std::vector<ConstTensorView> BlockTables::views(std::int64_t requests, std::int64_t max_seq_len) const {
  std::vector<ConstTensorView> out;
  for (std::size_t g = 0; g < width_.size(); ++g) {
    const std::int64_t wanted = std::min(columns(g, max_seq_len), width_[g]);
    ConstTensorView& table = out.emplace_back(static_cast<const std::int32_t*>(memory_.data()) + first_[g], DType::kI32,
                                              std::initializer_list<std::int64_t>{requests, wanted});
    table.stride[0] = width_[g];
  }
  return out;
}

}  // namespace smla
