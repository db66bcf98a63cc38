// Sparse attention on the GPU: every head count, width and scale byte against `_ref`, what is exact, what must be the
// same bits. Long because each is a test of its own over every way to run a call.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/host_tensor.h"
#include "device/streams.h"
#include "gpu/attention_gpu.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {
namespace {

using namespace attention_gpu;

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

TEST_F(AttentionGpu, EveryHeadCountIsRef) {
  const char* formats[] = {"fp8_ds_mla", "fp8_per_tensor", "bf16"};
  const float sinks[] = {-kInf, 0.4F, kInf};
  std::vector<AttentionCase> cases;
  for (std::int64_t heads = 1; heads <= 128; ++heads) {
    const auto i = static_cast<std::size_t>(heads);
    AttentionCase c{.tokens = 1 + heads % 2, .heads = heads, .seed = static_cast<unsigned>(20'000 + heads)};
    c.q = heads % 7 == 3 ? DType::kE4M3 : DType::kBF16;
    if (heads % 5 == 0) c.out_heads = 128;
    if (heads % 4 != 1) c.sink = sinks[i % 3];
    c.scopes = {{.format = formats[i % 3], .width = 1 + heads * 37 % 130}};
    if (heads % 3 != 0) c.scopes.push_back({.format = formats[i / 3 % 3], .width = heads * 11 % 70, .block_size = 2});
    cases.push_back(c);
  }
  check(cases);
}

TEST_F(AttentionGpu, EveryWidthIsRef) {
  const char* formats[] = {"fp8_ds_mla", "bf16", "fp8_per_tensor"};
  std::vector<AttentionCase> cases;
  for (std::int64_t width = 0; width <= 2100; width += width < 200 ? 1 : 61) {
    const auto i = cases.size();
    AttentionCase c{.tokens = 2, .heads = 2, .sink = 0.1F, .seed = static_cast<unsigned>(21'000 + width)};
    c.scopes = {{.format = formats[i % 3], .width = width, .lens = i % 2 == 0 ? Lens::kAbsent : Lens::kMixed}};
    if (i % 3 == 0) c.scopes.push_back({.format = formats[i / 3 % 3], .width = width * 7 % 131, .block_size = 2});
    cases.push_back(c);
  }
  check(cases);
}

/// One request of very many entries among short ones and one without any key.
TEST_F(AttentionGpu, OneLongRequestAmongShortOnesIsRef) {
  std::vector<std::int32_t> lens(20, 64);
  lens[6] = 8192;
  lens[7] = 0;
  lens[8] = kMost;
  for (const std::int64_t heads : {8, 64, 128}) {
    AttentionInputs in = make_inputs(
        {.tokens = 20,
         .heads = heads,
         .sink = 0.3F,
         .scopes = {{.width = 128, .lens = Lens::kAbsent, .invalid = 0},
                    {.width = 8192, .block_size = 2, .num_blocks = 500, .lens = Lens::kAbsent, .invalid = 0}}});
    in.scopes[1].lens = lens;
    SCOPED_TRACE(testing::Message() << heads << " heads");
    std::map<std::string, int> ran;
    check(in, ran);
    if (HasFailure()) return;
  }
}

/// How a token's lists can hold no key.
enum class Empty { kLens, kIndices, kWidths };

/// No key: o is +0 and lse +inf, or -inf of a partial result, whatever the sink and the tokens beside are.
TEST_F(AttentionGpu, ListsWithoutAKeyAreExact) {
  for (const Empty empty : {Empty::kLens, Empty::kIndices, Empty::kWidths}) {
    for (const std::int64_t heads : {1, 16, 40, 128}) {
      for (const bool partial : {false, true}) {
        const bool wide = empty != Empty::kWidths;
        const auto without = [&](std::int64_t t) { return !wide || t % 2 == 1; };
        AttentionCase c{.tokens = 5, .heads = heads, .o = partial ? DType::kF32 : DType::kBF16, .partial = partial};
        if (!partial) c.sink = 0.7F;
        c.scopes = {{.width = wide ? 200 : 0, .lens = Lens::kAbsent, .invalid = 0},
                    {.format = "bf16", .width = wide ? 70 : 0, .lens = Lens::kAbsent, .invalid = 0}};
        AttentionInputs in = make_inputs(c);
        for (ScopeInputs& s : in.scopes) {
          for (std::int64_t t = 0; t < 5; ++t) {
            if (empty == Empty::kLens) s.lens.push_back(without(t) ? 1 - static_cast<std::int32_t>(t) : kMost);
            if (empty != Empty::kIndices || !without(t)) continue;
            for (std::int64_t i = 0; i < s.index_stride; ++i) s.index(t, i) = -1;
          }
        }
        for (const Way& way : ways_of(in.problem)) {
          SCOPED_TRACE(testing::Message() << way << ", heads " << heads << ", partial " << partial);
          const AttentionOutputs got = run_device(in, way);
          for (std::int64_t t = 0; t < 5; ++t) {
            for (std::int64_t h = 0; h < heads; ++h) {
              const float lse = got.lse_of(t, h);
              ASSERT_EQ(without(t), std::isinf(lse)) << "token " << t << " head " << h;
              if (!without(t)) continue;
              ASSERT_EQ(partial ? -kInf : kInf, lse);
              for (std::int64_t d = 0; d < 512; ++d)
                ASSERT_TRUE(got.value(t, h, d) == 0 && !std::signbit(got.value(t, h, d))) << "dim " << d;
            }
          }
        }
      }
    }
  }
}

/// A sink of +inf makes o zero and leaves lse; one of -inf changes nothing.
TEST_F(AttentionGpu, InfiniteSinksAreExact) {
  for (const std::int64_t heads : {6, 70}) {
    AttentionInputs in = make_inputs({.tokens = 3, .heads = heads, .scopes = {{.width = 150, .invalid = 0}}});
    for (const Way& way : ways_of(in.problem)) {
      SCOPED_TRACE(testing::Message() << way << ", heads " << heads);
      in.sink.clear();
      const AttentionOutputs want = run_device(in, way);
      in.sink.assign(static_cast<std::size_t>(heads), -kInf);
      in.sink[2] = kInf;
      const AttentionOutputs got = run_device(in, way);
      for (std::int64_t t = 0; t < 3; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          ASSERT_EQ(want.lse_of(t, h), got.lse_of(t, h));
          for (std::int64_t d = 0; d < 512; ++d)
            ASSERT_EQ(h == 2 ? 0.0F : want.value(t, h, d), got.value(t, h, d)) << "head " << h << " dim " << d;
        }
      }
    }
  }
}

/// lse of ordinary queries, to a millionth.
TEST_F(AttentionGpu, LseIsRightToAMillionth) {
  for (const char* format : {"fp8_ds_mla", "fp8_per_tensor", "bf16"}) {
    for (const std::int64_t heads : {8, 64, 128}) {
      for (const std::int64_t width : {128, 640, 1152}) {
        AttentionInputs in = make_inputs(
            {.tokens = 2,
             .heads = heads,
             .scopes = {{.format = format, .width = width, .num_blocks = 30, .lens = Lens::kAbsent, .invalid = 0}},
             .seed = static_cast<unsigned>(22'000 + width + heads)});
        const AttentionOutputs want = attention_cases::run(in, "ref", 1);
        for (const Way& way : ways_of(in.problem)) {
          SCOPED_TRACE(testing::Message() << way << ", " << format << ", heads " << heads << ", width " << width);
          const AttentionOutputs got = run_device(in, way);
          float worst = 0;
          for (std::int64_t t = 0; t < 2; ++t) {
            for (std::int64_t h = 0; h < heads; ++h) {
              const float lse = want.lse_of(t, h);
              worst = std::max(worst, std::fabs(got.lse_of(t, h) - lse) / std::max(1.0F, std::fabs(lse)));
            }
          }
          EXPECT_LE(worst, 1e-6F);
        }
      }
    }
  }
}

/// Part of the relative l2 error of two fp32 results, over columns [first, last).
double part_of_l2(const AttentionOutputs& want, const AttentionOutputs& got, std::int64_t first, std::int64_t last) {
  double error = 0;
  double norm = 0;
  for (std::int64_t t = 0; t < want.problem.tokens; ++t) {
    for (std::int64_t h = 0; h < want.problem.heads; ++h) {
      for (std::int64_t d = first; d < last; ++d) {
        const double w = want.value(t, h, d);
        error += std::pow(got.value(t, h, d) - w, 2);
        norm += w * w;
      }
    }
  }
  return std::sqrt(error / norm);
}

/// All rows that fp8_ds_mla can hold without passing fp32: every scale byte from 0 on, with queries that make up for
/// it.
TEST_F(AttentionGpu, EveryScaleByteIsRef) {
  constexpr int kLargest = 235;  // a thousand rows of 448 * 2^(235 - 127) are below 2^127
  constexpr int kOne = 120;      // what rows of about 1 have
  constexpr std::int64_t kCodes = 448;
  for (int scale = 0; scale <= kLargest; ++scale) {
    AttentionInputs in = make_inputs({.tokens = 1,
                                      .heads = scale % 2 == 0 ? 3 : 40,
                                      .o = DType::kF32,
                                      .sink = 0.2F,
                                      .scopes = {{.width = 70, .lens = Lens::kAbsent}},
                                      .seed = static_cast<unsigned>(23'000 + scale)});
    ScopeInputs& s = in.scopes[0];
    const RowFormat& f = *s.cache.format;
    for (const std::int32_t slot : list_of(in, 0, 0)) {
      std::uint8_t* scales = s.memory.data() + slot / s.cache.block_size * s.cache.block_stride_bytes +
                             s.cache.block_size * f.data_bytes + slot % s.cache.block_size * f.scale_bytes;
      std::fill_n(scales, f.groups(), static_cast<std::uint8_t>(scale));
    }
    std::mt19937_64 random(static_cast<unsigned>(scale));
    std::normal_distribution<float> normal;
    for (std::int64_t h = 0; h < in.problem.heads; ++h) {
      for (std::int64_t d = 0; d < kCodes; ++d)
        put(DType::kBF16, in.q.data(), h * 512 + d, std::ldexp(normal(random), kOne - scale));
    }
    const AttentionOutputs want = attention_cases::run(in, "ref", 1);
    for (const Way& way : ways_of(in.problem)) {
      SCOPED_TRACE(testing::Message() << way << ", scale byte " << scale);
      const AttentionOutputs got = run_device(in, way);
      ASSERT_LE(part_of_l2(want, got, 0, kCodes), bound_of(way));
      ASSERT_LE(part_of_l2(want, got, kCodes, 512), bound_of(way));
      for (std::int64_t h = 0; h < in.problem.heads; ++h) {
        expect_same_lse(want.lse_of(0, h), got.lse_of(0, h));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Rows that no list names, paddings, gaps and the eighth scale byte may hold anything.
TEST_F(AttentionGpu, UnusedBytesDoNotMatter) {
  unsigned seed = 24'000;
  for (const char* format : {"fp8_ds_mla", "fp8_per_tensor", "bf16"}) {
    for (const std::int64_t block : {1, 2, 53, 64}) {
      for (const std::int64_t heads : {5, 64}) {
        AttentionInputs in = make_inputs(
            {.tokens = 3,
             .heads = heads,
             .scopes =
                 {{.format = format, .width = 130, .block_size = block, .num_blocks = 1 + 900 / block, .block_gap = 48},
                  {.width = 40, .block_size = block, .num_blocks = 9}},
             .seed = ++seed});
        for (const Way& way : ways_of(in.problem)) {
          SCOPED_TRACE(testing::Message() << way << ", " << format << ", heads " << heads << ", blocks of " << block);
          const AttentionOutputs want = run_device(in, way);
          for (const int fill : {0x00, 0x7F, 0xFF, -1}) {
            AttentionInputs other = with_unused_bytes(in, fill);
            expect_same_bits(want, run_device(other, way));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// Partial results of slices of the list, merged, are the whole.
TEST_F(AttentionGpu, PartialsMergeToTheWhole) {
  constexpr std::int64_t kSlices = 3;
  for (const std::int64_t heads : {5, 64, 128}) {
    for (const std::int64_t width : {70, 1000}) {
      AttentionInputs in = make_inputs({.tokens = 4,
                                        .heads = heads,
                                        .o = DType::kF32,
                                        .q_magnitude = 0.5F,
                                        .sink = 0.4F,
                                        .scopes = {{.width = width, .num_blocks = 20}}});
      const SparseAttention::Problem p = in.problem;
      const AttentionOutputs want = attention_cases::run(in, "ref", 1);
      for (const std::string& implementation : test::gpu_implementations<SparseAttention>([&] {
             SparseAttention::Problem part = p;
             part.partial = true;
             return part;
           }())) {
        const Way way{.implementation = implementation};
        SCOPED_TRACE(testing::Message() << way << ", heads " << heads << ", width " << width);
        std::vector<float> partial_o;
        std::vector<float> partial_lse;
        for (std::int64_t s = 0; s < kSlices; ++s) {
          AttentionInputs part = in;
          part.problem.partial = true;
          part.sink.clear();
          for (std::int64_t t = 0; t < p.tokens; ++t) {
            const std::int64_t begin = width * s / kSlices;
            const std::int64_t end = std::min(width * (s + 1) / kSlices, in.scopes[0].entries(t, width));
            for (std::int64_t c = begin; c < end; ++c) part.scopes[0].index(t, c - begin) = in.scopes[0].index(t, c);
            part.scopes[0].lens[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(end - begin);
          }
          const AttentionOutputs got = run_device(part, way);
          for (std::int64_t t = 0; t < p.tokens; ++t) {
            for (std::int64_t h = 0; h < heads; ++h) {
              for (std::int64_t d = 0; d < 512; ++d) partial_o.push_back(got.value(t, h, d));
              partial_lse.push_back(got.lse_of(t, h));
            }
          }
        }
        AttentionOutputs merged(p);
        SparseAttention::Args views = in.args();
        merged.attach(views);
        test::run_on_gpu<MergePartials>(
            {.slices = kSlices, .tokens = p.tokens, .heads = heads, .o = DType::kF32},
            {.partial_o = view_of(static_cast<const float*>(partial_o.data()), {kSlices, p.tokens, heads, 512}),
             .partial_lse = view_of(static_cast<const float*>(partial_lse.data()), {kSlices, p.tokens, heads}),
             .sink = views.sink,
             .o = views.o,
             .lse = views.lse});
        expect_parity(want, merged, bound_of(way));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Deterministic: any batch that holds a token, in any order, gives it the same bits.
TEST_F(AttentionGpu, AnyBatchGivesATokenItsBits) {
  for (const std::int64_t heads : {8, 32, 64, 128}) {
    AttentionInputs in = make_inputs(
        {.tokens = 70,
         .heads = heads,
         .sink = 0.3F,
         .scopes = {{.width = 128}, {.width = 1152, .block_size = 2, .num_blocks = 700, .lens = Lens::kMixed}}});
    for (const std::string& implementation : test::gpu_implementations<SparseAttention>(in.problem, true)) {
      const Way way{.implementation = implementation, .deterministic = true};
      SCOPED_TRACE(testing::Message() << way << ", heads " << heads);
      const AttentionOutputs all = run_device(in, way);
      std::mt19937_64 random(static_cast<unsigned>(heads));
      for (const std::size_t size : {1, 2, 3, 17, 64, 133}) {
        std::vector<std::int64_t> tokens(size);
        for (std::int64_t& t : tokens) t = static_cast<std::int64_t>(random() % 70);
        AttentionInputs some = with_tokens(in, tokens);
        const AttentionOutputs got = run_device(some, way);
        for (std::size_t i = 0; i < size; ++i) {
          expect_row(all, tokens[i], got, static_cast<std::int64_t>(i));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// As many blocks as wait for each other, or count up together, in one call.
TEST_F(AttentionGpu, TwentyRepeatsOfALargeBatchAreTheSameBits) {
  for (const std::int64_t heads : {16, 64, 128}) {
    AttentionInputs in = make_inputs(
        {.tokens = 150,
         .heads = heads,
         .sink = 0.3F,
         .scopes = {{.width = 128}, {.width = 900, .block_size = 2, .num_blocks = 900, .lens = Lens::kMixed}}});
    for (const Way& way : ways_of(in.problem)) {
      SCOPED_TRACE(testing::Message() << way << ", heads " << heads);
      const AttentionOutputs first = run_device(in, way);
      for (int i = 0; i < 20; ++i) {
        expect_same_bits(first, run_device(in, way));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// What a step of a recorded call may change: lengths that grow and shrink, and lists of rows that hold numbers.
std::vector<AttentionInputs> later_steps(AttentionInputs& in) {
  const std::int64_t width = in.problem.scope[1].width;
  std::mt19937_64 random(5);
  std::vector<AttentionInputs> steps;
  for (const std::int64_t length : {width, std::int64_t{1}, width / 2, std::int64_t{0}, width, width / 3}) {
    steps.push_back(in);
    for (std::size_t i = 0; i < in.scopes.size(); ++i) {
      std::vector<std::int32_t> named;
      for (std::int64_t t = 0; t < in.problem.tokens; ++t) {
        for (const std::int32_t slot : list_of(in, i, t)) named.push_back(slot);
      }
      ScopeInputs& s = steps.back().scopes[i];
      for (std::int32_t& slot : s.indices) slot = named[random() % named.size()];
      for (std::int64_t t = 0; t < in.problem.tokens; ++t)
        s.lens[static_cast<std::size_t>(t)] = t % 4 == 3 ? kMost : static_cast<std::int32_t>(length - 7 * t);
    }
  }
  return steps;
}

/// A call that is recorded once and replayed over the same addresses.
class RecordedCall {
 public:
  RecordedCall(const AttentionInputs& in, const Way& way)
      : limit_(way.shared),
        plan_(in.problem,
              {.device = DeviceKind::kCuda, .implementation = way.implementation, .deterministic = way.deterministic}),
        in_(in),
        out_(in.problem),
        workspace_(DeviceKind::kCuda, plan_.workspace_bytes(), false),
        staged_(DeviceKind::kCuda, stream_.get()) {
    SparseAttention::Args args = in_.args();
    out_.attach(args);
    fill_bytes(DeviceKind::kCuda, workspace_.data(), 0xFF, workspace_.bytes(), stream_.get());
    args = staged_.bring<SparseAttention>(args);
    const auto work = [this, args] {
      plan_.run(args, {.data = workspace_.data(), .bytes = workspace_.bytes()}, stream_.get());
    };
    work();  // what a first call sets up is not recorded
    graph_ = Graph(stream_.get(), work);
  }

  /// Replays with the lengths and lists of `step`.
  const AttentionOutputs& replay(const AttentionInputs& step) {
    for (std::size_t i = 0; i < in_.scopes.size(); ++i) {
      std::ranges::copy(step.scopes[i].indices, in_.scopes[i].indices.begin());
      std::ranges::copy(step.scopes[i].lens, in_.scopes[i].lens.begin());
    }
    const AttentionOutputs poisoned(in_.problem);
    std::ranges::copy(poisoned.o, out_.o.begin());
    std::ranges::copy(poisoned.lse, out_.lse.begin());
    staged_.again();
    graph_.launch(stream_.get());
    staged_.back();
    return out_;
  }

 private:
  SharedLimit limit_;
  Plan<SparseAttention> plan_;
  AttentionInputs in_;
  AttentionOutputs out_;
  OwnedStream stream_{DeviceKind::kCuda};
  DeviceMemory workspace_;
  StagedTensors staged_;
  Graph graph_;
};

TEST_F(AttentionGpu, AGraphFollowsLengthsAndLists) {
  for (const std::int64_t heads : {8, 64, 128}) {
    for (const std::int64_t width : {100, 2000}) {
      AttentionInputs in =
          make_inputs({.tokens = 9,
                       .heads = heads,
                       .sink = 0.3F,
                       .scopes = {{.width = 128}, {.width = width, .block_size = 2, .num_blocks = 300}}});
      std::vector<AttentionInputs> steps = later_steps(in);
      std::vector<AttentionOutputs> wanted;
      for (AttentionInputs& step : steps) wanted.push_back(attention_cases::run(step, "ref", 1));
      for (const Way& way : ways_of(in.problem)) {
        SCOPED_TRACE(testing::Message() << way << ", heads " << heads << ", width " << width);
        RecordedCall call(in, way);
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const AttentionOutputs& got = call.replay(steps[i]);
          expect_parity(wanted[i], got, bound_of(way));
          if (HasFatalFailure()) return;
        }
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const AttentionOutputs got = call.replay(steps[i]);
          expect_same_bits(run_device(steps[i], way), got);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Prologue and epilogue have dims, positions and a table each: both together are the one and then the other.
TEST_F(AttentionGpu, PrologueAndEpilogueRotateApart) {
  for (const std::int64_t heads : {7, 64, 128}) {
    AttentionInputs in = make_inputs(
        {.tokens = 3, .heads = heads, .out_heads = heads + 1, .sink = 0.2F, .scopes = {{.width = 70}, {.width = 300}}});
    HostTensor q_table(DType::kF32, {40, 64});
    HostTensor o_table(DType::kF32, {30, 32});
    for (HostTensor* table : {&q_table, &o_table}) {
      for (std::int64_t i = 0; i < table->numel(); ++i) table->as<float>()[i] = std::cos(0.3F * static_cast<float>(i));
    }
    const std::int64_t q_positions[] = {1, 39, 40};
    const std::int64_t o_positions[] = {29, 30, 0};
    SparseAttention::Problem first = in.problem;
    first.query_prologue = {.rope_dim = 64};
    SparseAttention::Problem both = first;
    both.output_epilogue = {.rope_dim = 32};
    SparseAttention::Args args = in.args();
    args.query_prologue = {.positions = view_of(q_positions, {3}), .cos_sin = std::as_const(q_table).view()};
    for (const Way& way : ways_of(both)) {
      SCOPED_TRACE(testing::Message() << way << ", heads " << heads);
      AttentionOutputs want(first);
      want.attach(args);
      run_way(first, args, way);
      const TensorView turned = args.o.slice(1, 0, heads);
      SparseAttention::OutputEpilogue::Args back{.positions = view_of(o_positions, {3}),
                                                 .cos_sin = std::as_const(o_table).view()};
      test::run_on_gpu<InverseRope>({.tokens = 3, .heads = heads, .dim = both.dim, .rope_dim = 32},
                                    {.x = turned, .positions = back.positions, .cos_sin = back.cos_sin, .y = turned});
      AttentionOutputs got(both);
      SparseAttention::Args fused = args;
      got.attach(fused);
      fused.output_epilogue = back;
      run_way(both, fused, way);
      expect_same_bits(want, got);
      if (HasFatalFailure()) return;
    }
  }
}

/// Every problem has somebody who takes it, the first in the table is chosen, and refusals say why.
TEST_F(AttentionGpu, EveryProblemIsServed) {
  for (const std::vector<AttentionCase>& cases : {grid_cases(), special_cases(), sharing_cases()}) {
    for (const AttentionCase& c : cases) {
      SCOPED_TRACE(testing::PrintToString(c));
      const SparseAttention::Problem p = problem_of(c);
      for (const bool deterministic : {false, true}) {
        const PlanOptions options{.device = DeviceKind::kCuda, .deterministic = deterministic};
        std::string first;
        for (const Candidate& x : explain<SparseAttention>(p, options)) {
          if (x.refusal.empty() && first.empty()) first = x.name;
          EXPECT_TRUE(x.refusal.empty() || x.refusal.size() > 10) << x.name << ": \"" << x.refusal << "\"";
        }
        EXPECT_EQ(first, Plan<SparseAttention>(p, options).implementation());
      }
    }
  }
}

}  // namespace
}  // namespace smla
