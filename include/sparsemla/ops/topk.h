#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsemla/entry_share.h"
#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/tensor_view.h"

namespace SMLA_API smla {

/// Chooses the k best columns of every row, exactly (spec 4.6, 15): the set of the highest scores; of equal scores at
/// the boundary the lowest columns.
///
/// n = clamp(lens[row], 0, width). n <= k: columns 0..n-1. Otherwise k distinct columns, in ascending order on the CPU
/// and in Deterministic mode. The rest of the row is -1. NaN is never chosen before a number; -0 equals +0.
///
/// With `slots` the chosen columns are entries of the row's request, and their slots are written as well: what
/// GlobalTopk makes of `indices` with `compact` (spec 7.1), in the same launch.
struct TopK {
  static constexpr std::string_view kName = "topk";
  /// Translation of the chosen entries to slots of a paged cache.
  struct Slots {
    std::int64_t storage_block = 64;  ///< entries in a block
    struct Args {
      ConstTensorView token_to_req;  ///< [rows] I32, each row's request
      ConstTensorView block_table;   ///< [requests, columns] I32
      ConstTensorView valid;         ///< [rows] BOOL; the length of other rows is 0
      TensorView slots;              ///< [rows, k] I32, rows may be strided
      TensorView lens;               ///< [rows] I32: slots of a row
    };
  };
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t width = 0;  ///< columns of logits
    std::int64_t k = 0;
    std::optional<Slots> slots{};  ///< present: their slots are written too
  };
  struct Args {
    ConstTensorView logits;  ///< [rows, width] F32, rows may be strided
    ConstTensorView lens;    ///< [rows] I32
    TensorView indices;      ///< [rows, k] I32, rows may be strided
    Slots::Args slots{};     ///< with slots
    TensorView scores{};     ///< [rows, k] F32, logits of the chosen columns, -inf behind them; absent: not wanted
  };
};

/// The k best entries of every row over all ranks of a context-parallel group, exactly (spec 9): from each rank's own k
/// best, what TopK chooses among all entries together. Of equal scores at the boundary the lowest global numbers; NaN
/// is never chosen before a number; -0 equals +0. Candidate c of rank r is local entry indices[r, row, c] of score
/// scores[r, row, c]; negative ones are none.
///
/// The result is the same on every rank but for `own`, which is of share.rank, and on every machine.
struct MergeTopK {
  static constexpr std::string_view kName = "merge_topk";
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t k = 0;
    EntryShare share{};  ///< of the rank that asks; all ranks' candidates come in
  };
  struct Args {
    ConstTensorView scores;   ///< [ranks, rows, k] F32
    ConstTensorView indices;  ///< [ranks, rows, k] I32, each rank's local entries in any order, each once
    TensorView chosen{};      ///< [rows, k] I32: global numbers, ascending, then -1; absent: not wanted
    TensorView own;           ///< [rows, k] I32: those of share.rank by their local numbers, ascending, then -1
  };
};

}  // namespace smla
