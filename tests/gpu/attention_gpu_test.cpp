// Sparse attention on the GPU against `_ref`: every implementation, every tile of the tensor-core kernel, split and
// whole.
#include "gpu/attention_gpu.h"

#include <algorithm>
#include <cmath>

#include "core/host_tensor.h"
#include "ops/attention/small_split.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {
namespace {

using namespace attention_gpu;

TEST_F(AttentionGpu, GridIsRef) { check(grid_cases()); }
TEST_F(AttentionGpu, SpecialCasesAreRef) { check(special_cases()); }

/// Heads by widths; formats, block sizes, gaps, dtypes and second scopes take turns of different lengths.
/// Every pair of values of heads, width, format, block size and gap: cell i of heads x widths takes format i mod 3,
/// block size i mod 5 and gap i mod 4, and the numbers of widths, formats, block sizes and gaps have no common divisor.
/// Large cells are one token.
TEST_F(AttentionGpu, HeadsByWidthsAreRef) {
  const char* formats[] = {"fp8_ds_mla", "fp8_per_tensor", "bf16"};
  const std::int64_t block_sizes[] = {1, 2, 53, 64, 256};
  const std::int64_t gaps[] = {0, 8, 64, 4096};
  std::vector<AttentionCase> cases;
  std::size_t i = 0;
  for (const std::int64_t heads : {1, 7, 8, 16, 32, 64, 96, 128}) {
    for (const std::int64_t width : {0, 1, 64, 128, 640, 1152, 8320}) {
      const std::int64_t block = block_sizes[i % 5];
      AttentionCase c{
          .tokens = heads * width > 640 * 32 ? 1 : 2, .heads = heads, .seed = static_cast<unsigned>(7000 + i)};
      c.q = i % 4 == 1 ? DType::kE4M3 : DType::kBF16;
      c.q_scale = c.q == DType::kE4M3 ? 0.71F : 1.0F;
      c.q_magnitude = i % 6 == 5 ? 4.0F : (i % 6 == 2 ? 0.1F : 1.0F);
      if (i % 3 != 0) c.sink = 0.4F;
      if (i % 7 == 3 && width <= 1152) c.partial = true, c.o = DType::kF32, c.sink = std::nullopt;
      ScopeCase first{.format = formats[i % 3],
                      .width = width,
                      .block_size = block,
                      .num_blocks = 1 + 700 / block,
                      .block_gap = gaps[i % 4]};
      first.lens = i % 2 == 0 ? Lens::kAbsent : Lens::kMixed;
      first.kv_scale = 0.37F;
      if (width > 128 && i % 2 == 1) {
        ScopeCase second{.format = formats[(i / 3 + i) % 3],
                         .width = width - 128,
                         .block_size = 2,
                         .num_blocks = 300,
                         .block_gap = gaps[i / 4 % 4]};
        second.kv_scale = 1.7F;
        first.width = 128;
        c.scopes = {first, second};
      } else {
        c.scopes = {first};
      }
      cases.push_back(c);
      ++i;
    }
  }
  check(cases);
}

/// Bases and strides that are multiples of 8, 4, 2 or 1 byte only.
TEST_F(AttentionGpu, MisalignedRowsAreRef) {
  std::vector<AttentionCase> cases;
  for (const char* format : {"fp8_ds_mla", "fp8_per_tensor", "bf16"}) {
    for (const std::int64_t gap : {1, 2, 3, 4, 8, 24}) {
      for (const DType q : {DType::kBF16, DType::kE4M3}) {
        cases.push_back({.tokens = 4,
                         .heads = 9,
                         .q_gap = gap,
                         .q = q,
                         .scopes = {{.format = format,
                                     .width = 70,
                                     .block_size = 5,
                                     .num_blocks = 20,
                                     .block_gap = gap,
                                     .index_gap = gap}},
                         .seed = static_cast<unsigned>(9000 + cases.size())});
      }
    }
  }
  check(cases);
}

/// Strides of o that forbid to store two neighbours at once change nothing but the place.
TEST_F(AttentionGpu, AnOddOutputHoldsTheSameBits) {
  for (const DType o : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t tokens : {2, 300}) {  // in parts, and whole
      AttentionInputs in =
          make_inputs({.tokens = tokens, .heads = 3, .out_heads = 5, .o = o, .sink = 0.1F, .scopes = {{.width = 200}}});
      for (const Way& way : ways_of(in.problem)) {
        SCOPED_TRACE(testing::PrintToString(way));
        const AttentionOutputs want = run_device(in, way);
        const std::int64_t stride = in.problem.dim + 1;
        const std::int64_t size = size_of(o);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tokens * 5 * stride * size), kPoison);
        AttentionOutputs other(in.problem);
        SparseAttention::Args args = in.args();
        other.attach(args);
        args.o = TensorView(bytes.data(), o, {tokens, 5, in.problem.dim});
        args.o.stride[1] = stride;
        args.o.stride[0] = 5 * stride;
        run_way(in.problem, args, way);
        for (std::int64_t row = 0; row < tokens * 5; ++row) {
          const std::uint8_t* got = bytes.data() + row * stride * size;
          ASSERT_EQ(0, std::memcmp(want.head(row / 5, row % 5), got, static_cast<std::size_t>(in.problem.dim * size)))
              << "row " << row;
          const bool last = row == tokens * 5 - 1;
          ASSERT_TRUE(last || std::all_of(got + in.problem.dim * size, got + stride * size,
                                          [](std::uint8_t b) { return b == kPoison; }));
        }
      }
    }
  }
}

/// Keys wider than their values are a problem of `cuda_simt` alone, and `cuda` says why.
TEST_F(AttentionGpu, TensorCoresRefuseNarrowerValues) {
  const auto problem = [](const char* format, int value_dim) {
    return problem_of({.value_dim = value_dim, .scopes = {{.format = format, .width = 64}}});
  };
  EXPECT_EQ(refusal(problem("fp8_v32", 512), "cuda"), "rows of 576 numbers; it takes 512");
  EXPECT_EQ(refusal(problem("bf16", 448), "cuda"), "values of 448 numbers; it takes rows that are values as a whole");
  EXPECT_EQ(refusal(problem("bf16", 512), "cuda"), "");
  for (const int value_dim : {0, 512}) EXPECT_EQ(refusal(problem("fp8_v32", value_dim), "cuda_simt"), "");
  EXPECT_EQ(refusal(problem("fp8_v32", 100), "cuda_simt"), "values of 100 numbers; it takes multiples of 32");
}

/// Random words as indices and lengths.
TEST_F(AttentionGpu, AnyWordsAreRef) {
  std::map<std::string, int> ran;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    const std::int64_t heads = seed % 3 == 0 ? 40 : 5;
    AttentionInputs in = make_inputs({.tokens = 6,
                                      .heads = heads,
                                      .sink = 0.2F,
                                      .scopes = {{.width = 90, .lens = Lens::kAbsent},
                                                 {.format = seed % 4 == 1   ? "fp8_ds_mla"
                                                            : seed % 2 == 0 ? "bf16"
                                                                            : "fp8_per_tensor",
                                                  .width = 45,
                                                  .block_size = seed % 4 == 1 ? 64 : 53,
                                                  .lens = Lens::kAbsent}},
                                      .seed = seed});
    std::mt19937 random(seed);
    for (ScopeInputs& s : in.scopes) {
      // What is in the cache by chance may be a row that holds nothing.
      for (std::int32_t& index : s.indices) {
        const auto word = static_cast<std::int32_t>(random());
        if (random() % 2 == 0) index = s.valid(word) ? -1 : word;
      }
      for (std::int64_t t = 0; t < 6; ++t)
        s.lens.push_back(t % 2 == 0 ? static_cast<std::int32_t>(random()) : static_cast<std::int32_t>(random() % 100));
    }
    SCOPED_TRACE(seed);
    check(in, ran);
    if (HasFailure()) return;
  }
}

/// With a query prologue the bits are those of QNormRopeInsert before, however a call is cut and whatever way a block
/// takes; of positions without a row q is used as it is.
TEST_F(AttentionGpu, QueriesMadeInTheCallAreQNormRopeInserts) {
  constexpr std::int64_t kPositions = 50;
  for (const DType q : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t heads : {1, 20, 64, 100}) {
      for (const int rope : {2, 64, 512}) {
        for (const int shift : {0, 12}) {  // of the rows: past what half precision holds
          AttentionInputs in =
              make_inputs({.tokens = 5,
                           .heads = heads,
                           .out_heads = heads + 3,
                           .q = q,
                           .sink = 0.5F,
                           .scopes = {{.format = "fp8_ds_mla", .width = 128}, {.format = "bf16", .width = 400}}});
          for (auto& scope : in.scopes) shift_rows(scope, shift);
          SCOPED_TRACE(testing::Message()
                       << heads << " heads, " << rope << " dims, " << name_of(q) << ", rows x 2^" << shift);
          HostTensor table(DType::kF32, {kPositions, rope});
          for (std::int64_t i = 0; i < table.numel(); ++i)
            table.as<float>()[i] = std::cos(0.37F * static_cast<float>(i));
          const std::int64_t positions[] = {0, 49, -1, 50, 7};
          SparseAttention::Problem problem = in.problem;
          problem.query_prologue = {.rope_dim = rope, .eps = 1e-4F};
          HostTensor queries(q, {5, heads, problem.dim});
          copy_heads(in.args().q, queries);
          const QNormRopeInsert::Problem before{.tokens = 5,
                                                .heads = heads,
                                                .out_heads = heads,
                                                .dim = problem.dim,
                                                .rope_dim = rope,
                                                .in = q,
                                                .q_out = q,
                                                .eps = 1e-4F};
          test::run_on_gpu<QNormRopeInsert>(before, {.q = std::as_const(queries).view(),
                                                     .positions = view_of(positions, {5}),
                                                     .cos_sin = std::as_const(table).view(),
                                                     .q_out = queries.view()});
          for (const Way& way : ways_of(problem)) {
            SCOPED_TRACE(testing::PrintToString(way));
            AttentionOutputs want(in.problem);
            SparseAttention::Args args = in.args();
            args.q = std::as_const(queries).view();
            want.attach(args);
            run_way(in.problem, args, way);
            AttentionOutputs got(problem);
            args = in.args();
            got.attach(args);
            args.query_prologue = {.positions = view_of(positions, {5}), .cos_sin = std::as_const(table).view()};
            run_way(problem, args, way);
            expect_same_bits(want, got);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// A call that makes its queries may be cut otherwise than one whose queries are made before; a plan made alike has the
/// cut of the other, and so its bits.
TEST_F(AttentionGpu, APlanMadeAlikeHasTheOthersBits) {
  constexpr std::int64_t kPositions = 50;
  constexpr int kRope = 64;
  const SparseAttention::QueryPrologue prologue{.rope_dim = kRope, .eps = 1e-4F};
  HostTensor table(DType::kF32, {kPositions, kRope});
  for (std::int64_t i = 0; i < table.numel(); ++i) table.as<float>()[i] = std::cos(0.37F * static_cast<float>(i));
  for (const std::string name : {"cuda", "sm90"}) {
    const PlanOptions options{.device = DeviceKind::kCuda, .implementation = name};
    for (const std::int64_t tokens : {2, 4, 8, 16, 32, 48, 64, 96, 128}) {
      AttentionInputs in =
          make_inputs({.tokens = tokens,
                       .heads = 64,
                       .scopes = {{.format = "fp8_ds_mla", .width = 128}, {.format = "fp8_ds_mla", .width = 512}}});
      const SparseAttention::Problem problem = in.problem;
      SparseAttention::Problem fused = problem;
      fused.query_prologue = prologue;
      const std::vector<std::string> taken = test::gpu_implementations<SparseAttention>(fused);
      if (std::find(taken.begin(), taken.end(), name) == taken.end()) break;
      const Plan<SparseAttention> whole(fused, options);
      const Plan<SparseAttention> alike = whole.alike(problem);
      EXPECT_EQ(alike.implementation(), name);
      EXPECT_EQ(alike.choice(), whole.choice());
      if (Plan<SparseAttention>(problem, options).choice() == whole.choice()) continue;
      std::cout << "[ cut     ] " << name << ", " << tokens << " tokens: " << whole.choice() << "\n";
      std::vector<std::int64_t> positions;
      for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(t % kPositions);
      HostTensor queries(problem.q, {tokens, 64, problem.dim});
      copy_heads(in.args().q, queries);
      const QNormRopeInsert::Problem before{.tokens = tokens,
                                            .heads = 64,
                                            .out_heads = 64,
                                            .dim = problem.dim,
                                            .rope_dim = kRope,
                                            .in = problem.q,
                                            .q_out = problem.q,
                                            .eps = prologue.eps};
      test::run_on_gpu<QNormRopeInsert>(before, {.q = std::as_const(queries).view(),
                                                 .positions = view_of(positions.data(), {tokens}),
                                                 .cos_sin = std::as_const(table).view(),
                                                 .q_out = queries.view()});
      AttentionOutputs want(problem);
      SparseAttention::Args args = in.args();
      args.q = std::as_const(queries).view();
      want.attach(args);
      run_staged(alike, args, DeviceKind::kCuda);
      AttentionOutputs got(fused);
      args = in.args();
      got.attach(args);
      args.query_prologue = {.positions = view_of(positions.data(), {tokens}), .cos_sin = std::as_const(table).view()};
      run_staged(whole, args, DeviceKind::kCuda);
      expect_same_bits(want, got);
      break;
    }
  }
}

/// With an output epilogue the bits are those of InverseRope afterwards, however a call is cut; positions without a row
/// are left as they are.
TEST_F(AttentionGpu, RotatingBackIsInverseRope) {
  constexpr std::int64_t kPositions = 50;
  for (const DType o : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t heads : {1, 20, 64, 100}) {
      for (const int rope : {2, 20, 64, 512}) {
        for (const float magnitude : {1.0F, 1e6F}) {
          AttentionInputs in =
              make_inputs({.tokens = 5,
                           .heads = heads,
                           .out_heads = heads + 3,
                           .o = o,
                           .q_magnitude = magnitude,
                           .sink = 0.5F,
                           .scopes = {{.format = "fp8_ds_mla", .width = 128}, {.format = "bf16", .width = 400}}});
          SCOPED_TRACE(testing::Message()
                       << heads << " heads, " << rope << " dims, " << name_of(o) << ", q x " << magnitude);
          HostTensor table(DType::kF32, {kPositions, rope});
          for (std::int64_t i = 0; i < table.numel(); ++i)
            table.as<float>()[i] = std::cos(0.37F * static_cast<float>(i));
          const std::int64_t positions[] = {0, 49, -1, 50, 7};
          SparseAttention::Problem problem = in.problem;
          problem.output_epilogue = {.rope_dim = rope};
          for (const Way& way : ways_of(problem)) {
            SCOPED_TRACE(testing::PrintToString(way));
            AttentionOutputs want = run_device(in, way);
            SparseAttention::Args args = in.args();
            want.attach(args);
            const TensorView turned = args.o.slice(1, 0, heads);
            const InverseRope::Problem back{
                .tokens = 5, .heads = heads, .dim = problem.dim, .rope_dim = rope, .in = o, .out = o};
            test::run_on_gpu<InverseRope>(back, {.x = turned,
                                                 .positions = view_of(positions, {5}),
                                                 .cos_sin = std::as_const(table).view(),
                                                 .y = turned});
            AttentionOutputs got(problem);
            args = in.args();
            got.attach(args);
            args.output_epilogue = {.positions = view_of(positions, {5}), .cos_sin = std::as_const(table).view()};
            run_way(problem, args, way);
            expect_same_bits(want, got);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

/// A named row of NaN makes its own token NaN and no other.
TEST_F(AttentionGpu, NanStaysWithItsToken) {
  for (const char* format : {"fp8_ds_mla", "fp8_per_tensor", "bf16"}) {
    AttentionInputs in = make_inputs(
        {.tokens = 4,
         .heads = 20,
         .scopes = {{.format = format, .width = 100, .num_blocks = 60, .lens = Lens::kAbsent, .invalid = 0}}});
    for (const Way& way : ways_of(in.problem)) {
      SCOPED_TRACE(testing::Message() << format << " " << way);
      AttentionInputs bad = in;
      const AttentionOutputs want = run_device(bad, way);
      // A row that nobody names is still 0xFF: NaN in every format.
      std::set<std::int32_t> named(bad.scopes[0].indices.begin(), bad.scopes[0].indices.end());
      std::int32_t unnamed = 0;
      while (named.count(unnamed) > 0) ++unnamed;
      ASSERT_TRUE(bad.scopes[0].valid(unnamed));
      bad.scopes[0].index(2, 37) = unnamed;
      const AttentionOutputs got = run_device(bad, way);
      for (std::int64_t t = 0; t < 4; ++t) {
        if (t != 2) {
          ASSERT_EQ(0, std::memcmp(want.head(t, 0), got.head(t, 0), static_cast<std::size_t>(20 * want.head_bytes())))
              << "token " << t;
          continue;
        }
        for (std::int64_t h = 0; h < 20; ++h) {
          ASSERT_TRUE(std::isnan(got.lse_of(t, h))) << "head " << h;
          for (std::int64_t d = 0; d < 512; ++d)
            ASSERT_TRUE(std::isnan(got.value(t, h, d))) << "head " << h << " dim " << d;
        }
      }
    }
  }
}

TEST_F(AttentionGpu, TwentyRepeatsAreTheSameBits) {
  for (const std::int64_t heads : {13, 30, 70}) {
    AttentionInputs in = make_inputs(
        {.tokens = 5,
         .heads = heads,
         .sink = 0.3F,
         .scopes = {{.width = 128}, {.width = 1333, .block_size = 2, .num_blocks = 900, .lens = Lens::kAbsent}}});
    for (const Way& way : ways_of(in.problem)) {
      SCOPED_TRACE(testing::PrintToString(way));
      const AttentionOutputs first = run_device(in, way);
      for (int i = 0; i < 20; ++i) {
        expect_same_bits(first, run_device(in, way));
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Deterministic: a token's bits are the same in any batch, at any place of it, and in wider matrices.
TEST_F(AttentionGpu, ATokenIsTheSameInAnyBatch) {
  for (const std::int64_t heads : {3, 64, 100}) {
    for (const std::int64_t width : {100, 1100}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, width " << width);
      AttentionInputs in = make_inputs(
          {.tokens = 40,
           .heads = heads,
           .out_heads = 128,
           .sink = 0.3F,
           .scopes = {{.format = "bf16", .width = 128}, {.width = width, .num_blocks = 40, .index_gap = 700}}});
      for (const std::string& implementation : test::gpu_implementations<SparseAttention>(in.problem, true)) {
        const Way way{.implementation = implementation, .deterministic = true};
        const AttentionOutputs all = run_device(in, way);
        for (const std::int64_t t : {0, 1, 5, 22, 39}) {
          AttentionInputs one = with_tokens(in, {t});
          expect_row(all, t, run_device(one, way));
          one.problem.scope[1].width += 700;
          expect_row(all, t, run_device(one, way));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// More tokens than one launch has workspace for.
TEST_F(AttentionGpu, SeveralLaunchesAreRef) {
  AttentionInputs in = make_inputs(
      {.tokens = 100, .heads = 128, .sink = 0.3F, .scopes = {{.width = 1200, .num_blocks = 2, .lens = Lens::kMixed}}});
  for (std::int32_t& length : in.scopes[0].lens) length = std::min(length, 4);
  for (const std::int64_t t : {3, 60, 99}) in.scopes[0].lens[static_cast<std::size_t>(t)] = 0;
  const AttentionSplit split = split_attention(in.problem, device::current_gpu(), true);
  ASSERT_GT(split.parts, 1);
  ASSERT_LT(split.launch_tokens, 100);
  std::map<std::string, int> ran;
  check(in, ran);
}

TEST_F(AttentionGpu, ManyTokensAreRef) {
  AttentionInputs in = make_inputs({.tokens = 66000, .heads = 1, .scopes = {{.width = 1}}});
  std::map<std::string, int> ran;
  check(in, ran);
}

/// On Hopper a plan that names nothing takes the kernel with the shortest estimate, `sm90_widened` only with many
/// tokens; deterministic results and rows that were not measured stay with `cuda`.
TEST_F(AttentionGpu, PlansTakeTheShortestEstimate) {
  const device::Gpu gpu = device::current_gpu();
  if (gpu.capability != 90 || gpu.shared_bytes < (227U << 10)) GTEST_SKIP() << "not Hopper with all its shared memory";
  const auto chosen = [](const SparseAttention::Problem& p, bool deterministic) {
    const Plan<SparseAttention> plan(p, {.device = DeviceKind::kCuda, .deterministic = deterministic});
    return std::string(plan.implementation());
  };
  std::map<std::string, int> seen;
  for (const std::int64_t tokens : {1, 16, 1023, 1024, 8192}) {
    for (const std::int64_t heads : {8, 64, 128}) {
      for (const std::int64_t width : {64, 640, 8192}) {
        for (const std::int64_t sharing : {1, 2}) {
          if (tokens % sharing != 0) continue;
          SCOPED_TRACE(testing::Message()
                       << tokens << " tokens, " << sharing << " to a list, " << heads << " heads, width " << width);
          const SparseAttention::Problem p =
              problem_of({.tokens = tokens, .heads = heads, .tokens_per_list = sharing, .scopes = {{.width = width}}});
          std::string shortest = "cuda";
          std::int64_t cost = split_attention(p, gpu, false).cost;
          const std::int64_t stored = split_for_hopper(p, gpu, false).cost;
          if (stored < cost) shortest = "sm90", cost = stored;
          const SmallSplit small = split_small(p, gpu);
          if (small.fits() && small.cost < cost) shortest = "sm90_small", cost = small.cost;
          const std::int64_t widened = split_for_hopper(p, gpu, false, true).cost;
          if (sharing == 1 && tokens >= 1024 && widened + widened / 32 < cost) shortest = "sm90_widened";
          EXPECT_EQ(shortest, chosen(p, false));
          EXPECT_EQ("cuda", chosen(p, true));
          ++seen[shortest + (sharing > 1 ? ", shared" : "")];
        }
      }
    }
  }
  // Of shared lists all but sm90_widened; the 16 tokens of sm90_small find room from 32 multiprocessors on.
  EXPECT_EQ(gpu.multiprocessors < 32 ? 6U : 7U, seen.size());
  int said = 0;
  for (const Candidate& c : explain<SparseAttention>(problem_of({.scopes = {{.width = 640}}}),
                                                     {.device = DeviceKind::kCuda, .deterministic = true}))
    if (c.name.starts_with("sm90"))
      said += c.refusal == "deterministic results; it gives them where it is named" ? 1 : 0;
  EXPECT_EQ(2, said);
  EXPECT_EQ("sm90",
            chosen(problem_of({.tokens = 8192, .heads = 128, .scopes = {{.format = "bf16", .width = 640}}}), false));
}

TEST_F(AttentionGpu, RefusalsSayWhatIsTaken) {
  const auto refused = [&](const AttentionCase& c, const std::string& word) {
    const SparseAttention::Problem p = problem_of(c);
    EXPECT_NE(std::string::npos, refusal(p, "cuda").find(word)) << refusal(p, "cuda");
    EXPECT_EQ("", refusal(p, "cuda_simt"));
    EXPECT_EQ("cuda_simt", Plan<SparseAttention>(p, {.device = DeviceKind::kCuda}).implementation());
  };
  refused({.q = DType::kF32, .scopes = {{.width = 3}}}, "F32");
  refused({.scopes = {{.width = 3}, {.format = "f32", .width = 3}}}, "f32 rows");
  refused({.scopes = {{.format = "index_fp8", .width = 3}}}, "rows of 128 numbers");
  const SparseAttention::Problem p = problem_of({.scopes = {{.width = 3}}});
  EXPECT_EQ("", refusal(p, "cuda"));
  EXPECT_EQ("", refusal(p, std::string(Plan<SparseAttention>(p, {.device = DeviceKind::kCuda}).implementation())));
  const SharedLimit limit(1000);
  EXPECT_NE(std::string::npos, refusal(p, "cuda").find("1000 bytes")) << refusal(p, "cuda");
}

}  // namespace
}  // namespace smla
