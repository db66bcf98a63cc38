// Sparse attention on the GPU against `_ref` over the family's own cases.
#include "gpu/gpu_run.h"
#include "parity/attention_cases.h"

namespace smla {
namespace {

using namespace attention_cases;

class AttentionGpu : public test::GpuTest {};

AttentionOutputs run_device(AttentionInputs& in) {
  AttentionOutputs out(in.problem);
  SparseAttention::Args args = in.args();
  out.attach(args);
  test::run_on_gpu<SparseAttention>(in.problem, args);
  return out;
}

/// l2 2.2e-3 of the output and 1e-5 * max(1, |lse|), against `_ref`; padded heads +0, gaps untouched.
void expect_near(const AttentionOutputs& want, const AttentionOutputs& got) {
  const SparseAttention::Problem& p = want.problem;
  double error = 0;
  double norm = 0;
  EXPECT_TRUE(got.gaps_untouched());
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    for (std::int64_t h = 0; h < p.padded_heads(); ++h) {
      for (std::int64_t d = 0; d < p.dim; ++d) {
        const double w = want.value(t, h, d);
        const double g = got.value(t, h, d);
        ASSERT_TRUE(std::isfinite(g)) << "token " << t << " head " << h << " dim " << d;
        ASSERT_TRUE(h < p.heads || (g == 0 && !std::signbit(g))) << "padded head " << h;
        error += (w - g) * (w - g);
        norm += w * w;
      }
      if (h >= p.heads) continue;
      const float w = want.lse_of(t, h);
      const float g = got.lse_of(t, h);
      if (std::isinf(w) || std::isinf(g)) {
        ASSERT_EQ(w, g) << "lse of token " << t << " head " << h;
      } else {
        ASSERT_LE(std::fabs(w - g), 1e-5F * std::max(1.0F, std::fabs(w))) << "lse of token " << t << " head " << h;
      }
    }
  }
  EXPECT_LE(std::sqrt(error), (p.o == DType::kBF16 ? 2.2e-3 : 1e-5) * std::sqrt(norm));
}

template <class Cases>
void check(const Cases& cases) {
  int ran = 0;
  for (const AttentionCase& c : cases) {
    const std::vector<Candidate> candidates = explain<SparseAttention>(problem_of(c), {.device = DeviceKind::kCuda});
    const auto cuda = std::ranges::find_if(candidates, [](const Candidate& x) { return x.name == "cuda"; });
    if (!cuda->refusal.empty()) {
      std::cout << "refused: " << cuda->refusal << " (" << c << ")\n";
      continue;
    }
    SCOPED_TRACE(testing::PrintToString(c));
    AttentionInputs in = make_inputs(c);
    expect_near(attention_cases::run(in, "ref", 0), run_device(in));
    ++ran;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(ran, 0);
}

TEST_F(AttentionGpu, GridIsRef) { check(grid_cases()); }
TEST_F(AttentionGpu, SpecialCasesAreRef) { check(special_cases()); }

TEST_F(AttentionGpu, TwentyRepeatsAreTheSameBits) {
  AttentionInputs in =
      make_inputs({.tokens = 5, .heads = 13, .sink = 0.3F, .scopes = {{.width = 128}, {.width = 333, .block_size = 2, .num_blocks = 90}}});
  const AttentionOutputs first = run_device(in);
  for (int i = 0; i < 20; ++i) {
    const AttentionOutputs again = run_device(in);
    ASSERT_EQ(first.o, again.o);
    ASSERT_EQ(0, std::memcmp(first.lse.data(), again.lse.data(), first.lse.size() * sizeof(float)));
  }
}

}  // namespace
}  // namespace smla
