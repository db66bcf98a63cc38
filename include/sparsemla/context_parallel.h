#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sparsemla/communicator.h"
#include "sparsemla/device.h"
#include "sparsemla/entry_share.h"
#include "sparsemla/export.h"
#include "sparsemla/op.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/topk.h"

namespace SMLA_API smla {

// A sequence's compressed rows and index rows spread over ranks (docs/parallel.md): each rank scores its own entries
// and attends to its own rows; these two classes put the ranks' results together. Lengths and slots of a rank's share
// come from the index ops with an EntryShare.

/// The k best entries of every row over all ranks, exactly: TopK on each rank, one gather of candidates, MergeTopK.
class SMLA_API ContextTopK {
 public:
  struct Problem {
    std::int64_t rows = 0;
    std::int64_t width = 0;  ///< columns of this rank's logits
    std::int64_t k = 0;
    EntryShare share{};
  };
  struct Args {
    ConstTensorView logits;  ///< [rows, width] F32 of this rank's entries, rows may be strided
    ConstTensorView lens;    ///< [rows] I32 entries of this rank that the row sees
    TensorView chosen{};     ///< [rows, k] I32: global numbers, ascending, then -1; absent: not wanted
    TensorView own;          ///< [rows, k] I32: this rank's among them by local numbers, ascending, then -1
  };
  /// @throws as Plan's constructor.
  explicit ContextTopK(const Problem& problem, const PlanOptions& options = {});

  const Problem& problem() const { return problem_; }
  std::string_view implementation() const { return local_.implementation(); }  ///< of TopK
  std::size_t workspace_bytes() const;                                         ///< that a run needs
  /// @throws InvalidArgument for a communicator of another size or rank; CommunicatorError.
  void run(Communicator& ranks, const Args& args, Workspace workspace, Stream stream = {}) const;

 private:
  Problem problem_;
  Plan<TopK> local_;
  Plan<MergeTopK> merge_;
};

/// Sparse attention over all ranks: partial results of each rank's rows without the sink, one gather, MergePartials
/// with the sink. Scope 0 are rows that every rank has and only the last one counts (the window,
/// EntryShare::counts_window); scope 1 are the rank's own.
class SMLA_API ContextAttention {
 public:
  /// `problem` is of the whole: two scopes, not partial, without padded heads and without an epilogue.
  /// @throws InvalidArgument for another one; as Plan's constructor.
  ContextAttention(const SparseAttention::Problem& problem, const EntryShare& share, const PlanOptions& options = {});

  std::string_view implementation() const { return partial_.implementation(); }  ///< of SparseAttention
  std::size_t workspace_bytes() const;                                           ///< that a run needs
  /// The same o and lse on every rank: those of one rank with all rows, but for the rounding of sums.
  /// @throws InvalidArgument for a communicator of another size or rank; CommunicatorError.
  void run(Communicator& ranks, const SparseAttention::Args& args, Workspace workspace, Stream stream = {}) const;

 private:
  SparseAttention::Problem problem_;
  EntryShare share_;
  Plan<SparseAttention> partial_;
  Plan<MergePartials> merge_;
};

/// Rows of a prefill that a rank scores when the ranks share out the indexer's work: [begin, end).
struct RowPiece {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t rows() const { return end - begin; }
  friend bool operator==(const RowPiece&, const RowPiece&) = default;
};

/// Cuts rows into contiguous pieces of about equal work, one for each rank, in order: the work of a row is the entries
/// that it sees, and one for the row itself. `entries`: that each row sees. @throws InvalidArgument for
/// ranks below 1 or negative entries.
std::vector<RowPiece> balanced_pieces(std::span<const std::int64_t> entries, int ranks);
/// The same of prefills: token i of a request of `query_len` tokens and `seq_len` positions sees
/// (seq_len - query_len + i + 1) / ratio entries. @throws InvalidArgument when the lists differ in length or a query is
/// longer than its sequence.
std::vector<RowPiece> balanced_pieces(std::span<const std::int32_t> seq_lens, std::span<const std::int32_t> query_lens,
                                      std::int64_t ratio, int ranks);

/// Fills in the rows of all ranks' pieces, of which each has written its own: the bits that one rank with all rows has.
class SMLA_API RowGather {
 public:
  /// `row_bytes`: of a row, without padding between rows.
  RowGather(std::vector<RowPiece> pieces, std::size_t row_bytes);
  std::size_t workspace_bytes() const;  ///< that a run needs
  /// `rows` is the first piece's first row, in memory of the communicator's device.
  /// @throws InvalidArgument for a communicator of another size; CommunicatorError.
  void run(Communicator& ranks, void* rows, Workspace workspace, Stream stream = {}) const;

 private:
  std::vector<RowPiece> pieces_;
  std::size_t row_bytes_;
  std::int64_t most_ = 0;  ///< rows of the largest piece
};

}  // namespace smla
