// The index family on the device: what each contract says, a block of threads for each row, a thread for each column.
#include "device/launch.cuh"
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
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t < tokens) slots[t] = t < start[requests] ? table.slot(request[t], positions[t]) : -1;
}

__global__ void compressed_slots(Table table, std::int64_t tokens, std::int64_t ratio, const std::int32_t* owner, const std::int32_t* start,
                                 const std::int32_t* seq_lens, std::int64_t* slots) {
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens) return;
  const std::int64_t r = owner[t];
  std::int64_t slot = -1;
  if (r >= 0) {
    const std::int64_t pos = static_cast<std::int64_t>(seq_lens[r]) - start[r + 1] + t;
    if (pos >= 0 && (pos + 1) % ratio == 0) slot = table.slot(r, pos / ratio, true);
  }
  slots[t] = slot;
}

__global__ void window_rows(Table table, WindowIndices::Problem p, const std::int32_t* start, const std::int32_t* seq_lens,
                            const std::int32_t* request, const std::int64_t* slots, Rows<std::int32_t> out, std::int32_t* lens) {
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
  const std::int64_t t = blockIdx.x;
  const std::int64_t n = slots[t] < 0 ? 0 : entries_seen(positions[t], p.ratio, p.width);
  for (std::int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
    out.row(t)[j] = j >= n ? -1 : (p.global ? as_index(table.slot(request[t], j)) : static_cast<std::int32_t>(j));
  }
  if (threadIdx.x == 0) lens[t] = static_cast<std::int32_t>(n);
}

__global__ void __launch_bounds__(kThreads) global_rows(Table table, std::int64_t k, bool compact, Rows<const std::int32_t> topk,
                                                        const std::int32_t* request, const bool* valid, Rows<std::int32_t> out, std::int32_t* lens) {
  __shared__ GlobalRow<kThreads> row;
  const std::int64_t t = blockIdx.x;
  row.write(table, request[t], valid[t], k, compact, topk.row(t), out.row(t), lens + t);
}

__global__ void short_rows(std::int64_t ratio, std::int64_t k, const std::int64_t* positions, Rows<std::int32_t> out) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t n = entries_seen(positions[t], ratio, k);
  for (std::int64_t j = threadIdx.x; j < k; j += blockDim.x) out.row(t)[j] = j < n ? static_cast<std::int32_t>(j) : -1;
}

__global__ void combined_rows(CombineTopkWindow::Problem p, const std::int32_t* owner, Rows<const std::int32_t> topk, const std::int32_t* start,
                              const std::int32_t* seq_lens, const std::int32_t* gather_lens, Rows<std::int32_t> out, std::int32_t* lens) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t b = owner[t];
  std::int64_t pos = -1;
  std::int64_t seq = 0;
  if (b >= 0) {
    seq = seq_lens[b];
    pos = seq - (static_cast<std::int64_t>(start[b + 1]) - start[0]) + t;
  }
  const std::int64_t entries = entries_seen(pos, p.ratio, p.top_k);
  const std::int64_t seen = pos < 0 ? 0 : min(pos + 1, p.window);
  const std::int64_t first = pos < 0 ? 0 : p.m * b + p.n + (pos - seen + 1) - (seq - gather_lens[b]);
  for (std::int64_t j = threadIdx.x; j < out.columns; j += blockDim.x) {
    if (j < entries) {
      const std::int64_t local = topk.row(t)[j];
      out.row(t)[j] = local < 0 ? -1 : as_index(local + p.m * b);
    } else if (j < entries + seen) {
      out.row(t)[j] = as_index(first + j - entries);
    } else if (p.clear_rest) {
      out.row(t)[j] = -1;
    }
  }
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
__device__ std::int32_t remapped(std::int64_t slot, std::int64_t block, std::int64_t span) {
  if (slot < 0 || slot / block > 0x7FFF'FFFF) return -1;
  return as_index(slot / block * (span == 0 ? block : span) + slot % block);
}

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

__global__ void mixed_rows(MixedSparseIndices::Problem p, MixedInputs in, Rows<std::int32_t> out, std::int32_t* lens) {
  __shared__ std::int32_t present;
  const std::int64_t t = blockIdx.x;
  const std::int64_t r = in.request[t];
  std::int32_t* row = out.row(t);
  std::int32_t* entries = row + p.window_width;
  if (threadIdx.x == 0) present = 0;
  __syncthreads();
  if (t < p.decode_tokens) {
    const std::int64_t width = min(in.decode_compressed.columns, p.compressed_width);
    for (std::int64_t i = threadIdx.x; i < p.window_width; i += blockDim.x)
      row[i] = remapped(in.decode_window.row(t)[i], p.window_block, p.window_span);
    std::int32_t mine = 0;
    for (std::int64_t j = threadIdx.x; j < p.compressed_width; j += blockDim.x) {
      std::int64_t slot = -1;
      if (j < width) {
        const std::int32_t v = in.decode_compressed.row(t)[j];
        mine += v >= 0 ? 1 : 0;
        slot = p.local ? in.compressed.slot(r, v) : v;
      }
      entries[j] = remapped(slot, p.compressed_block, p.compressed_span);
    }
    atomicAdd(&present, mine);
    __syncthreads();
    if (threadIdx.x != 0) return;
    std::int64_t count = present;
    if (p.local) {
      if (width == 0 || !in.decode_valid[t]) count = 0;
    } else {
      count = in.decode_lens == nullptr ? width : min(max(static_cast<std::int64_t>(in.decode_lens[t]), std::int64_t{0}), width);
    }
    lens[t] = static_cast<std::int32_t>(p.window_width + count);
    return;
  }
  std::int64_t pos = -1;
  if (r >= 0 && r < p.requests && t >= in.start[r] && t < in.start[r + 1]) pos = static_cast<std::int64_t>(in.seq_lens[r]) - in.start[r + 1] + t;
  const std::int64_t seen = pos < 0 ? 0 : min(pos + 1, p.window);
  const std::int64_t visible = entries_seen(pos, p.ratio, p.top_k);
  for (std::int64_t i = threadIdx.x; i < p.window_width; i += blockDim.x) {
    row[i] = i < seen ? remapped(in.window.slot(r, pos - seen + 1 + i), p.window_block, p.window_span) : -1;
  }
  for (std::int64_t j = threadIdx.x; j < p.compressed_width; j += blockDim.x) {
    const std::int64_t slot = j < visible ? in.compressed.slot(r, in.prefill_topk.row(t - p.decode_tokens)[j]) : -1;
    entries[j] = remapped(slot, p.compressed_block, p.compressed_span);
  }
  if (threadIdx.x == 0) lens[t] = pos < 0 ? 0 : static_cast<std::int32_t>(p.window_width + visible);
}

/// Tokens of a step fit a grid's x dimension.
unsigned row_blocks(std::int64_t rows) { return blocks_for(rows, 1); }

}  // namespace

SMLA_CUDA_OP(TokenToReq, 0) {
  launch_owners(a.query_start_loc, p.requests, p.tokens, data_of<std::int32_t>(a.token_to_req), 0, stream_of(context.stream));
}

SMLA_CUDA_OP(SlotMapping, 0) {
  if (p.tokens == 0) return;
  slot_mapping<<<blocks_for(p.tokens, kThreads), kThreads, 0, stream_of(context.stream)>>>(
      table_of(a.block_table, p.block_size), p.requests, p.tokens, data_of<const std::int32_t>(a.query_start_loc),
      data_of<const std::int64_t>(a.positions), data_of<const std::int32_t>(a.token_to_req), data_of<std::int64_t>(a.slots));
  check_launch("slot_mapping");
}

SMLA_CUDA_OP(CompressedSlotMapping, static_cast<std::size_t>(4 * p.tokens)) {
  if (p.tokens == 0) return;
  auto* owner = static_cast<std::int32_t*>(context.workspace.data);
  launch_owners(a.query_start_loc, p.requests, p.tokens, owner, -1, stream_of(context.stream));
  compressed_slots<<<blocks_for(p.tokens, kThreads), kThreads, 0, stream_of(context.stream)>>>(
      table_of(a.block_table, p.storage_block), p.tokens, p.ratio, owner, data_of<const std::int32_t>(a.query_start_loc),
      data_of<const std::int32_t>(a.seq_lens), data_of<std::int64_t>(a.slots));
  check_launch("compressed_slots");
}

SMLA_CUDA_OP(WindowIndices, 0) {
  if (p.tokens == 0) return;
  window_rows<<<row_blocks(p.tokens), kThreads, 0, stream_of(context.stream)>>>(
      table_of(a.block_table, p.block_size), p, data_of<const std::int32_t>(a.query_start_loc), data_of<const std::int32_t>(a.seq_lens),
      data_of<const std::int32_t>(a.token_to_req), data_of<const std::int64_t>(a.slot_mapping), rows_of(a.indices), data_of<std::int32_t>(a.lens));
  check_launch("window_rows");
}

SMLA_CUDA_OP(DenseCompressedIndices, 0) {
  if (p.tokens == 0) return;
  dense_rows<<<row_blocks(p.tokens), kThreads, 0, stream_of(context.stream)>>>(
      table_of(a.block_table, p.storage_block), p, data_of<const std::int64_t>(a.positions), data_of<const std::int32_t>(a.token_to_req),
      data_of<const std::int64_t>(a.slot_mapping), rows_of(a.indices), data_of<std::int32_t>(a.lens));
  check_launch("dense_rows");
}

SMLA_CUDA_OP(GlobalTopk, 0) {
  if (p.tokens == 0) return;
  global_rows<<<row_blocks(p.tokens), kThreads, 0, stream_of(context.stream)>>>(
      table_of(a.block_table, p.storage_block), p.k, p.compact, rows_of(a.topk), data_of<const std::int32_t>(a.token_to_req),
      data_of<const bool>(a.valid), rows_of(a.indices), data_of<std::int32_t>(a.lens));
  check_launch("global_rows");
}

SMLA_CUDA_OP(ShortContextTopk, 0) {
  if (p.tokens == 0) return;
  short_rows<<<row_blocks(p.tokens), kThreads, 0, stream_of(context.stream)>>>(p.ratio, p.k, data_of<const std::int64_t>(a.positions),
                                                                               rows_of(a.indices));
  check_launch("short_rows");
}

SMLA_CUDA_OP(CombineTopkWindow, static_cast<std::size_t>(4 * p.tokens)) {
  if (p.tokens == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  auto* owner = static_cast<std::int32_t*>(context.workspace.data);
  fill<<<min(blocks_for(p.tokens, kThreads), 1024U), kThreads, 0, stream>>>(owner, p.tokens, -1);
  if (p.requests > 0) {
    chunk_owners<<<min(blocks_for(p.requests, 1), 4096U), kThreads, 0, stream>>>(data_of<const std::int32_t>(a.query_start_loc), p.requests, p.tokens,
                                                                                 owner);
  }
  check_launch("chunk_owners");
  combined_rows<<<row_blocks(p.tokens), kThreads, 0, stream>>>(p, owner, rows_of(a.topk), data_of<const std::int32_t>(a.query_start_loc),
                                                               data_of<const std::int32_t>(a.seq_lens), data_of<const std::int32_t>(a.gather_lens),
                                                               rows_of(a.indices), data_of<std::int32_t>(a.lens));
  check_launch("combined_rows");
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
  mixed_rows<<<row_blocks(p.tokens), kThreads, 0, stream_of(context.stream)>>>(p, in, rows_of(a.indices), data_of<std::int32_t>(a.lens));
  check_launch("mixed_rows");
}

}  // namespace smla
