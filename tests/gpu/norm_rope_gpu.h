#pragma once

#include "gpu/gpu_run.h"
#include "parity/norm_rope_compare.h"

// What the norm_rope family's GPU tests share.

namespace smla::norm_rope_gpu {

using namespace norm_rope_cases;

class NormRopeGpu : public test::GpuTest {};

template <class Op>
void run_ref(const typename Op::Problem& problem, const typename Op::Args& args) {
  Plan<Op>(problem, {.implementation = "ref"}).run(args);
}

/// All of a tensor as rows of its last dimension.
inline std::int64_t width_of(const HostTensor& t) { return t.size(t.rank() - 1); }

/// Tensor [tokens, heads + 1, dim + gap] of which a view takes [tokens, heads, dim], so that strides and base are what
/// `gap` makes them.
inline HostTensor wide(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t gap) {
  return HostTensor(dtype, {tokens, heads + 1, dim + gap});
}
template <class Tensor>
auto inner(Tensor& t, std::int64_t gap) {
  return t.view().slice(1, 0, t.size(1) - 1).slice(2, gap, t.size(2));
}

inline void expect_equal_caches(const OwnedCache& want, const OwnedCache& got) {
  ASSERT_EQ(want.bytes.size(), got.bytes.size());
  const auto at = std::mismatch(want.bytes.begin(), want.bytes.end(), got.bytes.begin()).first - want.bytes.begin();
  if (at == static_cast<std::ptrdiff_t>(want.bytes.size())) return;
  const PagedCache& c = want.cache;
  const std::int64_t in_block = at % c.block_stride_bytes;
  const std::int64_t data = c.block_size * c.format->data_bytes;
  std::string where = "past the rows";
  if (in_block < data) {
    where = "row " + std::to_string(in_block / c.format->data_bytes) + " number byte " +
            std::to_string(in_block % c.format->data_bytes);
  } else if (in_block < block_bytes(*c.format, c.block_size)) {
    where = "row " + std::to_string((in_block - data) / c.format->scale_bytes) + " scale byte " +
            std::to_string((in_block - data) % c.format->scale_bytes);
  }
  FAIL() << c.format->name << " cache, block " << at / c.block_stride_bytes << ", " << where << ": want "
         << int{want.bytes[at]} << ", got " << int{got.bytes[at]};
}

struct Shape {
  int dim;
  int rope_dim;
  std::int64_t gap;
};
/// Rows that no vector fits, pairs that begin at odd numbers, rows longer than a warp's registers.
constexpr Shape kShapes[] = {{1, 0, 2},    {2, 2, 0},    {7, 4, 1},     {5, 4, 3},      {33, 32, 3},
                             {34, 30, 4},  {511, 64, 0}, {513, 2, 5},   {514, 514, 2},  {512, 62, 4},
                             {516, 64, 4}, {1030, 6, 0}, {2048, 64, 8}, {2047, 2046, 1}};
constexpr DType kFloats[] = {DType::kBF16, DType::kF32};

/// Rows, slots and a cache of InsertRows.
struct Inserted {
  HostTensor rows;
  std::vector<std::int64_t> slots;
  OwnedCache cache;
  InsertRows::Problem problem;
  std::int64_t gap = 0;

  Inserted(const RowFormat& format, std::int64_t tokens, DType in, std::int64_t block_size, ClampRule clamp,
           std::int64_t row_gap, std::int64_t block_gap)
      : problem{.tokens = tokens, .in = in, .format = &format, .clamp = clamp}, gap(row_gap) {
    std::mt19937_64 random(static_cast<std::uint64_t>(tokens * 31 + block_size));
    rows = HostTensor(in, {tokens, format.dim + gap});
    fill_activations(rows, random);
    const float extremes[] = {0.0F,
                              -0.0F,
                              3e38F,
                              -3e38F,
                              1e-38F,
                              1e-45F,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(),
                              448.0F,
                              464.0F,
                              1e-4F,
                              6.0F,
                              0.75F,
                              -5.0F,
                              std::ldexp(1.0F, -126),
                              -std::ldexp(7.0F, -128)};
    for (std::int64_t i = 0; i < rows.numel(); i += 1 + static_cast<std::int64_t>(random() % 97)) {
      const float v = extremes[random() % 16];
      if (in == DType::kF32) rows.as<float>()[i] = v;
      if (in == DType::kBF16) rows.as<BF16>()[i] = to_bf16(v);
    }
    cache.allocate(format, tokens / block_size + 2, block_size, block_gap);
    cache.cache.scale = 0.37F;
    std::vector<std::int64_t> order(static_cast<std::size_t>(cache.cache.num_slots()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const std::int64_t bad[] = {-1, cache.cache.num_slots(), std::numeric_limits<std::int64_t>::max(),
                                std::numeric_limits<std::int64_t>::min(), INT32_MAX};
    for (std::int64_t t = 0; t + t / 8 < tokens; ++t)
      slots.push_back(t % 6 == 5 ? bad[t / 6 % 5] : order[static_cast<std::size_t>(t)]);
  }
  InsertRows::Args args() const {
    PagedCache to = cache.cache;
    to.base = const_cast<std::uint8_t*>(cache.bytes.data());
    return {.rows = rows.view().slice(1, gap, gap + problem.format->dim),
            .slot_mapping = view_of(slots.data(), {static_cast<std::int64_t>(slots.size())}),
            .cache = to};
  }
};

}  // namespace smla::norm_rope_gpu
