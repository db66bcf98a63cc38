#pragma once

// Seeded candidates of merge_topk, shared by its tests: a row of scores dealt out to ranks.

#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

#include "parity/topk_cases.h"

namespace smla::cases {

struct MergeCase {
  std::int64_t rows = 1;
  std::int64_t k = 0;
  EntryShare share{};
  std::int64_t entries = 0;  ///< of a row, over all ranks; every row has some less than the one before
  Scores scores = Scores::kNormal;
  bool shuffled = false;  ///< candidates of a rank in no order
  std::uint32_t seed = 1;

  MergeTopK::Problem problem() const { return {.rows = rows, .k = k, .share = share}; }
  std::int64_t entries_of(std::int64_t row) const { return std::max<std::int64_t>(entries - row * row * 5, 0); }
};

inline std::ostream& operator<<(std::ostream& out, const MergeCase& c) {
  return out << "rows " << c.rows << " k " << c.k << " ranks " << c.share.ranks << " interleave " << c.share.interleave
             << " entries " << c.entries << " scores " << static_cast<int>(c.scores) << " seed " << c.seed;
}

/// Candidates as each rank's TopK makes them, and the choice among all.
struct MergeInputs {
  std::vector<float> scores;          ///< [ranks, rows, k]
  std::vector<std::int32_t> indices;  ///< [ranks, rows, k]
  std::vector<std::int32_t> chosen;   ///< [rows, k], by TopK over all entries
  std::vector<std::int32_t> own;      ///< [rows, k]

  explicit MergeInputs(const MergeCase& c) {
    std::mt19937 random(c.seed);
    const auto ranks = c.share.ranks;
    scores.assign(static_cast<std::size_t>(ranks * c.rows * c.k), -7.0F);
    indices.assign(scores.size(), -1);
    chosen.assign(static_cast<std::size_t>(c.rows * c.k), -1);
    own = chosen;
    for (std::int64_t row = 0; row < c.rows; ++row) {
      std::vector<float> all(static_cast<std::size_t>(c.entries_of(row)));
      for (float& x : all) x = draw_score(c.scores, random);
      std::int32_t* mine = own.data() + row * c.k;
      select(all, c.k, chosen.data() + row * c.k);
      for (std::int64_t j = 0; j < c.k; ++j) {
        const std::int32_t entry = chosen[static_cast<std::size_t>(row * c.k + j)];
        if (entry >= 0 && c.share.owns(entry)) *mine++ = static_cast<std::int32_t>(c.share.local(entry));
      }
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const EntryShare share{.rank = rank, .ranks = ranks, .interleave = c.share.interleave};
        std::vector<float> part;
        for (std::int64_t i = 0; i < share.count(c.entries_of(row)); ++i)
          part.push_back(all[static_cast<std::size_t>(share.global(i))]);
        const std::int64_t at = (rank * c.rows + row) * c.k;
        select(part, c.k, indices.data() + at);
        if (c.shuffled) std::shuffle(indices.begin() + at, indices.begin() + at + c.k, random);
        for (std::int64_t j = at; j < at + c.k; ++j) {
          const std::int32_t i = indices[static_cast<std::size_t>(j)];
          if (i >= 0) scores[static_cast<std::size_t>(j)] = part[static_cast<std::size_t>(i)];
        }
      }
    }
  }

 private:
  static void select(const std::vector<float>& scores, std::int64_t k, std::int32_t* out) {
    const auto n = static_cast<std::int64_t>(scores.size());
    const auto length = static_cast<std::int32_t>(n);
    Plan<TopK>({.rows = 1, .width = n, .k = k}, {.implementation = "ref"})
        .run({.logits = ConstTensorView(scores.data(), DType::kF32, {1, n}),
              .lens = view_of(&length, {1}),
              .indices = TensorView(out, DType::kI32, {1, k})});
  }
};

inline std::vector<MergeCase> merge_cases() {
  std::vector<MergeCase> out;
  std::uint32_t seed = 300;
  for (const Scores scores : kAllScores) {
    for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
      for (const std::int64_t k : {1, 7, 64}) {
        const std::int64_t interleave = std::int64_t{1} << (seed % 7);
        out.push_back(
            {.rows = 6,
             .k = k,
             .share = {.rank = static_cast<std::int64_t>(seed) % ranks, .ranks = ranks, .interleave = interleave},
             .entries = seed % 3 == 0 ? k : 150,
             .scores = scores,
             .shuffled = seed % 2 == 0,
             .seed = ++seed});
      }
    }
    out.push_back({.rows = 2,
                   .k = 512,
                   .share = {.rank = 1, .ranks = 4, .interleave = 64},
                   .entries = 5000,
                   .scores = scores,
                   .shuffled = true,
                   .seed = ++seed});
  }
  out.push_back({.rows = 0, .k = 4, .share = {.ranks = 2}});
  out.push_back({.rows = 3, .k = 0, .share = {.ranks = 2}, .entries = 5});
  return out;
}

}  // namespace smla::cases
