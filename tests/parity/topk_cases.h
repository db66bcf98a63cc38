#pragma once

// Seeded inputs of the top-k family, shared by its tests.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "sparsemla/ops/topk.h"

namespace smla::cases {

/// What the scores of a row look like; everything but kNormal aims at a shortcut that a selection might take.
enum class Scores { kNormal, kEqual, kPlateau, kSignedZeros, kNan, kInfinite, kNarrow, kNegative, kHuge, kSubnormal };
inline constexpr Scores kAllScores[] = {Scores::kNormal, Scores::kEqual,    Scores::kPlateau, Scores::kSignedZeros,
                                        Scores::kNan,    Scores::kInfinite, Scores::kNarrow,  Scores::kNegative,
                                        Scores::kHuge,   Scores::kSubnormal};

struct TopkCase {
  std::int64_t rows = 1;
  std::int64_t width = 0;
  std::int64_t k = 0;
  std::int64_t padding = 0;  ///< floats between two rows of logits
  Scores scores = Scores::kNormal;
  std::vector<std::int32_t> lens = {};  ///< one a row, taken in turn
  std::uint32_t seed = 1;

  TopK::Problem problem() const { return {.rows = rows, .width = width, .k = k}; }
};

inline std::ostream& operator<<(std::ostream& out, const TopkCase& c) {
  return out << "rows " << c.rows << " width " << c.width << " k " << c.k << " padding " << c.padding << " scores "
             << static_cast<int>(c.scores) << " seed " << c.seed;
}

inline float draw_score(Scores kind, std::mt19937& random) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float normal = std::normal_distribution<float>()(random);
  switch (kind) {
    case Scores::kNormal: return normal;
    case Scores::kEqual: return 1.5F;
    case Scores::kPlateau: return random() % 3 == 0 ? normal : 0.25F;  // the boundary lies in the plateau for most k
    case Scores::kSignedZeros: return random() % 8 == 0 ? normal : (random() % 2 == 0 ? -0.0F : 0.0F);
    case Scores::kNan:
      return random() % 2 == 0 ? std::copysign(std::numeric_limits<float>::quiet_NaN(), normal) : normal;
    case Scores::kInfinite: return random() % 3 == 0 ? normal : (random() % 8 == 0 ? infinity : -infinity);
    case Scores::kNarrow: return 1.0F + static_cast<float>(random() % 64) * 0x1p-23F;  // neighbours in the last bits
    case Scores::kNegative: return -std::fabs(normal) - 1e-3F;
    case Scores::kHuge: return std::ldexp(normal, static_cast<int>(random() % 250) - 125);
    case Scores::kSubnormal: return std::copysign(static_cast<float>(random() % 1000) * 0x1p-149F, normal);
  }
  return 0;
}

struct TopkInputs {
  std::int64_t stride = 0;
  std::vector<float>
      logits;  ///< [rows] at `stride`; padding and columns past the length hold +inf, which must never be chosen
  std::vector<std::int32_t> lens;

  explicit TopkInputs(const TopkCase& c) : stride(c.width + c.padding) {
    std::mt19937 random(c.seed);
    logits.assign(static_cast<std::size_t>(c.rows * stride), std::numeric_limits<float>::infinity());
    for (std::int64_t row = 0; row < c.rows; ++row) {
      lens.push_back(c.lens.empty() ? static_cast<std::int32_t>(c.width)
                                    : c.lens[static_cast<std::size_t>(row) % c.lens.size()]);
      for (std::int64_t j = 0; j < c.width && j < lens.back(); ++j)
        logits[row * stride + j] = draw_score(c.scores, random);
    }
  }
  ConstTensorView view(const TopkCase& c) const {
    ConstTensorView v(logits.data(), DType::kF32, {c.rows, c.width});
    v.stride[0] = stride;
    return v;
  }
};

/// Every kind of scores against every k and length at the borders of the two, and a few wide rows.
inline std::vector<TopkCase> topk_cases() {
  std::vector<TopkCase> out;
  std::uint32_t seed = 100;
  for (const Scores scores : kAllScores) {
    for (const std::int64_t k : {0, 1, 2, 512, 1024, 2048}) {
      for (const std::int64_t width : {std::int64_t{1}, std::int64_t{100}, k + 70, 3 * k + 5}) {
        const auto w = static_cast<std::int32_t>(width);
        const auto n = static_cast<std::int32_t>(k);
        out.push_back({.rows = 9,
                       .width = width,
                       .k = k,
                       .padding = seed % 3 == 0 ? 0 : 13,
                       .scores = scores,
                       .lens = {-5, 0, 1, n - 1, n, n + 1, w, w + 7, w - 1},
                       .seed = ++seed});
      }
    }
    out.push_back({.rows = 2, .width = 100'000, .k = 512, .padding = 3, .scores = scores, .seed = ++seed});
  }
  out.push_back({.rows = 0, .width = 10, .k = 4});
  out.push_back({.rows = 3, .width = 0, .k = 4, .lens = {0, 3, -1}});
  return out;
}

/// Cases whose chosen columns become slots: narrow rows, one block's rows, rows that several blocks of a GPU share, no
/// choice at all.
inline std::vector<TopkCase> slot_cases() {
  std::vector<TopkCase> out;
  std::uint32_t seed = 700;
  for (const std::int64_t k : {0, 5, 512, 2048}) {
    for (const std::int64_t width : {3, 1000, 9000, 40'000}) {
      const auto w = static_cast<std::int32_t>(width);
      out.push_back({.rows = 7,
                     .width = width,
                     .k = k,
                     .padding = 1,
                     .lens = {w, 0, w / 2, -3, w - 1, 4, w + 9},
                     .seed = ++seed});
    }
  }
  return out;
}

/// Where the entries of a case's rows are: tables with holes, requests that do not exist, rows that are not valid.
struct SlotInputs {
  static constexpr std::int64_t kRequests = 3;
  static constexpr std::int64_t kBlock = 48;
  std::int64_t columns = 0;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> request;
  std::unique_ptr<bool[]> valid;

  explicit SlotInputs(const TopkCase& c)
      : columns(c.width / kBlock), valid(std::make_unique<bool[]>(static_cast<std::size_t>(c.rows))) {
    std::mt19937 random(c.seed);
    for (std::int64_t i = 0; i < kRequests * columns; ++i)
      table.push_back(random() % 9 == 0 ? -1 - static_cast<std::int32_t>(random() % 5)
                                        : static_cast<std::int32_t>(random() % 60'000'000));
    for (std::int64_t row = 0; row < c.rows; ++row) {
      request.push_back(static_cast<std::int32_t>(random() % 5) - 1);
      valid[static_cast<std::size_t>(row)] = random() % 4 != 0;
    }
  }
  /// Completes a call; the two last are outputs.
  void add_to(TopK::Slots::Args& args, const TopkCase& c, std::vector<std::int32_t>& slots,
              std::vector<std::int32_t>& lens) const {
    args.token_to_req = view_of(request.data(), {c.rows});
    args.block_table = view_of(table.data(), {kRequests, columns});
    args.valid = ConstTensorView(valid.get(), DType::kBool, {c.rows});
    slots.assign(static_cast<std::size_t>(c.rows * c.k), 0x5A5A'5A5A);
    lens.assign(static_cast<std::size_t>(c.rows), 0x5A5A'5A5A);
    args.slots = view_of(slots.data(), {c.rows, c.k});
    args.lens = view_of(lens.data(), {c.rows});
  }
};

}  // namespace smla::cases
