#pragma once

#include <bit>
#include <cmath>
#include <string>

#include "device/copy.cuh"
#include "ops/attention/attention_block.cuh"

namespace smla::attention {

// What the kernels on tensor cores make of a problem and its arguments, on the host.

constexpr int kMostRotated = AttentionTile::kGroup;  ///< columns of o that can be rotated back

inline bool takes(const RowFormat& f) {
  if (f.nope_dim % AttentionTile::kGroup != 0 || f.dim != kDim) return false;
  const bool rest = f.rope_dim() == 0 || f.rope == Element::kBF16;
  if (f.nope == Element::kBF16) return f.scale == ScaleKind::kNone && rest;
  if (f.nope != Element::kE4M3) return false;
  return f.scale == ScaleKind::kUe8m0 ? f.group == AttentionTile::kGroup && rest
                                      : f.scale == ScaleKind::kPerTensor && f.rope_dim() == 0;
}

inline RowLayout layout_of(const RowFormat& f, const device::CacheView& cache) {
  // A slot has 31 bits; a longer block holds all slots.
  const auto block_size = static_cast<std::uint32_t>(std::min<std::int64_t>(cache.block_size, std::int64_t{1} << 31));
  return {.key = key_layout(f),
          .base = cache.base,
          .block_stride = cache.block_stride,
          .scales = cache.block_size * cache.data_bytes,
          .num_slots = static_cast<std::uint32_t>(std::min<std::int64_t>(cache.num_slots, std::int64_t{1} << 31)),
          .block_size = block_size,
          .block_bits = std::has_single_bit(block_size) ? std::countr_zero(block_size) : -1,
          .row_bytes = static_cast<std::uint32_t>(cache.data_bytes),
          .scale_bytes = static_cast<std::uint32_t>(cache.scale_bytes),
          .scaled = f.scale == ScaleKind::kUe8m0,
          .aligned =
              device::common_word(static_cast<const void*>(cache.base), cache.block_stride, cache.data_bytes) == 16 &&
              cache.scale_bytes % 4 == 0};
}

inline constexpr std::int64_t kMaxEntries = std::int64_t{1} << 30;
inline std::int64_t listed_entries(const SparseAttention::Problem& p) {
  return p.scope[0].width + (p.scopes > 1 ? p.scope[1].width : 0);
}

/// Why the kernels on tensor cores do not take a problem on any GPU; empty when they do.
inline std::string tensor_core_refusal(const SparseAttention::Problem& p) {
  if (p.dim != kDim) return "rows of " + std::to_string(p.dim) + " numbers; it takes " + std::to_string(kDim);
  if (p.out_dim() != kDim)
    return "values of " + std::to_string(p.out_dim()) + " numbers; it takes rows that are values as a whole";
  if (p.q == DType::kF32) return "q in F32; it takes BF16 and F8_E4M3";
  for (int s = 0; s < p.scopes; ++s) {
    const RowFormat& f = *p.scope[static_cast<std::size_t>(s)].format;
    if (!takes(f)) return std::string(f.name) + " rows, which bf16 does not hold exactly";
  }
  const int back = p.output_epilogue ? p.output_epilogue->rope_dim : 0;
  if (back % 4 != 0 || back > kMostRotated) {
    return std::to_string(back) + " dims to rotate back; it takes multiples of 4 up to " + std::to_string(kMostRotated);
  }
  if (listed_entries(p) > kMaxEntries)
    return "lists of " + std::to_string(listed_entries(p)) + " entries; it takes 2^30";
  return "";
}

/// The call for both kernels; what the split decides is left to them. `packs`: tokens that share lists are packed.
inline TileCall tile_call(const SparseAttention::Problem& p, const SparseAttention::Args& a, bool packs = false) {
  const std::int64_t o_size = size_of(p.o);
  const std::int64_t q_size = size_of(p.q);
  TileCall c{.a = attention_call(p, a), .tokens = packs ? p.lists() : p.tokens};
  if (packs) pack(c.a, p);
  c.q_aligned = device::common_word(c.a.q, q_size * c.a.q_stride[0], q_size * c.a.q_stride[1]) == 16;
  c.word = device::common_word(static_cast<const void*>(c.a.o), o_size * c.a.o_stride[0], o_size * c.a.o_stride[1]);
  float unit[SparseAttention::kMaxScopes] = {0, 0};
  for (int s = 0; s < p.scopes; ++s) {
    const device::CacheView& cache = c.a.keys[s].cache;
    unit[s] = cache.kind == ScaleKind::kPerTensor ? cache.scale : 1 / kHalfUnit;
    c.layout[s] = layout_of(*p.scope[static_cast<std::size_t>(s)].format, cache);
    c.score_scale[s] = c.a.scale * (p.q == DType::kE4M3 ? p.q_scale : 1.0F) * unit[s] * kLog2E;
  }
  c.unit = std::max(std::abs(unit[0]), std::abs(unit[1]));
  for (int s = 0; s < p.scopes; ++s) {
    c.weight_scale[s] = unit[s] / c.unit;
    c.exact = c.exact || !(std::abs(c.weight_scale[s]) >= 0x1p-10F);
  }
  if (p.output_epilogue) {
    c.positions = static_cast<const std::int64_t*>(a.output_epilogue.positions.data);
    c.rope = rope_of(a.output_epilogue.cos_sin, p.dim, p.output_epilogue->rope_dim);
  }
  return c;
}

/// The cut of a call whose lists may be cut by their lengths; without lengths they are alike.
inline LengthCut cut_of(const TileCall& c, LengthCut cut) {
  bool lengths = false;
  for (int s = 0; s < c.a.scopes; ++s) lengths = lengths || c.a.keys[s].lens != nullptr;
  if (!lengths) cut.extra = 0;
  return cut;
}

/// Sets where a call keeps its parts' sums.
inline void place_sums(TileCall& c, void* workspace, std::int64_t launch_tokens) {
  const std::int64_t rows = c.cut.extra > 0 ? c.cut.rows(c.tokens) : (c.parts == 1 ? 0 : launch_tokens * c.parts);
  c.sums = static_cast<float*>(workspace);
  c.states = reinterpret_cast<float2*>(c.sums + rows * c.a.heads * kDim);
  c.cuts = reinterpret_cast<uint2*>(c.states + rows * c.a.heads);
}

}  // namespace smla::attention
