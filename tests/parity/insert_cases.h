#pragma once

// Cases of qnorm_rope_insert, alone and behind the latent norms.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "parity/norm_cases.h"

namespace smla::norm_rope_cases {

struct InsertCase {
  std::int64_t tokens = 4;
  std::int64_t inserted = 4;  ///< M
  std::int64_t heads = 8;
  std::int64_t out_heads = 8;
  const RowFormat* format = nullptr;
  std::int64_t block_size = 64;
  DType in = DType::kBF16;
  DType q_out = DType::kBF16;
  ClampRule clamp = ClampRule::kAmax;
  float scale = 1.0F;    ///< of the cache, and 1/q_scale_inv
  bool hostile = false;  ///< slots and positions that point nowhere

  QNormRopeInsert::Problem problem() const {
    return {.tokens = tokens,
            .heads = heads,
            .out_heads = out_heads,
            .dim = format == nullptr ? 512 : format->dim,
            .rope_dim = 64,
            .in = in,
            .q_out = q_out,
            .format = format,
            .q_scale_inv = 1.0F / scale,
            .clamp = clamp};
  }
  friend std::ostream& operator<<(std::ostream& out, const InsertCase& c) {
    return out << "insert " << c.inserted << " of " << c.tokens << " tokens, heads " << c.heads << " of " << c.out_heads
               << ", " << name_of(c.in) << " to " << name_of(c.q_out) << ", "
               << (c.format == nullptr ? "no cache" : c.format->name) << " in blocks of " << c.block_size
               << (c.clamp == ClampRule::kScale ? ", scale clamp" : "") << ", scale " << c.scale
               << (c.hostile ? ", hostile" : "");
  }
};

inline std::vector<InsertCase> insert_cases() {
  const RowFormat* formats[] = {&fp8_ds_mla_rows(), &bf16_rows(),        &fp8_per_tensor_rows(), &f32_rows(),
                                &index_fp8_rows(),  &index_mxfp4_rows(), &index_f32_rows()};
  std::vector<InsertCase> cases;
  for (const std::int64_t tokens : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
    cases.push_back({.tokens = tokens,
                     .inserted = tokens,
                     .heads = 7,
                     .out_heads = 8,
                     .format = &fp8_ds_mla_rows(),
                     .hostile = tokens > 100});
    cases.push_back({.tokens = tokens,
                     .inserted = tokens / 2,
                     .heads = 1,
                     .out_heads = 1,
                     .format = &bf16_rows(),
                     .block_size = 53});
  }
  for (const std::int64_t heads : {1, 7, 8, 16, 64, 128}) {
    for (const DType out : {DType::kBF16, DType::kE4M3, DType::kF32}) {
      cases.push_back({.tokens = 5,
                       .inserted = 3,
                       .heads = heads,
                       .out_heads = heads + heads % 8,
                       .format = &fp8_ds_mla_rows(),
                       .q_out = out,
                       .scale = 0.37F});
    }
  }
  for (const RowFormat* format : formats) {
    for (const std::int64_t block_size : {1, 2, 3, 53, 64, 256}) {
      for (const ClampRule clamp : {ClampRule::kAmax, ClampRule::kScale}) {
        cases.push_back({.tokens = 37,
                         .inserted = 35,
                         .heads = 2,
                         .out_heads = 3,
                         .format = format,
                         .block_size = block_size,
                         .clamp = clamp,
                         .scale = 1.7F,
                         .hostile = block_size == 3});
      }
      cases.push_back({.tokens = 9,
                       .inserted = 9,
                       .heads = 0,
                       .out_heads = 0,
                       .format = format,
                       .block_size = block_size,
                       .in = DType::kF32});
    }
  }
  cases.push_back({.tokens = 6, .inserted = 0, .heads = 8, .out_heads = 16, .in = DType::kF32, .q_out = DType::kF32});
  return cases;
}

/// A paged cache that owns its bytes: poisoned, blocks further apart than a page.
struct OwnedCache {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;
  void allocate(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::int64_t gap) {
    const std::int64_t stride = page_bytes(format, block_size) + gap;
    bytes.assign(static_cast<std::size_t>(blocks * stride), kPoison);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = blocks,
             .block_size = block_size,
             .block_stride_bytes = stride};
  }
};

struct InsertInputs {
  HostTensor q, kv, positions, cos_sin, slots, q_out;
  OwnedCache cache;
  QNormRopeInsert::Args args;
};

inline InsertInputs make_inputs(const InsertCase& c, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  const QNormRopeInsert::Problem p = c.problem();
  constexpr std::int64_t kPositions = 300;
  InsertInputs in;
  in.q = HostTensor(c.in, {c.tokens, c.heads, p.dim});
  in.kv = HostTensor(c.in, {c.tokens, p.dim + 40});
  in.positions = HostTensor(DType::kI64, {c.tokens});
  in.slots = HostTensor(DType::kI64, {c.inserted});
  in.cos_sin = rope_rows(kPositions, p.rope_dim);
  in.q_out = HostTensor(c.q_out, {c.tokens, c.out_heads, p.dim});
  fill_activations(in.q, random);
  fill_activations(in.kv, random);
  poison(in.q_out);
  for (std::int64_t t = 0; t < c.tokens; ++t)
    in.positions.as<std::int64_t>()[t] = static_cast<std::int64_t>(random() % kPositions);
  if (c.format != nullptr) {
    in.cache.allocate(*c.format, c.inserted / c.block_size + 2, c.block_size, 48);
    in.cache.cache.scale = c.scale;
    std::vector<std::int64_t> order(static_cast<std::size_t>(in.cache.cache.num_slots()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (std::int64_t t = 0; t < c.inserted; ++t)
      in.slots.as<std::int64_t>()[t] = random() % 5 == 0 ? -1 : order[static_cast<std::size_t>(t)];
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (c.hostile) {
    for (std::int64_t t = 0; t < c.inserted; t += 4) {
      const std::int64_t bad[] = {in.cache.cache.num_slots(), kMax, std::numeric_limits<std::int64_t>::min(), -2};
      in.slots.as<std::int64_t>()[t] = bad[t / 4 % 4];
    }
    for (std::int64_t t = 1; t < c.tokens; t += 5) {
      const std::int64_t bad[] = {-1, kPositions, kMax, std::numeric_limits<std::int64_t>::min()};
      in.positions.as<std::int64_t>()[t] = bad[t / 5 % 4];
    }
  }
  in.args = {.q = in.q.view(),
             .kv = std::as_const(in.kv).view().slice(1, 8, 8 + p.dim),
             .positions = in.positions.view(),
             .cos_sin = in.cos_sin.view(),
             .slot_mapping = in.slots.view(),
             .q_out = in.q_out.view(),
             .cache = in.cache.cache};
  return in;
}

/// A norm that inserts its second matrix, of an InsertCase without q.
struct NormInsertCase {
  InsertCase insert;
  std::int64_t dim = 1024;  ///< of qr
  bool has_weight = true;

  LatentNorms::Problem problem(bool inserts) const {
    LatentNorms::Problem p{.rows = insert.tokens,
                           .qr_dim = dim,
                           .kv_dim = insert.problem().dim,
                           .in = insert.in,
                           .out = insert.in,
                           .has_weight = has_weight,
                           .eps = 1e-5F};
    if (inserts) p.insert = {.format = insert.format, .rope_dim = insert.problem().rope_dim, .clamp = insert.clamp};
    return p;
  }
};
inline std::ostream& operator<<(std::ostream& out, const NormInsertCase& c) {
  return out << c.insert << ", beside rows of " << c.dim << (c.has_weight ? "" : ", no weight");
}

inline std::vector<NormInsertCase> norm_insert_cases() {
  std::vector<NormInsertCase> out;
  for (InsertCase c : insert_cases()) {
    if (c.format == nullptr) continue;
    c.heads = c.out_heads = 0;
    const std::int64_t dims[] = {0, 7, 1024, 1536, 4096};
    out.push_back({.insert = c, .dim = dims[out.size() % 5], .has_weight = out.size() % 3 != 0});
  }
  return out;
}

/// qr and qr_out, the weights, and kv_out for the norms that do not insert.
struct NormInsertInputs {
  InsertInputs insert;
  HostTensor qr, qr_weight, kv_weight, qr_out, kv_out;

  explicit NormInsertInputs(const NormInsertCase& c) : insert(make_inputs(c.insert)) {
    std::mt19937_64 random(4);
    const std::int64_t kv_dim = c.insert.problem().dim;
    qr = HostTensor(c.insert.in, {c.insert.tokens, c.dim});
    qr_out = HostTensor(c.insert.in, {c.insert.tokens, c.dim});
    kv_out = HostTensor(c.insert.in, {c.insert.tokens, kv_dim});
    qr_weight = HostTensor(DType::kF32, {c.dim});
    kv_weight = HostTensor(DType::kBF16, {kv_dim});
    for (HostTensor* t : {&qr, &qr_weight, &kv_weight}) fill_activations(*t, random);
    poison(qr_out);
    poison(kv_out);
  }
  LatentNorms::Args args(const NormInsertCase& c, bool inserts) {
    LatentNorms::Args a{.qr = std::as_const(qr).view(), .qr_out = qr_out.view(), .kv = insert.args.kv};
    if (c.has_weight) a.qr_weight = qr_weight.view(), a.kv_weight = kv_weight.view();
    if (inserts) {
      a.insert = {.positions = insert.args.positions,
                  .cos_sin = insert.args.cos_sin,
                  .slot_mapping = insert.args.slot_mapping,
                  .cache = insert.args.cache};
    } else {
      a.kv_out = kv_out.view();
    }
    return a;
  }
};

}  // namespace smla::norm_rope_cases
