// Index rows over window and compressed rows together, on the device.
#include "device/ptx/pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/index/owners.cuh"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

using namespace index_rows;

/// Without `owner`, a block searches the owner of its token.
__global__ void __launch_bounds__(kThreads, 8)
    combined_rows(CombineTopkWindow::Problem p, const std::int32_t* owner, Rows<const std::int32_t> topk,
                  const std::int32_t* start, const std::int32_t* seq_lens, const std::int32_t* gather_lens,
                  Rows<std::int32_t> out, std::int32_t* lens) {
  device::pdl_wait_and_trigger();
  __shared__ std::int32_t found[1];
  const std::int64_t t = blockIdx.x;
  // Prefetched before the token's request and length are known.
  fetch_row(topk.row(t), min(topk.columns, p.top_k));
  constexpr unsigned kFirst = 64;  // blocks that prefetch; more of them would wait for each other at the same lines
  if (blockIdx.x < kFirst && p.requests <= kSearched)
    fetch_row(seq_lens, p.requests), fetch_row(gather_lens, p.requests);
  if (owner == nullptr) find_owners(start, p.requests, start[0], t, p.tokens, found);
  const std::int64_t b = owner == nullptr ? found[0] : owner[t];
  std::int64_t pos = -1;
  std::int64_t seq = 0;
  if (b >= 0) {
    seq = seq_lens[b];
    pos = seq - (static_cast<std::int64_t>(start[b + 1]) - start[0]) + t;
  }
  const std::int64_t entries = entries_seen(pos, p.ratio, p.top_k);
  const std::int64_t seen = pos < 0 ? 0 : min(pos + 1, p.window);
  const std::int64_t first = pos < 0 ? 0 : p.m * b + p.n + (pos - seen + 1) - (seq - gather_lens[b]);
  const std::int32_t* const chosen = topk.row(t);
  std::int32_t* const row = out.row(t);
  const std::int64_t shift = p.m * b;
  const auto of_topk = static_cast<int>(entries);
  const auto filled = static_cast<int>(min(entries + seen, out.columns));
  each_column(
      p.clear_rest ? out.columns : filled, [&](int j) { return j < of_topk ? __ldg(chosen + j) : 0; },
      [&](int j, std::int32_t local) {
        if (j >= of_topk) return j < filled ? as_index(first + (j - of_topk)) : -1;
        return local < 0 ? -1 : as_index(local + shift);
      },
      [&](int j, std::int32_t v) { row[j] = v; });
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(entries + seen);
}

/// A slot on a flat token axis (spec 7.3).
struct Remap {
  std::int64_t block;
  std::int64_t span;

  bool none = span == 0 || span == block;

  __device__ std::int32_t operator()(std::int64_t slot) const {
    if (slot < 0) return -1;
    if (none) return as_index(slot);
    const std::int64_t number = device::quotient(slot, block);
    return number > 0x7FFF'FFFF ? -1 : as_index(number * span + (slot - number * block));
  }
};

struct MixedInputs {
  Rows<const std::int32_t> decode_window;
  Rows<const std::int32_t> decode_compressed;
  const std::int32_t* decode_lens = nullptr;
  const bool* decode_valid = nullptr;
  Rows<const std::int32_t> prefill_topk;
  const std::int32_t* start = nullptr;
  const std::int32_t* seq_lens = nullptr;
  const std::int32_t* request = nullptr;
  Table window;
  Table compressed;
};

__global__ void __launch_bounds__(kThreads, 8)
    mixed_rows(MixedSparseIndices::Problem p, MixedInputs in, Rows<std::int32_t> out, std::int32_t* lens) {
  device::pdl_wait_and_trigger();
  __shared__ std::int32_t present;
  const std::int64_t t = blockIdx.x;
  const bool decode = t < p.decode_tokens;
  const std::int64_t r = in.request[t];
  const std::int32_t* const slots = decode ? in.decode_window.row(t) : nullptr;
  const std::int32_t* const chosen = decode ? in.decode_compressed.row(t) : in.prefill_topk.row(t - p.decode_tokens);
  const auto width =
      static_cast<int>(min(decode ? in.decode_compressed.columns : in.prefill_topk.columns, p.compressed_width));
  // Prefetched while the request is looked up.
  if (decode) fetch_row(slots, p.window_width);
  fetch_row(chosen, width);
  if (threadIdx.x == 0) present = 0;
  __syncthreads();

  // Prefills: entries and positions that the query sees.
  int visible = width;
  int seen = 0;
  std::int64_t pos = -1;
  if (!decode) {
    if (r >= 0 && r < p.requests && t >= in.start[r] && t < in.start[r + 1])
      pos = static_cast<std::int64_t>(in.seq_lens[r]) - in.start[r + 1] + t;
    seen = static_cast<int>(pos < 0 ? 0 : min(pos + 1, p.window));
    visible = static_cast<int>(entries_seen(pos, p.ratio, p.top_k));
  }
  std::int32_t* const row = out.row(t);
  std::int32_t* const entries = row + p.window_width;
  const Remap window{p.window_block, p.window_span};
  const Remap compressed{p.compressed_block, p.compressed_span};
  const auto put_window = [&](int j, std::int32_t v) { row[j] = v; };
  const auto put_entry = [&](int j, std::int32_t v) { entries[j] = v; };
  const auto first = static_cast<std::int32_t>(pos - seen + 1);  // positions below a sequence's length: 32 bits
  const auto position = [&](int i) { return i < seen ? first + i : -1; };
  if (decode) {
    each_column<1>(
        p.window_width, [&](int i) { return slots[i]; }, [&](int, std::int32_t slot) { return window(slot); },
        put_window);
  } else if (window.none) {
    const std::int32_t* const blocks = in.window.row(r);
    each_column<1>(
        p.window_width, position, [&](std::int32_t i) { return in.window.block_of(blocks, i); },
        [&](int, std::int32_t i, std::uint32_t block) { return in.window.index_in(block, i); }, put_window);
  } else {
    each_column<1>(
        p.window_width, position, [&](int, std::int32_t i) { return window(in.window.slot(r, i)); }, put_window);
  }

  const bool local = !decode || p.local;
  std::int32_t mine = 0;
  const auto entry = [&](int j) { return j < visible ? __ldg(chosen + j) : -1; };
  if (local && compressed.none) {
    const std::int32_t* const blocks = in.compressed.row(r);
    each_column<8>(
        p.compressed_width, entry, [&](std::int32_t i) { return in.compressed.block_of(blocks, i); },
        [&](int, std::int32_t i, std::uint32_t block) {
          mine += i >= 0 ? 1 : 0;
          return in.compressed.index_in(block, i);
        },
        put_entry);
  } else {
    each_column<1>(
        p.compressed_width, entry,
        [&](int, std::int32_t i) {
          mine += i >= 0 ? 1 : 0;
          return compressed(local ? in.compressed.slot(r, i) : i);
        },
        put_entry);
  }

  std::int64_t count = visible;
  if (decode && p.local) {
    mine = static_cast<std::int32_t>(__reduce_add_sync(0xFFFF'FFFFU, static_cast<unsigned>(mine)));
    if (threadIdx.x % 32 == 0) atomicAdd(&present, mine);
    __syncthreads();
    count = width == 0 || !in.decode_valid[t] ? 0 : present;
  } else if (decode) {
    count = in.decode_lens == nullptr ? width : min(max(in.decode_lens[t], 0), width);
  }
  if (threadIdx.x == 0) lens[t] = !decode && pos < 0 ? 0 : static_cast<std::int32_t>(p.window_width + count);
}

std::size_t count_bytes(const CombineTopkWindow::Problem& p, int /*threads*/) {
  return static_cast<std::size_t>(4 * p.tokens);
}

void run(const CombineTopkWindow::Problem& p, const CombineTopkWindow::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  auto* owner = p.requests <= kSearched ? nullptr : static_cast<std::int32_t*>(context.workspace.data);
  if (owner != nullptr) list_owners(a.query_start_loc, true, p.requests, p.tokens, owner, -1, stream);
  device::launch_pdl<combined_rows>("combined_rows", row_blocks(p.tokens), kThreads, 0, stream, p, owner,
                                    rows_of(a.topk), data_of<const std::int32_t>(a.query_start_loc),
                                    data_of<const std::int32_t>(a.seq_lens), data_of<const std::int32_t>(a.gather_lens),
                                    rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

void run(const MixedSparseIndices::Problem& p, const MixedSparseIndices::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const MixedInputs in{.decode_window = rows_of(a.decode_window),
                       .decode_compressed = rows_of(a.decode_compressed),
                       .decode_lens = data_of<const std::int32_t>(a.decode_lens),
                       .decode_valid = data_of<const bool>(a.decode_valid),
                       .prefill_topk = rows_of(a.prefill_topk),
                       .start = data_of<const std::int32_t>(a.query_start_loc),
                       .seq_lens = data_of<const std::int32_t>(a.seq_lens),
                       .request = data_of<const std::int32_t>(a.token_to_req),
                       .window = table_of(a.window_table, p.window_block),
                       .compressed = table_of(a.compressed_table, p.compressed_block)};
  device::launch_pdl<mixed_rows>("mixed_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream), p, in,
                                 rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

}  // namespace

template <>
Implementation<CombineTopkWindow> cuda_row() {
  return any_gpu_row<CombineTopkWindow>(run, take_all<CombineTopkWindow, needs_gpu, count_bytes>);
}

template <>
Implementation<MixedSparseIndices> cuda_row() {
  return any_gpu_row<MixedSparseIndices>(run);
}

}  // namespace smla
