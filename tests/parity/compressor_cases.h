#pragma once

// The cases of the compressor family: parameters, and seeded inputs made from them. Shared by parity, property, fuzz
// and bench programs.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "core/host_tensor.h"
#include "sparsemla/ops/compressor.h"

namespace smla::compressor_cases {

constexpr std::uint8_t kPoison = 0xA5;  ///< no record of a case looks like it
constexpr std::uint8_t kNan = 0xFF;     ///< NaN in every format: for state rows that nobody may use

/// A cheap generator: case inputs are megabytes.
struct Random {
  std::uint64_t state = 1;
  std::uint64_t operator()() {
    state += 0x9E37'79B9'7F4A'7C15U;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9U;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EBU;
    return z ^ (z >> 31);
  }
  /// Uniform in [-1, 1).
  float number() { return static_cast<float>(static_cast<std::int32_t>((*this)() >> 32)) * 0x1p-31F; }
  /// Uniform in [0, n).
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>((*this)() % static_cast<std::uint64_t>(n)); }
  using result_type = std::uint64_t;
  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return std::numeric_limits<std::uint64_t>::max(); }
};

inline HostTensor numbers(DType type, std::initializer_list<std::int64_t> shape, Random& random, float scale = 1.0F) {
  HostTensor tensor(type, shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const float v = scale * random.number();
    if (type == DType::kF32) {
      tensor.as<float>()[i] = v;
    } else {
      tensor.as<BF16>()[i] = to_bf16(v);
    }
  }
  return tensor;
}

inline HostTensor rope_rows(std::int64_t positions, int dim) {
  HostTensor table(DType::kF32, {positions, dim});
  for (std::int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(160000.0, -2.0 * i / dim);
      table.as<float>()[p * dim + i] = static_cast<float>(std::cos(angle));
      table.as<float>()[p * dim + dim / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

/// A paged cache that owns its bytes: filled with `fill`, blocks further apart than a page.
struct OwnedCache {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;
  void allocate(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::uint8_t fill,
                std::int64_t gap = 64) {
    const std::int64_t stride = page_bytes(format, block_size) + gap;
    bytes.assign(static_cast<std::size_t>(blocks * stride), fill);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = blocks,
             .block_size = block_size,
             .block_stride_bytes = stride};
  }
};

inline std::vector<std::int32_t> permutation(std::int64_t n, Random& random) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

/// Tokens [first, first + tokens) of one request.
struct Chunk {
  std::int64_t first = 0;
  std::int64_t tokens = 0;
};

struct CompressorCase {
  int ratio = 4;
  const RowFormat* format = nullptr;  ///< of the entries; its dim is the problem's
  std::vector<Chunk> requests;
  std::int64_t state_block = 4;
  std::int64_t entry_block = 64;
  DType small = DType::kBF16;  ///< of ape and norm weight
  bool hadamard = false;
  ClampRule clamp = ClampRule::kAmax;
  bool hostile = false;       ///< slots, requests, positions and table entries that point nowhere
  std::int64_t unmapped = 0;  ///< the last tokens have no slot: M < T

  std::int64_t tokens() const {
    std::int64_t n = 0;
    for (const Chunk& chunk : requests) n += chunk.tokens;
    return n;
  }
  SaveState::Problem save() const { return {.tokens = tokens(), .ratio = ratio, .dim = format->dim}; }
  CompressStore::Problem store() const {
    return {.tokens = tokens(),
            .ratio = ratio,
            .clamp = clamp,
            .compressor = {{{.dim = format->dim, .format = format, .hadamard = hadamard}}}};
  }
  friend std::ostream& operator<<(std::ostream& out, const CompressorCase& c) {
    out << "compress r " << c.ratio << " to " << c.format->name << " blocks " << c.state_block << " and "
        << c.entry_block << ", " << name_of(c.small) << (c.hadamard ? ", hadamard" : "")
        << (c.clamp == ClampRule::kScale ? ", scale clamp" : "") << (c.hostile ? ", hostile" : "") << ", unmapped "
        << c.unmapped << ", requests";
    for (const Chunk& chunk : c.requests) out << " " << chunk.first << "+" << chunk.tokens;
    return out;
  }
};

inline std::vector<CompressorCase> all_cases() {
  std::vector<CompressorCase> cases;
  for (const std::int64_t n : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
    cases.push_back({.format = &fp8_ds_mla_rows(), .requests = {{0, n}}, .state_block = n % 2 == 0 ? 4 : 3});
    cases.push_back(
        {.ratio = 128, .format = &fp8_ds_mla_rows(), .requests = {{0, n}}, .state_block = 8, .entry_block = 2});
    cases.push_back({.format = &index_fp8_rows(), .requests = {{0, n}, {97, 9}, {1023, 1}}});
  }
  for (const std::int64_t block : {1, 2, 3, 53, 64, 256}) {
    for (const RowFormat* format : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &f32_rows()}) {
      for (const ClampRule clamp : {ClampRule::kAmax, ClampRule::kScale}) {
        cases.push_back({.format = format,
                         .requests = {{0, 10}, {41, 11}},
                         .state_block = block,
                         .entry_block = 257 - block,
                         .small = DType::kF32,
                         .clamp = clamp});
      }
      cases.push_back({.ratio = 128,
                       .format = format,
                       .requests = {{120, 9}, {200, 60}},
                       .state_block = block,
                       .entry_block = block,
                       .unmapped = 2});
    }
    for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
      for (const bool hadamard : {false, true}) {
        cases.push_back({.format = format,
                         .requests = {{3, 21}, {0, 2}, {0, 4}},
                         .state_block = block,
                         .entry_block = block,
                         .hadamard = hadamard,
                         .hostile = block == 3,
                         .unmapped = block == 53 ? 5 : 0});
      }
    }
  }
  // Long enough that a block looks after several tokens.
  cases.push_back({.format = &fp8_ds_mla_rows(), .requests = {{5, 1100}, {3, 7}}, .unmapped = 3});
  cases.push_back({.format = &index_fp8_rows(), .requests = {{2, 1}, {5, 1099}}});
  cases.push_back({.ratio = 128,
                   .format = &fp8_ds_mla_rows(),
                   .requests = {{0, 700}, {127, 1}, {255, 1}, {37, 600}},
                   .state_block = 8,
                   .unmapped = 3});
  cases.push_back({.format = &fp8_ds_mla_rows(), .requests = {{0, 64}, {100, 64}}, .hostile = true});
  cases.push_back({.ratio = 128,
                   .format = &f32_rows(),
                   .requests = {{0, 128}, {0, 128}, {1, 127}, {64, 200}},
                   .state_block = 8,
                   .hostile = true});
  return cases;
}

struct CompressorInputs {
  HostTensor kv_score, ape, positions, token_to_req, state_slots, entry_slots, block_table, norm_weight, cos_sin;
  OwnedCache state, entries;
  SaveState::Args save;
  CompressStore::Args store;

  /// Both as one call.
  CompressStore::Args saving() const {
    CompressStore::Args args = store;
    args.compressors[0].kv_score = save.kv_score;
    args.compressors[0].ape = save.ape;
    return args;
  }
};

/// A layer's compressor and its indexer's over the same requests, as one call: entries of both stand at the layer's
/// slots.
inline CompressStore::Problem together(const CompressorCase& layer, const CompressorCase& index) {
  CompressStore::Problem p = layer.store();
  p.compressors = 2;
  p.compressor[1] = index.store().compressor[0];
  return p;
}
inline CompressStore::Args together(const CompressStore::Args& layer, const CompressStore::Args& index) {
  CompressStore::Args a = layer;
  a.compressors[1] = index.compressors[0];
  return a;
}
/// Pairs of them.
inline std::vector<std::pair<CompressorCase, CompressorCase>> pairs() {
  std::vector<std::pair<CompressorCase, CompressorCase>> out;
  const auto add = [&](CompressorCase layer, const RowFormat* index, std::int64_t state_block, bool hadamard) {
    CompressorCase second = layer;
    second.format = index, second.state_block = state_block, second.hadamard = hadamard;
    out.emplace_back(std::move(layer), std::move(second));
  };
  for (const std::int64_t n : {0, 1, 4, 9, 128}) {
    add({.format = &fp8_ds_mla_rows(), .requests = {{0, n}, {97, 9}, {1023, 1}}, .unmapped = n / 3}, &index_fp8_rows(),
        4, n % 2 == 0);
    add({.format = &bf16_rows(), .requests = {{2, n}, {0, 4}}, .small = DType::kF32}, &index_mxfp4_rows(), 3, true);
  }
  add({.format = &f32_rows(), .requests = {{3, 21}, {0, 4}}, .state_block = 2}, &index_f32_rows(), 53, true);
  add({.format = &fp8_ds_mla_rows(), .requests = {{5, 1100}, {3, 7}}}, &index_fp8_rows(), 4, false);
  return out;
}

/// Points some slots, requests, positions and table entries at nothing.
inline void make_hostile(CompressorInputs& in, Random& random) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  for (std::int64_t t = 0; t < in.state_slots.numel(); ++t) {
    const std::int64_t bad[] = {in.state.cache.num_slots(), in.entries.cache.num_slots(), kMax, kMin, -7};
    const std::int64_t value = bad[random.below(5)];
    if (random.below(12) == 0)
      in.state_slots.as<std::int64_t>()[t] = value == in.entries.cache.num_slots() ? kMax : value;
    if (random.below(12) == 0)
      in.entry_slots.as<std::int64_t>()[t] = value == in.state.cache.num_slots() ? kMax : value;
    if (random.below(12) == 0) in.positions.as<std::int64_t>()[t] = value;
    if (random.below(12) == 0) in.token_to_req.as<std::int32_t>()[t] = static_cast<std::int32_t>(value);
  }
  for (std::int64_t i = 0; i < in.block_table.numel(); ++i) {
    if (random.below(6) == 0)
      in.block_table.as<std::int32_t>()[i] = random.below(2) == 0 ? -3 : std::numeric_limits<std::int32_t>::max();
  }
}

inline CompressorInputs make_inputs(const CompressorCase& c, std::uint64_t seed = 1) {
  Random random{seed};
  const int dim = c.format->dim;
  const CompressStore::Problem p = c.store();
  const std::int64_t half = static_cast<std::int64_t>(p.coff()) * dim;
  const std::int64_t tokens = c.tokens();
  const std::int64_t mapped = std::max<std::int64_t>(0, tokens - c.unmapped);
  std::int64_t end = 1;
  for (const Chunk& chunk : c.requests) end = std::max(end, chunk.first + chunk.tokens);
  const std::int64_t columns = (end + c.state_block - 1) / c.state_block;
  const auto requests = static_cast<std::int64_t>(c.requests.size());

  CompressorInputs in;
  in.kv_score = numbers(DType::kF32, {tokens, 2 * half + 12}, random, 6.0F);
  in.ape = numbers(c.small, {p.ratio, half}, random);
  in.norm_weight = numbers(c.small, {dim}, random, 2.0F);
  in.cos_sin = rope_rows(end, p.rope_dim);
  in.positions = HostTensor(DType::kI64, {tokens});
  in.token_to_req = HostTensor(DType::kI32, {tokens});
  in.state_slots = HostTensor(DType::kI64, {mapped});
  in.entry_slots = HostTensor(DType::kI64, {mapped});
  in.block_table = HostTensor(DType::kI32, {requests, columns});
  // Blocks for the windows and the tokens only; columns before them are null blocks, as in a sliding-window cache.
  const std::int64_t keep = p.coff() * p.ratio;
  const std::int64_t needed = requests * columns + 1;
  in.state.allocate(state_rows(dim, p.coff()), needed, c.state_block, kNan);
  in.entries.allocate(*c.format, tokens / c.entry_block + 2, c.entry_block, kPoison);
  in.entries.cache.scale = c.format->scale == ScaleKind::kPerTensor ? 0.43F : 1.0F;
  const std::vector<std::int32_t> blocks = permutation(needed, random);
  const std::vector<std::int32_t> slots = permutation(in.entries.cache.num_slots(), random);
  std::int64_t t = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const Chunk& chunk = c.requests[static_cast<std::size_t>(r)];
    std::int32_t* row = in.block_table.as<std::int32_t>() + r * columns;
    for (std::int64_t col = 0; col < columns; ++col) {
      row[col] =
          (col + 1) * c.state_block <= chunk.first - keep ? -1 : blocks[static_cast<std::size_t>(r * columns + col)];
    }
    for (std::int64_t pos = std::max<std::int64_t>(0, chunk.first - keep); pos < chunk.first;
         ++pos) {  // state of earlier steps
      std::uint8_t* bytes =
          in.state.cache.block(row[pos / c.state_block]) + pos % c.state_block * in.state.cache.format->data_bytes;
      for (std::int64_t i = 0; i < 2 * half; ++i) {
        const float v = 4.0F * random.number();
        std::memcpy(bytes + 4 * i, &v, 4);
      }
    }
    for (std::int64_t i = 0; i < chunk.tokens; ++i, ++t) {
      const std::int64_t pos = chunk.first + i;
      in.positions.as<std::int64_t>()[t] = pos;
      in.token_to_req.as<std::int32_t>()[t] = static_cast<std::int32_t>(r);
      if (t >= mapped) continue;
      in.state_slots.as<std::int64_t>()[t] = row[pos / c.state_block] * c.state_block + pos % c.state_block;
      in.entry_slots.as<std::int64_t>()[t] = (pos + 1) % p.ratio == 0 ? slots[static_cast<std::size_t>(t)] : -1;
    }
  }
  if (c.hostile) make_hostile(in, random);
  in.save = {.kv_score = std::as_const(in.kv_score).view().slice(1, 4, 4 + 2 * half),
             .ape = in.ape.view(),
             .positions = in.positions.view(),
             .state_slots = in.state_slots.view(),
             .state = in.state.cache};
  in.store = {.positions = in.positions.view(),
              .token_to_req = in.token_to_req.view(),
              .entry_slots = in.entry_slots.view(),
              .cos_sin = in.cos_sin.view(),
              .compressors = {{{.state_slots = in.state_slots.view(),
                                .block_table = in.block_table.view(),
                                .norm_weight = in.norm_weight.view(),
                                .state = in.state.cache,
                                .entries = in.entries.cache}}}};
  return in;
}

}  // namespace smla::compressor_cases
