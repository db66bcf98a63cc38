#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/device.h"
#include "sparsemla/error.h"
#include "sparsemla/export.h"

namespace SMLA_API smla {

/// How an implementation is chosen for an op.
struct PlanOptions {
  DeviceKind device = DeviceKind::kCpu;  ///< the machine to run on
  std::string implementation;            ///< a name from explain(), or empty for the first that accepts
  bool deterministic = false;            ///< a row's result must not depend on its neighbours in the batch
  int threads = 0;                       ///< CPU threads; 0: as many as OpenMP would start
};

/// One implementation as seen by one problem.
struct Candidate {
  std::string name;     ///< "avx512", "ref", ...
  std::string machine;  ///< the machine that it needs: "any CPU", "AVX2 + FMA", ...
  std::string refusal;  ///< empty: it would run; otherwise the reason why not
  std::string choice;   ///< how it would cut the problem, where it has a choice: tiles, parts
};

template <class Op>
struct Planned;

/// The choice of an implementation for one step shape, and its decision how to compute it: made on the host, immutable,
/// printable, cheap to copy. Decisions are kept: a plan for a problem, options and GPU that were seen before is found
/// again and allocates nothing, so plans may be made where they are used.
///
/// An op is a struct with `kName`, `Problem` (shapes, dtypes, widths, scalars: never lengths or other device values)
/// and `Args` (the tensors). `run` never allocates device memory, never synchronises and never reads lengths on the
/// host; workspace and stream come last.
template <class Op>
class Plan {
 public:
  /// @throws InvalidArgument for an impossible problem or an unknown implementation name;
  /// @throws Unsupported when nobody accepts, with each refusal.
  explicit Plan(const typename Op::Problem& problem, const PlanOptions& options = {});

  /// @throws InvalidArgument when a tensor does not fit the problem; the text names it, what was got and what was
  /// expected.
  void run(const typename Op::Args& args, Workspace workspace = {}, Stream stream = {}) const;

  const typename Op::Problem& problem() const;
  std::string_view implementation() const;  ///< name of the chosen implementation
  std::size_t workspace_bytes() const;      ///< bytes of workspace that a run needs
  std::string_view choice() const;          ///< how it cuts the problem, where it has a choice: tiles, parts

  /// This plan for a problem that differs only in what is done to single numbers on their way in or out (a prologue, an
  /// epilogue): by the same implementation and cut alike, so that sums are the same bit for bit. The implementation
  /// must accept `problem`.
  /// @throws InvalidArgument for an impossible problem.
  Plan alike(const typename Op::Problem& problem) const;

 private:
  std::shared_ptr<const Planned<Op>> planned_;
};

/// Every implementation of `Op`, best first, `ref` last, with its refusal of this problem.
template <class Op>
SMLA_API std::vector<Candidate> explain(const typename Op::Problem& problem, const PlanOptions& options = {});

}  // namespace smla
