// The index family on the device: what each contract says, a block of threads for each row, a thread for each column.
#include "device/early_launch.cuh"
#include "ops/cuda_op.h"
#include "ops/index/global_row.cuh"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

using namespace index_rows;

constexpr int kThreads = 128;

/// An int32 matrix whose rows may be strided.
template <class Int>
struct Rows {
  Int* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t columns = 0;
  __device__ Int* row(std::int64_t r) const { return data + r * stride; }
};

Rows<std::int32_t> rows_of(const TensorView& v) { return {static_cast<std::int32_t*>(v.data), v.stride[0], v.size(1)}; }
Rows<const std::int32_t> rows_of(const ConstTensorView& v) {
  if (v.absent()) return {};
  return {static_cast<const std::int32_t*>(v.data), v.stride[0], v.size(1)};
}

template <class T>
T* data_of(const auto& v) {
  return static_cast<T*>(v.data);
}

/// Entries of `ratio` tokens that a query at `pos` sees, at most `most`. pos may be the largest number.
__device__ std::int64_t entries_seen(std::int64_t pos, std::int64_t ratio, std::int64_t most) {
  if (pos < 0) return 0;
  const std::int64_t whole = pos / ratio;
  return min(whole + (pos - whole * ratio == ratio - 1 ? 1 : 0), most);
}

/// store(j, meaning(j, load(j))) for every j < n; a thread's next kRun loads, and then what their meanings load, are under way at once.
template <unsigned kRun = 4, class Load, class Meaning, class Store>
__device__ void each_column(std::int64_t n, Load&& load, Meaning&& meaning, Store&& store) {
  const auto end = static_cast<unsigned>(n);  // columns of an index row are counted in int32
  for (unsigned base = threadIdx.x; base < end; base += kRun * kThreads) {
    std::int32_t v[kRun];
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) v[i] = base + i * kThreads < end ? load(static_cast<int>(base + i * kThreads)) : -1;
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) v[i] = meaning(static_cast<int>(base + i * kThreads), v[i]);
#pragma unroll
    for (unsigned i = 0; i < kRun; ++i) {
      if (base + i * kThreads < end) store(base + i * kThreads, v[i]);
    }
  }
}

constexpr std::int64_t kSearched = 1024;  ///< so many requests a block looks through for its tokens' owners, instead of launches that list them

/// owner[i] = the last of the requests whose part of query_start_loc, less `origin`, holds token first + i, -1 for none; i < kTokens. A barrier before and after.
template <int kTokens>
__device__ void find_owners(const std::int32_t* start, std::int64_t requests, std::int64_t origin, std::int64_t first, std::int64_t tokens,
                            std::int32_t (&owner)[kTokens]) {
  for (int i = static_cast<int>(threadIdx.x); i < kTokens; i += kThreads) owner[i] = -1;
  __syncthreads();
  for (std::int64_t r = threadIdx.x; r < requests; r += kThreads) {
    const std::int64_t begin = max(start[r] - origin, first);
    const std::int64_t end = min(min(start[r + 1] - origin, tokens), first + kTokens);
    for (std::int64_t t = begin; t < end; ++t) atomicMax(owner + (t - first), static_cast<std::int32_t>(r));
  }
  __syncthreads();
}

/// owner[t] = the last request whose part of query_start_loc holds token t; untouched where none does.
__global__ void owners(const std::int32_t* start, std::int64_t requests, std::int64_t tokens, std::int32_t* owner) {
  for (std::int64_t r = blockIdx.x; r < requests; r += gridDim.x) {
    const std::int64_t first = max(static_cast<std::int64_t>(start[r]), std::int64_t{0});
    const std::int64_t last = min(static_cast<std::int64_t>(start[r + 1]), tokens);
    for (std::int64_t t = first + threadIdx.x; t < last; t += blockDim.x) atomicMax(owner + t, static_cast<std::int32_t>(r));
  }
}

__global__ void fill(std::int32_t* out, std::int64_t n, std::int32_t value) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    out[i] = value;
}

void launch_owners(const ConstTensorView& start, std::int64_t requests, std::int64_t tokens, std::int32_t* owner, std::int32_t none,
                   cudaStream_t stream) {
  if (tokens == 0) return;
  fill<<<min(blocks_for(tokens, kThreads), 1024U), kThreads, 0, stream>>>(owner, tokens, none);
  check_launch("fill");
  if (requests == 0) return;
  owners<<<min(blocks_for(requests, 1), 4096U), kThreads, 0, stream>>>(data_of<const std::int32_t>(start), requests, tokens, owner);
  check_launch("owners");
}

__global__ void slot_mapping(Table table, std::int64_t requests, std::int64_t tokens, const std::int32_t* start, const std::int64_t* positions,
                             const std::int32_t* request, std::int64_t* slots) {
  device::take_turn();
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t < tokens) slots[t] = t < start[requests] ? table.slot(request[t], positions[t]) : -1;
}

/// Without `owner`, blocks find the owners of their tokens.
__global__ void __launch_bounds__(kThreads)
    compressed_slots(Table table, std::int64_t requests, std::int64_t tokens, std::int64_t ratio, const std::int32_t* owner,
                     const std::int32_t* start, const std::int32_t* seq_lens, std::int64_t* slots) {
  device::take_turn();
  __shared__ std::int32_t found[kThreads];
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(kThreads);
  const std::int64_t t = first + threadIdx.x;
  if (owner == nullptr) find_owners(start, requests, 0, first, tokens, found);
  if (t >= tokens) return;
  const std::int64_t r = owner == nullptr ? found[threadIdx.x] : owner[t];
  std::int64_t slot = -1;
  if (r >= 0) {
    const std::int64_t pos = static_cast<std::int64_t>(seq_lens[r]) - start[r + 1] + t;
    if (pos >= 0 && (pos + 1) % ratio == 0) slot = table.slot(r, pos / ratio, true);
  }
  slots[t] = slot;
}

__global__ void window_rows(Table table, WindowIndices::Problem p, const std::int32_t* start, const std::int32_t* seq_lens,
                            const std::int32_t* request, const std::int64_t* slots, Rows<std::int32_t> out, std::int32_t* lens) {
  device::take_turn();
  const std::int64_t t = blockIdx.x;
  const std::int64_t r = request[t];
  const bool known = slots[t] >= 0 && r >= 0 && r < p.requests;
  const std::int64_t seq = known ? seq_lens[r] : 0;
  const std::int64_t pos = known ? seq - start[r + 1] + t : -1;
  std::int64_t first = max(pos - p.window + 1, std::int64_t{0});
  std::int64_t n = pos < 0 ? 0 : pos + 1 - first;
  if (pos >= 0 && t < p.noncausal_tokens) {
    const std::int64_t prefix = seq - start[r + 1] + start[r];
    first = max(prefix - p.window, std::int64_t{0});
    n = min(max(seq - first, std::int64_t{0}), out.columns);
  }
  for (std::int64_t i = threadIdx.x; i < out.columns; i += blockDim.x) out.row(t)[i] = i < n ? as_index(table.slot(r, first + i)) : -1;
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(n);
}

__global__ void dense_rows(Table table, DenseCompressedIndices::Problem p, const std::int64_t* positions, const std::int32_t* request,
                           const std::int64_t* slots, Rows<std::int32_t> out, std::int32_t* lens) {
  device::take_turn();
  const std::int64_t t = blockIdx.x;
  const std::int64_t n = slots[t] < 0 ? 0 : entries_seen(positions[t], p.ratio, p.width);
  for (std::int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
    out.row(t)[j] = j >= n ? -1 : (p.global ? as_index(table.slot(request[t], j)) : static_cast<std::int32_t>(j));
  }
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(n);
}

__global__ void __launch_bounds__(kThreads) global_rows(Table table, std::int64_t k, bool compact, Rows<const std::int32_t> topk,
                                                        const std::int32_t* request, const bool* valid, Rows<std::int32_t> out, std::int32_t* lens) {
  device::take_turn();
  __shared__ GlobalRow<kThreads> row;
  const std::int64_t t = blockIdx.x;
  row.write(table, request[t], valid[t], k, compact, topk.row(t), out.row(t), lens + t);
}

__global__ void short_rows(std::int64_t ratio, std::int64_t k, const std::int64_t* positions, Rows<std::int32_t> out) {
  device::take_turn();
  const std::int64_t t = blockIdx.x;
  const std::int64_t n = entries_seen(positions[t], ratio, k);
  for (std::int64_t j = threadIdx.x; j < k; j += blockDim.x) out.row(t)[j] = j < n ? static_cast<std::int32_t>(j) : -1;
}

/// Without `owner`, a block finds the owner of its token.
__global__ void __launch_bounds__(kThreads)
    combined_rows(CombineTopkWindow::Problem p, const std::int32_t* owner, Rows<const std::int32_t> topk, const std::int32_t* start,
                  const std::int32_t* seq_lens, const std::int32_t* gather_lens, Rows<std::int32_t> out, std::int32_t* lens) {
  device::take_turn();
  __shared__ std::int32_t found[1];
  const std::int64_t t = blockIdx.x;
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
      [&](unsigned j, std::int32_t v) { row[j] = v; });
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(entries + seen);
}

/// owner[t] for a chunk whose query_start_loc need not begin at 0.
__global__ void chunk_owners(const std::int32_t* start, std::int64_t requests, std::int64_t tokens, std::int32_t* owner) {
  for (std::int64_t b = blockIdx.x; b < requests; b += gridDim.x) {
    const std::int64_t first = max(static_cast<std::int64_t>(start[b]) - start[0], std::int64_t{0});
    const std::int64_t last = min(static_cast<std::int64_t>(start[b + 1]) - start[0], tokens);
    for (std::int64_t t = first + threadIdx.x; t < last; t += blockDim.x) atomicMax(owner + t, static_cast<std::int32_t>(b));
  }
}

/// A slot as a kernel with a flat token axis counts it.
struct Remap {
  std::int64_t block;
  std::int64_t span;

  bool none = span == 0 || span == block;

  __device__ std::int32_t operator()(std::int64_t slot) const {
    if (slot < 0) return -1;
    if (none) return as_index(slot);
    const bool narrow = ((slot | block) >> 32) == 0;
    const std::int64_t number = narrow ? static_cast<std::uint32_t>(slot) / static_cast<std::uint32_t>(block) : slot / block;
    return number > 0x7FFF'FFFF ? -1 : as_index(number * span + (slot - number * block));
  }
  /// Of row i of a request, whose row of the table is given too.
  __device__ std::int32_t operator()(const Table& table, const std::int32_t* row, std::int64_t request, std::int32_t i) const {
    return none ? table.index(row, i) : (*this)(table.slot(request, i));
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

__global__ void __launch_bounds__(kThreads) mixed_rows(MixedSparseIndices::Problem p, MixedInputs in, Rows<std::int32_t> out, std::int32_t* lens) {
  device::take_turn();
  __shared__ std::int32_t present;
  const std::int64_t t = blockIdx.x;
  const std::int64_t r = in.request[t];
  std::int32_t* row = out.row(t);
  std::int32_t* entries = row + p.window_width;
  const Remap window{p.window_block, p.window_span};
  const Remap compressed{p.compressed_block, p.compressed_span};
  const std::int32_t* const compressed_row = in.compressed.row(r);
  const auto put_window = [&](unsigned j, std::int32_t v) { row[j] = v; };
  const auto put_entry = [&](unsigned j, std::int32_t v) { entries[j] = v; };
  if (threadIdx.x == 0) present = 0;
  __syncthreads();
  if (t < p.decode_tokens) {
    const auto width = static_cast<int>(min(in.decode_compressed.columns, p.compressed_width));
    const std::int32_t* const slots = in.decode_window.row(t);
    const std::int32_t* const chosen = in.decode_compressed.row(t);
    each_column(
        p.window_width, [&](int i) { return slots[i]; }, [&](int, std::int32_t slot) { return window(slot); }, put_window);
    std::int32_t mine = 0;
    each_column(
        p.compressed_width, [&](int j) { return j < width ? chosen[j] : -1; },
        [&](int, std::int32_t v) {
          mine += v >= 0 ? 1 : 0;
          return p.local ? compressed(in.compressed, compressed_row, r, v) : compressed(v);
        },
        put_entry);
    atomicAdd(&present, mine);
    __syncthreads();
    if (threadIdx.x != 0) return;
    std::int64_t count = present;
    if (p.local) {
      if (width == 0 || !in.decode_valid[t]) count = 0;
    } else {
      count = in.decode_lens == nullptr ? width : min(max(in.decode_lens[t], 0), width);
    }
    lens[t] = static_cast<std::int32_t>(p.window_width + count);
    return;
  }
  std::int64_t pos = -1;
  if (r >= 0 && r < p.requests && t >= in.start[r] && t < in.start[r + 1]) pos = static_cast<std::int64_t>(in.seq_lens[r]) - in.start[r + 1] + t;
  const auto seen = static_cast<int>(pos < 0 ? 0 : min(pos + 1, p.window));
  const auto visible = static_cast<int>(entries_seen(pos, p.ratio, p.top_k));
  const auto first = static_cast<std::int32_t>(pos - seen + 1);  // positions below a sequence's length: 32 bits
  const std::int32_t* const window_row = in.window.row(r);
  const std::int32_t* const chosen = in.prefill_topk.row(t - p.decode_tokens);
  const auto position = [&](int i) { return i < seen ? first + i : -1; };
  const auto entry = [&](int j) { return j < visible ? __ldg(chosen + j) : -1; };
  if (window.none && compressed.none) {
    each_column(
        p.window_width, position, [&](int, std::int32_t i) { return in.window.index(window_row, i); }, put_window);
    each_column(
        p.compressed_width, entry, [&](int, std::int32_t i) { return in.compressed.index(compressed_row, i); }, put_entry);
  } else {
    each_column<1>(
        p.window_width, position, [&](int, std::int32_t i) { return window(in.window.slot(r, i)); }, put_window);
    each_column<1>(
        p.compressed_width, entry, [&](int, std::int32_t i) { return compressed(in.compressed.slot(r, i)); }, put_entry);
  }
  if (threadIdx.x == 0) lens[t] = pos < 0 ? 0 : static_cast<std::int32_t>(p.window_width) + visible;
}

/// Tokens of a step fit a grid's x dimension.
unsigned row_blocks(std::int64_t rows) { return blocks_for(rows, 1); }

}  // namespace

SMLA_CUDA_OP(TokenToReq, 0) {
  launch_owners(a.query_start_loc, p.requests, p.tokens, data_of<std::int32_t>(a.token_to_req), 0, stream_of(context.stream));
}

SMLA_CUDA_OP(SlotMapping, 0) {
  if (p.tokens == 0) return;
  device::launch_early<slot_mapping>("slot_mapping", blocks_for(p.tokens, kThreads), kThreads, 0, stream_of(context.stream),
                                     table_of(a.block_table, p.block_size), p.requests, p.tokens, data_of<const std::int32_t>(a.query_start_loc),
                                     data_of<const std::int64_t>(a.positions), data_of<const std::int32_t>(a.token_to_req),
                                     data_of<std::int64_t>(a.slots));
}

SMLA_CUDA_OP(CompressedSlotMapping, static_cast<std::size_t>(4 * p.tokens)) {
  if (p.tokens == 0) return;
  auto* owner = p.requests <= kSearched ? nullptr : static_cast<std::int32_t*>(context.workspace.data);
  if (owner != nullptr) launch_owners(a.query_start_loc, p.requests, p.tokens, owner, -1, stream_of(context.stream));
  device::launch_early<compressed_slots>("compressed_slots", blocks_for(p.tokens, kThreads), kThreads, 0, stream_of(context.stream),
                                         table_of(a.block_table, p.storage_block), p.requests, p.tokens, p.ratio, owner,
                                         data_of<const std::int32_t>(a.query_start_loc), data_of<const std::int32_t>(a.seq_lens),
                                         data_of<std::int64_t>(a.slots));
}

SMLA_CUDA_OP(WindowIndices, 0) {
  if (p.tokens == 0) return;
  device::launch_early<window_rows>("window_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream),
                                    table_of(a.block_table, p.block_size), p, data_of<const std::int32_t>(a.query_start_loc),
                                    data_of<const std::int32_t>(a.seq_lens), data_of<const std::int32_t>(a.token_to_req),
                                    data_of<const std::int64_t>(a.slot_mapping), rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

SMLA_CUDA_OP(DenseCompressedIndices, 0) {
  if (p.tokens == 0) return;
  device::launch_early<dense_rows>("dense_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream),
                                   table_of(a.block_table, p.storage_block), p, data_of<const std::int64_t>(a.positions),
                                   data_of<const std::int32_t>(a.token_to_req), data_of<const std::int64_t>(a.slot_mapping), rows_of(a.indices),
                                   data_of<std::int32_t>(a.lens));
}

SMLA_CUDA_OP(GlobalTopk, 0) {
  if (p.tokens == 0) return;
  device::launch_early<global_rows>(
      "global_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream), table_of(a.block_table, p.storage_block), p.k, p.compact,
      rows_of(a.topk), data_of<const std::int32_t>(a.token_to_req), data_of<const bool>(a.valid), rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

SMLA_CUDA_OP(ShortContextTopk, 0) {
  if (p.tokens == 0) return;
  device::launch_early<short_rows>("short_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream), p.ratio, p.k,
                                   data_of<const std::int64_t>(a.positions), rows_of(a.indices));
}

SMLA_CUDA_OP(CombineTopkWindow, static_cast<std::size_t>(4 * p.tokens)) {
  if (p.tokens == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  auto* owner = p.requests <= kSearched ? nullptr : static_cast<std::int32_t*>(context.workspace.data);
  if (owner != nullptr) {
    fill<<<min(blocks_for(p.tokens, kThreads), 1024U), kThreads, 0, stream>>>(owner, p.tokens, -1);
    chunk_owners<<<min(blocks_for(p.requests, 1), 4096U), kThreads, 0, stream>>>(data_of<const std::int32_t>(a.query_start_loc), p.requests, p.tokens,
                                                                                 owner);
    check_launch("chunk_owners");
  }
  device::launch_early<combined_rows>("combined_rows", row_blocks(p.tokens), kThreads, 0, stream, p, owner, rows_of(a.topk),
                                      data_of<const std::int32_t>(a.query_start_loc), data_of<const std::int32_t>(a.seq_lens),
                                      data_of<const std::int32_t>(a.gather_lens), rows_of(a.indices), data_of<std::int32_t>(a.lens));
}

SMLA_CUDA_OP(MixedSparseIndices, 0) {
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
  device::launch_early<mixed_rows>("mixed_rows", row_blocks(p.tokens), kThreads, 0, stream_of(context.stream), p, in, rows_of(a.indices),
                                   data_of<std::int32_t>(a.lens));
}

}  // namespace smla
