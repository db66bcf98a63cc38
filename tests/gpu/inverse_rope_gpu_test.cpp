// Rotation back and quantisation on the GPU against `_ref`, byte for byte.
#include "gpu/norm_rope_gpu.h"

namespace smla {
namespace {

using namespace norm_rope_gpu;
using test::run_on_gpu;

void check_inverse(const InverseCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const InverseInputs want = make_inputs(c);
  InverseInputs got = make_inputs(c);
  run_ref<InverseRope>(c.problem, want.args);
  run_on_gpu<InverseRope>(c.problem, got.args);
  expect_equal_bytes(want.y, got.y);
  if (testing::Test::HasFatalFailure() || c.problem.in != c.problem.out) return;
  InverseRope::Args same = got.args;
  same.y = got.x.view().slice(1, 0, c.problem.heads);
  const HostTensor before = got.x.clone();
  run_on_gpu<InverseRope>(c.problem, same);
  const std::int64_t dim = c.problem.dim;
  for (std::int64_t t = 0; t < c.problem.tokens; ++t) {
    const std::int64_t position = got.positions.as<std::int64_t>()[t];
    const bool skipped = position < 0 || position >= 300;
    for (std::int64_t h = 0; h < c.problem.heads + c.extra_heads; ++h) {
      const std::int64_t x = (t * (c.problem.heads + c.extra_heads) + h) * dim;
      const std::int64_t y = (t * (c.problem.heads + 1) + h) * dim;
      const bool kept = skipped || h >= c.problem.heads;
      for (std::int64_t i = 0; i < dim; ++i) {
        ASSERT_EQ(kept ? element(before, x + i) : element(want.y, y + i), element(got.x, x + i))
            << "in place, " << t << " " << h << " " << i;
      }
    }
  }
}

TEST_F(NormRopeGpu, InverseRopeIsRefByteForByte) {
  for (const InverseCase& c : inverse_cases()) {
    check_inverse(c);
    if (HasFatalFailure()) return;
  }
  for (std::int64_t heads = 1; heads <= 128; ++heads) {
    check_inverse(
        {.problem = {.tokens = 2, .heads = heads, .dim = heads % 2 == 0 ? 512 : 128}, .extra_heads = heads % 3});
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, InverseRopeOfAnyShapeIsRefByteForByte) {
  for (const Shape& s : kShapes) {
    for (const DType in : kFloats) {
      for (const DType out : kFloats) {
        SCOPED_TRACE(testing::Message() << "dim " << s.dim << " rope " << s.rope_dim << " gap " << s.gap << " "
                                        << name_of(in) << " " << name_of(out));
        std::mt19937_64 random(4);
        HostTensor x = wide(in, 3, 5, s.dim, s.gap);
        fill_activations(x, random);
        const HostTensor cos_sin = rope_rows(40, s.rope_dim);
        const std::vector<std::int64_t> positions{39, -1, 17};
        HostTensor want = wide(out, 3, 5, s.dim, s.gap);
        poison(want);
        HostTensor got = want.clone();
        const InverseRope::Problem p{
            .tokens = 3, .heads = 5, .dim = s.dim, .rope_dim = s.rope_dim, .in = in, .out = out};
        const auto run = [&](HostTensor& y, auto&& on) {
          on(p, InverseRope::Args{.x = inner(std::as_const(x), s.gap),
                                  .positions = view_of(positions.data(), {3}),
                                  .cos_sin = cos_sin.view(),
                                  .y = inner(y, s.gap)});
        };
        run(want, run_ref<InverseRope>);
        run(got, [](const auto& problem, const auto& args) { run_on_gpu<InverseRope>(problem, args); });
        expect_equal_bytes(want, got);
        if (in == out) {
          HostTensor in_place = x.clone();
          run_on_gpu<InverseRope>(p, {.x = inner(in_place, s.gap),
                                      .positions = view_of(positions.data(), {3}),
                                      .cos_sin = cos_sin.view(),
                                      .y = inner(in_place, s.gap)});
          run(x, [](const auto& problem, auto args) {
            args.x = args.y;
            run_ref<InverseRope>(problem, args);
          });
          expect_equal_bytes(x, in_place);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(NormRopeGpu, InverseRopeQuantIsRefByteForByte) {
  std::vector<QuantCase> cases = quant_cases();
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const int dim :
         {128, 256, 384, 640, 1024, 2048}) {  // words of four that heads share, and rows longer than a warp's registers
      cases.push_back({.tokens = 7, .heads = 10, .groups = 2, .dim = dim, .scale = scale});
      cases.push_back({.tokens = 6, .heads = 9, .groups = 1, .dim = dim, .in = DType::kF32, .scale = scale});
      cases.push_back({.tokens = 2, .heads = 3, .groups = 3, .dim = dim, .scale = scale});
    }
    cases.push_back({.tokens = 0, .heads = 8, .scale = scale});
    cases.push_back({.tokens = 3, .heads = 0, .groups = 2, .scale = scale});
  }
  for (const QuantCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    QuantRun want(c);
    QuantRun got(c);
    run_ref<InverseRopeQuant>(c.problem(), want.args());
    run_on_gpu<InverseRopeQuant>(c.problem(), got.args());
    expect_equal_bytes(want.values, got.values);
    expect_equal_bytes(want.scales, got.scales);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, InverseRopeQuantIntoStridedOutputs) {
  for (const OutputScale scale : {OutputScale::kF32, OutputScale::kUe8m0x4}) {
    for (const std::int64_t gap : {1, 4}) {
      const QuantCase c{.tokens = 5, .heads = 12, .groups = 4, .dim = 384, .scale = scale};
      const auto run = [&](QuantRun& r, auto&& on) {
        r.values = HostTensor(DType::kE4M3, {c.groups, c.tokens + 1, c.width() + gap});
        r.scales = HostTensor(r.scales.dtype(), {c.groups, c.scale_rows() + 2, c.padded() + gap});
        poison(r.values);
        poison(r.scales);
        InverseRopeQuant::Args args = r.args();
        args.values = args.values.slice(1, 0, c.tokens).slice(2, 0, c.width());
        args.scales = args.scales.slice(1, 0, c.scale_rows()).slice(2, 0, c.padded());
        on(c.problem(), args);
      };
      QuantRun want(c);
      QuantRun got(c);
      run(want, run_ref<InverseRopeQuant>);
      run(got, [](const auto& problem, const auto& args) { run_on_gpu<InverseRopeQuant>(problem, args); });
      SCOPED_TRACE(testing::Message() << c << " gap " << gap);
      expect_equal_bytes(want.values, got.values);
      expect_equal_bytes(want.scales, got.scales);
    }
  }
}

TEST_F(NormRopeGpu, QuantizeRowsIsRefByteForByte) {
  std::vector<RowsCase> cases = rows_cases();
  cases.push_back({.problem = {.rows = 2049, .dim = 1536}});
  for (const RowsCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    RowsRun want(c);
    RowsRun got(c);
    run_ref<QuantizeRows>(c.problem, want.args());
    run_on_gpu<QuantizeRows>(c.problem, got.args());
    expect_equal_bytes(want.values, got.values);
    expect_equal_bytes(want.scales, got.scales);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace smla
