#pragma once

// The members of every op's Problem and Args by name, for code that treats ops alike: recording and replaying calls.
//
// fields(problem, f): f(name, member) for each scalar. tensors(args, t): t.in(name, view), t.out(name, view) and
// t.cache(name, cache, access) for each tensor; names are those of the members.

#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/ops/sequences.h"
#include "sparsemla/ops/topk.h"

namespace smla {

/// What an op does to a cache.
enum class CacheAccess : std::uint8_t { kRead, kWrite };

/// f("a", p.a), f("b", p.b), ...
#define SMLA_FIELD(name) f(#name, p.name)
#define SMLA_IN(name) t.in(#name, a.name)
#define SMLA_OUT(name) t.out(#name, a.name)
#define SMLA_READ(name) t.cache(#name, a.name, CacheAccess::kRead)
#define SMLA_WRITE(name) t.cache(#name, a.name, CacheAccess::kWrite)

void fields(RmsNorm::Problem& p, auto&& f) {
  SMLA_FIELD(rows), SMLA_FIELD(dim), SMLA_FIELD(dim2), SMLA_FIELD(in), SMLA_FIELD(out), SMLA_FIELD(has_weight),
      SMLA_FIELD(eps);
  SMLA_FIELD(format), SMLA_FIELD(rope_dim), SMLA_FIELD(clamp);
}
void tensors(RmsNorm::Args& a, auto&& t) {
  SMLA_IN(x), SMLA_IN(weight), SMLA_OUT(y), SMLA_IN(x2), SMLA_IN(weight2), SMLA_OUT(y2);
  SMLA_IN(positions), SMLA_IN(cos_sin), SMLA_IN(slot_mapping), SMLA_WRITE(cache);
}

void fields(AddRows::Problem& p, auto&& f) { SMLA_FIELD(rows), SMLA_FIELD(dim), SMLA_FIELD(dtype); }
void tensors(AddRows::Args& a, auto&& t) { SMLA_IN(y), SMLA_OUT(x); }

void fields(QNormRopeInsert::Problem& p, auto&& f) {
  SMLA_FIELD(tokens), SMLA_FIELD(heads), SMLA_FIELD(out_heads), SMLA_FIELD(dim), SMLA_FIELD(rope_dim), SMLA_FIELD(in),
      SMLA_FIELD(q_out);
  SMLA_FIELD(format), SMLA_FIELD(eps), SMLA_FIELD(q_scale_inv), SMLA_FIELD(clamp);
}
void tensors(QNormRopeInsert::Args& a, auto&& t) {
  SMLA_IN(q), SMLA_IN(kv), SMLA_IN(positions), SMLA_IN(cos_sin), SMLA_IN(slot_mapping), SMLA_OUT(q_out),
      SMLA_WRITE(cache);
}

void fields(InverseRope::Problem& p, auto&& f) {
  SMLA_FIELD(tokens), SMLA_FIELD(heads), SMLA_FIELD(dim), SMLA_FIELD(rope_dim), SMLA_FIELD(in), SMLA_FIELD(out);
}
void tensors(InverseRope::Args& a, auto&& t) { SMLA_IN(x), SMLA_IN(positions), SMLA_IN(cos_sin), SMLA_OUT(y); }

void fields(InverseRopeQuant::Problem& p, auto&& f) {
  SMLA_FIELD(tokens), SMLA_FIELD(heads), SMLA_FIELD(groups), SMLA_FIELD(dim), SMLA_FIELD(rope_dim), SMLA_FIELD(in),
      SMLA_FIELD(scale);
}
void tensors(InverseRopeQuant::Args& a, auto&& t) {
  SMLA_IN(x), SMLA_IN(positions), SMLA_IN(cos_sin), SMLA_OUT(values), SMLA_OUT(scales);
}

void fields(QuantizeRows::Problem& p, auto&& f) {
  SMLA_FIELD(rows), SMLA_FIELD(dim), SMLA_FIELD(in), SMLA_FIELD(scale);
}
void tensors(QuantizeRows::Args& a, auto&& t) { SMLA_IN(x), SMLA_OUT(values), SMLA_OUT(scales); }

void fields(InsertRows::Problem& p, auto&& f) {
  SMLA_FIELD(tokens), SMLA_FIELD(in), SMLA_FIELD(format), SMLA_FIELD(clamp);
}
void tensors(InsertRows::Args& a, auto&& t) { SMLA_IN(rows), SMLA_IN(slot_mapping), SMLA_WRITE(cache); }

void fields(SaveState::Problem& p, auto&& f) { SMLA_FIELD(tokens), SMLA_FIELD(ratio), SMLA_FIELD(dim); }
void tensors(SaveState::Args& a, auto&& t) {
  SMLA_IN(kv_score), SMLA_IN(ape), SMLA_IN(positions), SMLA_IN(state_slots), SMLA_WRITE(state);
}

void fields(CompressStore::Problem& p, auto&& f) {
  SMLA_FIELD(tokens), SMLA_FIELD(ratio), SMLA_FIELD(dim), SMLA_FIELD(rope_dim), SMLA_FIELD(format),
      SMLA_FIELD(hadamard), SMLA_FIELD(eps);
  SMLA_FIELD(clamp), SMLA_FIELD(dim2), SMLA_FIELD(format2), SMLA_FIELD(hadamard2);
}
void tensors(CompressStore::Args& a, auto&& t) {
  SMLA_IN(positions), SMLA_IN(token_to_req), SMLA_IN(state_slots), SMLA_IN(entry_slots), SMLA_IN(block_table),
      SMLA_IN(norm_weight);
  SMLA_IN(cos_sin), SMLA_IN(kv_score), SMLA_IN(ape);
  t.cache("state", a.state, a.kv_score.absent() ? CacheAccess::kRead : CacheAccess::kWrite);
  SMLA_WRITE(entries);
  SMLA_IN(state_slots2), SMLA_IN(block_table2), SMLA_IN(norm_weight2), SMLA_IN(kv_score2), SMLA_IN(ape2);
  t.cache("state2", a.state2, a.kv_score.absent() ? CacheAccess::kRead : CacheAccess::kWrite);
  SMLA_WRITE(entries2);
}

void fields(IndexerQ::Problem& p, auto&& f) {
  SMLA_FIELD(tokens), SMLA_FIELD(heads), SMLA_FIELD(dim), SMLA_FIELD(rope_dim), SMLA_FIELD(in), SMLA_FIELD(format),
      SMLA_FIELD(hadamard);
}
void tensors(IndexerQ::Args& a, auto&& t) {
  SMLA_IN(q), SMLA_IN(weights), SMLA_IN(positions), SMLA_IN(cos_sin), SMLA_OUT(q_out), SMLA_OUT(q_scale),
      SMLA_OUT(weights_out);
}

void fields(IndexerLogits::Problem& p, auto&& f) {
  SMLA_FIELD(rows), SMLA_FIELD(heads), SMLA_FIELD(dim), SMLA_FIELD(width), SMLA_FIELD(format);
}
void tensors(IndexerLogits::Args& a, auto&& t) {
  SMLA_IN(q), SMLA_IN(q_scale), SMLA_IN(weights), SMLA_IN(row_to_req), SMLA_IN(lens), SMLA_IN(block_table),
      SMLA_READ(cache), SMLA_OUT(logits);
}

void fields(GatherIndexRows::Problem& p, auto&& f) { SMLA_FIELD(requests), SMLA_FIELD(rows), SMLA_FIELD(format); }
void tensors(GatherIndexRows::Args& a, auto&& t) {
  SMLA_READ(cache), SMLA_IN(cu_seq_lens), SMLA_IN(block_table), SMLA_OUT(values), SMLA_OUT(scales);
}

void fields(RaggedIndexerLogits::Problem& p, auto&& f) {
  SMLA_FIELD(rows), SMLA_FIELD(keys), SMLA_FIELD(heads), SMLA_FIELD(dim), SMLA_FIELD(format);
}
void tensors(RaggedIndexerLogits::Args& a, auto&& t) {
  SMLA_IN(q), SMLA_IN(q_scale), SMLA_IN(weights), SMLA_IN(values), SMLA_IN(scales), SMLA_IN(starts), SMLA_IN(ends),
      SMLA_OUT(logits);
}

void fields(TopK::Problem& p, auto&& f) {
  SMLA_FIELD(rows), SMLA_FIELD(width), SMLA_FIELD(k), SMLA_FIELD(storage_block);
}
void tensors(TopK::Args& a, auto&& t) {
  SMLA_IN(logits), SMLA_IN(lens), SMLA_OUT(indices), SMLA_IN(token_to_req), SMLA_IN(block_table), SMLA_IN(valid),
      SMLA_OUT(slots), SMLA_OUT(slot_lens);
}

void fields(TokenToReq::Problem& p, auto&& f) { SMLA_FIELD(requests), SMLA_FIELD(tokens); }
void tensors(TokenToReq::Args& a, auto&& t) { SMLA_IN(query_start_loc), SMLA_OUT(token_to_req); }

void fields(SlotMapping::Problem& p, auto&& f) { SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(block_size); }
void tensors(SlotMapping::Args& a, auto&& t) {
  SMLA_IN(query_start_loc), SMLA_IN(positions), SMLA_IN(token_to_req), SMLA_IN(block_table), SMLA_OUT(slots);
}

void fields(CompressedSlotMapping::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(ratio), SMLA_FIELD(storage_block);
}
void tensors(CompressedSlotMapping::Args& a, auto&& t) {
  SMLA_IN(query_start_loc), SMLA_IN(seq_lens), SMLA_IN(block_table), SMLA_OUT(slots);
}

void fields(WindowIndices::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(window), SMLA_FIELD(block_size), SMLA_FIELD(noncausal_tokens);
}
void tensors(WindowIndices::Args& a, auto&& t) {
  SMLA_IN(query_start_loc), SMLA_IN(seq_lens), SMLA_IN(token_to_req), SMLA_IN(slot_mapping), SMLA_IN(block_table),
      SMLA_OUT(indices), SMLA_OUT(lens);
}

void fields(DenseCompressedIndices::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(ratio), SMLA_FIELD(storage_block), SMLA_FIELD(width),
      SMLA_FIELD(global);
}
void tensors(DenseCompressedIndices::Args& a, auto&& t) {
  SMLA_IN(positions), SMLA_IN(token_to_req), SMLA_IN(slot_mapping), SMLA_IN(block_table), SMLA_OUT(indices),
      SMLA_OUT(lens);
}

void fields(GlobalTopk::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(k), SMLA_FIELD(storage_block), SMLA_FIELD(compact);
}
void tensors(GlobalTopk::Args& a, auto&& t) {
  SMLA_IN(topk), SMLA_IN(token_to_req), SMLA_IN(block_table), SMLA_IN(valid), SMLA_OUT(indices), SMLA_OUT(lens);
}

void fields(ShortContextTopk::Problem& p, auto&& f) { SMLA_FIELD(tokens), SMLA_FIELD(ratio), SMLA_FIELD(k); }
void tensors(ShortContextTopk::Args& a, auto&& t) { SMLA_IN(positions), SMLA_OUT(indices); }

void fields(VisibleEntries::Problem& p, auto&& f) { SMLA_FIELD(tokens), SMLA_FIELD(ratio), SMLA_FIELD(top_k); }
void tensors(VisibleEntries::Args& a, auto&& t) {
  SMLA_IN(positions), SMLA_IN(slot_mapping), SMLA_OUT(valid), SMLA_OUT(lens), SMLA_OUT(topk_lens);
}

void fields(PrefillLens::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(decodes), SMLA_FIELD(window), SMLA_FIELD(ratio);
}
void tensors(PrefillLens::Args& a, auto&& t) {
  SMLA_IN(query_start_loc), SMLA_IN(seq_lens), SMLA_OUT(gather_lens), SMLA_OUT(entry_counts);
}

void fields(DraftPositions::Problem& p, auto&& f) { SMLA_FIELD(requests); }
void tensors(DraftPositions::Args& a, auto&& t) { SMLA_IN(seq_lens), SMLA_OUT(positions); }

void fields(CombineTopkWindow::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(window), SMLA_FIELD(ratio), SMLA_FIELD(top_k), SMLA_FIELD(m),
      SMLA_FIELD(n);
  SMLA_FIELD(clear_rest);
}
void tensors(CombineTopkWindow::Args& a, auto&& t) {
  SMLA_IN(topk), SMLA_IN(query_start_loc), SMLA_IN(seq_lens), SMLA_IN(gather_lens), SMLA_OUT(indices), SMLA_OUT(lens);
}

void fields(MixedSparseIndices::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(decode_tokens), SMLA_FIELD(window), SMLA_FIELD(window_width),
      SMLA_FIELD(ratio);
  SMLA_FIELD(top_k), SMLA_FIELD(compressed_width), SMLA_FIELD(window_block), SMLA_FIELD(compressed_block),
      SMLA_FIELD(window_span);
  SMLA_FIELD(compressed_span), SMLA_FIELD(local);
}
void tensors(MixedSparseIndices::Args& a, auto&& t) {
  SMLA_IN(decode_window), SMLA_IN(decode_compressed), SMLA_IN(decode_lens), SMLA_IN(decode_valid),
      SMLA_IN(prefill_topk);
  SMLA_IN(query_start_loc), SMLA_IN(seq_lens), SMLA_IN(token_to_req), SMLA_IN(window_table), SMLA_IN(compressed_table);
  SMLA_OUT(indices), SMLA_OUT(lens);
}

/// Its problem has scopes, so there are no fields().
void tensors(SparseAttention::Args& a, auto&& t) {
  SMLA_IN(q), SMLA_IN(sink), SMLA_IN(positions), SMLA_IN(cos_sin), SMLA_OUT(o), SMLA_OUT(lse);
  for (SparseAttention::Scope& scope : a.scopes) {
    t.cache("cache", scope.cache, CacheAccess::kRead), t.in("indices", scope.indices), t.in("lens", scope.lens);
  }
}

void fields(MergePartials::Problem& p, auto&& f) {
  SMLA_FIELD(slices), SMLA_FIELD(tokens), SMLA_FIELD(heads), SMLA_FIELD(dim), SMLA_FIELD(o);
}
void tensors(MergePartials::Args& a, auto&& t) {
  SMLA_IN(partial_o), SMLA_IN(partial_lse), SMLA_IN(sink), SMLA_OUT(o), SMLA_OUT(lse);
}

void fields(GatherRows::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(rows), SMLA_FIELD(offset), SMLA_FIELD(format);
}
void tensors(GatherRows::Args& a, auto&& t) {
  SMLA_READ(cache), SMLA_IN(seq_lens), SMLA_IN(gather_lens), SMLA_IN(block_table), SMLA_OUT(out);
}

void fields(Projection::Problem& p, auto&& f) {
  SMLA_FIELD(m), SMLA_FIELD(n), SMLA_FIELD(k), SMLA_FIELD(groups), SMLA_FIELD(x), SMLA_FIELD(w), SMLA_FIELD(y),
      SMLA_FIELD(x_scale);
}
void tensors(Projection::Args& a, auto&& t) { SMLA_IN(x), SMLA_IN(w), SMLA_OUT(y), SMLA_IN(x_scale), SMLA_IN(w_scale); }

void fields(PackSequences::Problem& p, auto&& f) {
  SMLA_FIELD(requests), SMLA_FIELD(tokens), SMLA_FIELD(max_len), SMLA_FIELD(row), SMLA_FIELD(dtype);
}
void tensors(PackSequences::Args& a, auto&& t) { SMLA_IN(rows), SMLA_IN(query_start_loc), SMLA_OUT(packed); }
void tensors(UnpackSequences::Args& a, auto&& t) { SMLA_IN(packed), SMLA_IN(query_start_loc), SMLA_OUT(rows); }

#undef SMLA_FIELD
#undef SMLA_IN
#undef SMLA_OUT
#undef SMLA_READ
#undef SMLA_WRITE

}  // namespace smla
