// What all of the norm_rope family must bear on the GPU: any base address, more rows than a grid's y dimension,
// repeats.
#include "gpu/norm_rope_gpu.h"

#include "gpu/shifted_run.h"

namespace smla {
namespace {

using namespace norm_rope_gpu;
using test::run_on_gpu;
using test::run_shifted;

TEST_F(NormRopeGpu, AnyBaseWillDo) {
  for (const std::int64_t shift : {1, 2, 3, 4}) {
    SCOPED_TRACE(shift);
    const RmsNormCase norm{.problem = {.rows = 3, .dim = 512}};
    const RmsNormInputs want_norm = make_inputs(norm);
    const RmsNormInputs got_norm = make_inputs(norm);
    run_ref<RmsNorm>(norm.problem, want_norm.args);
    run_shifted<RmsNorm>(norm.problem, got_norm.args, shift);
    expect_close_rows(want_norm.y, got_norm.y, 520);

    for (const RowFormat* format :
         {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &index_mxfp4_rows(), &index_fp8_rows()}) {
      const InsertCase c{.tokens = 5,
                         .inserted = 4,
                         .heads = 3,
                         .out_heads = 4,
                         .format = format,
                         .q_out = DType::kE4M3,
                         .scale = 1.1F};
      const InsertInputs want = make_inputs(c);
      const InsertInputs got = make_inputs(c);
      run_ref<QNormRopeInsert>(c.problem(), want.args);
      run_shifted<QNormRopeInsert>(c.problem(), got.args, shift);
      expect_close_rows(want.q_out, got.q_out, c.problem().dim);
      expect_equal_caches(want.cache, got.cache);
    }

    const InverseCase inverse{.problem = {.tokens = 4, .heads = 3}};
    const InverseInputs want_inverse = make_inputs(inverse);
    const InverseInputs got_inverse = make_inputs(inverse);
    run_ref<InverseRope>(inverse.problem, want_inverse.args);
    run_shifted<InverseRope>(inverse.problem, got_inverse.args, shift);
    expect_equal_bytes(want_inverse.y, got_inverse.y);

    const QuantCase quant{.tokens = 5, .scale = OutputScale::kUe8m0x4};
    QuantRun want_quant(quant);
    QuantRun got_quant(quant);
    run_ref<InverseRopeQuant>(quant.problem(), want_quant.args());
    run_shifted<InverseRopeQuant>(quant.problem(), got_quant.args(), shift);
    expect_equal_bytes(want_quant.values, got_quant.values);
    expect_equal_bytes(want_quant.scales, got_quant.scales);

    const RowsCase rows{.problem = {.rows = 5, .dim = 640, .in = DType::kF32}};
    RowsRun want_rows(rows);
    RowsRun got_rows(rows);
    run_ref<QuantizeRows>(rows.problem, want_rows.args());
    run_shifted<QuantizeRows>(rows.problem, got_rows.args(), shift);
    expect_equal_bytes(want_rows.values, got_rows.values);
    expect_equal_bytes(want_rows.scales, got_rows.scales);

    for (const RowFormat* format : all_row_formats()) {
      if (format->name == "index_fp8_ue8m0") continue;  // RowsWhoseScalesAreWrittenSeveralTimesAreRefused
      const Inserted want(*format, 7, DType::kF32, 2, ClampRule::kAmax, 0, 0);
      const Inserted got(*format, 7, DType::kF32, 2, ClampRule::kAmax, 0, 0);
      run_ref<InsertRows>(want.problem, want.args());
      run_shifted<InsertRows>(got.problem, got.args(), shift);
      expect_equal_caches(want.cache, got.cache);
    }
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, MoreThan65535Rows) {
  constexpr std::int64_t kRows = 70000;
  const RmsNormCase norm{.problem = {.rows = kRows, .dim = 16}};
  const RmsNormInputs want_norm = make_inputs(norm);
  const RmsNormInputs got_norm = make_inputs(norm);
  run_ref<RmsNorm>(norm.problem, want_norm.args);
  run_on_gpu<RmsNorm>(norm.problem, got_norm.args);
  expect_close_rows(want_norm.y, got_norm.y, 24);

  // Long rows have a block each. Row r begins at number 4r of one buffer.
  constexpr std::int64_t kDim = 2052;
  std::mt19937_64 random(8);
  HostTensor numbers(DType::kBF16, {4 * kRows + kDim});
  HostTensor y(DType::kBF16, {kRows, kDim});
  fill_activations(numbers, random);
  RmsNorm::Args overlapping{.x = ConstTensorView(numbers.data(), DType::kBF16, {kRows, kDim}), .y = y.view()};
  overlapping.x.stride[0] = 4;
  run_on_gpu<RmsNorm>({.rows = kRows, .dim = kDim, .has_weight = false}, overlapping);
  for (const std::int64_t r : {std::int64_t{0}, std::int64_t{65535}, std::int64_t{65536}, kRows - 1}) {
    HostTensor row(DType::kBF16, {1, kDim});
    run_on_gpu<RmsNorm>({.rows = 1, .dim = kDim, .has_weight = false},
                        {.x = overlapping.x.slice(0, r, r + 1), .y = row.view()});
    ASSERT_EQ(0, std::memcmp(row.data(), y.as<BF16>() + r * kDim, row.bytes())) << "row " << r;
  }

  const InsertCase insert{
      .tokens = kRows, .inserted = kRows, .heads = 1, .out_heads = 1, .format = &index_fp8_rows(), .hostile = true};
  const InsertInputs want = make_inputs(insert);
  const InsertInputs got = make_inputs(insert);
  run_ref<QNormRopeInsert>(insert.problem(), want.args);
  run_on_gpu<QNormRopeInsert>(insert.problem(), got.args);
  expect_close_rows(want.q_out, got.q_out, 128);
  expect_equal_caches(want.cache, got.cache);
}

TEST_F(NormRopeGpu, TwentyRepeatsAreTheSameBits) {
  const RmsNormCase norm{.problem = {.rows = 33, .dim = 7168}};
  const InsertCase insert{
      .tokens = 33, .inserted = 30, .heads = 13, .out_heads = 16, .format = &fp8_ds_mla_rows(), .hostile = true};
  const QuantCase quant{.tokens = 33, .heads = 16, .groups = 4, .scale = OutputScale::kUe8m0x4};
  const RmsNormInputs first_norm = make_inputs(norm);
  const InsertInputs first_insert = make_inputs(insert);
  QuantRun first_quant(quant);
  run_on_gpu<RmsNorm>(norm.problem, first_norm.args);
  run_on_gpu<QNormRopeInsert>(insert.problem(), first_insert.args);
  run_on_gpu<InverseRopeQuant>(quant.problem(), first_quant.args());
  for (int i = 0; i < 20; ++i) {
    const RmsNormInputs norm_again = make_inputs(norm);
    const InsertInputs insert_again = make_inputs(insert);
    QuantRun quant_again(quant);
    run_on_gpu<RmsNorm>(norm.problem, norm_again.args);
    run_on_gpu<QNormRopeInsert>(insert.problem(), insert_again.args);
    run_on_gpu<InverseRopeQuant>(quant.problem(), quant_again.args());
    expect_equal_bytes(first_norm.y, norm_again.y);
    expect_equal_bytes(first_insert.q_out, insert_again.q_out);
    expect_equal_caches(first_insert.cache, insert_again.cache);
    expect_equal_bytes(first_quant.values, quant_again.values);
    expect_equal_bytes(first_quant.scales, quant_again.scales);
  }
}

}  // namespace
}  // namespace smla
