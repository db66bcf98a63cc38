#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/op.h"
#include "sparsemla/ops/topk.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// RoPE (dims dim-rope_dim.. at the token's position), optional Hadamard, rounding to bf16 and quantisation of the
/// indexer's queries, and their head weights (spec 4.1 to 4.3).
///
/// - format index_fp8: s = 2^ceil(log2(max(amax, 1e-4) / 448)) per (token, head); q_out = e4m3(x / s);
///   weights_out = ((w * s) * dim^-0.5) * heads^-0.5.
/// - format index_mxfp4: groups of 32 dims, s = 2^ceil(log2(max(amax, 6*2^-126) / 6)); q_out is packed e2m1 (low nibble
/// =
///   even dim), q_scale its UE8M0 bytes; weights_out = (w * dim^-0.5) * heads^-0.5.
/// - format index_f32: no rounding and no quantisation; weights_out as for index_mxfp4.
///
/// Positions outside the table are read as its first or last row.
struct IndexerQ {
  static constexpr std::string_view kName = "indexer_q";
  struct Problem {
    std::int64_t tokens = 0;
    std::int64_t heads = 64;
    int dim = 128;                      ///< numbers of a head
    int rope_dim = 64;                  ///< numbers of a head that are rotated, its last
    DType in = DType::kBF16;            ///< dtype of q and weights: BF16 or F32
    const RowFormat* format = nullptr;  ///< how rows are stored
    bool hadamard = false;              ///< Walsh-Hadamard transform after RoPE
  };
  struct Args {
    ConstTensorView q;          ///< [T, heads, dim] `in`
    ConstTensorView weights;    ///< [T, heads] `in`
    ConstTensorView positions;  ///< [T] I64
    ConstTensorView cos_sin;    ///< [L, rope_dim] F32
    TensorView
        q_out;  ///< index_fp8: [T, heads, dim] E4M3; index_mxfp4: [T, heads, dim/2] U8; index_f32: [T, heads, dim] F32
    TensorView q_scale;      ///< index_mxfp4: [T, heads, dim/32] U8; otherwise absent
    TensorView weights_out;  ///< [T, heads] F32
    /// What is ahead on the stream ends long after a GPU could start this call. From sm_90 on it may then compute
    /// everything once while it waits, of whatever the tensors hold, and store nothing of that: code and tables have
    /// come from memory when q is there. Results are the same.
    bool rehearses = false;
  };
};

/// Index scores straight from the pages, decode and prefill alike (spec 4.5):
///   logits[row, j] = k_scale_j * sum_h relu(<q[row,h], k_j>) * weights[row,h]   for j < lens[row]; other columns are
///   not written.
/// Entry j of request b is in block block_table[b, j / block_size], row j % block_size of it. An entry whose block is
/// outside the cache or whose column is outside the table scores -inf; lens are clamped to [0, width]; a row whose
/// request is outside the table writes -inf. relu of a NaN is 0.
struct IndexerLogits {
  static constexpr std::string_view kName = "indexer_logits";
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t heads = 64;
    int dim = 128;                      ///< numbers of a head
    std::int64_t width = 0;             ///< columns of logits
    const RowFormat* format = nullptr;  ///< format of the index cache; the dtype of q is as in IndexerQ
  };
  struct Args {
    ConstTensorView q;            ///< as IndexerQ::Args::q_out
    ConstTensorView q_scale;      ///< as IndexerQ::Args::q_scale
    ConstTensorView weights;      ///< [rows, heads] F32
    ConstTensorView row_to_req;   ///< [rows] I32
    ConstTensorView lens;         ///< [rows] I32, visible entries of the row
    ConstTensorView block_table;  ///< [requests, columns] I32 of the index cache
    PagedCache cache;
    TensorView logits;                 ///< [rows, width] F32, rows may be strided
    std::int64_t rows_of_request = 0;  ///< consecutive rows of one request, by which GPUs cut a call; any number gives
                                       ///< the same scores. 0: rows over the block table's requests
  };
};

/// Scores and selection in one op (spec 4.5, 4.6): what TopK chooses of the scores that IndexerLogits gives the rows,
/// and with `slots` the slots of what was chosen. Who calls it has no use for the scores.
///
/// `sm90` is one launch that never writes a score to memory. It gives the scores, and so the set, of IndexerLogits'
/// `sm90`; indices are in ascending order. Elsewhere the two ops run one after the other, some rows at a time.
struct IndexerTopK {
  static constexpr std::string_view kName = "indexer_topk";
  static constexpr std::string_view kOneLaunch = "sm90";  ///< the implementation of one launch
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t heads = 64;
    int dim = 128;                       ///< numbers of a head
    std::int64_t width = 0;              ///< entries of the longest row
    std::int64_t k = 0;                  ///< entries to choose
    const RowFormat* format = nullptr;   ///< format of the index cache; the dtype of q is as in IndexerQ
    std::optional<TopK::Slots> slots{};  ///< present: their slots are written too
  };
  struct Args {
    ConstTensorView q;            ///< as IndexerQ::Args::q_out
    ConstTensorView q_scale;      ///< as IndexerQ::Args::q_scale
    ConstTensorView weights;      ///< [rows, heads] F32
    ConstTensorView row_to_req;   ///< [rows] I32
    ConstTensorView lens;         ///< [rows] I32, visible entries of the row
    ConstTensorView block_table;  ///< [requests, columns] I32 of the index cache
    PagedCache cache;
    TensorView indices;         ///< [rows, k] I32, rows may be strided
    TopK::Slots::Args slots{};  ///< with slots
  };
};

/// Copies index rows of requests out of their blocks, unchanged: values and scales of request b go to rows
/// [cu_seq_lens[b], cu_seq_lens[b+1]) (spec 4.5). An entry whose block lies outside the table or the cache, and rows
/// past the last request, are not written. Layers score index rows where they lie (IndexerLogits); this op and
/// RaggedIndexerLogits are for hosts that score prefills from gathered rows, chunk by chunk (plan_logit_chunks).
struct GatherIndexRows {
  static constexpr std::string_view kName = "gather_index_rows";
  struct Problem {
    std::int64_t requests = 0;
    std::int64_t rows = 0;              ///< rows of the outputs
    const RowFormat* format = nullptr;  ///< how rows are stored
  };
  struct Args {
    PagedCache cache;
    ConstTensorView cu_seq_lens;  ///< [requests+1] I32, ascending
    ConstTensorView block_table;  ///< [requests, columns] I32
    TensorView values;            ///< [rows, data bytes] U8
    TensorView scales;            ///< [rows, scale bytes] U8
  };
};

/// Index scores over gathered rows: logits[row, j] = k_scale_j * sum_h relu(<q[row,h], k_j>) * weights[row,h] for
/// starts[row] <= j < ends[row] (spec 4.5). Other columns are not written; bounds are clamped to [0, keys].
struct RaggedIndexerLogits {
  static constexpr std::string_view kName = "ragged_indexer_logits";
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t keys = 0;  ///< gathered rows
    std::int64_t heads = 64;
    int dim = 128;                      ///< numbers of a head
    const RowFormat* format = nullptr;  ///< how rows are stored
  };
  struct Args {
    ConstTensorView q;        ///< as IndexerQ::Args::q_out
    ConstTensorView q_scale;  ///< as IndexerQ::Args::q_scale
    ConstTensorView weights;  ///< [rows, heads] F32
    ConstTensorView values;   ///< [keys, data bytes] U8, as gathered
    ConstTensorView scales;   ///< [keys, scale bytes] U8, as gathered
    ConstTensorView starts;   ///< [rows] I32
    ConstTensorView ends;     ///< [rows] I32
    TensorView logits;        ///< [rows, keys] F32, rows may be strided
  };
};

}  // namespace smla
