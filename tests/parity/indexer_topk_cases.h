#pragma once

// Seeded inputs of IndexerTopK, shared by its tests.

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "parity/indexer_cases.h"
#include "parity/topk_cases.h"

namespace smla::cases {

/// What the keys of a case make of its scores.
enum class Keys {
  kNormal,
  kEqual,     ///< all scores of a row are one number
  kNarrow,    ///< scores differ in their last bits, or not at all
  kNegative,  ///< all scores are negative
  kNan        ///< every third score is NaN, others are infinite
};
inline constexpr Keys kAllKeys[] = {Keys::kNormal, Keys::kEqual, Keys::kNarrow, Keys::kNegative, Keys::kNan};

struct IndexerTopkCase {
  IndexerLogitsCase scores;
  std::int64_t k = 0;
  Keys keys = Keys::kNormal;
  bool slots = false;

  IndexerTopK::Problem problem() const {
    IndexerTopK::Problem p{
        .rows = scores.rows, .heads = scores.heads, .dim = 128, .width = scores.width, .k = k, .format = scores.format};
    if (slots) p.slots = {.storage_block = SlotInputs::kBlock};
    return p;
  }
  /// The selection alone.
  TopkCase choice() const { return {.rows = scores.rows, .width = scores.width, .k = k, .seed = scores.seed}; }
};

inline std::ostream& operator<<(std::ostream& out, const IndexerTopkCase& c) {
  return out << c.scores << " k " << c.k << " keys " << static_cast<int>(c.keys) << " slots " << c.slots;
}

struct IndexerTopkInputs {
  IndexerLogitsInputs scores;
  SlotInputs slots;

  explicit IndexerTopkInputs(const IndexerTopkCase& c) : scores(c.scores), slots(c.choice()) {
    if (c.keys != Keys::kNormal) make_keys(c);
  }
  /// All but what is written.
  IndexerTopK::Args args(const IndexerTopkCase& c) const {
    const IndexerLogits::Args a = scores.args(c.scores);
    return {.q = a.q,
            .q_scale = a.q_scale,
            .weights = a.weights,
            .row_to_req = a.row_to_req,
            .lens = a.lens,
            .block_table = a.block_table,
            .cache = a.cache};
  }

 private:
  /// Overwrites index_fp8 keys: the same one everywhere, and its scale entry by entry.
  void make_keys(const IndexerTopkCase& c) {
    const PagedCache& cache = scores.cache;
    if (c.keys == Keys::kNegative)
      for (float& w : scores.weights) w = -std::fabs(w) - 0.01F;
    std::mt19937 random(c.scores.seed);
    for (std::int64_t block = 0; block < cache.num_blocks; ++block) {
      std::uint8_t* base = scores.memory.data() + block * cache.block_stride_bytes;
      for (std::int64_t i = 0; i < cache.block_size; ++i) {
        std::uint8_t* row = base + i * 128;
        if (c.keys != Keys::kNan)
          for (int d = 0; d < 128; ++d) row[d] = static_cast<std::uint8_t>(0x30 + d % 7);
        float scale = 1;
        if (c.keys == Keys::kNarrow) scale += static_cast<float>(random() % 64) * 0x1p-23F;
        if (c.keys == Keys::kNegative) scale = std::exp(static_cast<float>(random() % 1000) / 1000.0F);
        if (c.keys == Keys::kNan && random() % 3 == 0) scale = std::numeric_limits<float>::quiet_NaN();
        if (c.keys == Keys::kNan && random() % 5 == 0) scale = std::numeric_limits<float>::infinity();
        std::memcpy(base + cache.block_size * 128 + i * 4, &scale, 4);
      }
    }
  }
};

/// What IndexerTopK writes.
struct IndexerTopkOutputs {
  static constexpr std::int64_t kPadding = 3;  ///< numbers between two rows
  std::vector<std::int32_t> indices, slots, lens;
  bool operator==(const IndexerTopkOutputs&) const = default;

  /// Poisoned; `args` gets the views.
  template <class Args>
  IndexerTopkOutputs(const IndexerTopkCase& c, const IndexerTopkInputs& inputs, Args& args) {
    if (c.slots) inputs.slots.add_to(args.slots, c.choice(), slots, lens);
    indices.assign(static_cast<std::size_t>(c.scores.rows * (c.k + kPadding)), 0x5A5A'5A5A);
    args.indices = TensorView(indices.data(), DType::kI32, {c.scores.rows, c.k});
    args.indices.stride[0] = c.k + kPadding;
  }
};

/// Rows of one to nine queries, whole and partly scored, of one and of several blocks of a cluster.
inline std::vector<IndexerTopkCase> indexer_topk_cases() {
  std::vector<IndexerTopkCase> out;
  std::uint32_t seed = 900;
  const std::int64_t heads[] = {64, 1, 17, 33, 100, 16};
  int at = 0;
  for (const Keys keys : kAllKeys) {
    for (const std::int64_t queries : {1, 2, 3, 5}) {
      for (const std::int64_t k : {1, 64, 512}) {
        const auto n = static_cast<std::int32_t>(k);
        const std::int64_t width = 3 * k + 5 + 200 * (seed % 3);
        const auto w = static_cast<std::int32_t>(width);
        out.push_back({.scores = {.rows = 3 * queries,
                                  .requests = 3,
                                  .heads = heads[at++ % 6],
                                  .width = width,
                                  .block_size = seed % 2 == 0 ? 64 : 16,
                                  .format = &index_fp8_rows(),
                                  .lens = {w, w - 1, n + 1, 0, n, w + 9, -4, n - 1, 65},
                                  .hostile = seed % 4 == 0,
                                  .seed = ++seed},
                       .k = k,
                       .keys = keys,
                       .slots = seed % 2 == 0});
      }
    }
    out.push_back(
        {.scores =
             {.rows = 1, .heads = 4, .width = 9000, .block_size = 64, .format = &index_fp8_rows(), .seed = ++seed},
         .k = 1024,
         .keys = keys,
         .slots = true});
  }
  out.push_back({.scores = {.rows = 0, .heads = 4, .width = 64, .format = &index_fp8_rows()}, .k = 3});
  out.push_back({.scores = {.rows = 2, .heads = 4, .width = 0, .format = &index_fp8_rows(), .lens = {0, 5}}, .k = 3});
  return out;
}

}  // namespace smla::cases
