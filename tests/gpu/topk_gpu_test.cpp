// Exact selection on the GPU against `_ref`: the same columns in the same order, whatever the scores.
#include <algorithm>
#include <bit>
#include <map>

#include "gpu/gpu_run.h"
#include "parity/topk_cases.h"

namespace smla {
namespace {

using cases::Scores;
using cases::TopkCase;
using cases::TopkInputs;

constexpr std::int32_t kPoison = 0x5A5A'5A5A;
constexpr std::int64_t kOutPadding = 3;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// With `implementation` of the GPU, or the reference where there is no name.
std::vector<std::int32_t> select(const TopkCase& c, const TopkInputs& inputs, const std::string& implementation) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(c.rows * (c.k + kOutPadding)), kPoison);
  TensorView view(out.data(), DType::kI32, {c.rows, c.k});
  view.stride[0] = c.k + kOutPadding;
  const TopK::Args args{.logits = inputs.view(c), .lens = view_of(inputs.lens.data(), {c.rows}), .indices = view};
  if (!implementation.empty()) {
    test::run_on_gpu<TopK>(c.problem(), args, implementation);
  } else {
    Plan<TopK>(c.problem(), {.implementation = "ref"}).run(args);
  }
  return out;
}

void check(const TopkCase& c, const TopkInputs& inputs) {
  SCOPED_TRACE(testing::Message() << c);
  const std::vector<std::int32_t> want = select(c, inputs, "");
  for (const std::string& name : test::gpu_implementations<TopK>(c.problem())) {
    SCOPED_TRACE(name);
    const std::vector<std::int32_t> got = select(c, inputs, name);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i) / (c.k + kOutPadding);
      ASSERT_EQ(want[i], got[i]) << "row " << row << " (length " << inputs.lens[static_cast<std::size_t>(row)]
                                 << ") place " << static_cast<std::int64_t>(i) % (c.k + kOutPadding);
    }
  }
}

class TopkGpu : public test::GpuTest {};

TEST_F(TopkGpu, CasesAreRef) {
  for (const TopkCase& c : cases::topk_cases()) {
    check(c, TopkInputs(c));
    if (HasFailure()) return;
  }
}

TEST_F(TopkGpu, WidthsAndChoices) {
  std::uint32_t seed = 1;
  for (const std::int64_t width : {0, 1, 31, 2048, 4096, 4097, 16'384, 16'385, 65'537}) {
    for (const std::int64_t k : {1, 512, 1024, 2048}) {
      for (const Scores scores : {Scores::kNormal, Scores::kEqual, Scores::kPlateau, Scores::kNan, Scores::kInfinite}) {
        const auto w = static_cast<std::int32_t>(width);
        const TopkCase c{.rows = 3,
                         .width = width,
                         .k = k,
                         .padding = 1,
                         .scores = scores,
                         .lens = {w, w - 1, w / 2 + 1},
                         .seed = ++seed};
        check(c, TopkInputs(c));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(TopkGpu, WideRows) {
  for (const Scores scores : cases::kAllScores) {
    TopkCase c{.rows = 1, .width = 262'144, .k = 2048, .scores = scores, .seed = 77};
    const TopkInputs inputs(c);
    for (const std::int64_t k : {1, 512, 2048}) {
      c.k = k;
      check(c, inputs);
    }
    if (HasFailure()) return;
  }
}

TEST_F(TopkGpu, FewWideRows) {
  // Rows that several blocks share, of lengths on both sides of what one block does by itself; keys that crowd one
  // first digit, so that more can be chosen than a list holds.
  std::uint32_t seed = 100;
  for (const std::int64_t rows : {1, 7, 64, 65, 256}) {
    for (const std::int64_t width : {32'768, 33'000, 70'000}) {
      for (const Scores scores : {Scores::kNormal, Scores::kPlateau, Scores::kEqual}) {
        TopkCase c{.rows = rows, .width = width, .k = 512, .padding = 5, .scores = scores, .seed = ++seed};
        TopkInputs inputs(c);
        const auto w = static_cast<std::int32_t>(width);
        const std::int32_t lens[] = {w, 8192, 8193, 512, 513, 0, w - 1, 16'384, 12'289, -1, w / 2};
        for (std::size_t i = 0; i < inputs.lens.size(); ++i) inputs.lens[i] = lens[(i + seed) % std::size(lens)];
        check(c, inputs);
        if (HasFailure()) return;
        for (float& v : inputs.logits) v = 1.0F + std::abs(v) * 0x1p-12F;
        c.k = 2048;
        check(c, inputs);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(TopkGpu, RowsOfFewValues) {
  // Rows of values drawn from a few, among them NaN of both signs, both infinities, both zeros and subnormals.
  const std::map<std::string, std::vector<float>> draws = {
      {"NaN", {kNan, -kNan}},
      {"-inf", {-kInfinity}},
      {"+inf", {kInfinity}},
      {"NaN or -inf", {kNan, -kInfinity}},
      {"infinities", {kInfinity, -kInfinity}},
      {"zeros", {0.0F, -0.0F}},
      {"subnormals", {0x1p-149F, -0x1p-149F, 0.0F, -0.0F, 0x1.fffffcp-127F}},
      {"all", {kNan, -kNan, kInfinity, -kInfinity, 0.0F, -0.0F, 0x1p-149F, -3.0F, 3.0F}},
      {"largest", {3.4028235e38F, kInfinity, -3.4028235e38F, -kInfinity}}};
  std::mt19937 random(9);
  for (const auto& [name, values] : draws) {
    for (const std::int64_t width : {40, 3000, 20'000}) {
      for (const std::int64_t k : {1, 33, 2048}) {
        const TopkCase c{.rows = 4, .width = width, .k = k, .padding = 3};
        TopkInputs inputs(c);
        for (float& v : inputs.logits) v = values[random() % values.size()];
        SCOPED_TRACE(name);
        check(c, inputs);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(TopkGpu, NeighboursInEveryDigit) {
  // Keys that differ in their last, middle or first bits only, so that every pass decides once.
  std::mt19937 random(3);
  for (const int shift : {0, 5, 10, 15, 21, 26}) {
    for (const std::int64_t width : {1500, 17'000}) {
      for (const std::int64_t k : {7, 700}) {
        const TopkCase c{.rows = 2, .width = width, .k = k};
        TopkInputs inputs(c);
        for (float& v : inputs.logits)
          v = std::bit_cast<float>(0x0080'0000U + ((static_cast<std::uint32_t>(random()) % 61U) << shift));
        check(c, inputs);
        for (float& v : inputs.logits) v = -v;
        check(c, inputs);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(TopkGpu, CrowdedBins) {
  // Between scores above and below, as many alike as a bin of equal width may have and one more, some of them equal;
  // and scores that one outlier crowds into the lowest bin.
  std::mt19937 random(11);
  for (const std::int64_t alike : {1, 3, 63, 64, 65, 600}) {
    for (const std::int64_t rows : {2, 140}) {
      for (const bool outlier : {false, true}) {
        TopkCase c{.rows = rows, .width = 1900};
        TopkInputs inputs(c);
        for (std::size_t i = 0; i < inputs.logits.size(); ++i) {
          const auto column = static_cast<std::int64_t>(i % static_cast<std::size_t>(c.width + c.padding));
          const auto step = static_cast<float>(random() % 200);
          inputs.logits[i] = column % 3 == 0 && column / 3 < alike ? 1 + step * 0x1p-23F : (step < 100 ? -3.0F : 5.0F);
          if (outlier && column == 1234) inputs.logits[i] = 1e30F;
        }
        const std::int64_t above =
            std::count_if(inputs.logits.begin(), inputs.logits.begin() + c.width, [](float v) { return v >= 5; });
        for (const std::int64_t k : {above - 1, above, above + 1, above + alike / 2 + 1, above + alike}) {
          c.k = k;
          check(c, inputs);
          if (HasFailure()) return;
        }
      }
    }
  }
}

/// Scores of rows so long that a block looks for a bound first, in ways that mislead it.
enum class Misleading { kRising, kFalling, kFewValues, kOutlier, kFewFinite, kPlateau, kOneRun };

void mislead(Misleading how, const TopkCase& c, std::vector<float>* scores) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const std::int64_t stride = c.width + c.padding;
  for (std::size_t i = 0; i < scores->size(); ++i) {
    const auto column = static_cast<std::int64_t>(i) % stride;
    const float at = static_cast<float>(column) / static_cast<float>(c.width);
    float& v = (*scores)[i];
    switch (how) {
      case Misleading::kRising: v = at; break;
      case Misleading::kFalling: v = -at; break;
      case Misleading::kFewValues: v = static_cast<float>(random() % 50); break;
      case Misleading::kOutlier: v = column == 1234 ? 1e30F : normal(random); break;
      case Misleading::kFewFinite: v = random() % 16 == 0 ? normal(random) : -kInfinity; break;
      case Misleading::kPlateau: v = random() % 2 == 0 ? 2.0F : normal(random); break;
      case Misleading::kOneRun: v = column / 128 == 7 ? 5 + normal(random) : normal(random); break;
    }
  }
}

TEST_F(TopkGpu, LongRowsWithMisleadingScores) {
  for (const Misleading how : {Misleading::kRising, Misleading::kFalling, Misleading::kFewValues, Misleading::kOutlier,
                               Misleading::kFewFinite, Misleading::kPlateau, Misleading::kOneRun}) {
    for (const auto& [rows, width] :
         {std::pair<std::int64_t, std::int64_t>{2, 7001}, {2, 15'000}, {2, 32'768}, {140, 3500}, {140, 8000}}) {
      TopkCase c{.rows = rows, .width = width};
      TopkInputs inputs(c);
      mislead(how, c, &inputs.logits);
      const auto w = static_cast<std::int32_t>(width);
      for (std::size_t i = 0; i < inputs.lens.size(); ++i) inputs.lens[i] = i % 2 == 0 ? w : w - 1003;
      for (const std::int64_t k : {1, 512, 1024}) {
        SCOPED_TRACE(testing::Message() << "way " << static_cast<int>(how));
        c.k = k;
        check(c, inputs);
        if (HasFailure()) return;
      }
    }
  }
}

void check_slots(const TopkCase& c, const cases::SlotInputs& table, std::int64_t storage_block) {
  SCOPED_TRACE(testing::Message() << c);
  const TopkInputs inputs(c);
  TopK::Problem problem = c.problem();
  problem.slots = {.storage_block = storage_block};
  struct Written {
    std::vector<std::int32_t> chosen, slots, lens;
  };
  const auto run = [&](const PlanOptions& options) {
    Written out;
    out.chosen.resize(static_cast<std::size_t>(c.rows * c.k));
    TopK::Args args{.logits = inputs.view(c),
                    .lens = view_of(inputs.lens.data(), {c.rows}),
                    .indices = view_of(out.chosen.data(), {c.rows, c.k})};
    table.add_to(args.slots, c, out.slots, out.lens);
    run_staged(Plan<TopK>(problem, options), args, options.device);
    return out;
  };
  const Written want = run({.implementation = "ref"});
  for (const std::string& name : test::gpu_implementations<TopK>(problem)) {
    SCOPED_TRACE(name);
    const Written got = run({.device = DeviceKind::kCuda, .implementation = name});
    ASSERT_EQ(want.chosen, got.chosen);
    ASSERT_EQ(want.slots, got.slots);
    ASSERT_EQ(want.lens, got.lens);
  }
}

TEST_F(TopkGpu, SlotsAreRef) {
  for (const TopkCase& c : cases::slot_cases()) {
    check_slots(c, cases::SlotInputs(c), cases::SlotInputs::kBlock);
    if (HasFailure()) return;
  }
}

TEST_F(TopkGpu, SlotsOfWholeTables) {
  // Tables without holes, but for one block in the last of them, of more blocks than a thread block has threads.
  for (const std::int64_t rows : {7, 140}) {
    for (const std::int64_t width : {1500, 6000}) {
      for (const bool hole : {false, true}) {
        constexpr std::int64_t kBlock = 2;
        const TopkCase c{.rows = rows, .width = width, .k = 512, .padding = 1, .seed = 41};
        cases::SlotInputs table(c);
        table.columns = (width + kBlock - 1) / kBlock;
        table.table.resize(static_cast<std::size_t>(cases::SlotInputs::kRequests * table.columns));
        for (std::size_t i = 0; i < table.table.size(); ++i) table.table[i] = static_cast<std::int32_t>(7 * i % 50'000);
        for (std::size_t i = 0; i < table.request.size(); ++i)
          table.request[i] = static_cast<std::int32_t>(i % cases::SlotInputs::kRequests);
        if (hole) table.table[table.table.size() - 20] = -1;
        check_slots(c, table, kBlock);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(TopkGpu, HostileLengths) {
  std::mt19937 random(4);
  for (const std::int64_t width : {100, 5000, 20'000}) {
    const TopkCase c{.rows = 40, .width = width, .k = 512, .padding = 7, .scores = Scores::kNormal, .seed = 5};
    TopkInputs inputs(c);
    const std::int32_t wild[] = {INT32_MIN, -1, 0, 511, 512, 513, INT32_MAX};
    for (std::int32_t& len : inputs.lens)
      len = random() % 2 == 0 ? wild[random() % std::size(wild)] : static_cast<std::int32_t>(random());
    check(c, inputs);
  }
}

TEST_F(TopkGpu, LargeChoices) {
  for (const std::int64_t k : {5000, 40'000, 65'536, 65'537, 100'000}) {
    for (const Scores scores : {Scores::kNormal, Scores::kPlateau, Scores::kNan}) {
      const TopkCase c{
          .rows = 2, .width = 65'537, .k = k, .padding = 2, .scores = scores, .lens = {65'537, 41'000}, .seed = 6};
      check(c, TopkInputs(c));
      if (HasFailure()) return;
    }
  }
}

TEST_F(TopkGpu, MoreThan65535Rows) {
  const TopkCase c{.rows = 70'000, .width = 9, .k = 3, .lens = {9, 8, 3, 2, 0, -1}, .seed = 8};
  check(c, TopkInputs(c));
}

TEST_F(TopkGpu, TwentyRepeatsAreTheSame) {
  for (const std::int64_t width : {3000, 30'000}) {
    const TopkCase c{.rows = 5, .width = width, .k = 512, .scores = Scores::kPlateau, .seed = 10};
    const TopkInputs inputs(c);
    for (const std::string& name : test::gpu_implementations<TopK>(c.problem())) {
      const std::vector<std::int32_t> first = select(c, inputs, name);
      for (int i = 0; i < 20; ++i)
        ASSERT_EQ(first, select(c, inputs, name)) << name << " width " << width << " repeat " << i;
    }
  }
}

}  // namespace
}  // namespace smla
