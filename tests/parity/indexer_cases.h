#pragma once

// Seeded inputs of the indexer family, shared by its tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

#include "cache/row_codec.h"
#include "sparsemla/ops/indexer.h"

namespace smla::cases {

struct IndexerQCase {
  std::int64_t tokens = 1;
  std::int64_t heads = 64;
  const RowFormat* format = nullptr;
  DType in = DType::kBF16;
  bool hadamard = false;
  int rope_dim = 64;
  float magnitude = 1.0F;  ///< of q; tiny and huge ones reach the floors of the scales
  std::uint32_t seed = 1;

  IndexerQ::Problem problem() const {
    return {.tokens = tokens,
            .heads = heads,
            .dim = 128,
            .rope_dim = rope_dim,
            .in = in,
            .format = format,
            .hadamard = hadamard};
  }
};

inline std::ostream& operator<<(std::ostream& out, const IndexerQCase& c) {
  return out << "tokens " << c.tokens << " heads " << c.heads << " format " << c.format->name << " in " << name_of(c.in)
             << " hadamard " << c.hadamard << " rope " << c.rope_dim << " magnitude " << c.magnitude << " seed "
             << c.seed;
}

/// Numbers as the bytes of `dtype` (BF16 or F32).
inline std::vector<std::uint8_t> as_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint8_t> out(values.size() * static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const BF16 narrow = to_bf16(values[i]);
    if (dtype == DType::kBF16) std::memcpy(out.data() + 2 * i, &narrow, 2);
    if (dtype == DType::kF32) std::memcpy(out.data() + 4 * i, &values[i], 4);
  }
  return out;
}

struct IndexerQInputs {
  static constexpr std::int64_t kPositions = 50;
  static constexpr std::int64_t kPadding = 8;  ///< elements between two tokens of q
  std::vector<std::uint8_t> q;
  std::vector<std::uint8_t> weights;
  std::vector<std::int64_t> positions;
  std::vector<float> cos_sin;

  explicit IndexerQInputs(const IndexerQCase& c) {
    std::mt19937 random(c.seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(c.tokens * (c.heads * 128 + kPadding)));
    for (float& v : values) v = c.magnitude * normal(random) * (random() % 16 == 0 ? 20.0F : 1.0F);
    q = as_bytes(values, c.in);
    values.resize(static_cast<std::size_t>(c.tokens * c.heads));
    for (float& v : values) v = normal(random);
    weights = as_bytes(values, c.in);
    for (std::int64_t t = 0; t < c.tokens; ++t) positions.push_back(static_cast<std::int64_t>(random() % kPositions));
    if (c.tokens > 2) positions[0] = -9;              // positions outside the table are read as its first
    if (c.tokens > 2) positions[1] = kPositions + 9;  // or last row
    for (std::int64_t p = 0; p < kPositions; ++p) {
      for (int i = 0; i < c.rope_dim / 2; ++i)
        cos_sin.push_back(std::cos(static_cast<float>(p) * std::pow(0.8F, static_cast<float>(i))));
      for (int i = 0; i < c.rope_dim / 2; ++i)
        cos_sin.push_back(std::sin(static_cast<float>(p) * std::pow(0.8F, static_cast<float>(i))));
    }
  }
  IndexerQ::Args args(const IndexerQCase& c) const {
    IndexerQ::Args a;
    a.q = ConstTensorView(q.data(), c.in, {c.tokens, c.heads, 128});
    a.q.stride[0] = c.heads * 128 + kPadding;
    a.weights = ConstTensorView(weights.data(), c.in, {c.tokens, c.heads});
    a.positions = view_of(positions.data(), {c.tokens});
    a.cos_sin = view_of(cos_sin.data(), {kPositions, c.rope_dim});
    return a;
  }
};

/// What IndexerQ writes, poisoned before.
struct IndexerQOutputs {
  static constexpr std::uint32_t kPoison = 0x7FA5'5A5A;  ///< a NaN nobody computes
  std::vector<std::uint8_t> q;
  std::vector<std::uint8_t> scale;
  std::vector<std::uint32_t> weights;
  bool operator==(const IndexerQOutputs&) const = default;

  explicit IndexerQOutputs(const IndexerQCase& c) {
    const auto numbers = static_cast<std::size_t>(c.tokens * c.heads * 128);
    switch (c.format->nope) {
      case Element::kE4M3: q.assign(numbers, 0xA5); break;
      case Element::kE2M1: q.assign(numbers / 2, 0xA5), scale.assign(numbers / 32, 0xFF); break;
      default: q.assign(numbers * 4, 0xFF); break;
    }
    weights.assign(static_cast<std::size_t>(c.tokens * c.heads), kPoison);
  }
  IndexerQ::Args attached(const IndexerQCase& c, IndexerQ::Args args) {
    switch (c.format->nope) {
      case Element::kE4M3: args.q_out = TensorView(q.data(), DType::kE4M3, {c.tokens, c.heads, 128}); break;
      case Element::kE2M1:
        args.q_out = TensorView(q.data(), DType::kU8, {c.tokens, c.heads, 64});
        args.q_scale = TensorView(scale.data(), DType::kU8, {c.tokens, c.heads, 4});
        break;
      default: args.q_out = TensorView(q.data(), DType::kF32, {c.tokens, c.heads, 128}); break;
    }
    args.weights_out = TensorView(weights.data(), DType::kF32, {c.tokens, c.heads});
    return args;
  }
};

inline std::vector<IndexerQCase> indexer_q_cases() {
  std::vector<IndexerQCase> out;
  std::uint32_t seed = 1;
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const bool hadamard : {false, true}) {
        for (const std::int64_t heads : {1, 7, 64, 128}) {
          out.push_back(
              {.tokens = 5, .heads = heads, .format = format, .in = in, .hadamard = hadamard, .seed = ++seed});
        }
        for (const float magnitude : {0.0F, 1e-6F, 1e-38F, 1e6F, 1e36F}) {
          out.push_back({.tokens = 3,
                         .heads = 2,
                         .format = format,
                         .in = in,
                         .hadamard = hadamard,
                         .magnitude = magnitude,
                         .seed = ++seed});
        }
      }
      out.push_back({.tokens = 0, .format = format, .in = in});
      for (const int rope_dim : {0, 2, 128})
        out.push_back({.tokens = 3, .heads = 3, .format = format, .in = in, .rope_dim = rope_dim, .seed = ++seed});
    }
  }
  return out;
}

struct IndexerLogitsCase {
  std::int64_t rows = 1;
  std::int64_t requests = 1;
  std::int64_t heads = 64;
  std::int64_t width = 0;
  std::int64_t block_size = 64;
  const RowFormat* format = nullptr;
  std::vector<std::int32_t> lens = {};  ///< one a row, taken in turn; empty: the width
  bool hostile = false;                 ///< block tables, requests and columns that lead outside
  std::uint32_t seed = 1;

  IndexerLogits::Problem problem() const {
    return {.rows = rows, .heads = heads, .dim = 128, .width = width, .format = format};
  }
};

inline std::ostream& operator<<(std::ostream& out, const IndexerLogitsCase& c) {
  return out << "rows " << c.rows << " requests " << c.requests << " heads " << c.heads << " width " << c.width
             << " block_size " << c.block_size << " format " << c.format->name << " hostile " << c.hostile << " seed "
             << c.seed;
}

/// q, weights and a cache whose blocks are scattered, strided and, wherever no entry stands, filled with 0xFF (NaN in
/// every format).
struct IndexerLogitsInputs {
  std::vector<std::uint8_t> q;
  std::vector<std::uint8_t> q_scale;
  std::vector<float> weights;
  std::vector<std::int32_t> row_to_req;
  std::vector<std::int32_t> lens;
  std::vector<std::int32_t> table;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> memory;
  PagedCache cache;

  explicit IndexerLogitsInputs(const IndexerLogitsCase& c) {
    std::mt19937 random(c.seed);
    std::normal_distribution<float> normal;
    fill_q(c, random);
    for (std::int64_t i = 0; i < c.rows * c.heads; ++i) weights.push_back(0.1F * normal(random));
    for (std::int64_t row = 0; row < c.rows; ++row) {
      row_to_req.push_back(static_cast<std::int32_t>(row * c.requests / c.rows));
      lens.push_back(c.lens.empty() ? static_cast<std::int32_t>(c.width)
                                    : c.lens[static_cast<std::size_t>(row) % c.lens.size()]);
    }

    columns = (c.width + c.block_size - 1) / c.block_size;
    table.resize(static_cast<std::size_t>(c.requests * columns));
    std::iota(table.begin(), table.end(), 1);  // block 0 belongs to nobody
    std::shuffle(table.begin(), table.end(), random);
    const std::int64_t stride = page_bytes(*c.format, c.block_size) + 192;
    const auto blocks = static_cast<std::int64_t>(table.size()) + 2;
    memory.assign(static_cast<std::size_t>(blocks * stride), 0xFF);
    cache = {.format = c.format,
             .base = memory.data(),
             .num_blocks = blocks,
             .block_size = c.block_size,
             .block_stride_bytes = stride};
    std::vector<float> key(128);
    for (const std::int32_t block : table) {
      for (std::int64_t i = 0; i < c.block_size; ++i) {
        const float magnitude = std::exp(normal(random));
        for (float& v : key) v = magnitude * normal(random);
        encode_row(cache, block * c.block_size + i, key.data());
      }
    }
    if (c.hostile) plant(static_cast<std::int32_t>(blocks));
  }

  IndexerLogits::Args args(const IndexerLogitsCase& c) const {
    IndexerLogits::Args a;
    switch (c.format->nope) {
      case Element::kE4M3: a.q = ConstTensorView(q.data(), DType::kE4M3, {c.rows, c.heads, 128}); break;
      case Element::kE2M1: a.q = ConstTensorView(q.data(), DType::kU8, {c.rows, c.heads, 64}); break;
      default: a.q = ConstTensorView(q.data(), DType::kF32, {c.rows, c.heads, 128}); break;
    }
    if (c.format->nope == Element::kE2M1) a.q_scale = ConstTensorView(q_scale.data(), DType::kU8, {c.rows, c.heads, 4});
    a.weights = view_of(weights.data(), {c.rows, c.heads});
    a.row_to_req = view_of(row_to_req.data(), {c.rows});
    a.lens = view_of(lens.data(), {c.rows});
    a.block_table = view_of(table.data(), {c.requests, columns});
    a.cache = cache;
    return a;
  }

 private:
  void fill_q(const IndexerLogitsCase& c, std::mt19937& random) {
    const auto numbers = static_cast<std::size_t>(c.rows * c.heads * 128);
    if (c.format->nope == Element::kF32) {
      std::normal_distribution<float> normal;
      std::vector<float> values(numbers);
      for (float& v : values) v = normal(random);
      q = as_bytes(values, DType::kF32);
      return;
    }
    q.resize(c.format->nope == Element::kE4M3 ? numbers : numbers / 2);
    for (std::uint8_t& byte : q) byte = static_cast<std::uint8_t>(random());
    if (c.format->nope == Element::kE4M3) {
      for (std::uint8_t& byte : q) byte = (byte & 0x7F) == 0x7F ? 0x00 : byte;  // every finite code
      return;
    }
    q_scale.resize(numbers / 32);
    for (std::uint8_t& byte : q_scale) byte = static_cast<std::uint8_t>(124 + random() % 6);
  }

  void plant(std::int32_t blocks) {
    const std::int32_t bad[] = {-1, blocks, INT32_MAX, INT32_MIN};
    for (std::size_t i = 1; i < table.size(); i += 3) table[i] = bad[i / 3 % 4];
    for (std::size_t i = 2; i < row_to_req.size(); i += 5) row_to_req[i] = i % 2 == 0 ? INT32_MAX : -3;
    // A table one column narrower than the rows are long.
    if (columns > 1) {
      std::vector<std::int32_t> narrow;
      for (std::size_t i = 0; i < table.size(); ++i) {
        if (static_cast<std::int64_t>(i) % columns != columns - 1) narrow.push_back(table[i]);
      }
      table = narrow;
      --columns;
    }
  }
};

inline std::vector<IndexerLogitsCase> indexer_logits_cases() {
  std::vector<IndexerLogitsCase> out;
  std::uint32_t seed = 1;
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    for (const std::int64_t heads : {1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 128}) {
      out.push_back({.rows = 3,
                     .requests = 1,
                     .heads = heads,
                     .width = 130,
                     .block_size = 64,
                     .format = format,
                     .lens = {130, 65, 64},
                     .seed = ++seed});
    }
    for (const std::int64_t block_size : {1, 2, 3, 53, 64, 256}) {
      for (const bool hostile : {false, true}) {
        out.push_back({.rows = 21,
                       .requests = 3,
                       .heads = 9,
                       .width = 260,
                       .block_size = block_size,
                       .format = format,
                       .lens = {260, 0, 1, -5, 267, 63, 64, 65, 127, 128, 129, 255, 256, INT32_MAX, INT32_MIN},
                       .hostile = hostile,
                       .seed = ++seed});
      }
    }
    out.push_back(
        {.rows = 40, .requests = 5, .heads = 64, .width = 70, .block_size = 64, .format = format, .seed = ++seed});
    out.push_back({.rows = 2,
                   .requests = 1,
                   .heads = 4,
                   .width = 4300,
                   .block_size = 64,
                   .format = format,
                   .lens = {4300, 2049},
                   .seed = ++seed});
    out.push_back({.rows = 0, .requests = 1, .heads = 4, .width = 64, .block_size = 64, .format = format});
    out.push_back(
        {.rows = 2, .requests = 1, .heads = 4, .width = 0, .block_size = 64, .format = format, .lens = {0, 5}});
  }
  return out;
}

}  // namespace smla::cases
