// Sparse attention on the GPU of tokens that share rows of indices: the kernels on tensor cores may take their heads as
// those of one token.
#include <limits>

#include "gpu/attention_gpu.h"

namespace smla {
namespace {

using namespace attention_gpu;

TEST_F(AttentionGpu, SharedListsAreRef) {
  std::map<std::string, int> ran;
  for (const AttentionCase& c : sharing_cases()) {
    SCOPED_TRACE(testing::PrintToString(c));
    AttentionInputs in = make_inputs(c);
    check(in, ran);
    if (HasFailure()) return;
  }
  SparseAttention::Problem typical = OpDescription<SparseAttention>::typical();
  typical.tokens_per_list = 4;
  for (const std::string& name : test::gpu_implementations<SparseAttention>(typical)) EXPECT_GT(ran[name], 0) << name;
  for (const auto& [name, n] : ran) std::cout << name << ": " << n << " runs\n";
}

/// How a way cuts a problem, in words.
std::string choice_of(const SparseAttention::Problem& p, const Way& way) {
  const PlanOptions options{
      .device = DeviceKind::kCuda, .implementation = way.implementation, .deterministic = way.deterministic};
  for (const Candidate& x : explain<SparseAttention>(p, options)) {
    if (x.name == way.implementation) return x.choice;
  }
  return "";
}
/// Whether it packs the tokens; with fixed parts it always does.
bool packs(const SparseAttention::Problem& p, const Way& way) {
  return choice_of(p, way).find("heads of a list's tokens together") != std::string::npos;
}

/// Packed lists whose lengths the device finds to be unlike: enough of them that packing is estimated to be shorter.
TEST_F(AttentionGpu, SharedListsCutByLengthAreRef) {
  const std::int64_t lists = std::max(2, device::current_gpu().multiprocessors / 8);
  AttentionInputs in = make_inputs({.tokens = 8 * lists,
                                    .heads = 8,
                                    .tokens_per_list = 8,
                                    .sink = 0.2F,
                                    .scopes = {{.width = 135, .starts = Lens::kMixed}, {.width = 1024}}});
  const AttentionOutputs want = attention_cases::run(in, "ref", 1);
  int cut = 0;
  for (const Way& way : ways_of(in.problem)) {
    SCOPED_TRACE(testing::PrintToString(way));
    expect_parity(want, run_device(in, way), bound_of(way));
    const bool by_length = choice_of(in.problem, way).find("by their lengths") != std::string::npos;
    cut += by_length && packs(in.problem, way) ? 1 : 0;
  }
  EXPECT_GT(cut, 0);
}

/// As expect_parity() of bf16 numbers that were rounded, rotated and rounded again.
void expect_near(const AttentionOutputs& want, const AttentionOutputs& got) {
  for (std::int64_t t = 0; t < want.problem.tokens; ++t) {
    for (std::int64_t h = 0; h < want.problem.heads; ++h) {
      expect_same_lse(want.lse_of(t, h), got.lse_of(t, h));
      float largest = 0;
      for (std::int64_t d = 0; d < 512; ++d) largest = std::max(largest, std::fabs(want.value(t, h, d)));
      for (std::int64_t d = 0; d < 512; ++d)
        ASSERT_NEAR(want.value(t, h, d), got.value(t, h, d), 1e-2F * largest) << "token " << t << " head " << h;
    }
  }
}

/// Each packed token is normed, rotated and rotated back by its own position, or left as it is where that has no row.
TEST_F(AttentionGpu, SharedListsRotateByEachTokensPosition) {
  const HostTensor table = [] {
    HostTensor t(DType::kF32, {7, 64});
    std::mt19937_64 random(5);
    std::uniform_real_distribution<float> angle(0, 6);
    for (std::int64_t i = 0; i < 7; ++i) {
      for (std::int64_t k = 0; k < 32; ++k) {
        const float x = angle(random);
        t.as<float>()[i * 64 + k] = std::cos(x), t.as<float>()[i * 64 + 32 + k] = std::sin(x);
      }
    }
    return t;
  }();
  const std::vector<std::int64_t> positions{3, 0, 9, 5, 6, -1, 2, 1, 4, 0, 3, 7};
  int packed = 0;
  for (const char* format : {"fp8_ds_mla", "bf16"}) {
    for (const std::int64_t heads : {1, 5, 16}) {
      for (const DType o : {DType::kBF16, DType::kF32}) {
        AttentionInputs in = make_inputs(
            {.tokens = 12,
             .heads = heads,
             .o = o,
             .tokens_per_list = 4,
             .sink = 0.4F,
             .scopes = {{.format = format, .width = 70, .starts = Lens::kMixed}, {.format = format, .width = 90}}});
        in.problem.query_prologue = {.rope_dim = 64};
        in.problem.output_epilogue = {.rope_dim = 64};
        SparseAttention::Args args = in.args();
        const ConstTensorView at(positions.data(), DType::kI64, {12});
        args.query_prologue = {.positions = at, .cos_sin = std::as_const(table).view()};
        args.output_epilogue = {.positions = at, .cos_sin = std::as_const(table).view()};
        AttentionOutputs want(in.problem);
        want.attach(args);
        Plan<SparseAttention>(in.problem, {.implementation = "ref"}).run(args);
        for (const Way& way : ways_of(in.problem)) {
          SCOPED_TRACE(testing::Message() << format << ", " << heads << " heads, o " << name_of(o) << ", " << way);
          AttentionOutputs got(in.problem);
          got.attach(args);
          run_way(in.problem, args, way);
          if (o == DType::kF32) expect_parity(want, got, bound_of(way));
          if (o == DType::kBF16) expect_near(want, got);
          if (HasFatalFailure()) return;
          packed += packs(in.problem, way) ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(packed, 0);
}

/// A row that is no number makes the tokens NaN for which it counts, and no other that shares their list.
TEST_F(AttentionGpu, NanStaysWithTheTokensForWhichItCounts) {
  for (const char* format : {"fp8_ds_mla", "fp8_per_tensor", "bf16"}) {
    AttentionInputs in = make_inputs({.tokens = 8,
                                      .heads = 9,
                                      .tokens_per_list = 4,
                                      .scopes = {{.format = format, .width = 100, .num_blocks = 60, .invalid = 0}}});
    ScopeInputs& s = in.scopes[0];
    s.lens = {30, 60, 60, 20, 100, 100, 100, 100};
    s.starts = {0, 10, 38, 37, 0, 0, 0, 0};  // column 37 counts for tokens 1 and 3 of the first list
    std::set<std::int32_t> named(s.indices.begin(), s.indices.end());
    std::int32_t unnamed = 0;
    while (named.count(unnamed) > 0) ++unnamed;
    ASSERT_TRUE(s.valid(unnamed));
    std::mt19937_64 random(8);
    std::normal_distribution<float> normal;
    std::vector<float> row(512);
    for (const std::int32_t slot : named) {  // the new ranges count rows that were not written
      for (float& v : row) v = normal(random);
      s.cache.base = s.memory.data();
      encode_row(s.cache, slot, row.data());
    }
    s.index(0, 37) = unnamed;  // 0xFF: NaN in every format
    AttentionInputs other = in;
    other.scopes[0].index(0, 37) = -1;
    const AttentionOutputs want = attention_cases::run(other, "ref", 1);
    for (const Way& way : ways_of(in.problem)) {
      SCOPED_TRACE(testing::Message() << format << " " << way);
      const AttentionOutputs got = run_device(in, way);
      for (std::int64_t t = 0; t < 8; ++t) {
        const bool bad = t == 1 || t == 3;
        for (std::int64_t h = 0; h < 9; ++h) {
          ASSERT_EQ(bad, std::isnan(got.lse_of(t, h))) << "token " << t << " head " << h;
          if (!bad) expect_same_lse(want.lse_of(t, h), got.lse_of(t, h));
          for (std::int64_t d = 0; d < 512; ++d) {
            if (bad) {
              ASSERT_TRUE(std::isnan(got.value(t, h, d))) << "token " << t << " head " << h << " dim " << d;
            } else {
              ASSERT_NEAR(want.value(t, h, d), got.value(t, h, d), 2e-2) << "token " << t << " head " << h;
            }
          }
        }
      }
    }
  }
}

/// `deterministic`: what a list's tokens get does not depend on the other lists.
TEST_F(AttentionGpu, DeterministicBitsOfAListDoNotDependOnOthers) {
  AttentionInputs in = make_inputs({.tokens = 24,
                                    .heads = 12,
                                    .tokens_per_list = 3,
                                    .sink = 0.1F,
                                    .scopes = {{.width = 130, .starts = Lens::kMixed}, {.width = 900}}});
  for (const Way& way : ways_of(in.problem)) {
    if (!way.deterministic) continue;
    SCOPED_TRACE(testing::PrintToString(way));
    const AttentionOutputs all = run_device(in, way);
    for (const std::int64_t list : {0, 3, 7}) {
      AttentionInputs one = in;
      one.problem.tokens = 3;
      const auto bytes = static_cast<std::ptrdiff_t>(in.q_stride * size_of(in.problem.q));
      one.q.assign(in.q.begin() + 3 * list * bytes, in.q.begin() + 3 * (list + 1) * bytes);
      for (ScopeInputs& s : one.scopes) {
        const auto rows = [&](std::vector<std::int32_t>& v, std::int64_t each) {
          if (!v.empty()) v = {v.begin() + list * each, v.begin() + (list + 1) * each};
        };
        rows(s.indices, s.index_stride), rows(s.lens, 3), rows(s.starts, 3);
      }
      const AttentionOutputs alone = run_device(one, way);
      for (std::int64_t t = 0; t < 3; ++t) expect_row(all, 3 * list + t, alone, t);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace smla
