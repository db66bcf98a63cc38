// What `sm90_small` does otherwise than the other kernels of attention: a cluster shares a list by runs of eight
// entries and merges it, and its blocks have tiles of 80 keys in two buffers.
#include "gpu/attention_gpu.h"
#include "ops/attention/small_split.h"

namespace smla {
namespace {

using namespace attention_gpu;

const Way kSmall{.implementation = "sm90_small"};

bool has_small(const SparseAttention::Problem& p) {
  const std::vector<std::string> names = test::gpu_implementations<SparseAttention>(p);
  return std::ranges::find(names, kSmall.implementation) != names.end();
}

/// A list of every length around those at which a block gets another run, a step of products or a tile.
TEST_F(AttentionGpu, SmallCallsOfEveryLengthAreRef) {
  constexpr std::int64_t kWidth = 2'100;  // four tiles of a block
  int lists = 0;
  for (const int length :
       {0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 639, 640, 641, 1'279, 1'280, 1'281, 2'099, 2'100}) {
    AttentionInputs in =
        make_inputs({.tokens = 2,
                     .heads = length % 2 == 0 ? 17 : 5,
                     .out_heads = length % 2 == 0 ? 20 : 0,
                     .sink = 0.3F,
                     .scopes = {{.width = 128, .lens = Lens::kAbsent}, {.width = kWidth, .lens = Lens::kAbsent}},
                     .seed = static_cast<unsigned>(31'000 + length)});
    if (!has_small(in.problem)) GTEST_SKIP() << "no sm90_small on this GPU";
    for (ScopeInputs& s : in.scopes) s.lens = {length, std::max(length - 3, 0)};
    // A run without a row, and runs with one.
    for (std::int64_t i = 0; i < kWidth; ++i)
      if (i / 8 % 5 == 2 || (i / 8 % 5 == 3 && i % 8 != 4)) in.scopes[1].indices[static_cast<std::size_t>(i)] = -1;
    SCOPED_TRACE(length);
    expect_parity(attention_cases::run(in, "ref", 1), run_device(in, kSmall), bound_of(kSmall));
    if (HasFailure()) return;
    ++lists;
  }
  EXPECT_EQ(19, lists);
}

/// Queries whose numbers lie far apart: each 64 of them become fp16 numbers over a power of two of their own.
TEST_F(AttentionGpu, SmallCallsTakeQueriesOfAnySize) {
  for (const int size : {-100, -40, 0, 40, 90}) {
    AttentionInputs in =
        make_inputs({.tokens = 1, .heads = 16, .o = DType::kF32, .scopes = {{.width = 100, .lens = Lens::kAbsent}}});
    if (!has_small(in.problem)) GTEST_SKIP() << "no sm90_small on this GPU";
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    for (std::int64_t h = 0; h < 16; ++h) {
      // The numbers of one group are as large as the case says, in a head for itself; so no score passes fp32.
      for (std::int64_t d = 0; d < 64; ++d)
        put(DType::kBF16, in.q.data(), h * 512 + h % 7 * 64 + d, std::ldexp(normal(random), size));
    }
    in.problem.scale = size > 0 ? std::ldexp(0.04F, -size) : 0.04F;
    SCOPED_TRACE(size);
    expect_parity(attention_cases::run(in, "ref", 1), run_device(in, kSmall), bound_of(kSmall));
    if (HasFailure()) return;
  }
}

/// As many tokens as leave clusters of eight, four and two blocks room, and more: every cluster is of the same blocks
/// then, and a second wave follows the first.
TEST_F(AttentionGpu, SmallCallsByClustersOfAnySizeAreRef) {
  std::map<int, int> seen;
  const device::Gpu gpu = device::current_gpu();
  for (const std::int64_t tokens : {1, 4, 6, 8, 12, 17}) {
    AttentionInputs in = make_inputs({.tokens = tokens,
                                      .heads = 64,
                                      .sink = 0.1F,
                                      .scopes = {{.width = 128}, {.width = 500}},
                                      .seed = static_cast<unsigned>(33'000 + tokens)});
    if (!has_small(in.problem)) GTEST_SKIP() << "no sm90_small on this GPU";
    ++seen[split_small(in.problem, gpu).blocks];
    SCOPED_TRACE(tokens);
    expect_parity(attention_cases::run(in, "ref", 1), run_device(in, kSmall), bound_of(kSmall));
    if (HasFailure()) return;
  }
  if (gpu.multiprocessors == 132) {
    EXPECT_EQ(kSmallClusters.size(), seen.size());
  }
}

/// E4M3 queries, whose numbers become fp16 ones as bf16 queries' do.
TEST_F(AttentionGpu, SmallCallsTakeE4M3Queries) {
  for (const char* const format : {"fp8_per_tensor", "fp8_ds_mla"}) {
    for (const std::int64_t heads : {1, 17, 64}) {
      AttentionInputs in = make_inputs({.tokens = 2,
                                        .heads = heads,
                                        .q_gap = 16,
                                        .q = DType::kE4M3,
                                        .q_scale = 0.75F,
                                        .scopes = {{.format = format, .width = 128}, {.format = format, .width = 250}},
                                        .seed = static_cast<unsigned>(34'000 + heads)});
      if (!has_small(in.problem)) GTEST_SKIP() << "no sm90_small on this GPU";
      SCOPED_TRACE(testing::Message() << format << ", " << heads << " heads");
      expect_parity(attention_cases::run(in, "ref", 1), run_device(in, kSmall), bound_of(kSmall));
      if (HasFailure()) return;
    }
  }
}

/// Scales of a tile that lie further apart than weights may as fp16 numbers, and tiles whose scales do. The rows with
/// the large ones are opposite to all queries, so that outputs are of the others alone.
TEST_F(AttentionGpu, SmallCallsTakeScalesOfAnySize) {
  constexpr std::int64_t kWidth = 1'400;  // three tiles of a block
  for (const int apart : {0, 9, 12, 40, 90}) {
    for (const bool in_a_tile : {true, false}) {
      AttentionInputs in = make_inputs({.tokens = 1,
                                        .heads = 16,
                                        .o = DType::kF32,
                                        .scopes = {{.width = kWidth, .num_blocks = 24, .lens = Lens::kAbsent}}});
      if (!has_small(in.problem)) GTEST_SKIP() << "no sm90_small on this GPU";
      std::mt19937_64 random(9);
      std::normal_distribution<float> normal;
      for (std::int64_t i = 0; i < 16 * 512; ++i) put(DType::kBF16, in.q.data(), i, -std::abs(normal(random)));
      ScopeInputs& s = in.scopes[0];
      const RowFormat& f = *s.cache.format;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        const std::int64_t slot = s.indices[static_cast<std::size_t>(i)];
        if (!s.valid(static_cast<std::int32_t>(slot))) continue;
        const bool large = in_a_tile ? i / 8 % 16 == 3 : i > kWidth / 2;
        std::uint8_t* const block = s.memory.data() + slot / s.cache.block_size * s.cache.block_stride_bytes;
        const std::int64_t row = slot % s.cache.block_size;
        if (large) std::fill_n(block + row * f.data_bytes, 448, std::uint8_t{0x38});  // ones
        std::fill_n(block + row * f.data_bytes + 448, 128, std::uint8_t{0});          // numbers without a scale
        std::uint8_t* const scales = block + s.cache.block_size * f.data_bytes + row * f.scale_bytes;
        for (std::int64_t g = 0; g < 7; ++g) scales[g] = static_cast<std::uint8_t>(large ? 140 : 140 - apart);
      }
      SCOPED_TRACE(testing::Message() << apart << " binades apart" << (in_a_tile ? " in a tile" : ""));
      expect_parity(attention_cases::run(in, "ref", 1), run_device(in, kSmall), bound_of(kSmall));
      if (HasFailure()) return;
    }
  }
}

/// What it does not read is said.
TEST_F(AttentionGpu, SmallCallsRefuseWhatTheyDoNotTake) {
  const SparseAttention::Problem taken = problem_of({.scopes = {{.width = 128}}});
  if (!has_small(taken)) GTEST_SKIP() << "no sm90_small on this GPU";
  const auto says = [](const AttentionCase& c, const std::string& word) {
    const std::string said = refusal(problem_of(c), "sm90_small");
    EXPECT_NE(std::string::npos, said.find(word)) << said;
  };
  says({.scopes = {{.format = "bf16", .width = 128}}}, "it takes rows of e4m3 numbers");
  says({.scopes = {{.width = 128}, {.format = "fp8_per_tensor", .width = 128}}}, "it takes one kind of rows");
}

}  // namespace
}  // namespace smla
