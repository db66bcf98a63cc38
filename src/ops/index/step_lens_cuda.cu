// The lengths of a step on the device: a thread for each token or request.
#include "ops/cuda_row.h"
#include "ops/index/index_rows.cuh"
#include "sparsemla/ops/index.h"

namespace smla {

namespace {

using namespace index_rows;

constexpr std::int64_t kMax = 0x7FFF'FFFF;

__device__ std::int64_t thread_index() { return blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; }

__global__ void entries(VisibleEntries::Problem p, const std::int64_t* positions, const std::int64_t* slots,
                        bool* valid, std::int32_t* lens, std::int32_t* topk_lens) {
  const std::int64_t t = thread_index();
  if (t >= p.tokens) return;
  const bool real = slots[t] >= 0;
  const std::int64_t seen = real ? p.share.count(entries_seen(positions[t], p.ratio, kMax)) : 0;
  if (valid != nullptr) valid[t] = real;
  if (lens != nullptr) lens[t] = static_cast<std::int32_t>(seen);
  if (topk_lens != nullptr) topk_lens[t] = static_cast<std::int32_t>(min(seen, p.top_k));
}

__global__ void prefills(PrefillLens::Problem p, const std::int32_t* start, const std::int32_t* seq_lens,
                         std::int32_t* gather_lens, std::int32_t* entry_counts) {
  const std::int64_t i = thread_index();
  const std::int64_t r = p.decodes + i;
  if (r >= p.requests) return;
  const std::int64_t query = max(static_cast<std::int64_t>(start[r + 1]) - start[r], std::int64_t{0});
  const std::int64_t seq = seq_lens[r];
  const std::int64_t prefix = min(max(seq - query, std::int64_t{0}), p.window - 1);
  if (gather_lens != nullptr) gather_lens[i] = static_cast<std::int32_t>(min(query + prefix, kMax));
  if (entry_counts != nullptr) entry_counts[i] = static_cast<std::int32_t>(max(seq, std::int64_t{0}) / p.ratio);
}

__global__ void last_positions(DraftPositions::Problem p, const std::int32_t* seq_lens, std::int64_t* positions,
                               std::int32_t* next_lens) {
  const std::int64_t r = thread_index();
  if (r >= p.requests) return;
  const std::int64_t length = seq_lens[r];
  const std::int64_t next = length > 0 ? min(length + p.longer, kMax) : length;
  positions[r] = next - 1;
  if (next_lens != nullptr) next_lens[r] = static_cast<std::int32_t>(next);
}

void run(const VisibleEntries::Problem& p, const VisibleEntries::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  entries<<<blocks_for(p.tokens, kThreads), kThreads, 0, stream_of(context.stream)>>>(
      p, data_of<const std::int64_t>(a.positions), data_of<const std::int64_t>(a.slot_mapping), data_of<bool>(a.valid),
      data_of<std::int32_t>(a.lens), data_of<std::int32_t>(a.topk_lens));
  check_launch("visible_entries");
}

void run(const PrefillLens::Problem& p, const PrefillLens::Args& a, const RunContext& context) {
  if (p.requests == p.decodes) return;
  prefills<<<blocks_for(p.requests - p.decodes, kThreads), kThreads, 0, stream_of(context.stream)>>>(
      p, data_of<const std::int32_t>(a.query_start_loc), data_of<const std::int32_t>(a.seq_lens),
      data_of<std::int32_t>(a.gather_lens), data_of<std::int32_t>(a.entry_counts));
  check_launch("prefill_lens");
}

void run(const DraftPositions::Problem& p, const DraftPositions::Args& a, const RunContext& context) {
  if (p.requests == 0) return;
  last_positions<<<blocks_for(p.requests, kThreads), kThreads, 0, stream_of(context.stream)>>>(
      p, data_of<const std::int32_t>(a.seq_lens), data_of<std::int64_t>(a.positions),
      data_of<std::int32_t>(a.next_lens));
  check_launch("draft_positions");
}

}  // namespace

template <>
Implementation<VisibleEntries> cuda_row() {
  return any_gpu_row<VisibleEntries>(run);
}

template <>
Implementation<PrefillLens> cuda_row() {
  return any_gpu_row<PrefillLens>(run);
}

template <>
Implementation<DraftPositions> cuda_row() {
  return any_gpu_row<DraftPositions>(run);
}

}  // namespace smla
