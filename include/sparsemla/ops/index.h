#pragma once

#include <cstdint>
#include <string_view>

#include "sparsemla/entry_share.h"
#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// The request of each token, from query_start_loc; tokens past its end get 0 (spec 6.1).
struct TokenToReq {
  static constexpr std::string_view kName = "token_to_req";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;  ///< tokens of the step, padding included
  };
  struct Args {
    ConstTensorView query_start_loc;  ///< [requests+1] I32, ascending
    TensorView token_to_req;          ///< [tokens] I32
  };
};

/// slot = block_table[req, pos / block_size] * block_size + pos % block_size; -1 for padding tokens (past
/// query_start_loc's end), for a column outside the table and for a negative entry (spec 5.5).
struct SlotMapping {
  static constexpr std::string_view kName = "slot_mapping";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t block_size = 0;  ///< rows in a block
  };
  struct Args {
    ConstTensorView query_start_loc;  ///< [requests+1] I32
    ConstTensorView positions;        ///< [tokens] I64
    ConstTensorView token_to_req;     ///< [tokens] I32
    ConstTensorView block_table;      ///< [requests, columns] I32
    TensorView slots;                 ///< [tokens] I64
  };
};

/// Slots of compressed entries (spec 5.5): the whole output is set to -1; a request token with (pos+1) % ratio == 0
/// gets c = pos / ratio, block_table[req, c / storage_block] * storage_block + c % storage_block. pos = seq_len -
/// query_len + offset. Negative table entries are read as block 0 (upstream's clamp); a column outside the table gives
/// -1. A rank that has a share of the entries looks up its own c by their local numbers; those of others give -1.
struct CompressedSlotMapping {
  static constexpr std::string_view kName = "compressed_slot_mapping";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;          ///< tokens of the step, padding included
    std::int64_t ratio = 4;           ///< r: tokens of an entry
    std::int64_t storage_block = 64;  ///< entries in a block
    EntryShare share{};               ///< the entries that this rank has
  };
  struct Args {
    ConstTensorView query_start_loc;  ///< [requests+1] I32
    ConstTensorView seq_lens;         ///< [requests] I32
    ConstTensorView block_table;      ///< [requests, columns] I32
    TensorView slots;                 ///< [tokens] I64
  };
};

/// Window rows (spec 6.3), decode and prefill alike: for a valid token (slot >= 0) pos = seq_len - query_len + offset,
/// start = max(pos-window+1, 0), column i < pos+1-start holds the slot of position start+i, the rest -1. Invalid
/// tokens, tokens of a request outside the batch and negative positions: length 0 and a row of -1. A position whose
/// block column is outside the table or whose block is negative has -1 in its column; the length still counts it.
///
/// The first `noncausal_tokens` tokens belong to draft blocks whose tokens see each other (DSpark, spec 6.3): with
/// prefix = seq_len - query_len, start = max(prefix - window, 0) and every token of the block gets positions
/// start..seq_len-1, at most as many as there are columns.
struct WindowIndices {
  static constexpr std::string_view kName = "window_indices";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t window = 128;          ///< tokens that a query sees, itself included
    std::int64_t block_size = 64;       ///< rows in a block
    std::int64_t noncausal_tokens = 0;  ///< 0 to tokens
  };
  struct Args {
    ConstTensorView query_start_loc;  ///< [requests+1] I32
    ConstTensorView seq_lens;         ///< [requests] I32
    ConstTensorView token_to_req;     ///< [tokens] I32
    ConstTensorView slot_mapping;     ///< [tokens] I64
    ConstTensorView block_table;      ///< [requests, columns] I32
    TensorView indices;               ///< [tokens, width >= window] I32; columns past a row's length are -1
    TensorView lens;                  ///< [tokens] I32
  };
};

/// C128A rows (spec 6.5): n = min((pos+1)/ratio, width) entries; column j < n is the global slot of entry j through the
/// block table (`global`), or j itself (local); the rest -1; lens = n. Invalid tokens (slot < 0): length 0 and a row of
/// -1. An entry that the table does not hold is -1 in its column. Local rows need no block table. A rank that has a
/// share of the entries lists its own among them, by their local numbers: n = min(share.count((pos+1)/ratio), width).
struct DenseCompressedIndices {
  static constexpr std::string_view kName = "dense_compressed_indices";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t ratio = 128;        ///< r: tokens of an entry
    std::int64_t storage_block = 2;  ///< entries in a block
    std::int64_t width = 0;          ///< columns
    bool global = true;              ///< slots through the block table; false: entry numbers
    EntryShare share{};              ///< the entries that this rank has
  };
  struct Args {
    ConstTensorView positions;     ///< [tokens] I64
    ConstTensorView token_to_req;  ///< [tokens] I32
    ConstTensorView slot_mapping;  ///< [tokens] I64 of the window cache; a token with a slot is valid
    ConstTensorView block_table;   ///< [requests, columns] I32 of the compressed cache
    TensorView indices;            ///< [tokens, width] I32
    TensorView lens;               ///< [tokens] I32
  };
};

/// Local top-k entries to global slots (spec 7.1): v >= 0 -> block_table[req, v / storage_block] * storage_block + v %
/// storage_block, same column; else -1. An entry whose request or block column lies outside the table, or whose table
/// entry is negative, is invalid. With `compact` survivors move left. lens = valid token ? number of survivors : 0;
/// indices of invalid tokens are still written.
struct GlobalTopk {
  static constexpr std::string_view kName = "global_topk";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t k = 0;
    std::int64_t storage_block = 64;  ///< entries in a block
    bool compact = false;             ///< survivors move left
  };
  struct Args {
    ConstTensorView topk;          ///< [tokens, k] I32
    ConstTensorView token_to_req;  ///< [tokens] I32
    ConstTensorView block_table;   ///< [requests, columns] I32
    ConstTensorView valid;         ///< [tokens] BOOL
    TensorView indices;            ///< [tokens, k] I32
    TensorView lens;               ///< [tokens] I32
  };
};

/// Short contexts (spec 4.7): row t = 0..n-1 then -1 with n = min((pos+1)/ratio, k).
struct ShortContextTopk {
  static constexpr std::string_view kName = "short_context_topk";
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t ratio = 4;  ///< r: tokens of an entry
    std::int64_t k = 0;
  };
  struct Args {
    ConstTensorView positions;  ///< [tokens] I64
    TensorView indices;         ///< [tokens, k] I32
  };
};

/// Which tokens are real, and how many compressed entries each sees (spec 2, 6.2):
///   valid = slot >= 0;  lens = (pos+1)/ratio where valid and pos >= 0, else 0;  topk_lens = min(lens, top_k).
/// A rank that has a share of the entries counts its own: lens = share.count((pos+1)/ratio).
struct VisibleEntries {
  static constexpr std::string_view kName = "visible_entries";
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t ratio = 4;  ///< r: tokens of an entry
    std::int64_t top_k = 0;  ///< the most of topk_lens
    EntryShare share{};      ///< the entries that this rank has
  };
  struct Args {
    ConstTensorView positions;     ///< [tokens] I64
    ConstTensorView slot_mapping;  ///< [tokens] I64 window slots, -1 padding
    TensorView valid;              ///< [tokens] BOOL; absent: not wanted
    TensorView lens;               ///< [tokens] I32; absent: not wanted
    TensorView topk_lens;          ///< [tokens] I32; absent: not wanted
  };
};

/// What a prefill gathers (spec 6.4, 7.4), for the requests behind the decodes: gather_lens = query + clamp(seq -
/// query, 0, window - 1) window rows, entry_counts = max(seq, 0) / ratio entries; query = max(query_start_loc[r+1] -
/// query_start_loc[r], 0).
struct PrefillLens {
  static constexpr std::string_view kName = "prefill_lens";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t decodes = 0;   ///< requests that come first and are left out
    std::int64_t window = 128;  ///< tokens that a query sees, itself included
    std::int64_t ratio = 4;     ///< r: tokens of an entry
  };
  struct Args {
    ConstTensorView query_start_loc;  ///< [requests+1] I32
    ConstTensorView seq_lens;         ///< [requests] I32
    TensorView gather_lens;           ///< [requests - decodes] I32; absent: not wanted
    TensorView entry_counts;          ///< [requests - decodes] I32; absent: not wanted
  };
};

/// The one token of every request of a draft step stands last: positions = seq_len - 1 (spec 6.10). The step before
/// may have been `longer` tokens shorter: next_lens = seq_len > 0 ? seq_len + longer : seq_len, positions = next_lens
/// - 1.
struct DraftPositions {
  static constexpr std::string_view kName = "draft_positions";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t longer = 0;  ///< tokens by which each request has grown; 0: seq_lens are this step's
  };
  struct Args {
    ConstTensorView seq_lens;  ///< [requests] I32
    TensorView positions;      ///< [requests] I64
    TensorView next_lens;      ///< [requests] I32, may be seq_lens itself; absent: not wanted
  };
};

/// Rows of a chunk's gathered workspace [n, M] that each prefill token attends to (spec 7.2): first its compressed
/// entries, then its window.
///
/// Request b of the chunk, token i: pos = seq - qlen + i (query_start_loc is rebased by its first entry); tl =
/// min((pos+1)/ratio, top_k), sl = min(pos+1, window).
///   indices[0:tl] = topk[0:tl] + M*b;  indices[tl:tl+sl] = M*b + N + (pos-sl+1 - (seq-gather)) + 0..sl-1;  lens =
///   tl+sl.
/// With `clear_rest` the other columns are -1, without they are not touched (consumers must honour lens). Negative
/// top-k entries, and rows that an int32 cannot hold or that lie before the workspace, are -1 in their column. Tokens
/// of no request and negative positions have length 0.
struct CombineTopkWindow {
  static constexpr std::string_view kName = "combine_topk_window";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t window = 128;  ///< tokens that a query sees, itself included
    std::int64_t ratio = 4;     ///< r: tokens of an entry
    std::int64_t top_k = 0;     ///< 0: no compressed part
    std::int64_t m = 0;         ///< M: workspace rows of a request
    std::int64_t n = 0;         ///< N: of which compressed
    bool clear_rest = true;     ///< columns past lens become -1
  };
  struct Args {
    ConstTensorView topk;             ///< [tokens, >= top_k] I32 local entries; absent when top_k is 0
    ConstTensorView query_start_loc;  ///< [requests+1] I32, may start above 0
    ConstTensorView seq_lens;         ///< [requests] I32
    ConstTensorView gather_lens;      ///< [requests] I32
    TensorView indices;               ///< [tokens, >= top_k + window] I32
    TensorView lens;                  ///< [tokens] I32
  };
};

/// One index matrix over window and compressed rows for the whole batch (spec 7.3): columns [0, Ws) window slots, [Ws,
/// Ws+P) compressed slots. Every non-negative slot s is remapped to (s / block) * span + s % block, so that a kernel
/// with a flat token axis finds it in strided memory.
///
/// Decode token: its window row; its compressed row as it is, or looked up (`local`); lens = Ws + c, where c is the
/// number of entries >= 0 of a valid token (`local`), or its decode_lens, or all columns without decode_lens; 0 without
/// a compressed part. Prefill token at pos: the last min(pos+1, window) positions; the first n = min((pos+1)/ratio,
/// top_k) entries, looked up; lens = Ws + n. Everything that leads outside the tables is -1 in its column; a prefill
/// token outside its request's part of query_start_loc, of no request or with a negative position has a row of -1 and
/// length 0.
struct MixedSparseIndices {
  static constexpr std::string_view kName = "mixed_sparse_indices";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t tokens = 0;
    std::int64_t decode_tokens = 0;      ///< the first tokens; the others are prefill
    std::int64_t window = 128;           ///< tokens that a query sees, itself included
    std::int64_t window_width = 128;     ///< Ws >= window
    std::int64_t ratio = 4;              ///< r: tokens of an entry
    std::int64_t top_k = 0;              ///< entries a prefill token may take; 0: no compressed part in prefill rows
    std::int64_t compressed_width = 0;   ///< P
    std::int64_t window_block = 64;      ///< window rows in a block
    std::int64_t compressed_block = 64;  ///< entries in a block
    std::int64_t window_span = 0;        ///< tokens from a block to the next; 0: window_block
    std::int64_t compressed_span = 0;    ///< 0: compressed_block
    bool local = true;                   ///< decode rows hold local entries (C4A) to look up, not global slots (C128A)
  };
  struct Args {
    ConstTensorView decode_window;      ///< [decode_tokens, Ws] I32
    ConstTensorView decode_compressed;  ///< [decode_tokens, *] I32; absent: none
    ConstTensorView decode_lens;        ///< [decode_tokens] I32 when global; absent: all columns
    ConstTensorView decode_valid;       ///< [decode_tokens] BOOL when local
    ConstTensorView prefill_topk;       ///< [tokens - decode_tokens, *] I32 local; absent: none
    ConstTensorView query_start_loc;    ///< [requests+1] I32
    ConstTensorView seq_lens;           ///< [requests] I32
    ConstTensorView token_to_req;       ///< [tokens] I32
    ConstTensorView window_table;       ///< [requests, columns] I32
    ConstTensorView compressed_table;   ///< [requests, columns] I32; absent without a compressed part
    TensorView indices;                 ///< [tokens, Ws + P] I32
    TensorView lens;                    ///< [tokens] I32
  };
};

}  // namespace smla
