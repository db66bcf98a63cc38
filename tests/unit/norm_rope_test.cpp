#include "sparsemla/ops/norm_rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "parity/insert_cases.h"

namespace smla {
namespace {

using namespace norm_rope_cases;
using testing::HasSubstr;
using testing::ThrowsMessage;

template <class Op>
std::vector<std::string> runnable(const typename Op::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<Op>(problem)) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

std::string hex(const std::uint8_t* bytes, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) {
    text += "0123456789abcdef"[bytes[i] >> 4];
    text += "0123456789abcdef"[bytes[i] & 15];
  }
  return text;
}

/// One token, one row of kv, in a two-block cache with a gap; the rope table rotates nothing at position 0 and by a
/// quarter turn at position 1.
struct OneRow {
  std::vector<BF16> kv = std::vector<BF16>(512);
  std::vector<float> table = std::vector<float>(128);
  std::int64_t position = 0;
  std::int64_t slot = 5;
  OwnedCache cache;

  explicit OneRow(const RowFormat& format) {
    cache.allocate(format, 2, 4, 80);
    std::fill(table.begin(), table.begin() + 32, 1.0F);
    std::fill(table.begin() + 96, table.end(), 1.0F);
  }
  void insert(const std::string& name, ClampRule clamp = ClampRule::kAmax) {
    const QNormRopeInsert::Problem problem{.tokens = 1, .format = cache.cache.format, .clamp = clamp};
    Plan<QNormRopeInsert>(problem, {.implementation = name})
        .run({.q = {},
              .kv = view_of(kv.data(), {1, 512}),
              .positions = view_of(&position, {1}),
              .cos_sin = view_of(table.data(), {2, 64}),
              .slot_mapping = view_of(&slot, {1}),
              .q_out = {},
              .cache = cache.cache});
  }
};

const QNormRopeInsert::Problem kInsertOnly{.tokens = 1};

TEST(RmsNorm, ByHand) {
  const float x[] = {3.0F, 4.0F};
  const float w[] = {2.0F, 0.5F};
  const RmsNorm::Problem problem{
      .rows = 1, .dim = 2, .in = DType::kF32, .out = DType::kF32, .eps = 3.5F};  // mean square 12.5, + eps = 16
  for (const std::string& name : runnable<RmsNorm>(problem)) {
    float y[] = {0.0F, 0.0F};
    Plan<RmsNorm>(problem, {.implementation = name})
        .run({.x = view_of(x, {1, 2}), .weight = view_of(w, {2}), .y = view_of(y, {1, 2})});
    EXPECT_EQ(y[0], 1.5F) << name;
    EXPECT_EQ(y[1], 0.5F) << name;
  }
}

TEST(RmsNorm, OfZerosIsZero) {
  const std::vector<BF16> x(512);
  const RmsNorm::Problem problem{.rows = 1, .dim = 512, .has_weight = false};
  for (const std::string& name : runnable<RmsNorm>(problem)) {
    std::vector<BF16> y(512, BF16{0x7FC0});
    Plan<RmsNorm>(problem, {.implementation = name})
        .run({.x = view_of(x.data(), {1, 512}), .weight = {}, .y = view_of(y.data(), {1, 512})});
    EXPECT_EQ(x, y) << name;
  }
}

TEST(RmsNorm, RoundsOnlyAtTheEnd) {
  // Only inputs for which a rounding to bf16 before the weight would show.
  const RmsNorm::Problem problem{.rows = 1, .dim = 2, .in = DType::kF32, .out = DType::kBF16, .eps = 0.0F};
  int telling = 0;
  for (std::uint64_t seed = 1; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const float x[] = {normal(random), normal(random)};
    const float w[] = {normal(random), normal(random)};
    const auto inverse = static_cast<float>(
        1.0 / std::sqrt((static_cast<double>(x[0]) * x[0] + static_cast<double>(x[1]) * x[1]) / 2.0));
    if (to_bf16(x[0] * inverse * w[0]) == to_bf16(to_float(to_bf16(x[0] * inverse)) * w[0])) continue;
    ++telling;
    for (const std::string& name : runnable<RmsNorm>(problem)) {
      BF16 y[2];
      Plan<RmsNorm>(problem, {.implementation = name})
          .run({.x = view_of(x, {1, 2}), .weight = view_of(w, {2}), .y = view_of(y, {1, 2})});
      EXPECT_EQ(y[0], to_bf16(x[0] * inverse * w[0])) << name << " seed " << seed;
    }
  }
  EXPECT_GT(telling, 5);
}

TEST(QNormRopeInsert, HeadsAreNormedOverAllDimsAndRotatedByInterleavedPairs) {
  std::vector<float> q(512, 0.0F);
  q[0] = 8.0F;
  q[448] = 16.0F;  // pair 0
  q[449] = 12.0F;
  q[511] = 6.0F;  // odd half of pair 31
  std::vector<float> table(64, 0.0F);
  table[0] = 0.0F, table[32] = 1.0F;    // a quarter turn
  table[31] = -1.0F, table[63] = 0.0F;  // half a turn
  const std::int64_t position = 0;
  const float eps = 3.0F + 3.0F / 128.0F;  // 500/512 + eps = 4
  const QNormRopeInsert::Problem problem{
      .tokens = 1, .heads = 1, .out_heads = 1, .in = DType::kF32, .q_out = DType::kF32, .eps = eps};
  for (const std::string& name : runnable<QNormRopeInsert>(problem)) {
    std::vector<float> out(512, 99.0F);
    Plan<QNormRopeInsert>(problem, {.implementation = name})
        .run({.q = view_of(std::as_const(q).data(), {1, 1, 512}),
              .kv = {},
              .positions = view_of(&position, {1}),
              .cos_sin = view_of(table.data(), {1, 64}),
              .slot_mapping = {},
              .q_out = view_of(out.data(), {1, 1, 512}),
              .cache = {}});
    EXPECT_EQ(out[0], 4.0F) << name;
    EXPECT_EQ(out[1], 0.0F) << name;
    EXPECT_EQ(out[448], -6.0F) << name;  // e' = e*0 - o*1
    EXPECT_EQ(out[449], 8.0F) << name;   // o' = o*0 + e*1
    EXPECT_EQ(out[510], 0.0F) << name;
    EXPECT_EQ(out[511], -3.0F) << name;
  }
}

TEST(QNormRopeInsert, QuantisesToSaturatedE4m3) {
  std::vector<float> q(512, 1.0F);
  const HostTensor table = rope_rows(1, 64);
  const std::int64_t position = 0;
  const QNormRopeInsert::Problem problem{.tokens = 1,
                                         .heads = 1,
                                         .out_heads = 1,
                                         .in = DType::kF32,
                                         .q_out = DType::kE4M3,
                                         .eps = 0.0F,
                                         .q_scale_inv = 1000.0F};
  for (const std::string& name : runnable<QNormRopeInsert>(problem)) {
    std::vector<E4M3> out(512);
    Plan<QNormRopeInsert>(problem, {.implementation = name})
        .run({.q = view_of(std::as_const(q).data(), {1, 1, 512}),
              .kv = {},
              .positions = view_of(&position, {1}),
              .cos_sin = table.view(),
              .slot_mapping = {},
              .q_out = view_of(out.data(), {1, 1, 512}),
              .cache = {}});
    for (const E4M3 code : out) ASSERT_EQ(code.bits, 0x7E) << name;
  }
}

TEST(QNormRopeInsert, E4m3CodesAreExactWhereTheNormIs) {
  // Multiples of 1/64 have a mean square that fp32 holds exactly; eps fills it up to 1, so the head is its own norm.
  std::vector<float> q(512);
  double squares = 0.0;
  for (int i = 0; i < 512; ++i) {
    q[static_cast<std::size_t>(i)] = static_cast<float>(i * 37 % 127 - 63) / 64.0F;
    squares += static_cast<double>(q[static_cast<std::size_t>(i)]) * q[static_cast<std::size_t>(i)];
  }
  const HostTensor table = rope_rows(1, 64);  // position 0: no rotation
  const std::int64_t position = 0;
  for (const float factor : {1.0F, 0.01F, 3.7F, 64.0F, 700.0F}) {
    const QNormRopeInsert::Problem problem{.tokens = 1,
                                           .heads = 1,
                                           .out_heads = 1,
                                           .in = DType::kF32,
                                           .q_out = DType::kE4M3,
                                           .eps = static_cast<float>(1.0 - squares / 512.0),
                                           .q_scale_inv = factor};
    for (const std::string& name : runnable<QNormRopeInsert>(problem)) {
      std::vector<E4M3> out(512);
      Plan<QNormRopeInsert>(problem, {.implementation = name})
          .run({.q = view_of(std::as_const(q).data(), {1, 1, 512}),
                .kv = {},
                .positions = view_of(&position, {1}),
                .cos_sin = table.view(),
                .slot_mapping = {},
                .q_out = view_of(out.data(), {1, 1, 512}),
                .cache = {}});
      for (std::size_t i = 0; i < 512; ++i)
        ASSERT_EQ(out[i].bits & 0x7F, to_e4m3(q[i] * factor).bits & 0x7F) << name << " x " << q[i] * factor;
    }
  }
}

TEST(QNormRopeInsert, PaddedHeadsArePlusZero) {
  for (const DType type : {DType::kBF16, DType::kE4M3, DType::kF32}) {
    const InsertCase c{.tokens = 3, .inserted = 0, .heads = 5, .out_heads = 8, .q_out = type};
    for (const std::string& name : runnable<QNormRopeInsert>(c.problem())) {
      const InsertInputs in = make_inputs(c);
      Plan<QNormRopeInsert>(c.problem(), {.implementation = name}).run(in.args);
      const auto* bytes = static_cast<const std::uint8_t*>(in.q_out.data());
      const std::int64_t head = 512 * size_of(type);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(in.q_out.bytes()); ++i) {
        if (i / head % 8 < 5) continue;
        ASSERT_EQ(bytes[i], 0) << name << " byte " << i;
      }
    }
  }
}

// Golden vectors G1, G2 and G3 of the quantiser, through the op: nope dims are not rotated, so their bytes are exact.
TEST(QNormRopeInsert, GoldenRecord) {
  for (const std::string& name : runnable<QNormRopeInsert>(kInsertOnly)) {
    OneRow row(fp8_ds_mla_rows());
    for (int i = 0; i < 64; ++i) row.kv[static_cast<std::size_t>(i)] = to_bf16(static_cast<float>(i - 32) / 8.0F);
    for (int i = 128; i < 192; ++i) row.kv[static_cast<std::size_t>(i)] = to_bf16(0.01F);
    row.kv[448] = to_bf16(3.0F);
    row.kv[449] = to_bf16(5.0F);
    row.position = 1;
    row.insert(name);
    const std::uint8_t* data = row_data(row.cache.cache, 1, 1);
    const std::uint8_t* scales = row_scales(row.cache.cache, 1, 1);
    EXPECT_EQ(hex(data, 64),
              "f8f8f7f6f6f6f5f4f4f4f3f2f2f2f1f0f0efeeedecebeae9e8e6e4e2e0dcd8d00050585c6062646668696a6b6c6d6e6f70707172"
              "727273747474757676767778")
        << name;
    EXPECT_EQ(hex(data + 64, 64), std::string(128, '0')) << name;
    EXPECT_EQ(data[128], 0x7A) << name;
    EXPECT_EQ(hex(scales, 8), "7969706969696900") << name;  // 121, 105, 112, 105 ..., padding 0
    BF16 pair[2];
    std::memcpy(pair, data + 448, 4);
    EXPECT_EQ(to_float(pair[0]), -5.0F) << name;
    EXPECT_EQ(to_float(pair[1]), 3.0F) << name;

    row.insert(name, ClampRule::kScale);
    EXPECT_EQ(data[128], 0x6A) << name;
    EXPECT_EQ(scales[2], 114) << name;
    EXPECT_EQ(scales[0], 121) << name;
  }
}

TEST(QNormRopeInsert, WritesOneRecordAndNothingElse) {
  for (const RowFormat* format : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &f32_rows()}) {
    for (const std::string& name : runnable<QNormRopeInsert>(kInsertOnly)) {
      OneRow row(*format);
      std::fill(row.kv.begin(), row.kv.end(), to_bf16(1.0F));
      row.insert(name);
      std::vector<std::uint8_t> expected(row.cache.bytes.size(), kPoison);
      const std::int64_t block =
          row.cache.cache
              .block_stride_bytes;  // slot 5 = block 1, row 1: data first, then the scales of the block's 4 rows
      const std::int64_t data = block + format->data_bytes;
      const std::int64_t scales = block + 4 * format->data_bytes + format->scale_bytes;
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.size()); ++i) {
        const bool record =
            (i >= data && i < data + format->data_bytes) || (i >= scales && i < scales + format->scale_bytes);
        ASSERT_EQ(row.cache.bytes[static_cast<std::size_t>(i)] != kPoison, record)
            << format->name << " on " << name << " byte " << i;
      }
    }
  }
}

TEST(QNormRopeInsert, SkipsSlotsAndPositionsThatPointNowhere) {
  for (const std::string& name : runnable<QNormRopeInsert>(kInsertOnly)) {
    OneRow row(bf16_rows());
    const std::vector<std::uint8_t> before = row.cache.bytes;
    for (const std::int64_t slot : {std::int64_t{-1}, std::int64_t{8}, std::numeric_limits<std::int64_t>::max()}) {
      row.slot = slot;
      row.insert(name);
    }
    row.slot = 0;
    for (const std::int64_t position : {std::int64_t{-1}, std::int64_t{2}, std::numeric_limits<std::int64_t>::max()}) {
      row.position = position;
      row.insert(name);
    }
    EXPECT_TRUE(row.cache.bytes == before) << name;
  }
}

TEST(QNormRopeInsert, OnlyTheMappedTokensAreInserted) {
  const InsertCase c{.tokens = 6, .inserted = 2, .heads = 1, .out_heads = 1, .format = &f32_rows(), .block_size = 2};
  for (const std::string& name : runnable<QNormRopeInsert>(c.problem())) {
    InsertInputs in = make_inputs(c);
    in.slots.as<std::int64_t>()[0] = -1;
    in.slots.as<std::int64_t>()[1] = 3;
    Plan<QNormRopeInsert>(c.problem(), {.implementation = name}).run(in.args);
    for (std::int64_t slot = 0; slot < in.cache.cache.num_slots(); ++slot) {
      const std::uint8_t* data = row_data(in.cache.cache, slot / 2, slot % 2);
      const bool untouched =
          std::all_of(data, data + f32_rows().data_bytes, [](std::uint8_t b) { return b == kPoison; });
      EXPECT_EQ(untouched, slot != 3) << name << " slot " << slot;
    }
  }
}

TEST(QNormRopeInsert, PerTensorRowsDivideByTheCacheScale) {
  for (const std::string& name : runnable<QNormRopeInsert>(kInsertOnly)) {
    OneRow row(fp8_per_tensor_rows());
    row.cache.cache.scale = 0.25F;
    std::fill(row.kv.begin(), row.kv.end(), to_bf16(3.0F));
    row.kv[7] = to_bf16(1000.0F);
    row.insert(name);
    std::vector<float> back(512);
    decode_row(row.cache.cache, 5, back.data());
    EXPECT_EQ(back[0], 3.0F) << name;
    EXPECT_EQ(back[7], 448.0F * 0.25F) << name;
  }
}

TEST(Rope, ProductsAreNotContracted) {
  // f32 rows show the rotated numbers themselves: each product is rounded before the sum.
  const InsertCase c{
      .tokens = 64, .inserted = 64, .heads = 0, .out_heads = 0, .format = &f32_rows(), .in = DType::kF32};
  int contracted = 0;
  for (const std::string& name : runnable<QNormRopeInsert>(c.problem())) {
    const InsertInputs in = make_inputs(c);
    Plan<QNormRopeInsert>(c.problem(), {.implementation = name}).run(in.args);
    for (std::int64_t t = 0; t < 64; ++t) {
      const std::int64_t slot = in.slots.as<std::int64_t>()[t];
      if (slot < 0) continue;
      std::vector<float> row(512);
      decode_row(in.cache.cache, slot, row.data());
      const float* kv = in.kv.as<float>() + t * in.kv.size(1) + 8 + 448;
      const float* table = in.cos_sin.as<float>() + in.positions.as<std::int64_t>()[t] * 64;
      for (int i = 0; i < 32; ++i) {
        const volatile float ec = kv[2 * i] * table[i];
        const volatile float os = kv[2 * i + 1] * table[32 + i];
        ASSERT_EQ(row[static_cast<std::size_t>(448 + 2 * i)], ec - os) << name;
        contracted += std::fma(kv[2 * i], table[i], -os) != ec - os ? 1 : 0;
      }
    }
  }
  EXPECT_GT(contracted, 100) << "the inputs cannot tell";
}

TEST(InverseRope, UndoesTheRotation) {
  const std::int64_t tokens = 40;
  std::mt19937_64 random(7);
  HostTensor x(DType::kF32, {tokens, 512});
  fill_activations(x, random);
  const HostTensor table = rope_rows(tokens, 64);
  std::vector<std::int64_t> positions(40);
  std::iota(positions.begin(), positions.end(), 0);
  OwnedCache cache;
  cache.allocate(f32_rows(), 1, tokens, 0);
  Plan<QNormRopeInsert>({.tokens = tokens, .in = DType::kF32, .format = &f32_rows()})
      .run({.q = {},
            .kv = std::as_const(x).view(),
            .positions = view_of(positions.data(), {tokens}),
            .cos_sin = table.view(),
            .slot_mapping = view_of(positions.data(), {tokens}),
            .q_out = {},
            .cache = cache.cache});
  HostTensor rotated(DType::kF32, {tokens, 1, 512});
  for (std::int64_t t = 0; t < tokens; ++t) decode_row(cache.cache, t, rotated.as<float>() + t * 512);
  const InverseRope::Problem problem{.tokens = tokens, .heads = 1, .in = DType::kF32, .out = DType::kF32};
  for (const std::string& name : runnable<InverseRope>(problem)) {
    HostTensor back(DType::kF32, {tokens, 1, 512});
    Plan<InverseRope>(problem, {.implementation = name})
        .run({.x = std::as_const(rotated).view(),
              .positions = view_of(positions.data(), {tokens}),
              .cos_sin = table.view(),
              .y = back.view()});
    bool moved = false;
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const bool rope = i % 512 >= 448;
      ASSERT_NEAR(back.as<float>()[i], x.as<float>()[i],
                  rope ? 2e-6 * (std::fabs(x.as<float>()[i ^ 1]) + std::fabs(x.as<float>()[i])) : 0.0)
          << name;
      moved = moved || rotated.as<float>()[i] != x.as<float>()[i];
    }
    EXPECT_TRUE(moved);
  }
}

TEST(NormRopeErrors, NameTheTensorWhatWasGotAndWhatWasExpected) {
  const InsertCase c{.format = &fp8_ds_mla_rows()};
  const Plan<QNormRopeInsert> plan(c.problem());
  const auto broken = [&](auto&& change) {
    InsertInputs in = make_inputs(c);
    change(in.args);
    plan.run(in.args);
  };
  EXPECT_THAT([&] { broken([](auto& a) { a.q = a.q.slice(1, 0, 7); }); },
              ThrowsMessage<InvalidArgument>("qnorm_rope_insert: q: got [4, 7, 512] BF16, expected [4, 8, 512] BF16"));
  EXPECT_THAT([&] { broken([](auto& a) { a.cos_sin = a.cos_sin.slice(1, 0, 32); }); },
              ThrowsMessage<InvalidArgument>("qnorm_rope_insert: cos_sin: got [300, 32] F32, expected [*, 64] F32"));
  EXPECT_THAT([&] { broken([](auto& a) { a.positions.dtype = DType::kI32; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("positions: got [4] I32, expected [4] I64")));
  EXPECT_THAT(
      [&] { broken([](auto& a) { a.slot_mapping.shape[0] = 5; }); },
      ThrowsMessage<InvalidArgument>("qnorm_rope_insert: slot_mapping: got [5] I64, expected at most 4 tokens"));
  EXPECT_THAT([&] { broken([](auto& a) { a.cache.format = &bf16_rows(); }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("qnorm_rope_insert: cache: got")));
  EXPECT_THAT([&] { broken([](auto& a) { a.cache.block_stride_bytes = 8; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("block stride 8 bytes")));
  EXPECT_THAT([&] { broken([](auto& a) { a.q_out.data = const_cast<void*>(a.q.data), a.q_out.stride[0] += 512; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("q_out: got [4, 8, 512] BF16 over its input")));
  EXPECT_THAT([] { Plan<QNormRopeInsert>({.heads = 8, .out_heads = 4}); },
              ThrowsMessage<InvalidArgument>("qnorm_rope_insert: out_heads: got 4, expected at least 8 heads"));
  EXPECT_THAT(
      [] { Plan<QNormRopeInsert>({.format = &index_fp8_rows()}); },
      ThrowsMessage<InvalidArgument>("qnorm_rope_insert: format: got index_fp8 with 128 dims, expected 512 dims"));
  EXPECT_THAT([] { Plan<QNormRopeInsert>({.rope_dim = 63}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rope_dim: got 63, expected an even number")));
  EXPECT_THAT([] { Plan<RmsNorm>({.rows = -1}); },
              ThrowsMessage<InvalidArgument>("rms_norm: rows: got -1, expected 0 or more"));
  EXPECT_THAT([] { Plan<LatentNorms>({.kv_dim = -1}); },
              ThrowsMessage<InvalidArgument>("latent_norms: kv_dim: got -1, expected 0 or more"));
  EXPECT_THAT(
      [] { Plan<LatentNorms>({.qr_dim = 200, .quantises_qr = true}); },
      ThrowsMessage<InvalidArgument>("latent_norms: qr_dim: got 200, expected a multiple of 128 with quantises_qr"));
  EXPECT_THAT([] { Plan<LatentNorms>({.insert = LatentNorms::Insert{}}); },
              ThrowsMessage<InvalidArgument>("latent_norms: insert.format: got none, expected a row format"));
  EXPECT_THAT([] { Plan<LatentNorms>({.insert = {{.format = &bf16_rows()}}}); },
              ThrowsMessage<InvalidArgument>("latent_norms: kv_dim: got 0, expected 1 or more with insert"));
  EXPECT_THAT([] { Plan<LatentNorms>({.kv_dim = 500, .insert = {{.format = &bf16_rows()}}}); },
              ThrowsMessage<InvalidArgument>("latent_norms: format: got bf16 with 512 dims, expected 500 dims"));
  EXPECT_THAT([] { Plan<LatentNorms>({.kv_dim = 512, .out = DType::kF32, .insert = {{.format = &bf16_rows()}}}); },
              ThrowsMessage<InvalidArgument>("latent_norms: out: got F32, expected BF16, as in, with insert"));
  EXPECT_THAT(
      [] { Plan<LatentNorms>({.kv_dim = 512, .insert = {{.format = &fp8_ds_mla_rows(), .rope_dim = 32}}}); },
      ThrowsMessage<InvalidArgument>("latent_norms: format: got fp8_ds_mla with 64 rope dims, expected 32 rope dims"));
  EXPECT_THAT([] { Plan<RmsNorm>({.in = DType::kE4M3}); },
              ThrowsMessage<InvalidArgument>("rms_norm: in: got F8_E4M3, expected BF16 or F32"));
  EXPECT_THAT([] { Plan<InverseRope>({.out = DType::kE4M3}); },
              ThrowsMessage<InvalidArgument>("inverse_rope: out: got F8_E4M3, expected BF16 or F32"));
  EXPECT_THAT([] { Plan<RmsNorm>({}, {.implementation = "abacus"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got implementation \"abacus\"")));
}

}  // namespace
}  // namespace smla
