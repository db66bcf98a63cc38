// An engine with a paged cache of its own: one slab, two layers in every block, a block table for
// each request. SparseMLA reads and writes it where it lies; nothing is copied or rearranged.
#include <sparsemla/ops/attention.h>
#include <sparsemla/ops/norm_rope.h>

#include <cstdio>
#include <memory>
#include <vector>
using namespace smla;

namespace {

constexpr std::int64_t kBlocks = 6, kBlockRows = 64, kLayers = 2, kHeads = 2, kDim = 512;

// The engine's memory: each block has layer 0's page, then layer 1's.
struct Slab {
  std::int64_t page = page_bytes(fp8_ds_mla_rows(), kBlockRows);
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kBlocks * kLayers * page);

  PagedCache layer(std::int64_t index) {
    return {.format = &fp8_ds_mla_rows(),
            .base = bytes.data() + index * page,
            .num_blocks = kBlocks,
            .block_size = kBlockRows,
            .block_stride_bytes = kLayers * page};
  }
};

// Slot of a request's position, by its block table.
std::int32_t slot(const std::vector<std::int32_t>& block_table, std::int64_t position) {
  return static_cast<std::int32_t>(block_table[position / kBlockRows] * kBlockRows +
                                   position % kBlockRows);
}

// The row of a token: a 1 in the dim that its position names, so that results can be read.
std::vector<BF16> row_of(std::int64_t position) {
  std::vector<BF16> row(kDim);
  row[position] = to_bf16(1);
  return row;
}

void insert(const PagedCache& cache, const std::vector<std::int32_t>& table, std::int64_t tokens) {
  std::vector<BF16> rows;
  std::vector<std::int64_t> slots;
  for (std::int64_t p = 0; p < tokens; ++p) {
    const std::vector<BF16> row = row_of(p);
    rows.insert(rows.end(), row.begin(), row.end());
    slots.push_back(slot(table, p));
  }
  const Plan<InsertRows> plan({.tokens = tokens, .format = cache.format});
  plan.run({.rows = view_of(rows.data(), {tokens, kDim}),
            .slot_mapping = view_of(slots.data(), {tokens}),
            .cache = cache});
}

}  // namespace

int main() {
  Slab slab;
  const PagedCache cache = slab.layer(1);
  const std::vector<std::int32_t> tables[2] = {{4, 1}, {2}};  // blocks of request 0 and request 1
  insert(cache, tables[0], 100);
  insert(cache, tables[1], 3);

  // Request 0 looks at its positions 10, 70 and 99, request 1 at all its three.
  const std::vector<std::int32_t> slots = {
      slot(tables[0], 10), slot(tables[0], 70), slot(tables[0], 99),  //
      slot(tables[1], 0),  slot(tables[1], 1),  slot(tables[1], 2)};
  const std::vector<float> sink = {-1e30F, 0.0F};  // head 0 has none; head 1's weighs exp(0)
  const std::vector<BF16> q(2 * kHeads * kDim);    // zeros: every key scores 0
  std::vector<float> o(2 * kHeads * kDim);
  std::vector<float> lse(2 * kHeads);

  const Plan<SparseAttention> plan(
      {.tokens = 2, .heads = kHeads, .o = DType::kF32, .scope = {{{cache.format, kBlockRows, 3}}}});
  std::vector<std::byte> memory(plan.workspace_bytes() + 64);
  void* scratch = memory.data();
  std::size_t room = memory.size();
  std::align(64, plan.workspace_bytes(), scratch, room);
  plan.run({.q = view_of(q.data(), {2, kHeads, kDim}),
            .scopes = {{{cache, view_of(slots.data(), {2, 3}), {}}}},
            .sink = view_of(sink.data(), {kHeads}),
            .o = view_of(o.data(), {2, kHeads, kDim}),
            .lse = view_of(lse.data(), {2, kHeads})},
           {scratch, plan.workspace_bytes()});

  std::printf("block stride %lld bytes, page %lld\n",
              static_cast<long long>(cache.block_stride_bytes), static_cast<long long>(slab.page));
  for (int request = 0; request < 2; ++request) {
    for (int head = 0; head < kHeads; ++head) {
      const float* row = o.data() + (request * kHeads + head) * kDim;
      std::printf("request %d head %d: lse %.3f, weights", request, head,
                  lse[request * kHeads + head]);
      for (int d = 0; d < kDim; ++d) {
        if (row[d] != 0) std::printf(" %d:%.2f", d, row[d]);
      }
      std::printf("\n");
    }
  }
}
