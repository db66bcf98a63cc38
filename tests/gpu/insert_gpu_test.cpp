// Queries normed and rotated, rows inserted into caches on the GPU against `_ref`: what stands behind a sum within
// bounds, every cache byte for byte.
#include "gpu/norm_rope_gpu.h"

namespace smla {
namespace {

using namespace norm_rope_gpu;
using test::run_on_gpu;

void check_insert(const InsertCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const InsertInputs want = make_inputs(c);
  const InsertInputs got = make_inputs(c);
  run_ref<QNormRopeInsert>(c.problem(), want.args);
  run_on_gpu<QNormRopeInsert>(c.problem(), got.args);
  expect_close_rows(want.q_out, got.q_out, c.problem().dim);
  expect_equal_caches(want.cache, got.cache);
  for (std::int64_t t = 0; t < c.tokens; ++t) {  // padded heads are +0, or left alone with their token
    const std::int64_t begin = (t * c.out_heads + c.heads) * c.problem().dim * size_of(c.q_out);
    const std::int64_t end = (t + 1) * c.out_heads * c.problem().dim * size_of(c.q_out);
    for (std::int64_t i = begin; i < end; ++i) {
      const auto bytes = [&](const InsertInputs& in) { return static_cast<const std::uint8_t*>(in.q_out.data())[i]; };
      ASSERT_EQ(bytes(want), bytes(got)) << "padded head, token " << t << " byte " << i;
    }
  }
}

TEST_F(NormRopeGpu, QNormRopeInsertIsRef) {
  for (const InsertCase& c : insert_cases()) {
    check_insert(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, QNormRopeInsertTakesAllHeadsAndFormats) {
  const RowFormat* formats[] = {
      &fp8_ds_mla_rows(), &bf16_rows(),        &fp8_per_tensor_rows(), &f32_rows(),     nullptr,
      &index_fp8_rows(),  &index_mxfp4_rows(), &index_f32_rows(),      &fp8_v32_rows(), &state_rows(128, 2)};
  constexpr DType kOut[] = {DType::kBF16, DType::kE4M3, DType::kF32};
  constexpr std::int64_t kBlocks[] = {1, 2, 53, 64, 256};
  for (std::int64_t heads = 1; heads <= 128; ++heads) {
    const RowFormat* format = formats[heads % 10];
    check_insert({.tokens = 3,
                  .inserted = format == nullptr ? 0 : 2,
                  .heads = heads,
                  .out_heads = heads + heads % 3,
                  .format = format,
                  .block_size = kBlocks[heads % 5],
                  .in = heads % 4 == 0 ? DType::kF32 : DType::kBF16,
                  .q_out = kOut[heads % 3],
                  .scale = 0.7F,
                  .hostile = heads % 7 == 0});
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, QInPlaceHasTheSameBits) {
  for (const std::int64_t heads : {1, 7, 8, 13, 64}) {
    for (const DType type : {DType::kBF16, DType::kF32}) {
      const InsertCase c{.tokens = 11,
                         .inserted = 9,
                         .heads = heads,
                         .out_heads = heads,
                         .format = &fp8_ds_mla_rows(),
                         .in = type,
                         .q_out = type};
      InsertInputs apart = make_inputs(c);
      InsertInputs in_place = make_inputs(c);
      run_on_gpu<QNormRopeInsert>(c.problem(), apart.args);
      in_place.args.q_out = in_place.q.view();
      run_on_gpu<QNormRopeInsert>(c.problem(), in_place.args);
      SCOPED_TRACE(testing::Message() << c);
      expect_equal_bytes(apart.q_out, in_place.q);
      expect_equal_caches(apart.cache, in_place.cache);
    }
  }
}

TEST_F(NormRopeGpu, QNormRopeOfAnyShapeIsRef) {
  for (const Shape& s : kShapes) {
    for (const DType in : kFloats) {
      for (const DType out : {DType::kBF16, DType::kF32, DType::kE4M3}) {
        SCOPED_TRACE(testing::Message() << "dim " << s.dim << " rope " << s.rope_dim << " gap " << s.gap << " "
                                        << name_of(in) << " " << name_of(out));
        constexpr std::int64_t kTokens = 3;
        constexpr std::int64_t kHeads = 9;
        std::mt19937_64 random(3);
        HostTensor q = wide(in, kTokens, kHeads, s.dim, s.gap);
        fill_activations(q, random);
        const HostTensor cos_sin = rope_rows(40, s.rope_dim);
        const std::vector<std::int64_t> positions{39, 40, 17};
        HostTensor want = wide(out, kTokens, kHeads + 1, s.dim, s.gap);
        poison(want);
        HostTensor got = want.clone();
        const QNormRopeInsert::Problem p{.tokens = kTokens,
                                         .heads = kHeads,
                                         .out_heads = kHeads + 1,
                                         .dim = s.dim,
                                         .rope_dim = s.rope_dim,
                                         .in = in,
                                         .q_out = out,
                                         .q_scale_inv = 1.3F};
        const auto args = [&](HostTensor& y) {
          return QNormRopeInsert::Args{.q = inner(std::as_const(q), s.gap),
                                       .positions = view_of(positions.data(), {kTokens}),
                                       .cos_sin = cos_sin.view(),
                                       .q_out = inner(y, s.gap)};
        };
        run_ref<QNormRopeInsert>(p, args(want));
        run_on_gpu<QNormRopeInsert>(p, args(got));
        expect_close_rows(want, got, width_of(want));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(NormRopeGpu, RowsWhoseScalesAreWrittenSeveralTimesAreRefused) {
  const RowFormat& rows = row_format("index_fp8_ue8m0");
  for (const Candidate& c : explain<InsertRows>({.tokens = 4, .format = &rows}, {.device = DeviceKind::kCuda}))
    EXPECT_FALSE(c.refusal.empty()) << c.name;
}

TEST_F(NormRopeGpu, InsertRowsIsRefByteForByte) {
  for (const RowFormat* format : all_row_formats()) {
    if (format->name == "index_fp8_ue8m0") continue;  // refused, see above
    for (const std::int64_t block_size : {1, 2, 53, 64, 256}) {
      for (const DType in : kFloats) {
        for (const ClampRule clamp : {ClampRule::kAmax, ClampRule::kScale}) {
          for (const std::int64_t gap : {0, 13, 24}) {  // 13: blocks at any address
            SCOPED_TRACE(testing::Message() << "blocks of " << block_size << " " << name_of(in) << " gap " << gap);
            const Inserted want(*format, 40, in, block_size, clamp, gap % 7, gap);
            const Inserted got(*format, 40, in, block_size, clamp, gap % 7, gap);
            run_ref<InsertRows>(want.problem, want.args());
            run_on_gpu<InsertRows>(got.problem, got.args());
            expect_equal_caches(want.cache, got.cache);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(NormRopeGpu, NothingToDoIsNothingDone) {
  for (const std::int64_t tokens : {0, 5}) {
    const Inserted want(fp8_ds_mla_rows(), tokens, DType::kBF16, 64, ClampRule::kAmax, 0, 0);
    Inserted got(fp8_ds_mla_rows(), tokens, DType::kBF16, 64, ClampRule::kAmax, 0, 0);
    got.slots.assign(static_cast<std::size_t>(tokens), -1);
    run_on_gpu<InsertRows>(got.problem, got.args());
    expect_equal_caches(want.cache, got.cache);
    InsertRows::Args none = got.args();
    none.slot_mapping = none.slot_mapping.slice(0, 0, 0);
    run_on_gpu<InsertRows>(got.problem, none);
    expect_equal_caches(want.cache, got.cache);
  }
}

}  // namespace
}  // namespace smla
