// What an observer of an engine is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "property/rows_seen.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

EngineOptions tiny_options() {
  EngineOptions o;
  o.model = model_preset("tiny");
  o.layers = {0, 1, 2};
  o.layer.deterministic = true;
  o.max_batched_tokens = 96;
  o.max_seqs = 4;
  o.num_blocks = 600;
  o.max_model_len = 400;
  return o;
}

const std::vector<RequestSpec> kRequests{{.id = 0, .prompt_tokens = 190, .output_tokens = 6},
                                         {.id = 1, .prompt_tokens = 140, .output_tokens = 8},
                                         {.id = 2, .prompt_tokens = 30, .output_tokens = 30}};

void run(EngineObserver& observer) {
  Engine engine(tiny_options(), &observer);
  for (const RequestSpec& r : kRequests) engine.submit(r);
  while (engine.step([] { return 0.0; })) {
  }
}

TEST(Observer, SeesTheRowsThatItWantsAndNoOthers) {
  test::RowsSeen all([](std::int64_t, const StepRow&) { return true; });
  run(all);
  std::int64_t rows = 0;
  for (const RequestSpec& r : kRequests) rows += 3 * r.positions();
  EXPECT_EQ(std::ssize(all.rows), rows);
  const auto some = [](std::int64_t layer, const StepRow& row) {
    return layer != 1 && row.request != 2 && row.position % 5 < 2;
  };
  test::RowsSeen picky(some);
  run(picky);
  EXPECT_GT(picky.calls, all.calls) << "rows with gaps between them come in several calls";
  test::expect_the_wanted_of(all, picky, some);
}

TEST(Observer, ACheckWantsNoMoreThanItsSamplesNeed) {
  constexpr int kSamples = 4;
  RunCheck check(kRequests, tiny_options(), kSamples);
  run(check);
  const CheckReport report = check.finish();
  ASSERT_EQ(report.computed, kSamples);
  EXPECT_TRUE(report.passed);
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> last;  // (request, layer) -> position
  for (const CheckedSample& s : report.samples) {
    std::int64_t& position = last.try_emplace({s.request, s.layer}, -1).first->second;
    position = std::max(position, s.position);
  }
  for (const RequestSpec& r : kRequests) {
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      const auto found = last.find({r.id, layer});
      for (std::int64_t p = 0; p < r.positions(); ++p) {
        ASSERT_EQ(check.wants(layer, {.request = r.id, .position = p}), found != last.end() && p <= found->second)
            << "request " << r.id << " layer " << layer << " position " << p;
        ASSERT_FALSE(check.wants(layer, {.request = r.id, .position = p, .rejected = true}));
      }
    }
  }
  EXPECT_FALSE(check.wants(0, {.request = 99}));
}

}  // namespace
}  // namespace smla
