// The indexer's queries on the GPU: every bit of `_ref`.
#include "device/memory.h"
#include "device/streams.h"
#include "gpu/gpu_run.h"
#include "gpu/shifted_run.h"
#include "parity/indexer_cases.h"

namespace smla {
namespace {

using cases::IndexerQCase;
using cases::IndexerQInputs;
using cases::IndexerQOutputs;

class IndexerQGpu : public test::GpuTest {};

template <class T>
void expect_same(const char* what, const std::vector<T>& want, const std::vector<T>& got, std::int64_t row) {
  ASSERT_EQ(want.size(), got.size()) << what;
  const auto at = std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin();
  if (at == static_cast<std::ptrdiff_t>(want.size())) return;
  FAIL() << what << ", row (token x heads + head) " << at / row << " element " << at % row << ": want " << std::hex
         << std::uint64_t{want[at]} << ", got " << std::uint64_t{got[at]};
}

void expect_same(const IndexerQCase& c, const IndexerQOutputs& want, const IndexerQOutputs& got) {
  const std::int64_t rows = std::max<std::int64_t>(c.tokens * c.heads, 1);
  expect_same("q_out", want.q, got.q, std::max<std::int64_t>(static_cast<std::int64_t>(want.q.size()) / rows, 1));
  expect_same("q_scale", want.scale, got.scale, 4);
  expect_same("weights_out", want.weights, got.weights, 1);
}

void check(const IndexerQCase& c, std::int64_t shift = 0) {
  SCOPED_TRACE(testing::Message() << c << " shift " << shift);
  const IndexerQInputs inputs(c);
  IndexerQOutputs want(c);
  IndexerQOutputs got(c);
  Plan<IndexerQ>(c.problem(), {.implementation = "ref"}).run(want.attached(c, inputs.args(c)));
  if (shift == 0) {
    test::run_on_gpu<IndexerQ>(c.problem(), got.attached(c, inputs.args(c)));
  } else {
    test::run_shifted<IndexerQ>(c.problem(), got.attached(c, inputs.args(c)), shift);
  }
  expect_same(c, want, got);
}

const RowFormat* const kFormats[] = {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()};

TEST_F(IndexerQGpu, CasesAreRefBitForBit) {
  for (const IndexerQCase& c : cases::indexer_q_cases()) {
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(IndexerQGpu, AllHeads) {
  for (std::int64_t heads = 1; heads <= 128; ++heads) {
    for (const RowFormat* format : kFormats) {
      check({.tokens = 3,
             .heads = heads,
             .format = format,
             .in = heads % 3 == 0 ? DType::kF32 : DType::kBF16,
             .hadamard = heads % 2 == 0,
             .rope_dim = heads % 5 == 0 ? 62 : 64,
             .seed = static_cast<std::uint32_t>(heads)});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(IndexerQGpu, AnyBaseAndStrideWillDo) {
  for (const RowFormat* format : kFormats) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t shift : {1, 2, 3, 4}) {
        check({.tokens = 4, .heads = 7, .format = format, .in = in, .hadamard = true}, shift);
        if (HasFatalFailure()) return;
      }
      // Odd strides of everything that may have some.
      const IndexerQCase c{.tokens = 5, .heads = 9, .format = format, .in = in, .hadamard = true};
      const IndexerQInputs inputs(c);
      std::vector<std::uint8_t> q(static_cast<std::size_t>(5 * (9 * 133 + 1) * size_of(in)));
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = inputs.q[i % (inputs.q.size() / 4)];
      const auto run = [&](std::vector<std::uint8_t>& out, std::vector<std::uint8_t>& scale,
                           std::vector<float>& weights, bool gpu) {
        IndexerQOutputs shape(c);
        IndexerQ::Args args = shape.attached(c, inputs.args(c));
        args.q.data = q.data();
        args.q.stride[0] = 9 * 133 + 1;
        args.q.stride[1] = 133;
        args.q_out.data = out.data();
        args.q_out.stride[1] = args.q_out.size(2) + 1;
        args.q_out.stride[0] = 9 * args.q_out.stride[1] + 3;
        if (!args.q_scale.absent()) {
          args.q_scale.data = scale.data();
          args.q_scale.stride[1] = 7;
          args.q_scale.stride[0] = 9 * 7 + 2;
        }
        args.weights_out.data = weights.data();
        args.weights_out.stride[0] = 11;
        if (gpu) return test::run_on_gpu<IndexerQ>(c.problem(), args);
        Plan<IndexerQ>(c.problem(), {.implementation = "ref"}).run(args);
      };
      std::vector<std::uint8_t> want_out(5 * (9 * 129 + 3) * 4, 0xA5), want_scale(5 * 65, 0xA5);
      std::vector<float> want_weights(5 * 11, -7.0F);
      std::vector<std::uint8_t> got_out = want_out, got_scale = want_scale;
      std::vector<float> got_weights = want_weights;
      run(want_out, want_scale, want_weights, false);
      run(got_out, got_scale, got_weights, true);
      SCOPED_TRACE(testing::Message() << c);
      expect_same("strided q_out", want_out, got_out, 9 * 129 + 3);
      expect_same("strided q_scale", want_scale, got_scale, 65);
      ASSERT_EQ(want_weights, got_weights);
    }
  }
}

TEST_F(IndexerQGpu, PositionsAnywhere) {
  const IndexerQCase c{.tokens = 6, .heads = 3, .format = &index_fp8_rows()};
  IndexerQInputs inputs(c);
  inputs.positions = {INT64_MIN, INT64_MAX, -1, IndexerQInputs::kPositions, IndexerQInputs::kPositions - 1, 0};
  IndexerQOutputs want(c);
  IndexerQOutputs got(c);
  Plan<IndexerQ>(c.problem(), {.implementation = "ref"}).run(want.attached(c, inputs.args(c)));
  test::run_on_gpu<IndexerQ>(c.problem(), got.attached(c, inputs.args(c)));
  expect_same(c, want, got);
}

TEST_F(IndexerQGpu, MoreThan65535Tokens) {
  check({.tokens = 66000, .heads = 1, .format = &index_mxfp4_rows(), .hadamard = true});
}

/// Queries of q that is doubled just ahead, `kTimes` times, as a graph: launches one by one come so late that what is
/// ahead of them has ended.
void queries_of_doubled(const IndexerQCase& c, bool rehearses, IndexerQOutputs& out) {
  constexpr int kTimes = 4;
  const IndexerQInputs inputs(c);  // of this run alone: what is doubled comes back
  StagedTensors staged(DeviceKind::kCuda);
  IndexerQ::Args args = staged.bring<IndexerQ>(out.attached(c, inputs.args(c)));
  args.rehearses = rehearses;
  TensorView rows(const_cast<void*>(args.q.data), args.q.dtype, {c.tokens, c.heads * 128});
  rows.stride[0] = args.q.stride[0];
  const Plan<AddRows> add({.rows = c.tokens, .dim = c.heads * 128, .dtype = c.in}, {.device = DeviceKind::kCuda});
  const Plan<IndexerQ> queries(c.problem(), {.device = DeviceKind::kCuda});
  const OwnedStream stream(DeviceKind::kCuda);
  const Graph graph(stream.get(), [&] {
    for (int i = 0; i < kTimes; ++i) {
      add.run({.y = rows, .x = rows}, {}, stream.get());
      queries.run(args, {}, stream.get());
    }
  });
  synchronize(DeviceKind::kCuda);
  graph.launch(stream.get());
  synchronize(DeviceKind::kCuda, stream.get());
  staged.back();
}

// A rehearsal reads numbers that are not yet there. What is stored is made of those that came after it.
TEST_F(IndexerQGpu, ARehearsalChangesNoBit) {
  int compared = 0;
  for (const RowFormat* format : kFormats) {
    for (const DType in : {DType::kBF16, DType::kF32}) {
      for (const std::int64_t tokens : {1, 4, 33}) {
        const IndexerQCase c{.tokens = tokens, .heads = 64, .format = format, .in = in, .hadamard = true, .seed = 3};
        SCOPED_TRACE(testing::Message() << c);
        IndexerQOutputs want(c);
        IndexerQOutputs got(c);
        queries_of_doubled(c, false, want);
        queries_of_doubled(c, true, got);
        expect_same(c, want, got);
        if (HasFatalFailure()) return;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 18);
}

TEST_F(IndexerQGpu, TwentyRepeatsAreTheSameBits) {
  const IndexerQCase c{.tokens = 65, .heads = 64, .format = &index_fp8_rows(), .hadamard = true};
  const IndexerQInputs inputs(c);
  IndexerQOutputs first(c);
  test::run_on_gpu<IndexerQ>(c.problem(), first.attached(c, inputs.args(c)));
  for (int i = 0; i < 20; ++i) {
    IndexerQOutputs again(c);
    test::run_on_gpu<IndexerQ>(c.problem(), again.attached(c, inputs.args(c)));
    ASSERT_TRUE(first == again);
  }
}

}  // namespace
}  // namespace smla
