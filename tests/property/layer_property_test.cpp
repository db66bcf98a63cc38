#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <set>

#include "property/few_cases.h"
#include "property/layer_harness.h"

namespace smla {
namespace {

using test::check_few;
using test::LayerHarness;
using test::random_steps;
using test::Steps;
using test::Surroundings;
using test::Trace;
using test::whole;

/// A layer kind under one set of implementations. The projection is the reference or the project's own kernel: both are
/// exact per row.
struct Setting {
  int ratio;
  const char* implementation;
  const char* rows;
};

std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << "r" << s.ratio << "_" << s.implementation << "_" << s.rows;
}

std::string name(const testing::TestParamInfo<Setting>& info) { return testing::PrintToString(info.param); }

LayerOptions options_of(const Setting& s) {
  LayerOptions o;
  o.deterministic = true;
  o.implementations = {{"*", s.implementation}, {"projection", "ref"}};
  if (std::string(s.rows) == "f32") {
    o.precision = Precision::kF32;
  } else {
    o.caches.rows = &row_format(s.rows);
    if (o.caches.rows->scale == ScaleKind::kPerTensor) {
      o.q = DType::kE4M3;
      o.caches.kv_scale = 0.02F;
      o.q_scale = 0.03F;
    }
  }
  return o;
}

void expect_equal(const Trace& a, const Trace& b) {
  for (const auto& [where, bytes] : a.output) RC_ASSERT(b.output.at(where) == bytes);
  for (const auto& [where, row] : a.topk) RC_ASSERT(b.topk.at(where) == row);
  for (const auto& [what, bytes] : a.caches) RC_ASSERT(b.caches.at(what) == bytes);
  RC_ASSERT(a.output.size() == b.output.size());
}

class LayerProperty : public testing::TestWithParam<Setting> {
 protected:
  static bool available() {
    const std::string wanted = GetParam().implementation;
    return (wanted != "avx2" || cpu_features().avx2) && (wanted != "avx512" || cpu_features().avx512);
  }
  void SetUp() override {
    if (!available()) GTEST_SKIP() << "this CPU cannot run " << GetParam().implementation;
  }
  /// Long enough for two C128A entries, short enough for the reference.
  static std::vector<std::int64_t> lengths(unsigned seed) {
    std::mt19937 random(seed);
    return {std::uniform_int_distribution<std::int64_t>(256, 270)(random),
            std::uniform_int_distribution<std::int64_t>(1, 150)(random)};
  }
};

TEST_P(LayerProperty, WeightsOneAfterAnotherGiveTheSameBits) {
  const std::vector<std::int64_t> long_and_short{261, 37};
  const LayerHarness apart(GetParam().ratio, options_of(GetParam()), long_and_short);
  const LayerHarness joined(GetParam().ratio, options_of(GetParam()), long_and_short, true);
  const Trace want = apart.run(whole(long_and_short), {});
  const Trace got = joined.run(whole(long_and_short), {});
  EXPECT_EQ(got.output, want.output);
  EXPECT_EQ(got.topk, want.topk);
  EXPECT_EQ(got.caches, want.caches);
}

TEST_P(LayerProperty, JointProductsGiveTheSameBits) {
  const std::vector<std::int64_t> long_and_short{261, 37};
  const Steps steps = random_steps(long_and_short, 5, 90, false);  // of few rows and of more
  LayerOptions options = options_of(GetParam());
  const Trace want = LayerHarness(GetParam().ratio, options, long_and_short).run(steps, {});
  options.implementations["joint_projection"] = "ref";
  for (const bool deterministic : {true, false}) {
    options.deterministic = deterministic;
    const Trace got = LayerHarness(GetParam().ratio, options, long_and_short).run(steps, {});
    EXPECT_EQ(got.output, want.output);
    EXPECT_EQ(got.topk, want.topk);
    EXPECT_EQ(got.caches, want.caches);
    EXPECT_NE(got.implementations.find("joint_projection ref"), std::string::npos) << got.implementations;
    EXPECT_EQ(got.implementations.find(" projection"), std::string::npos) << got.implementations;
  }
}

TEST_P(LayerProperty, AnyChunkingIsTheWholePrefill) {
  check_few("prefill = any chunking", 2, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const LayerHarness layer(GetParam().ratio, options_of(GetParam()), lengths(seed));
    expect_equal(layer.run(whole(lengths(seed)), {}), layer.run(random_steps(lengths(seed), seed, 90, false), {}));
  });
}

TEST_P(LayerProperty, DecodeTokenByTokenIsPrefill) {
  const std::vector<std::int64_t> one{261};
  const LayerHarness layer(GetParam().ratio, options_of(GetParam()), one);
  const Trace prefill = layer.run(whole(one), {});
  const Trace decode = layer.run(random_steps(one, 3, 1, false), {});
  EXPECT_EQ(prefill.output, decode.output);
  EXPECT_EQ(prefill.topk, decode.topk);
  EXPECT_EQ(prefill.caches, decode.caches);
}

TEST_P(LayerProperty, ScoresInPiecesAreScoresAtOnce) {
  if (GetParam().ratio != 4) GTEST_SKIP() << "only C4A layers score";
  check_few("a small score matrix = a large one", 2, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    LayerOptions options = options_of(GetParam());
    const LayerHarness at_once(GetParam().ratio, options, lengths(seed));
    options.score_bytes =
        1 + static_cast<std::int64_t>(seed % 9) * 4 * 65;  // fewer than a row, and up to eight of about 65 entries
    const LayerHarness in_pieces(GetParam().ratio, options, lengths(seed));
    const Steps steps = random_steps(lengths(seed), seed, 120, false);
    expect_equal(at_once.run(steps, {}), in_pieces.run(steps, {}));
  });
}

TEST_P(LayerProperty, SurroundingsChangeNothing) {
  check_few("block permutation, strides, poison and padding", 2, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const LayerHarness layer(GetParam().ratio, options_of(GetParam()), lengths(seed));
    const Steps steps = random_steps(lengths(seed), seed, 120, false);
    const Surroundings around{.block_seed = seed | 1U,
                              .gap = 16 * static_cast<std::int64_t>(seed % 5),
                              .fill = static_cast<std::uint8_t>(
                                  seed % 2 == 0 ? 0xFF : 0x7F),  // NaN in e4m3 and bf16; 0x7F7F7F7F is huge in fp32
                              .padding_tokens = static_cast<std::int64_t>(seed % 4),
                              .padding_requests = static_cast<std::int64_t>(seed % 3)};
    expect_equal(layer.run(steps, {}), layer.run(steps, around));
  });
}

TEST_P(LayerProperty, LengthsThatOnlyTheDeviceKnowsAreThoseThatCount) {
  check_few("the host's bound of a request's tokens = their number", 2, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const std::vector<std::int64_t> short_ones{40 + seed % 30, 9, 133 + seed % 5};
    const LayerHarness layer(GetParam().ratio, options_of(GetParam()), short_ones);
    const Steps steps = random_steps(short_ones, seed, 4, true);
    constexpr std::int64_t kBound = 7;  // 4 and 3 rejected drafts
    const Surroundings known{.decode_threshold = kBound};
    const Surroundings bound{
        .padding_requests = static_cast<std::int64_t>(seed % 2), .decode_threshold = kBound, .host_bound = kBound};
    expect_equal(layer.run(steps, known), layer.run(steps, bound));
  });
}

TEST_P(LayerProperty, RejectedDraftsLeaveNoTrace) {
  check_few("speculative verification = plain decode", 2, [] {
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const LayerHarness layer(GetParam().ratio, options_of(GetParam()), lengths(seed));
    expect_equal(layer.run(whole(lengths(seed)), {}), layer.run(random_steps(lengths(seed), seed, 40, true), {}));
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, LayerProperty,
                         testing::Values(Setting{1, "ref", "fp8_ds_mla"}, Setting{4, "ref", "fp8_ds_mla"},
                                         Setting{128, "ref", "fp8_ds_mla"}, Setting{4, "ref", "f32"},
                                         Setting{1, "cpu", "bf16"}, Setting{4, "cpu", "fp8_ds_mla"},
                                         Setting{128, "cpu", "fp8_ds_mla"}, Setting{4, "cpu", "fp8_per_tensor"},
                                         Setting{1, "avx2", "fp8_ds_mla"}, Setting{4, "avx2", "bf16"},
                                         Setting{128, "avx2", "fp8_per_tensor"}, Setting{1, "avx512", "fp8_per_tensor"},
                                         Setting{4, "avx512", "fp8_ds_mla"}, Setting{128, "avx512", "bf16"},
                                         Setting{4, "avx512", "f32"}),
                         name);

/// With a GEMM that sums differently for different batches: close where the top-k sets agree, and sets that differ only
/// around the k-th score.
TEST(LayerProperty, AnyGemmStaysClose) {
  for (const int ratio : {1, 4, 128}) {
    const std::vector<std::int64_t> lengths{300};
    const LayerHarness layer(ratio, LayerOptions{}, lengths);
    const Trace a = layer.run(whole(lengths), {});
    const Trace b = layer.run(random_steps(lengths, 11, 37, false), {});
    int compared = 0;
    for (const auto& [where, bytes] : a.output) {
      if (a.topk.contains(where) && std::set(a.topk.at(where).begin(), a.topk.at(where).end()) !=
                                        std::set(b.topk.at(where).begin(), b.topk.at(where).end())) {
        if (!a.scores.contains(where)) continue;
        std::vector<float> sorted = a.scores.at(where);
        std::ranges::sort(sorted, std::greater<>());
        const float boundary = sorted[std::min<std::size_t>(a.topk.at(where).size(), sorted.size()) - 1];
        const double mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
        double variance = 0;
        for (const float s : sorted) variance += (s - mean) * (s - mean) / static_cast<double>(sorted.size());
        for (const std::int32_t j : b.topk.at(where)) {
          if (j >= 0) {
            EXPECT_GE(a.scores.at(where)[static_cast<std::size_t>(j)], boundary - 0.01 * std::sqrt(variance));
          }
        }
        continue;
      }
      const auto* x = reinterpret_cast<const BF16*>(bytes.data());
      const auto* y = reinterpret_cast<const BF16*>(b.output.at(where).data());
      double difference = 0;
      double norm = 0;
      for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
        difference += std::pow(static_cast<double>(to_float(x[i])) - static_cast<double>(to_float(y[i])), 2);
        norm += std::pow(static_cast<double>(to_float(x[i])), 2);
      }
      EXPECT_LE(std::sqrt(difference / norm), 1e-2)
          << "ratio " << ratio << " position " << where.second << " with " << a.implementations;
      ++compared;
    }
    EXPECT_GT(compared, 200);
  }
}

}  // namespace
}  // namespace smla
