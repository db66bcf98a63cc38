// The engine under load on the GPU: graphs that come and go, drafts, preemption, cancellations.
#include "engine/soak.h"
#include "gpu/gpu_run.h"
#include "property/small_model.h"

namespace smla {
namespace {

class SoakGpu : public test::GpuTest {};

TEST_F(SoakGpu, UnderLoadGraphsAreBoundedAndOutputsAreThoseAlone) {
  std::vector<RequestSpec> specs;
  for (const auto& [prompt, output] : {std::pair(70, 9), {9, 12}, {130, 5}, {40, 14}})
    specs.push_back({.id = std::ssize(specs), .prompt_tokens = prompt, .output_tokens = output});
  EngineOptions options;
  options.model = test::small_model();
  options.layers = {0, 1, 2};
  options.layer.device = DeviceKind::kCuda;
  options.layer.deterministic = true;
  options.time_stages = false;
  options.max_batched_tokens = 64;
  options.max_seqs = 3;
  options.max_model_len = 200;
  options.max_graphs = 2;
  options.speculative = 2;
  options.draft_acceptance = 0.5;
  const KvLayout layout = make_kv_layout(layer_configs(options), options.layer.caches);
  options.num_blocks = blocks_needed(layout, specs[2], options.max_batched_tokens);
  const SoakOptions how{.seconds = 3600, .arrivals = 10, .cancelled_share = 0.4, .warm_up_steps = 0};
  const auto alone = digests_alone(options, {}, specs);
  ASSERT_EQ(alone.size(), specs.size());
  ParallelEngine engine(options, {});
  const SoakReport report = soak(engine, options, specs, alone, how);
  EXPECT_TRUE(report.different.empty());
  EXPECT_TRUE(report.stuck.empty()) << report.stuck;
  EXPECT_EQ(report.lost_blocks, 0);
  EXPECT_EQ(report.most_graphs, 2);
  EXPECT_GT(report.totals.graph_steps, 0);
  EXPECT_GT(report.totals.graphs_evicted, 0);
  EXPECT_GT(report.totals.preemptions, 0);
  EXPECT_GT(report.cancelled, 0);
  EXPECT_EQ(report.finished + report.cancelled, report.submitted);
  for (const SoakCheck& check : soak_checks(report, options, how)) {
    if (check.name == "graphs") {
      EXPECT_EQ(check.outcome, SoakCheck::Outcome::kPass) << check.text;
    }
  }
  EngineOptions tighter = options;  // the same soak against a bound that it did not keep
  tighter.max_graphs = 1;
  EXPECT_FALSE(soak_passed(report, tighter, how));
}

}  // namespace
}  // namespace smla
