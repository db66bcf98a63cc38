// The norm_rope family on the GPU against `_ref`: what stands behind a sum within the bounds of the family's other implementations, all else and every
// cache byte for byte.
#include "gpu/gpu_run.h"
#include "gpu/shifted_run.h"
#include "parity/norm_rope_compare.h"

namespace smla {
namespace {

using namespace norm_rope_cases;
using test::run_on_gpu;
using test::run_shifted;

class NormRopeGpu : public test::GpuTest {};

template <class Op>
void run_ref(const typename Op::Problem& problem, const typename Op::Args& args) {
  Plan<Op>(problem, {.implementation = "ref"}).run(args);
}

/// All of a tensor as rows of its last dimension.
std::int64_t width_of(const HostTensor& t) { return t.size(t.rank() - 1); }

/// Tensor [tokens, heads + 1, dim + gap] of which a view takes [tokens, heads, dim], so that strides and base are what `gap` makes them.
HostTensor wide(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t gap) {
  return HostTensor(dtype, {tokens, heads + 1, dim + gap});
}
template <class Tensor>
auto inner(Tensor& t, std::int64_t gap) {
  return t.view().slice(1, 0, t.size(1) - 1).slice(2, gap, t.size(2));
}

void expect_equal_caches(const OwnedCache& want, const OwnedCache& got) {
  ASSERT_EQ(want.bytes.size(), got.bytes.size());
  const auto at = std::mismatch(want.bytes.begin(), want.bytes.end(), got.bytes.begin()).first - want.bytes.begin();
  if (at == static_cast<std::ptrdiff_t>(want.bytes.size())) return;
  const PagedCache& c = want.cache;
  const std::int64_t in_block = at % c.block_stride_bytes;
  const std::int64_t data = c.block_size * c.format->data_bytes;
  std::string where = "past the rows";
  if (in_block < data) {
    where = "row " + std::to_string(in_block / c.format->data_bytes) + " number byte " + std::to_string(in_block % c.format->data_bytes);
  } else if (in_block < block_bytes(*c.format, c.block_size)) {
    where = "row " + std::to_string((in_block - data) / c.format->scale_bytes) + " scale byte " +
            std::to_string((in_block - data) % c.format->scale_bytes);
  }
  FAIL() << c.format->name << " cache, block " << at / c.block_stride_bytes << ", " << where << ": want " << int{want.bytes[at]} << ", got "
         << int{got.bytes[at]};
}

TEST_F(NormRopeGpu, RmsNormIsRef) {
  std::vector<RmsNormCase> cases = rms_norm_cases();
  for (const std::int64_t dim : {4, 12, 128, 1020, 1028, 2044, 2048, 2052, 4100, 8192, 20000}) {
    cases.push_back({.problem = {.rows = 9, .dim = dim}, .row_gap = dim % 8});
    cases.push_back({.problem = {.rows = 2, .dim = dim, .in = DType::kF32, .out = DType::kF32}, .weight = DType::kBF16, .row_gap = 4});
    cases.push_back({.problem = {.rows = 3, .dim = dim + 1, .out = DType::kF32}, .weight = DType::kF32, .row_gap = 1});
  }
  for (const RmsNormCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    const RmsNormInputs want = make_inputs(c);
    const RmsNormInputs got = make_inputs(c);
    run_ref<RmsNorm>(c.problem, want.args);
    run_on_gpu<RmsNorm>(c.problem, got.args);
    expect_close_rows(want.y, got.y, c.problem.dim + 8);
    if (c.problem.dim2 > 0) expect_close_rows(want.y2, got.y2, c.problem.dim2);
    const std::int64_t row_bytes = (c.problem.dim + 8) * size_of(c.problem.out);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(got.y.bytes()); ++i) {
      if (i % row_bytes < c.problem.dim * size_of(c.problem.out)) continue;
      ASSERT_EQ(static_cast<const std::uint8_t*>(got.y.data())[i], kPoison) << "byte " << i << " past a row was written";
    }
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, RmsNormInPlaceHasTheSameBits) {
  for (const RmsNormCase& c : rms_norm_cases()) {
    if (c.problem.in != c.problem.out) continue;
    SCOPED_TRACE(testing::Message() << c);
    RmsNormInputs in = make_inputs(c);
    run_on_gpu<RmsNorm>(c.problem, in.args);
    RmsNorm::Args same = in.args;
    same.y = in.x.view().slice(1, c.row_gap, c.row_gap + c.problem.dim);
    run_on_gpu<RmsNorm>(c.problem, same);
    for (std::int64_t r = 0; r < c.problem.rows; ++r) {
      for (std::int64_t i = 0; i < c.problem.dim; ++i) {
        ASSERT_EQ(element(in.y, r * (c.problem.dim + 8) + i), element(in.x, r * (c.problem.dim + c.row_gap) + c.row_gap + i)) << r << " " << i;
      }
    }
  }
}

TEST_F(NormRopeGpu, ARowsBitsAreItsOwn) {
  for (const std::int64_t dim : {512, 1536, 2048, 2052, 7168}) {
    const RmsNormCase c{.problem = {.rows = 21, .dim = dim}};
    const RmsNormInputs all = make_inputs(c);
    run_on_gpu<RmsNorm>(c.problem, all.args);
    for (const std::int64_t r : {0, 7, 8, 20}) {
      const RmsNormInputs one = make_inputs(c);
      RmsNorm::Args args = one.args;
      args.x = args.x.slice(0, r, r + 1);
      args.y = args.y.slice(0, r, r + 1);
      run_on_gpu<RmsNorm>({.rows = 1, .dim = dim}, args);
      for (std::int64_t i = r * (dim + 8); i < (r + 1) * (dim + 8); ++i) ASSERT_EQ(all.y.as<BF16>()[i].bits, one.y.as<BF16>()[i].bits) << i;
    }
  }
}

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
  const RowFormat* formats[] = {&fp8_ds_mla_rows(), &bf16_rows(),        &fp8_per_tensor_rows(), &f32_rows(),     nullptr,
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
      const InsertCase c{.tokens = 11, .inserted = 9, .heads = heads, .out_heads = heads, .format = &fp8_ds_mla_rows(), .in = type, .q_out = type};
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

struct Shape {
  int dim;
  int rope_dim;
  std::int64_t gap;
};
/// Rows that no vector fits, pairs that begin at odd numbers, rows longer than a warp's registers.
constexpr Shape kShapes[] = {{1, 0, 2},   {2, 2, 0},     {7, 4, 1},    {5, 4, 3},    {33, 32, 3},  {34, 30, 4},   {511, 64, 0},
                             {513, 2, 5}, {514, 514, 2}, {512, 62, 4}, {516, 64, 4}, {1030, 6, 0}, {2048, 64, 8}, {2047, 2046, 1}};
constexpr DType kFloats[] = {DType::kBF16, DType::kF32};

TEST_F(NormRopeGpu, QNormRopeOfAnyShapeIsRef) {
  for (const Shape& s : kShapes) {
    for (const DType in : kFloats) {
      for (const DType out : {DType::kBF16, DType::kF32, DType::kE4M3}) {
        SCOPED_TRACE(testing::Message() << "dim " << s.dim << " rope " << s.rope_dim << " gap " << s.gap << " " << name_of(in) << " "
                                        << name_of(out));
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
        ASSERT_EQ(kept ? element(before, x + i) : element(want.y, y + i), element(got.x, x + i)) << "in place, " << t << " " << h << " " << i;
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
    check_inverse({.problem = {.tokens = 2, .heads = heads, .dim = heads % 2 == 0 ? 512 : 128}, .extra_heads = heads % 3});
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, InverseRopeOfAnyShapeIsRefByteForByte) {
  for (const Shape& s : kShapes) {
    for (const DType in : kFloats) {
      for (const DType out : kFloats) {
        SCOPED_TRACE(testing::Message() << "dim " << s.dim << " rope " << s.rope_dim << " gap " << s.gap << " " << name_of(in) << " "
                                        << name_of(out));
        std::mt19937_64 random(4);
        HostTensor x = wide(in, 3, 5, s.dim, s.gap);
        fill_activations(x, random);
        const HostTensor cos_sin = rope_rows(40, s.rope_dim);
        const std::vector<std::int64_t> positions{39, -1, 17};
        HostTensor want = wide(out, 3, 5, s.dim, s.gap);
        poison(want);
        HostTensor got = want.clone();
        const InverseRope::Problem p{.tokens = 3, .heads = 5, .dim = s.dim, .rope_dim = s.rope_dim, .in = in, .out = out};
        const auto run = [&](HostTensor& y, auto&& on) {
          on(p,
             InverseRope::Args{
                 .x = inner(std::as_const(x), s.gap), .positions = view_of(positions.data(), {3}), .cos_sin = cos_sin.view(), .y = inner(y, s.gap)});
        };
        run(want, run_ref<InverseRope>);
        run(got, [](const auto& problem, const auto& args) { run_on_gpu<InverseRope>(problem, args); });
        expect_equal_bytes(want, got);
        if (in == out) {
          HostTensor in_place = x.clone();
          run_on_gpu<InverseRope>(
              p, {.x = inner(in_place, s.gap), .positions = view_of(positions.data(), {3}), .cos_sin = cos_sin.view(), .y = inner(in_place, s.gap)});
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
    for (const int dim : {128, 256, 384, 640, 1024, 2048}) {  // words of four that heads share, and rows longer than a warp's registers
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

/// Rows, slots and a cache of InsertRows.
struct Inserted {
  HostTensor rows;
  std::vector<std::int64_t> slots;
  OwnedCache cache;
  InsertRows::Problem problem;
  std::int64_t gap = 0;

  Inserted(const RowFormat& format, std::int64_t tokens, DType in, std::int64_t block_size, ClampRule clamp, std::int64_t row_gap,
           std::int64_t block_gap)
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
    const std::int64_t bad[] = {-1, cache.cache.num_slots(), std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(),
                                INT32_MAX};
    for (std::int64_t t = 0; t + t / 8 < tokens; ++t) slots.push_back(t % 6 == 5 ? bad[t / 6 % 5] : order[static_cast<std::size_t>(t)]);
  }
  InsertRows::Args args() const {
    PagedCache to = cache.cache;
    to.base = const_cast<std::uint8_t*>(cache.bytes.data());
    return {.rows = rows.view().slice(1, gap, gap + problem.format->dim),
            .slot_mapping = view_of(slots.data(), {static_cast<std::int64_t>(slots.size())}),
            .cache = to};
  }
};

TEST_F(NormRopeGpu, InsertRowsIsRefByteForByte) {
  for (const RowFormat* format : all_row_formats()) {
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

TEST_F(NormRopeGpu, AnyBaseWillDo) {
  for (const std::int64_t shift : {1, 2, 3, 4}) {
    SCOPED_TRACE(shift);
    const RmsNormCase norm{.problem = {.rows = 3, .dim = 512}};
    const RmsNormInputs want_norm = make_inputs(norm);
    const RmsNormInputs got_norm = make_inputs(norm);
    run_ref<RmsNorm>(norm.problem, want_norm.args);
    run_shifted<RmsNorm>(norm.problem, got_norm.args, shift);
    expect_close_rows(want_norm.y, got_norm.y, 520);

    for (const RowFormat* format : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &index_mxfp4_rows(), &index_fp8_rows()}) {
      const InsertCase c{.tokens = 5, .inserted = 4, .heads = 3, .out_heads = 4, .format = format, .q_out = DType::kE4M3, .scale = 1.1F};
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
    run_on_gpu<RmsNorm>({.rows = 1, .dim = kDim, .has_weight = false}, {.x = overlapping.x.slice(0, r, r + 1), .y = row.view()});
    ASSERT_EQ(0, std::memcmp(row.data(), y.as<BF16>() + r * kDim, row.bytes())) << "row " << r;
  }

  const InsertCase insert{.tokens = kRows, .inserted = kRows, .heads = 1, .out_heads = 1, .format = &index_fp8_rows(), .hostile = true};
  const InsertInputs want = make_inputs(insert);
  const InsertInputs got = make_inputs(insert);
  run_ref<QNormRopeInsert>(insert.problem(), want.args);
  run_on_gpu<QNormRopeInsert>(insert.problem(), got.args);
  expect_close_rows(want.q_out, got.q_out, 128);
  expect_equal_caches(want.cache, got.cache);
}

TEST_F(NormRopeGpu, TwentyRepeatsAreTheSameBits) {
  const RmsNormCase norm{.problem = {.rows = 33, .dim = 7168}};
  const InsertCase insert{.tokens = 33, .inserted = 30, .heads = 13, .out_heads = 16, .format = &fp8_ds_mla_rows(), .hostile = true};
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
