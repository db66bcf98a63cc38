#pragma once

#include <bit>
#include <cmath>
#include <cstdio>
#include <map>

#include "gpu/gpu_run.h"
#include "sparsemla/ops/indexer.h"

// What the GPU tests of index scores share.

namespace smla::test {

using Bits = std::vector<std::uint32_t>;

constexpr std::uint32_t kPoison = 0x7FA5'5A5A;  // a NaN nobody computes
constexpr std::int64_t kPadding = 5;            // floats between two rows of logits

inline std::int64_t width_of(const IndexerLogits::Problem& p) { return p.width; }
inline std::int64_t width_of(const RaggedIndexerLogits::Problem& p) { return p.keys; }

template <class Op>
Bits score(const typename Op::Problem& problem, typename Op::Args args, const std::string& implementation) {
  const std::int64_t width = width_of(problem);
  Bits out(static_cast<std::size_t>(problem.rows * (width + kPadding)), kPoison);
  args.logits = TensorView(out.data(), DType::kF32, {problem.rows, width});
  args.logits.stride[0] = width + kPadding;
  if (implementation == "ref") {
    Plan<Op>(problem, {.implementation = implementation}).run(args);
  } else {
    test::run_on_gpu<Op>(problem, args, implementation);
  }
  return out;
}

/// Written are exactly the columns that ref wrote; infinities and NaNs stand where ref has them; the rest within l2.
/// Returns the relative error.
inline double compare(const Bits& want, const Bits& got, std::int64_t width, double bound) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double w = std::bit_cast<float>(want[i]);
    const double g = std::bit_cast<float>(got[i]);
    const bool untouched = want[i] == kPoison || got[i] == kPoison;
    const bool same = untouched ? want[i] == got[i]
                                : (std::isfinite(w) ? std::isfinite(g) : (std::isnan(w) ? std::isnan(g) : w == g));
    if (!same) {
      const auto at = static_cast<std::int64_t>(i);
      ADD_FAILURE() << "row " << at / (width + kPadding) << " column " << at % (width + kPadding) << " of " << width
                    << ": want " << w << " (bits " << std::hex << want[i] << ") got " << g << " (bits " << got[i]
                    << ")";
      return INFINITY;
    }
    if (untouched || !std::isfinite(w)) continue;
    error += (g - w) * (g - w);
    norm += w * w;
  }
  const double relative = norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
  EXPECT_LE(relative, bound);
  return relative;
}

/// The relative l2 error that an implementation may have. Products are exact. "cuda" adds them in fp32, "sm90" with as
/// few bits as docs/kernels/indexer_logits.md says.
inline double l2_bound(const std::string& implementation) { return implementation == "sm90" ? 3e-3 : 5e-6; }

/// The largest errors of the running test.
inline std::map<std::string, double> worst_l2;

/// Compares every implementation that takes the problem with ref.
template <class Op>
void check(const typename Op::Problem& problem, const typename Op::Args& args) {
  const Bits want = score<Op>(problem, args, "ref");
  for (const std::string& name : gpu_implementations<Op>(problem)) {
    SCOPED_TRACE(name);
    const double l2 = compare(want, score<Op>(problem, args, name), width_of(problem), l2_bound(name));
    worst_l2[name] = std::max(worst_l2[name], l2);
  }
}

class IndexerGpuTest : public GpuTest {
 protected:
  void TearDown() override {
    for (const auto& [name, l2] : worst_l2) std::printf("[ worst l2 ] %s %.2e\n", name.c_str(), l2);
    worst_l2.clear();
  }
};

}  // namespace smla::test
