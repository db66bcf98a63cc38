#pragma once

// Cases of the ops on rows that leave their pages (GatherRows, GatherIndexRows, RaggedIndexerLogits), shared by their
// tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

#include "cache/row_codec.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/indexer.h"

namespace smla::gathered_cases {

/// Requests whose rows are scattered over the blocks of a cache; bytes of blocks that no request owns are 0xFF (NaN in
/// every format).
struct PagedRequests {
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> table;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> memory;
  PagedCache cache;

  PagedRequests(const RowFormat& format, std::int64_t block_size, std::vector<std::int32_t> lens, bool hostile,
                std::uint32_t seed)
      : seq_lens(std::move(lens)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const std::int64_t longest = seq_lens.empty() ? 0 : *std::max_element(seq_lens.begin(), seq_lens.end());
    columns = (longest + block_size - 1) / block_size;
    table.resize(seq_lens.size() * static_cast<std::size_t>(columns));
    std::iota(table.begin(), table.end(), 1);
    std::shuffle(table.begin(), table.end(), random);
    const auto blocks = static_cast<std::int64_t>(table.size()) + 2;
    const std::int64_t stride = page_bytes(format, block_size) + 64;
    memory.assign(static_cast<std::size_t>(blocks * stride), 0xFF);
    cache = {.format = &format,
             .base = memory.data(),
             .num_blocks = blocks,
             .block_size = block_size,
             .block_stride_bytes = stride,
             .scale = format.scale == ScaleKind::kPerTensor ? 0.37F : 1.0F};
    std::vector<float> row(static_cast<std::size_t>(format.dim));
    for (const std::int32_t block : table) {
      for (std::int64_t i = 0; i < block_size; ++i) {
        const float magnitude = std::exp(2.0F * normal(random));
        for (float& v : row) v = magnitude * normal(random);
        encode_row(cache, block * block_size + i, row.data());
      }
    }
    if (!hostile) return;
    const std::int32_t bad[] = {-1, static_cast<std::int32_t>(blocks), INT32_MAX, INT32_MIN};
    for (std::size_t i = 1; i < table.size(); i += 3) table[i] = bad[i / 3 % 4];
    if (!seq_lens.empty()) seq_lens[0] = INT32_MAX;  // columns past the table
    if (seq_lens.size() > 1) seq_lens[1] = INT32_MIN;
  }
  std::int64_t requests() const { return static_cast<std::int64_t>(seq_lens.size()); }
  ConstTensorView table_view() const { return view_of(table.data(), {requests(), columns}); }
};

struct GatherCase {
  const RowFormat* format = nullptr;
  std::int64_t block_size = 64;
  std::vector<std::int32_t> seq = {};
  std::vector<std::int32_t> gather = {};  ///< empty: absent
  std::int64_t rows = 0;
  std::int64_t offset = 0;
  bool hostile = false;
  GatherRows::Problem problem() const {
    return {.requests = static_cast<std::int64_t>(seq.size()), .rows = rows, .offset = offset, .format = format};
  }
  friend std::ostream& operator<<(std::ostream& out, const GatherCase& c) {
    return out << "gather_rows " << c.format->name << " block " << c.block_size << " rows " << c.rows << " offset "
               << c.offset << (c.gather.empty() ? "" : " with gather_lens") << (c.hostile ? " hostile" : "");
  }
};

inline std::vector<GatherCase> gather_cases() {
  std::vector<GatherCase> out;
  for (const RowFormat* format : all_row_formats()) {
    for (const std::int64_t block : {1, 3, 64}) {
      for (const bool hostile : {false, true}) {
        out.push_back({.format = format, .block_size = block, .seq = {9, 23, 7}, .rows = 30, .hostile = hostile});
        out.push_back({.format = format,
                       .block_size = block,
                       .seq = {19, 8, 70},
                       .gather = {6, 8, 69},
                       .rows = 80,
                       .offset = 5,
                       .hostile = hostile});
      }
    }
  }
  const RowFormat* format = &fp8_ds_mla_rows();
  out.push_back({.format = format, .seq = {200, 5}, .gather = {INT32_MAX, INT32_MIN}, .rows = 77, .offset = 3});
  out.push_back({.format = format, .seq = {20}, .rows = 3, .offset = 30});
  out.push_back({.format = format, .seq = {}, .rows = 3});
  out.push_back({.format = format, .seq = {0, 0}, .rows = 0});
  return out;
}

struct RaggedCase {
  const RowFormat* format = nullptr;
  std::int64_t heads = 64;
  std::int64_t keys = 100;
  std::vector<std::int32_t> starts = {0};
  std::vector<std::int32_t> ends = {100};
  std::uint32_t seed = 1;
  std::int64_t rows() const { return static_cast<std::int64_t>(starts.size()); }
  RaggedIndexerLogits::Problem problem() const {
    return {.rows = rows(), .keys = keys, .heads = heads, .dim = 128, .format = format};
  }
  friend std::ostream& operator<<(std::ostream& out, const RaggedCase& c) {
    return out << "ragged " << c.format->name << " heads " << c.heads << " keys " << c.keys << " rows " << c.rows()
               << " seed " << c.seed;
  }
};

inline std::vector<RaggedCase> ragged_cases() {
  std::vector<RaggedCase> out;
  std::uint32_t seed = 1;
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    for (const std::int64_t heads : {1, 5, 32, 64, 128}) {
      out.push_back({.format = format,
                     .heads = heads,
                     .keys = 200,
                     .starts = {0, 0, 70, 199, 64},
                     .ends = {1, 200, 130, 200, 128},
                     .seed = ++seed});
    }
    out.push_back({.format = format,
                   .heads = 7,
                   .keys = 300,
                   .starts = {-4, 299, 300, 10, INT32_MIN, INT32_MAX, 5, 0},
                   .ends = {65, INT32_MAX, 400, 10, INT32_MAX, INT32_MIN, 4, 0},
                   .seed = ++seed});
    std::vector<std::int32_t> starts(37, 3);
    std::vector<std::int32_t> ends(37);
    std::iota(ends.begin(), ends.end(), 4060);
    out.push_back({.format = format, .heads = 2, .keys = 4100, .starts = starts, .ends = ends, .seed = ++seed});
    out.push_back({.format = format, .heads = 2, .keys = 0, .starts = {0}, .ends = {5}});
    out.push_back({.format = format, .heads = 2, .keys = 5, .starts = {}, .ends = {}});
  }
  return out;
}

/// q, weights and keys of every finite code; rows of keys and scales are strided.
struct RaggedInputs {
  static constexpr std::int64_t kGap = 16;
  std::vector<std::uint8_t> q, q_scale, values, scales;
  std::vector<float> weights;

  explicit RaggedInputs(const RaggedCase& c) {
    std::mt19937 random(c.seed);
    std::normal_distribution<float> normal;
    const RowFormat& f = *c.format;
    const auto fill = [&](std::vector<std::uint8_t>& to, std::int64_t bytes) {
      to.resize(static_cast<std::size_t>(bytes));
      for (std::uint8_t& byte : to) byte = static_cast<std::uint8_t>(random());
      if (f.nope == Element::kE4M3) {
        for (std::uint8_t& byte : to) byte = (byte & 0x7F) == 0x7F ? 0x00 : byte;
      }
      if (f.nope == Element::kF32) {
        for (std::size_t i = 0; i + 4 <= to.size(); i += 4) {
          const float v = normal(random);
          std::memcpy(to.data() + i, &v, 4);
        }
      }
    };
    fill(q, c.rows() * c.heads * f.data_bytes);
    fill(values, c.keys * (f.data_bytes + kGap));
    q_scale.resize(static_cast<std::size_t>(c.rows() * c.heads * std::max(f.groups(), 1)));
    for (std::uint8_t& byte : q_scale) byte = static_cast<std::uint8_t>(124 + random() % 6);
    scales.resize(static_cast<std::size_t>(c.keys * (f.scale_bytes + kGap)));
    for (std::int64_t j = 0; j < c.keys; ++j) {
      std::uint8_t* at = scales.data() + j * (f.scale_bytes + kGap);
      const float v = std::exp(normal(random));
      if (f.scale == ScaleKind::kF32) std::memcpy(at, &v, 4);
      for (int g = 0; f.scale == ScaleKind::kUe8m0 && g < f.groups(); ++g)
        at[g] = static_cast<std::uint8_t>(124 + random() % 6);
    }
    for (std::int64_t i = 0; i < c.rows() * c.heads; ++i) weights.push_back(0.1F * normal(random));
  }

  RaggedIndexerLogits::Args args(const RaggedCase& c) const {
    const RowFormat& f = *c.format;
    RaggedIndexerLogits::Args a;
    switch (f.nope) {
      case Element::kE4M3: a.q = ConstTensorView(q.data(), DType::kE4M3, {c.rows(), c.heads, 128}); break;
      case Element::kE2M1: a.q = ConstTensorView(q.data(), DType::kU8, {c.rows(), c.heads, 64}); break;
      default: a.q = ConstTensorView(q.data(), DType::kF32, {c.rows(), c.heads, 128}); break;
    }
    if (f.scale == ScaleKind::kUe8m0)
      a.q_scale = ConstTensorView(q_scale.data(), DType::kU8, {c.rows(), c.heads, f.groups()});
    a.weights = view_of(weights.data(), {c.rows(), c.heads});
    a.values = ConstTensorView(values.data(), DType::kU8, {c.keys, f.data_bytes});
    a.values.stride[0] = f.data_bytes + kGap;
    if (f.scale_bytes > 0) {
      a.scales = ConstTensorView(scales.data(), DType::kU8, {c.keys, f.scale_bytes});
      a.scales.stride[0] = f.scale_bytes + kGap;
    }
    a.starts = view_of(c.starts.data(), {c.rows()});
    a.ends = view_of(c.ends.data(), {c.rows()});
    return a;
  }
};

}  // namespace smla::gathered_cases
