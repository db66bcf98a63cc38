#pragma once

// The cases of the norm_rope family: parameters, and seeded inputs made from them. Shared by parity, property, fuzz and
// bench programs.

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
#include "parity/quantised_rows.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::norm_rope_cases {

constexpr std::uint8_t kPoison = 0xA5;

/// Numbers as activations have them: normal, but of very different magnitude from one group of 32 to the next, with
/// zero and tiny groups.
inline void fill_activations(HostTensor& tensor, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  float magnitude = 1.0F;
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    if (i % 32 == 0) {
      const auto kind = random() % 16;
      magnitude = kind == 0 ? 0.0F : kind == 1 ? 1e-6F : std::ldexp(1.0F, static_cast<int>(random() % 8) - 4);
    }
    const float v = magnitude * normal(random);
    if (tensor.dtype() == DType::kF32) {
      tensor.as<float>()[i] = v;
    } else {
      tensor.as<BF16>()[i] = to_bf16(v);
    }
  }
}

/// [positions, dim] cos || sin of angles that grow with the position.
inline HostTensor rope_rows(std::int64_t positions, int dim) {
  HostTensor table(DType::kF32, {positions, dim});
  for (std::int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / dim);
      table.as<float>()[p * dim + i] = static_cast<float>(std::cos(angle));
      table.as<float>()[p * dim + dim / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

inline void poison(HostTensor& tensor) { std::memset(tensor.data(), kPoison, tensor.bytes()); }

struct RmsNormCase {
  RmsNorm::Problem problem;
  DType weight = DType::kBF16;
  std::int64_t row_gap = 0;  ///< extra columns of the matrix that x is a slice of
  friend std::ostream& operator<<(std::ostream& out, const RmsNormCase& c) {
    return out << "rms_norm " << c.problem.rows << "x" << c.problem.dim << " " << name_of(c.problem.in) << " to "
               << name_of(c.problem.out) << (c.problem.has_weight ? " with " : " without ") << name_of(c.weight)
               << " weight, gap " << c.row_gap;
  }
};

inline std::vector<RmsNormCase> rms_norm_cases() {
  std::vector<RmsNormCase> cases;
  for (const std::int64_t rows : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
    cases.push_back({.problem = {.rows = rows, .dim = 512}, .row_gap = rows % 2 == 0 ? 0 : 1024});
  }
  for (const std::int64_t dim : {0, 1, 2, 7, 33, 511, 513, 1024, 1536, 4096, 7168}) {
    cases.push_back({.problem = {.rows = 5, .dim = dim}});
    cases.push_back({.problem = {.rows = 3, .dim = dim, .in = DType::kF32, .out = DType::kF32},
                     .weight = DType::kF32,
                     .row_gap = 3});
    cases.push_back({.problem = {.rows = 2, .dim = dim, .in = DType::kF32, .out = DType::kBF16, .has_weight = false}});
    cases.push_back(
        {.problem = {.rows = 2, .dim = dim, .in = DType::kBF16, .out = DType::kF32, .has_weight = true, .eps = 0.5F}});
  }
  return cases;
}

struct RmsNormInputs {
  HostTensor x, weight, y;
  RmsNorm::Args args;
};

inline RmsNormInputs make_inputs(const RmsNormCase& c, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  RmsNormInputs in;
  in.x = HostTensor(c.problem.in, {c.problem.rows, c.problem.dim + c.row_gap});
  in.weight = HostTensor(c.weight, {c.problem.dim});
  in.y = HostTensor(c.problem.out, {c.problem.rows, c.problem.dim + 8});
  fill_activations(in.x, random);
  fill_activations(in.weight, random);
  poison(in.y);
  in.args.x = std::as_const(in.x).view().slice(1, c.row_gap, c.row_gap + c.problem.dim);
  in.args.y = in.y.view().slice(1, 0, c.problem.dim);
  if (c.problem.has_weight) in.args.weight = in.weight.view();
  return in;
}

struct LatentNormsCase {
  LatentNorms::Problem problem;
  DType weight = DType::kBF16;
  std::int64_t row_gap = 0;  ///< extra columns of the matrices that qr and kv are slices of

  RmsNormCase qr() const { return alone(problem.qr_dim); }
  RmsNormCase kv() const { return alone(problem.kv_dim); }
  friend std::ostream& operator<<(std::ostream& out, const LatentNormsCase& c) {
    return out << c.qr() << " and " << c.problem.kv_dim;
  }

 private:
  RmsNormCase alone(std::int64_t dim) const {
    return {.problem = {.rows = problem.rows,
                        .dim = dim,
                        .in = problem.in,
                        .out = problem.out,
                        .has_weight = problem.has_weight,
                        .eps = problem.eps},
            .weight = weight,
            .row_gap = row_gap};
  }
};

inline std::vector<LatentNormsCase> latent_norms_cases() {
  std::vector<LatentNormsCase> cases;
  for (const std::int64_t kv_dim : {0, 1, 33, 512, 4096}) {
    for (const std::int64_t qr_dim : {0, 7, 1024, 1536, 4096})
      cases.push_back({.problem = {.rows = 19, .qr_dim = qr_dim, .kv_dim = kv_dim}, .row_gap = 4});
    cases.push_back({.problem = {.rows = 3, .qr_dim = 512, .kv_dim = kv_dim, .in = DType::kF32, .out = DType::kF32},
                     .weight = DType::kF32});
    cases.push_back({.problem = {.rows = 5, .qr_dim = 1024, .kv_dim = kv_dim, .out = DType::kF32, .eps = 0.5F}});
    cases.push_back({.problem = {.rows = 2, .qr_dim = 512, .kv_dim = kv_dim, .has_weight = false}});
  }
  cases.push_back({.problem = {.rows = 0, .qr_dim = 1024, .kv_dim = 512}});
  return cases;
}

struct LatentNormsInputs {
  RmsNormInputs qr, kv;
  LatentNorms::Args args() const {
    return {.qr = qr.args.x,
            .qr_weight = qr.args.weight,
            .qr_out = qr.args.y,
            .kv = kv.args.x,
            .kv_weight = kv.args.weight,
            .kv_out = kv.args.y};
  }
};

inline LatentNormsInputs make_inputs(const LatentNormsCase& c) {
  return {.qr = make_inputs(c.qr(), 1), .kv = make_inputs(c.kv(), 2)};
}

inline std::vector<LatentNormsCase> quantised_norms_cases() {
  std::vector<LatentNormsCase> cases;
  for (const std::int64_t rows : {1, 4, 19}) {
    for (const std::int64_t dim : {0, 128, 1024, 1536, 4096, 4224}) {
      const LatentNorms::Problem p{.rows = rows, .qr_dim = dim, .kv_dim = 512, .quantises_qr = true};
      cases.push_back({.problem = p, .row_gap = dim % 256 == 0 ? 4 : 3});
    }
    LatentNorms::Problem p{.rows = rows, .qr_dim = 1024, .in = DType::kF32, .out = DType::kF32, .quantises_qr = true};
    cases.push_back({.problem = p, .weight = DType::kF32});
    p.in = DType::kBF16;
    cases.push_back({.problem = p});
  }
  return cases;
}

/// The latent queries in E4M3. Rows of values lie up to 7 numbers further apart than they are long, so that some are
/// aligned to four numbers and some are not.
inline test::QuantisedRows quantised_qr(const LatentNorms::Problem& p) {
  return {p.rows, p.qr_dim, p.qr_dim / QuantizeRows::kGroup % 8};
}

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

struct InverseCase {
  InverseRope::Problem problem;
  std::int64_t extra_heads = 0;  ///< x is a slice of a buffer with so many heads more
  friend std::ostream& operator<<(std::ostream& out, const InverseCase& c) {
    return out << "inverse_rope " << c.problem.tokens << "x" << c.problem.heads << "x" << c.problem.dim << " "
               << name_of(c.problem.in) << " to " << name_of(c.problem.out) << ", " << c.extra_heads << " extra heads";
  }
};

inline std::vector<InverseCase> inverse_cases() {
  std::vector<InverseCase> cases;
  for (const std::int64_t tokens : {0, 1, 3, 4, 5, 127, 128, 129, 255, 256}) {
    for (const DType type : {DType::kBF16, DType::kF32})
      cases.push_back({.problem = {.tokens = tokens, .heads = 7, .in = type, .out = type}, .extra_heads = 1});
  }
  for (const std::int64_t heads : {0, 1, 8, 16, 64, 128}) {
    cases.push_back({.problem = {.tokens = 3, .heads = heads, .in = DType::kF32}});
    cases.push_back({.problem = {.tokens = 2, .heads = heads, .dim = 128, .out = DType::kF32}, .extra_heads = 3});
  }
  return cases;
}

struct InverseInputs {
  HostTensor x, positions, cos_sin, y;
  InverseRope::Args args;
};

inline InverseInputs make_inputs(const InverseCase& c, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  const InverseRope::Problem& p = c.problem;
  InverseInputs in;
  in.x = HostTensor(p.in, {p.tokens, p.heads + c.extra_heads, p.dim});
  in.positions = HostTensor(DType::kI64, {p.tokens});
  in.cos_sin = rope_rows(300, p.rope_dim);
  in.y = HostTensor(p.out, {p.tokens, p.heads + 1, p.dim});
  fill_activations(in.x, random);
  poison(in.y);
  for (std::int64_t t = 0; t < p.tokens; ++t)
    in.positions.as<std::int64_t>()[t] = static_cast<std::int64_t>(random() % 310) - 5;
  in.args = {.x = std::as_const(in.x).view().slice(1, 0, p.heads),
             .positions = in.positions.view(),
             .cos_sin = in.cos_sin.view(),
             .y = in.y.view().slice(1, 0, p.heads)};
  return in;
}

struct QuantCase {
  std::int64_t tokens = 3, heads = 8, groups = 2;
  int dim = 512;
  DType in = DType::kBF16;
  OutputScale scale = OutputScale::kF32;
  InverseRopeQuant::Problem problem() const {
    return {.tokens = tokens, .heads = heads, .groups = groups, .dim = dim, .rope_dim = 64, .in = in, .scale = scale};
  }
  std::int64_t width() const { return heads / groups * dim; }
  std::int64_t chunks() const { return width() / 128; }
  std::int64_t scale_rows() const { return scale == OutputScale::kF32 ? chunks() : (chunks() + 3) / 4; }
  std::int64_t padded() const { return (tokens + 3) / 4 * 4; }
};

inline std::ostream& operator<<(std::ostream& out, const QuantCase& c) {
  return out << "inverse_rope_quant " << c.tokens << "x" << c.heads << "x" << c.dim << " in " << c.groups << " groups, "
             << name_of(c.in) << ", scales " << (c.scale == OutputScale::kF32 ? "f32" : "ue8m0x4");
}

inline std::vector<QuantCase> quant_cases() {
  std::vector<QuantCase> out;
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t tokens : {0, 1, 3, 4, 5, 33}) {
        out.push_back({.tokens = tokens, .in = in, .scale = scale});
        out.push_back({.tokens = tokens,
                       .heads = 6,
                       .groups = 2,
                       .dim = 128,
                       .in = in,
                       .scale = scale});  // chunks that no word of four holds
      }
      out.push_back({.tokens = 5, .heads = 64, .groups = 8, .in = in, .scale = scale});
      out.push_back({.tokens = 2, .heads = 128, .groups = 16, .in = in, .scale = scale});
    }
  }
  return out;
}

struct QuantRun {
  HostTensor x, positions, cos_sin, values, scales;
  explicit QuantRun(const QuantCase& c) {
    std::mt19937_64 random(5);
    x = HostTensor(c.in, {c.tokens, c.heads + 1, c.dim});
    fill_activations(x, random);
    positions = HostTensor(DType::kI64, {c.tokens});
    for (std::int64_t t = 0; t < c.tokens; ++t)
      positions.as<std::int64_t>()[t] = t == 2 ? -1 : t == 4 ? 300 : (t * 37) % 300;
    cos_sin = rope_rows(300, 64);
    values = HostTensor(DType::kE4M3, {c.groups, c.tokens, c.width()});
    scales =
        HostTensor(c.scale == OutputScale::kF32 ? DType::kF32 : DType::kI32, {c.groups, c.scale_rows(), c.padded()});
    poison(values);
    poison(scales);
  }
  InverseRopeQuant::Args args() {
    return {.x = x.view(),
            .positions = positions.view(),
            .cos_sin = cos_sin.view(),
            .values = values.view(),
            .scales = scales.view()};
  }
  void run(const QuantCase& c, const std::string& name, int threads) {
    Plan<InverseRopeQuant>(c.problem(), {.implementation = name, .threads = threads}).run(args());
  }
};

struct RowsCase {
  QuantizeRows::Problem problem;
  std::int64_t row_gap = 0;  ///< extra columns of the matrices that x and values are slices of
};

inline std::ostream& operator<<(std::ostream& out, const RowsCase& c) {
  return out << "quantize_rows " << c.problem.rows << "x" << c.problem.dim << " " << name_of(c.problem.in) << ", gap "
             << c.row_gap << ", scales " << (c.problem.scale == OutputScale::kF32 ? "f32" : "ue8m0x4");
}

inline std::vector<RowsCase> rows_cases() {
  std::vector<RowsCase> out;
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t dim : {0, 128, 384, 512, 640, 1024, 4096}) {
        for (const std::int64_t rows : {0, 1, 3, 4, 33}) {
          out.push_back({.problem = {.rows = rows, .dim = dim, .in = in, .scale = scale},
                         .row_gap = rows % 2 == 0    ? 0
                                    : dim % 512 == 0 ? 4
                                                     : 1});
        }
      }
    }
  }
  return out;
}

struct RowsRun {
  QuantizeRows::Problem problem;
  HostTensor x, values, scales;
  explicit RowsRun(const RowsCase& c) : problem(c.problem) {
    std::mt19937_64 random(6);
    const std::int64_t groups = problem.dim / QuantizeRows::kGroup;
    const bool packed = problem.scale == OutputScale::kUe8m0x4;
    x = HostTensor(problem.in, {problem.rows, problem.dim + c.row_gap});
    values = HostTensor(DType::kE4M3, {problem.rows, problem.dim + c.row_gap});
    scales = HostTensor(packed ? DType::kI32 : DType::kF32,
                        {1, packed ? (groups + 3) / 4 : groups, (problem.rows + 3) / 4 * 4});
    fill_activations(x, random);
    // Numbers that are none, and those past the ends of the formats.
    const std::int64_t row = problem.dim + c.row_gap;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                         -std::numeric_limits<float>::quiet_NaN(),
                         kInfinity,
                         -3e38F,
                         1e-45F,
                         -0.0F};
    for (std::int64_t i = 0; problem.dim > 0 && i < std::min<std::int64_t>(problem.rows, 6); ++i) {
      const std::int64_t at = i * row + (37 * i + 5) % problem.dim;
      if (problem.in == DType::kF32) x.as<float>()[at] = odd[i];
      if (problem.in == DType::kBF16) x.as<BF16>()[at] = to_bf16(odd[i]);
    }
    poison(values);
    poison(scales);
  }
  QuantizeRows::Args args() {
    return {.x = std::as_const(x).view().slice(1, 0, problem.dim),
            .values = values.view().slice(1, 0, problem.dim),
            .scales = scales.view()};
  }
};

}  // namespace smla::norm_rope_cases
