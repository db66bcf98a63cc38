#include "cases/block_use.h"

#include <algorithm>

namespace smla {

namespace {

/// f(number) over a tensor of I32 or I64, rows strided.
void for_each_number(const ConstTensorView& v, auto&& f) {
  if (v.absent() || v.numel() == 0) return;
  const std::int64_t columns = v.rank == 2 ? v.size(1) : 1;
  for (std::int64_t r = 0; r < v.size(0); ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t at = r * v.stride[0] + c * (v.rank == 2 ? v.stride[1] : 0);
      f(v.dtype == DType::kI64 ? v.as<std::int64_t>()[at] : std::int64_t{v.as<std::int32_t>()[at]});
    }
  }
}

void rename_each(HostTensor& values, auto&& renamed) {
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    if (values.dtype() == DType::kI64) {
      values.as<std::int64_t>()[i] = renamed(values.as<std::int64_t>()[i]);
    } else {
      values.as<std::int32_t>()[i] = static_cast<std::int32_t>(renamed(std::int64_t{values.as<std::int32_t>()[i]}));
    }
  }
}

/// The states that closing tokens read, by the request's block table; negative entries are read as block 0.
std::set<std::int64_t> states_read(const CompressStore::Problem& problem, const CompressStore::Args& args,
                                   const ConstTensorView& table, std::int64_t block_size) {
  std::set<std::int64_t> blocks;
  const std::int64_t window = std::int64_t{2} * problem.ratio;  // at most: overlapping groups
  for (std::int64_t t = 0; t < args.entry_slots.size(0); ++t) {
    const std::int64_t position = args.positions.as<std::int64_t>()[t];
    const std::int64_t request = args.token_to_req.as<std::int32_t>()[t];
    if (position < 0 || request < 0 || request >= table.size(0)) continue;
    const std::int64_t last = std::min(position / block_size, table.size(1) - 1);
    for (std::int64_t c = std::max<std::int64_t>(position - window + 1, 0) / block_size; c <= last; ++c)
      blocks.insert(std::max(table.as<std::int32_t>()[request * table.stride[0] + c], 0));
  }
  return blocks;
}

}  // namespace

BlockNumbers::BlockNumbers(const BlockUse& use)
    : num_blocks_(use.caches.front().cache->num_blocks), block_size_(use.caches.front().cache->block_size) {
  std::set<std::int64_t> used;
  const auto keep = [&](std::int64_t block) {
    if (block >= 0 && block < num_blocks_) used.insert(block);
  };
  for (const BlockUse::Tensor& t : use.slots)
    for_each_number(t.view, [&](std::int64_t slot) { keep(slot < 0 ? -1 : slot / block_size_); });
  if (use.table_blocks) {
    std::ranges::for_each(*use.table_blocks, keep);
  } else {
    for (const BlockUse::Tensor& t : use.tables) for_each_number(t.view, keep);
  }
  kept_.assign(used.begin(), used.end());
}

/// -1 for a block that is not kept; blocks past the cache stay past it.
std::int64_t BlockNumbers::number(std::int64_t block) const {
  if (block < 0) return block;
  if (block >= num_blocks_) return block - num_blocks_ + static_cast<std::int64_t>(kept_.size());
  const auto found = std::ranges::lower_bound(kept_, block);
  return found != kept_.end() && *found == block ? found - kept_.begin() : -1;
}

void BlockNumbers::rename_blocks(HostTensor& values) const {
  rename_each(values, [&](std::int64_t block) { return number(block); });
}

void BlockNumbers::rename_slots(HostTensor& values) const {
  rename_each(values, [&](std::int64_t slot) {
    return slot < 0 ? slot : number(slot / block_size_) * block_size_ + slot % block_size_;
  });
}

template <>
std::vector<BlockUse> block_uses<LatentNorms>(const LatentNorms::Problem&, const LatentNorms::Args& a) {
  return {{.caches = {{"insert.cache", &a.insert.cache}},
           .slots = {{"insert.slot_mapping", a.insert.slot_mapping}},
           .tables = {}}};
}

template <>
std::vector<BlockUse> block_uses<QNormRopeInsert>(const QNormRopeInsert::Problem&, const QNormRopeInsert::Args& a) {
  return {{.caches = {{"cache", &a.cache}}, .slots = {{"slot_mapping", a.slot_mapping}}, .tables = {}}};
}

template <>
std::vector<BlockUse> block_uses<InsertRows>(const InsertRows::Problem&, const InsertRows::Args& a) {
  return {{.caches = {{"cache", &a.cache}}, .slots = {{"slot_mapping", a.slot_mapping}}, .tables = {}}};
}

template <>
std::vector<BlockUse> block_uses<SaveState>(const SaveState::Problem&, const SaveState::Args& a) {
  return {{.caches = {{"state", &a.state}}, .slots = {{"state_slots", a.state_slots}}, .tables = {}}};
}

template <>
std::vector<BlockUse> block_uses<CompressStore>(const CompressStore::Problem& problem, const CompressStore::Args& a) {
  BlockUse entries{.caches = {}, .slots = {{"entry_slots", a.entry_slots}}, .tables = {}};
  std::vector<BlockUse> uses;
  for (int i = 0; i < problem.compressors; ++i) {
    const CompressStore::Compressor& c = a.compressors[static_cast<std::size_t>(i)];
    const std::string prefix = "compressors[" + std::to_string(i) + "].";
    entries.caches.push_back({prefix + "entries", &c.entries});
    uses.push_back({.caches = {{prefix + "state", &c.state}},
                    .slots = {{prefix + "state_slots", c.state_slots}},
                    .tables = {{prefix + "block_table", c.block_table}},
                    .table_blocks = states_read(problem, a, c.block_table, c.state.block_size)});
  }
  uses.push_back(entries);
  return uses;
}

template <>
std::vector<BlockUse> block_uses<IndexerLogits>(const IndexerLogits::Problem&, const IndexerLogits::Args& a) {
  return {{.caches = {{"cache", &a.cache}}, .slots = {}, .tables = {{"block_table", a.block_table}}}};
}

template <>
std::vector<BlockUse> block_uses<IndexerTopK>(const IndexerTopK::Problem&, const IndexerTopK::Args& a) {
  return {{.caches = {{"cache", &a.cache}}, .slots = {}, .tables = {{"block_table", a.block_table}}}};
}

template <>
std::vector<BlockUse> block_uses<GatherIndexRows>(const GatherIndexRows::Problem&, const GatherIndexRows::Args& a) {
  return {{.caches = {{"cache", &a.cache}}, .slots = {}, .tables = {{"block_table", a.block_table}}}};
}

template <>
std::vector<BlockUse> block_uses<GatherRows>(const GatherRows::Problem&, const GatherRows::Args& a) {
  return {{.caches = {{"cache", &a.cache}}, .slots = {}, .tables = {{"block_table", a.block_table}}}};
}

template <>
std::vector<BlockUse> block_uses<SparseAttention>(const SparseAttention::Problem& problem,
                                                  const SparseAttention::Args& a) {
  std::vector<BlockUse> uses;
  for (int i = 0; i < problem.scopes; ++i) {
    const SparseAttention::Scope& scope = a.scopes[static_cast<std::size_t>(i)];
    const std::string suffix = std::to_string(i);
    const bool empty = problem.scope[static_cast<std::size_t>(i)].width == 0;
    uses.push_back({.caches = {{"cache" + suffix, &scope.cache}},
                    .slots = {{"indices" + suffix, empty ? ConstTensorView() : scope.indices}},
                    .tables = {}});
  }
  return uses;
}

}  // namespace smla
