// RMSNorm on the GPU against `_ref`, and the bits of its rows.
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "device/streams.h"
#include "gpu/norm_rope_gpu.h"
#include "parity/compressor_cases.h"

namespace smla {
namespace {

using namespace norm_rope_gpu;
using test::run_on_gpu;

TEST_F(NormRopeGpu, RmsNormIsRef) {
  std::vector<RmsNormCase> cases = rms_norm_cases();
  for (const std::int64_t dim : {4, 12, 128, 1020, 1028, 2044, 2048, 2052, 4100, 8192, 20000}) {
    cases.push_back({.problem = {.rows = 9, .dim = dim}, .row_gap = dim % 8});
    cases.push_back({.problem = {.rows = 2, .dim = dim, .in = DType::kF32, .out = DType::kF32},
                     .weight = DType::kBF16,
                     .row_gap = 4});
    cases.push_back({.problem = {.rows = 3, .dim = dim + 1, .out = DType::kF32}, .weight = DType::kF32, .row_gap = 1});
  }
  for (const RmsNormCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    const RmsNormInputs want = make_inputs(c);
    const RmsNormInputs got = make_inputs(c);
    run_ref<RmsNorm>(c.problem, want.args);
    run_on_gpu<RmsNorm>(c.problem, got.args);
    expect_close_norm(c, want, got);
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
        ASSERT_EQ(element(in.y, r * (c.problem.dim + 8) + i),
                  element(in.x, r * (c.problem.dim + c.row_gap) + c.row_gap + i))
            << r << " " << i;
      }
    }
  }
}

TEST_F(NormRopeGpu, LatentNormsAreRef) {
  for (const LatentNormsCase& c : latent_norms_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const LatentNormsInputs want = make_inputs(c);
    LatentNormsInputs got = make_inputs(c);
    run_ref<LatentNorms>(c.problem, want.args());
    run_on_gpu<LatentNorms>(c.problem, got.args());
    expect_close_norm(c.qr(), want.qr, got.qr);
    expect_close_norm(c.kv(), want.kv, got.kv);
    if (HasFatalFailure()) return;
    if (c.problem.in != c.problem.out) continue;
    LatentNorms::Args same = got.args();
    same.qr_out = got.qr.x.view().slice(1, c.row_gap, c.row_gap + c.problem.qr_dim);
    same.kv_out = got.kv.x.view().slice(1, c.row_gap, c.row_gap + c.problem.kv_dim);
    run_on_gpu<LatentNorms>(c.problem, same);
    const auto expect_in_place = [&](const RmsNormInputs& in, std::int64_t dim) {
      for (std::int64_t r = 0; r < c.problem.rows; ++r) {
        for (std::int64_t i = 0; i < dim; ++i)
          ASSERT_EQ(element(in.y, r * (dim + 8) + i), element(in.x, r * (dim + c.row_gap) + c.row_gap + i));
      }
    };
    expect_in_place(got.qr, c.problem.qr_dim);
    expect_in_place(got.kv, c.problem.kv_dim);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, LatentNormsThatQuantiseAreTheTwoOps) {
  for (const LatentNormsCase& c : quantised_norms_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    LatentNormsCase plain = c;
    plain.problem.quantises_qr = false;
    const LatentNormsInputs want = make_inputs(plain);
    run_on_gpu<LatentNorms>(plain.problem, want.args());
    test::QuantisedRows wanted = quantised_qr(c.problem);
    run_ref<QuantizeRows>({.rows = c.problem.rows, .dim = c.problem.qr_dim, .in = c.problem.out},
                          wanted.args(want.args().qr_out));
    const LatentNormsInputs got = make_inputs(c);
    test::QuantisedRows quantised = quantised_qr(c.problem);
    LatentNorms::Args args = got.args();
    args.qr_values = quantised.rows();
    args.qr_scales = quantised.scales.view();
    run_on_gpu<LatentNorms>(c.problem, args);
    expect_equal_bytes(want.qr.y, got.qr.y);
    expect_equal_bytes(want.kv.y, got.kv.y);
    expect_equal_bytes(wanted.values, quantised.values);
    expect_equal_bytes(wanted.scales, quantised.scales);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NormRopeGpu, LatentNormsThatInsertAreTheThreeOps) {
  for (const NormInsertCase& c : norm_insert_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    NormInsertInputs want(c);
    run_on_gpu<LatentNorms>(c.problem(false), want.args(c, false));
    QNormRopeInsert::Args insert = want.insert.args;
    insert.kv = std::as_const(want.kv_out).view();
    run_on_gpu<QNormRopeInsert>(c.insert.problem(), insert);
    for (const bool beside : {false, true}) {
      NormInsertInputs got(c);
      LatentNorms::Args args = got.args(c, true);
      args.beside_previous = beside;
      run_on_gpu<LatentNorms>(c.problem(true), args);
      expect_equal_bytes(want.qr_out, got.qr_out);
      expect_equal_caches(want.insert.cache, got.insert.cache);
      if (HasFatalFailure()) return;
    }
  }
}

/// Queues what writes the rows that norms read.
using WriteRows = std::function<void(const LatentNorms::Args&, Stream)>;

void double_rows(const ConstTensorView& rows, Stream stream) {
  const AddRows::Problem p{.rows = rows.size(0), .dim = rows.size(1), .dtype = rows.dtype};
  TensorView x(const_cast<void*>(rows.data), rows.dtype, {rows.size(0), rows.size(1)});
  x.stride = rows.stride;
  Plan<AddRows>(p, {.device = DeviceKind::kCuda}).run({.y = rows, .x = x}, {}, stream);
}

/// What norms and insertion make of rows that `write` has written just ahead, `times` times, behind a compressor. As a
/// graph: launches one by one come so late that what is ahead of them has ended.
void norms_behind_compressor(const NormInsertCase& c, int times, bool beside, const WriteRows& write,
                             NormInsertInputs& in) {
  const std::vector<compressor_cases::CompressorCase> cases = compressor_cases::all_cases();
  const auto has_tokens = [](const compressor_cases::CompressorCase& pool) { return pool.tokens() > 0; };
  const auto pooled_case = std::ranges::find_if(cases, has_tokens);
  ASSERT_NE(pooled_case, cases.end());
  const compressor_cases::CompressorCase& pooled = *pooled_case;
  const compressor_cases::CompressorInputs pools = make_inputs(pooled);
  const Plan<CompressStore> compress(pooled.store(), {.device = DeviceKind::kCuda});
  StagedTensors of_compressor(DeviceKind::kCuda);
  const CompressStore::Args pool = of_compressor.bring<CompressStore>(pools.saving());
  StagedTensors of_norms(DeviceKind::kCuda);
  LatentNorms::Args args = of_norms.bring<LatentNorms>(in.args(c, true));
  args.beside_previous = beside;
  const Plan<LatentNorms> norms(c.problem(true), {.device = DeviceKind::kCuda});
  const OwnedStream stream(DeviceKind::kCuda);
  const Graph graph(stream.get(), [&] {
    for (int i = 0; i < times; ++i) {
      write(args, stream.get());
      compress.run(pool, {}, stream.get());
      norms.run(args, {}, stream.get());
    }
  });
  synchronize(DeviceKind::kCuda);
  graph.launch(stream.get());
  synchronize(DeviceKind::kCuda, stream.get());
  of_norms.back();
}

/// `writer` makes what writes the rows, anew for each run.
void expect_same_beside(const NormInsertCase& c, int times, const std::function<WriteRows()>& writer) {
  SCOPED_TRACE(testing::Message() << c << ", " << times << " times");
  NormInsertInputs want(c);
  NormInsertInputs got(c);
  norms_behind_compressor(c, times, false, writer(), want);
  norms_behind_compressor(c, times, true, writer(), got);
  expect_equal_bytes(want.qr, got.qr);
  expect_equal_bytes(want.qr_out, got.qr_out);
  expect_equal_caches(want.insert.cache, got.insert.cache);
}

TEST_F(NormRopeGpu, LatentNormsBesideACompressorReadWhatIsAheadOfIt) {
  int checked = 0;
  for (const NormInsertCase& c : norm_insert_cases()) {
    if (c.dim % 4 != 0 || c.dim == 0) continue;
    expect_same_beside(c, 2, []() -> WriteRows {
      return [](const LatentNorms::Args& args, Stream stream) {
        double_rows(args.qr, stream), double_rows(args.kv, stream);
      };
    });
    if (HasFatalFailure()) return;
    ++checked;
  }
  EXPECT_GT(checked, 10);
}

/// As in a layer: a product that lets the compressor start long before it has written its outputs.
TEST_F(NormRopeGpu, LatentNormsBesideACompressorReadWhatAProductAheadOfItWrites) {
  constexpr std::int64_t kInputs = 4096;
  int checked = 0;
  for (const NormInsertCase& c : norm_insert_cases()) {
    if (c.insert.in != DType::kBF16 || c.insert.tokens > 8 || c.dim != 1024) continue;
    const std::int64_t rows = c.insert.tokens;
    const std::int64_t outputs[] = {c.dim, c.insert.problem().dim};
    std::mt19937_64 random(9);
    HostTensor x(DType::kBF16, {rows, 1, kInputs});
    fill_activations(x, random);
    JointProjection::Problem p{.m = rows, .k = kInputs, .parts = 2};
    JointProjection::Args host{.x = std::as_const(x).view()};
    HostTensor w[2];
    HostTensor y[2];
    for (std::size_t i = 0; i < 2; ++i) {
      w[i] = HostTensor(DType::kBF16, {1, outputs[i], kInputs});
      y[i] = HostTensor(DType::kBF16, {rows, 1, outputs[i]});
      fill_activations(w[i], random);
      p.part[i] = {.n = outputs[i]};
      host.parts[i] = {.w = std::as_const(w[i]).view(), .y = y[i].view()};
    }
    const Plan<JointProjection> product(
        p, {.device = DeviceKind::kCuda, .implementation = std::string(JointProjection::kOneLaunch)});
    const auto writer = [&]() -> WriteRows {
      const auto staged = std::make_shared<StagedTensors>(DeviceKind::kCuda);
      return [&, staged, args = staged->bring<JointProjection>(host)](const LatentNorms::Args& norms,
                                                                      Stream stream) mutable {
        const ConstTensorView* const written[] = {&norms.qr, &norms.kv};
        for (std::size_t i = 0; i < 2; ++i) {
          args.parts[i].y = TensorView(const_cast<void*>(written[i]->data), DType::kBF16, {rows, 1, outputs[i]});
          args.parts[i].y.stride[0] = written[i]->stride[0];
        }
        double_rows(ConstTensorView(args.x.data, DType::kBF16, {rows, kInputs}), stream);
        product.run(args, {}, stream);
      };
    };
    expect_same_beside(c, 8, writer);
    if (HasFatalFailure()) return;
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

TEST_F(NormRopeGpu, AddRowsIsRef) {
  for (const std::int64_t dim : {0, 1, 3, 4, 128, 1021, 4096, 4098, 7168, 20000}) {
    for (const std::int64_t rows : {0, 1, 5, 300}) {
      for (const std::int64_t gap : {0, 1, 4}) {
        for (const bool f32 : {false, true}) {
          for (const bool normed : {false, true}) {
            const AddRows::Problem p{
                .rows = rows, .dim = dim, .dtype = f32 ? DType::kF32 : DType::kBF16, .normed = normed, .eps = 1e-3F};
            SCOPED_TRACE(testing::Message() << rows << " rows of " << dim << ", gap " << gap
                                            << (f32 ? ", f32" : ", bf16") << (normed ? ", normed" : ""));
            std::mt19937_64 random(11);
            HostTensor y(p.dtype, {rows, dim + 4 - gap});
            HostTensor want(p.dtype, {rows, dim + gap});
            fill_activations(y, random);
            fill_activations(want, random);
            HostTensor got(p.dtype, want.shape());
            std::memcpy(got.data(), want.data(), want.bytes());
            const AddRows::Args args{.y = std::as_const(y).view().slice(1, 0, dim), .x = want.view().slice(1, 0, dim)};
            run_ref<AddRows>(p, args);
            run_on_gpu<AddRows>(p, {.y = args.y, .x = got.view().slice(1, 0, dim)});
            if (!normed) {
              expect_equal_bytes(want, got);
            } else {
              std::int64_t different = 0;
              for (std::int64_t i = 0; i < want.numel(); ++i) {
                const auto number = [&](const HostTensor& t) {
                  return f32 ? t.as<float>()[i] : to_float(t.as<BF16>()[i]);
                };
                // Two steps of bf16: the normed number's and the sum's.
                ASSERT_NEAR(number(want), number(got), (f32 ? 1e-5F : 0x1p-6F) * (std::abs(number(want)) + 1)) << i;
                different += number(want) != number(got) ? 1 : 0;
              }
              // Sums of squares are added in another order; numbers rounded once instead of twice would be many more.
              if (!f32) {
                ASSERT_LE(different, 1 + want.numel() / 100);
              }
            }
            if (HasFatalFailure()) return;
          }
        }
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
      for (std::int64_t i = r * (dim + 8); i < (r + 1) * (dim + 8); ++i)
        ASSERT_EQ(all.y.as<BF16>()[i].bits, one.y.as<BF16>()[i].bits) << i;
    }
  }
}

}  // namespace
}  // namespace smla
