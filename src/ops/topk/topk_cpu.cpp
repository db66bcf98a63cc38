// Exact selection by radix: the k-th largest key is found digit by digit, 11 + 11 + 10 bits, by counting; then one
// ordered pass writes the columns. No candidate list is kept, so no number of equal or nearly equal scores can overflow
// one.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "ops/topk/implementations.h"

namespace smla {

namespace {

constexpr int kBins = 2048;
constexpr int kLanes = 4;  // counters a bin has, so that a run of equal scores does not wait on one memory cell

/// A key in the order of the scores: larger score, larger key; -0 = +0; NaN is 0, below -inf.
std::uint32_t key_of(float score) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(score);
  const std::uint32_t magnitude = u & 0x7FFF'FFFFU;
  const std::uint32_t ordered = (u >> 31) != 0U ? 0x8000'0000U - magnitude : 0x8000'0000U + magnitude;
  return magnitude > 0x7F80'0000U ? 0U : ordered;
}

/// The keys that start with `prefix` above bit `shift + bits`, counted by their next digit.
struct Digits {
  std::uint32_t count[kLanes][kBins];

  void tally(const float* scores, std::int64_t n, int shift, int bits, std::uint32_t prefix) {
    std::memset(count, 0, sizeof count);
    const std::uint32_t mask = (1U << bits) - 1U;
    if (shift + bits == 32) {
      for (std::int64_t i = 0; i < n; ++i) ++count[i % kLanes][key_of(scores[i]) >> shift];
    } else {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint32_t key = key_of(scores[i]);
        if (key >> (shift + bits) == prefix) ++count[i % kLanes][(key >> shift) & mask];
      }
    }
  }
  std::int64_t in_bin(int bin) const {
    std::int64_t sum = 0;
    for (const auto& lane : count) sum += lane[bin];
    return sum;
  }
};

/// All keys above `key` are chosen and, of those that begin like it (shifted right by `shift`), the first `ties`.
struct Threshold {
  std::uint32_t key;
  int shift;
  std::int64_t ties;
};

/// Needs 0 < k < n.
Threshold find_threshold(const float* scores, std::int64_t n, std::int64_t k, Digits& digits) {
  constexpr int kShifts[3] = {21, 10, 0};
  constexpr int kBits[3] = {11, 11, 10};
  std::uint32_t prefix = 0;
  for (int pass = 0;; ++pass) {
    digits.tally(scores, n, kShifts[pass], kBits[pass], prefix);
    int bin = (1 << kBits[pass]) - 1;
    std::int64_t inside = digits.in_bin(bin);
    while (inside < k) {
      k -= inside;
      inside = digits.in_bin(--bin);
    }
    prefix = (prefix << kBits[pass]) | static_cast<std::uint32_t>(bin);
    if (inside == k || pass == 2) return {prefix, kShifts[pass], k};
  }
}

void select_row(const float* scores, std::int64_t n, std::int64_t k, std::int32_t* out, Digits& digits) {
  std::int64_t written = 0;
  if (n <= k) {
    for (; written < n; ++written) out[written] = static_cast<std::int32_t>(written);
  } else if (k > 0) {
    Threshold t = find_threshold(scores, n, k, digits);
    for (std::int64_t i = 0; written < k; ++i) {
      const std::uint32_t head = key_of(scores[i]) >> t.shift;
      if (head < t.key) continue;
      if (head == t.key && t.ties-- <= 0) continue;
      out[written++] = static_cast<std::int32_t>(i);
    }
  }
  std::fill(out + written, out + k, -1);
}

}  // namespace

void topk_cpu(const TopK::Problem& problem, const TopK::Args& args, const RunContext& context) {
  const std::int32_t* lens = args.lens.as<std::int32_t>();
  const float* logits = args.logits.as<float>();
  std::int32_t* indices = args.indices.as<std::int32_t>();
  // Starting threads costs more than a small selection.
  const std::int64_t worthwhile = std::min(problem.rows, problem.rows * problem.width / 16384);
  const auto threads = static_cast<int>(std::clamp<std::int64_t>(worthwhile, 1, context.threads));
#pragma omp parallel num_threads(threads)
  {
    Digits digits;
#pragma omp for schedule(dynamic)
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      const std::int64_t n = std::clamp<std::int64_t>(lens[row], 0, problem.width);
      select_row(logits + row * args.logits.stride[0], n, problem.k, indices + row * args.indices.stride[0], digits);
    }
  }
  topk_slots(problem, args, context);
  topk_scores(problem, args);
}

}  // namespace smla
