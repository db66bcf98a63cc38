#include <algorithm>
#include <unordered_map>

#include "core/host_tensor.h"
#include "device/memory.h"
#include "ops/numbers.h"
#include "sparsemla/validate.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "step";

struct Owner {
  std::int64_t request;
  std::size_t group;
};

/// Blocks that hold positions [begin, end) of a request in one group.
struct Needed {
  std::int64_t request = 0;
  std::int64_t begin = 0;  ///< first position that is read
  std::int64_t write = 0;  ///< first that is written
  std::int64_t end = 0;
};

bool has_windows(const CacheGroup& group) {
  return std::ranges::any_of(group.caches, [](const LayerCache& c) { return c.role == CacheRole::kWindow; });
}

void check_tables(const StepBatch& batch, const KvLayout& layout, std::int64_t num_blocks,
                  const std::vector<Needed>& requests) {
  std::unordered_map<std::int64_t, Owner> writers;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const CacheGroup& group = layout.groups[g];
    const std::string name = "block_tables[" + group.name + "]";
    const Numbers table(kWhat, name, batch.block_tables[g]);
    const TableNumbers blocks(kWhat, name, batch.block_tables[g], group.block_tokens, num_blocks);
    for (const Needed& r : requests) {
      if (r.write == r.end) continue;
      // The first token that is computed looks back `window` tokens, itself included; a draft block of DSpark as many
      // before its first. A full group is read from its beginning.
      const bool block = !batch.causal && r.end - r.write <= batch.decode_threshold && has_windows(group);
      const std::int64_t sees = group.window - (block ? 0 : 1);
      const std::int64_t begin = group.sliding() ? std::max<std::int64_t>(r.write - sees, 0) : r.begin;
      blocks.check(r.request, begin, r.end, "positions " + range_of(begin, r.end - 1));
      for (std::int64_t column = r.write / group.block_tokens; column <= (r.end - 1) / group.block_tokens; ++column) {
        const auto [other, fresh] = writers.emplace(table(r.request, column), Owner{r.request, g});
        if (fresh || (other->second.request == r.request && other->second.group == g)) continue;
        table.bad(r.request, column,
                  "a block of its own (request " + std::to_string(other->second.request) + " writes it in group " +
                      layout.groups[other->second.group].name + ")");
      }
    }
  }
}

/// A GPU's tensor on the host, packed; `kept` owns it.
ConstTensorView host_copy(const ConstTensorView& v, DeviceKind device, Stream stream, std::vector<HostTensor>& kept) {
  if (v.absent() || v.numel() == 0) return v;
  const std::int64_t row = v.rank == 2 ? v.size(1) : 1;
  HostTensor& copy = kept.emplace_back(v.dtype, std::vector<std::int64_t>(v.shape.begin(), v.shape.begin() + v.rank));
  const std::int64_t element = size_of(v.dtype);
  for (std::int64_t r = 0; r < v.size(0); ++r) {
    copy_bytes(device, static_cast<std::uint8_t*>(copy.data()) + r * row * element,
               static_cast<const std::uint8_t*>(v.data) + r * v.stride[0] * element,
               static_cast<std::size_t>(row * element), stream);
  }
  return std::as_const(copy).view();
}

void validate_on_host(const StepBatch& batch, const KvLayout& layout, std::int64_t num_blocks,
                      std::int64_t rope_positions) {
  check_tensor(kWhat, "query_start_loc", batch.query_start_loc, {kAny}, {DType::kI32});
  check_that(batch.query_start_loc.size(0) >= 1, kWhat, "numbers of query_start_loc", batch.query_start_loc.size(0),
             "at least 1, requests + 1");
  const std::int64_t requests = batch.query_start_loc.size(0) - 1;
  check_tensor(kWhat, "seq_lens", batch.seq_lens, {requests}, {DType::kI32});
  check_tensor(kWhat, "positions", batch.positions, {kAny}, {DType::kI64});
  check_that(batch.block_tables.size() == layout.groups.size(), kWhat, "block_tables",
             static_cast<std::int64_t>(batch.block_tables.size()),
             std::to_string(layout.groups.size()) + ", one for each cache group");
  for (std::size_t g = 0; g < batch.block_tables.size(); ++g) {
    check_tensor(kWhat, "block_tables[" + layout.groups[g].name + "]", batch.block_tables[g], {requests, kAny},
                 {DType::kI32});
  }

  const Numbers start(kWhat, "query_start_loc", batch.query_start_loc);
  const Numbers seq_lens(kWhat, "seq_lens", batch.seq_lens);
  const Numbers positions(kWhat, "positions", batch.positions);
  check_starts(kWhat, start, requests, positions.rows());
  std::vector<Needed> needed;
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t query = start(r + 1) - start(r);
    const std::int64_t seq = seq_lens(r);
    if (seq < query) seq_lens.bad(r, kNoColumn, "at least its query of " + std::to_string(query));
    if (seq > batch.max_seq_len) seq_lens.bad(r, kNoColumn, "at most max_seq_len " + std::to_string(batch.max_seq_len));
    for (std::int64_t i = 0; i < query; ++i) {
      const std::int64_t pos = seq - query + i;
      if (positions(start(r) + i) != pos)
        positions.bad(start(r) + i, kNoColumn, std::to_string(pos) + ", seq_len - query_len + offset");
      positions.in(0, rope_positions - 1, start(r) + i);
    }
    needed.push_back({.request = r, .begin = 0, .write = seq - query, .end = seq});
  }
  check_tables(batch, layout, num_blocks, needed);
}

}  // namespace

void validate(const StepBatch& batch, const KvLayout& layout, std::int64_t num_blocks, std::int64_t rope_positions,
              DeviceKind device, Stream stream) {
  if (device == DeviceKind::kCpu) return validate_on_host(batch, layout, num_blocks, rope_positions);
  std::vector<HostTensor> kept;
  StepBatch copy = batch;
  for (ConstTensorView* v : {&copy.query_start_loc, &copy.seq_lens, &copy.positions})
    *v = host_copy(*v, device, stream, kept);
  for (ConstTensorView& table : copy.block_tables) table = host_copy(table, device, stream, kept);
  synchronize(device, stream);
  validate_on_host(copy, layout, num_blocks, rope_positions);
}

}  // namespace smla
