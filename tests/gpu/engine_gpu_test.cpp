// Layers, metadata, pool and graphs on the GPU, seen through the engine.
#include <map>
#include <thread>

#include "gpu/gpu_run.h"
#include "property/block_rows.h"
#include "property/fp8_checkpoint.h"
#include "property/rows_seen.h"
#include "property/small_model.h"
#include "sparsemla/engine.h"
#include "sparsemla/run_check.h"

namespace smla {
namespace {

class EngineGpu : public test::GpuTest {};

EngineOptions gpu_options() {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer.device = DeviceKind::kCuda;
  o.layer.deterministic = true;
  o.time_stages = false;
  o.max_batched_tokens = 64;
  o.max_seqs = 8;
  o.num_blocks = 4000;
  o.max_model_len = 1500;
  return o;
}

/// Lengths on both sides of the window, of an entry of 128 tokens and of the top-k, and requests that come and go.
const std::vector<RequestSpec> kRequests{
    {.id = 0, .prompt_tokens = 3, .output_tokens = 40},    {.id = 1, .prompt_tokens = 130, .output_tokens = 9},
    {.id = 2, .prompt_tokens = 1, .output_tokens = 1},     {.id = 3, .prompt_tokens = 64, .output_tokens = 70},
    {.id = 4, .prompt_tokens = 300, .output_tokens = 12},  {.id = 5, .prompt_tokens = 17, .output_tokens = 150},
    {.id = 6, .prompt_tokens = 1020, .output_tokens = 10}, {.id = 7, .prompt_tokens = 5, .output_tokens = 5}};

/// Steps of up to 64 tokens and of more, few enough for an emulated GPU.
const std::vector<RequestSpec> kFewRequests{{.id = 0, .prompt_tokens = 70, .output_tokens = 4},
                                            {.id = 1, .prompt_tokens = 129, .output_tokens = 3},
                                            {.id = 2, .prompt_tokens = 2, .output_tokens = 6}};

struct Outcome {
  std::map<std::int64_t, std::uint64_t> digests;
  RunTotals totals;
};

Outcome finish(Engine& engine) {
  while (engine.step([] { return 0.0; })) {
  }
  Outcome out{.digests = {}, .totals = engine.totals()};
  for (const RequestResult& r : engine.results()) {
    EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
    out.digests[r.spec.id] = r.digest;
  }
  return out;
}

Outcome run(const EngineOptions& options, const std::vector<RequestSpec>& specs = kRequests) {
  Engine engine(options);
  for (const RequestSpec& s : specs) engine.submit(s);
  return finish(engine);
}

TEST_F(EngineGpu, RecordedGraphsGiveTheSameBitsWhileLengthsAndBatchesChange) {
  EngineOptions options = gpu_options();
  const Outcome recorded = run(options);
  EXPECT_GT(recorded.totals.graph_steps, 20);
  options.graphs = false;
  const Outcome queued = run(options);
  EXPECT_EQ(queued.totals.graph_steps, 0);
  EXPECT_EQ(recorded.digests, queued.digests);
}

TEST_F(EngineGpu, RecordingsThatAreEvictedAndMadeAgainGiveTheSameBits) {
  EngineOptions options = gpu_options();
  const Outcome all_kept = run(options);
  EXPECT_EQ(all_kept.totals.graphs_evicted, 0);
  options.max_graphs = 1;
  const Outcome one_kept = run(options);
  EXPECT_GT(one_kept.totals.graphs_evicted, 0);
  EXPECT_EQ(one_kept.digests, all_kept.digests);
}

/// One decode step of a size and several of it, few enough for an emulated GPU.
TEST_F(EngineGpu, ASizeIsRecordedWhenItComesAgain) {
  const auto decode = [](std::int64_t graph_after, std::int64_t steps) {
    EngineOptions options = gpu_options();
    options.graph_after = graph_after;
    options.graphs = graph_after > 0;
    if (graph_after == 0) options.graph_after = 1;
    return run(options, {{.id = 0, .prompt_tokens = 5, .output_tokens = steps + 1}});
  };
  const Outcome once = decode(1, 1);
  EXPECT_EQ(once.totals.graphs_recorded, 0);
  EXPECT_EQ(once.totals.graph_steps, 0);
  EXPECT_EQ(once.digests, decode(0, 1).digests);
  const Outcome queued = decode(0, 5);
  for (const std::int64_t after : {1, 3, 5}) {
    const Outcome recorded = decode(after, 5);
    EXPECT_EQ(recorded.totals.graphs_recorded, after < 5 ? 1 : 0);
    EXPECT_EQ(recorded.totals.graph_steps, 5 - after);
    EXPECT_EQ(recorded.digests, queued.digests);
  }
  EngineOptions options = gpu_options();
  options.graph_after = 0;
  try {
    const Engine engine(options);
    FAIL() << "expected an error";
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "engine: graph_after: got 0, expected 1 or more");
  }
}

TEST_F(EngineGpu, AnObserverOfRecordedStepsSeesTheRowsThatItWants) {
  const auto watch = [](bool graphs, test::RowsSeen& seen) {
    EngineOptions options = gpu_options();
    options.graphs = graphs;
    Engine engine(options, &seen);
    for (const RequestSpec& s : kFewRequests) engine.submit(s);
    return finish(engine).totals.graph_steps;
  };
  const auto everything = [](std::int64_t, const StepRow&) { return true; };
  test::RowsSeen all(everything);
  EXPECT_EQ(watch(false, all), 0);
  test::RowsSeen recorded(everything);
  EXPECT_GT(watch(true, recorded), 0);
  EXPECT_EQ(recorded.rows, all.rows);
  const auto some = [](std::int64_t layer, const StepRow& row) { return layer > 0 && row.request != 1; };
  test::RowsSeen picky(some);
  EXPECT_GT(watch(true, picky), 0);
  test::expect_the_wanted_of(all, picky, some);
}

/// Draft blocks, stack and context in one recording: the blocks that are queued, and those of the float64 layer.
TEST_F(EngineGpu, DSparkBlocksOfRecordedStepsAreTheSameBits) {
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 60, .output_tokens = 12},
                                       {.id = 1, .prompt_tokens = 125, .output_tokens = 12}};
  EngineOptions options = gpu_options();
  options.model.num_mtp_layers = 1;
  options.dspark_layers = {3};
  options.speculative = 3;
  options.draft_acceptance = 0.2;
  const auto drafts = [&](bool graphs, test::BlockRows& blocks) {
    options.graphs = graphs;
    Engine engine(options, &blocks);
    for (const RequestSpec& s : specs) engine.submit(s);
    return finish(engine);
  };
  test::BlockRows queued;
  const Outcome eager = drafts(false, queued);
  test::BlockRows recorded;
  const Outcome graphs = drafts(true, recorded);
  EXPECT_EQ(eager.totals.graph_steps, 0);
  EXPECT_GT(graphs.totals.graph_steps, 3);
  EXPECT_GT(graphs.totals.draft_blocks, 10);
  EXPECT_EQ(graphs.digests, eager.digests);
  EXPECT_EQ(recorded.by_block.size(), queued.by_block.size());
  EXPECT_EQ(test::expect_same_blocks(recorded, queued), queued.by_block.size());
  RunCheck check(specs, options, 12);
  Engine engine(options, &check);
  for (const RequestSpec& s : specs) engine.submit(s);
  EXPECT_GT(finish(engine).totals.graph_steps, 3);
  EXPECT_TRUE(check.finish().passed);
  options.dspark_layers.clear();
  options.speculative = 0;
  EXPECT_EQ(run(options, specs).digests, eager.digests);
}

TEST_F(EngineGpu, SideStreamsGiveTheSameBits) {
  EngineOptions options = gpu_options();
  const Outcome beside = run(options);
  options.layer.side_streams = false;
  EXPECT_EQ(beside.digests, run(options).digests);
}

TEST_F(EngineGpu, ScoresInPiecesGiveTheSameBits) {
  EngineOptions options = gpu_options();
  const Outcome at_once = run(options);
  for (const std::int64_t bytes : {1, 5000}) {  // a row at a time, and some
    options.layer.score_bytes = bytes;
    EXPECT_EQ(at_once.digests, run(options).digests) << bytes;
  }
}

TEST_F(EngineGpu, TwentyRunsGiveTheSameBits) {
  EngineOptions options = gpu_options();
  options.layer.deterministic = false;
  const Outcome first = run(options);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(first.digests, run(options).digests) << "run " << i;
}

TEST_F(EngineGpu, TheBatchAroundARequestChangesNoBitWhenDeterministic) {
  EngineOptions options = gpu_options();
  const Outcome base = run(options);
  std::vector<RequestSpec> reversed(kRequests.rbegin(), kRequests.rend());
  options.max_batched_tokens = 23;
  options.max_seqs = 3;
  EXPECT_EQ(run(options, reversed).digests, base.digests);
  options.speculative = 3;
  EXPECT_EQ(run(options, reversed).digests, base.digests);
}

/// The products of a layer at once: in every step where `deterministic`, else in steps of up to 64 tokens.
TEST_F(EngineGpu, JointProductsGiveTheSameBits) {
  EngineOptions options = gpu_options();
  options.max_batched_tokens = 100;
  options.layer.implementations["projection"] = "cuda_stream";
  const Outcome apart = run(options, kFewRequests);
  options.layer.implementations = {{"joint_projection", "cuda_stream"}};
  const Outcome joint = run(options, kFewRequests);
  EXPECT_GT(joint.totals.graph_steps, 0);
  EXPECT_EQ(joint.digests, apart.digests);
  options.graphs = false;
  options.layer.side_streams = false;
  EXPECT_EQ(run(options, kFewRequests).digests, apart.digests);
}

TEST_F(EngineGpu, TwoEnginesOnTwoThreadsDoNotMeet) {
  const EngineOptions options = gpu_options();
  const Outcome alone = run(options);
  std::map<std::int64_t, std::uint64_t> digests[2];
  std::vector<std::thread> threads;
  for (auto& mine : digests) threads.emplace_back([&] { mine = run(options).digests; });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(digests[0], alone.digests);
  EXPECT_EQ(digests[1], alone.digests);
}

EngineOptions fp8_options(const test::Fp8Checkpoint& folder) {
  EngineOptions options = gpu_options();
  options.model = test::fp8_model();
  options.weights = folder.open();
  options.fp8_weights = true;
  options.layer.deterministic = false;
  return options;
}

TEST_F(EngineGpu, Fp8WeightsPassTheCheck) {
  const test::Fp8Checkpoint folder("smla_gpu_fp8_check", test::fp8_model());
  for (const bool deterministic : {false, true}) {
    for (const char* projections : {"", "cuda"}) {
      EngineOptions options = fp8_options(folder);
      options.layer.deterministic = deterministic;
      if (*projections != 0) options.layer.implementations["projection"] = projections;
      RunCheck check(kRequests, options, 12);
      Engine engine(options, &check);
      for (const RequestSpec& s : kRequests) engine.submit(s);
      finish(engine);
      const CheckReport report = check.finish();
      EXPECT_TRUE(report.passed) << report.samples[static_cast<std::size_t>(report.worst)].relative_l2 << " of "
                                 << report.bound;
      std::cout << "[ measured ] FP8 weights, " << (deterministic ? "deterministic: " : "") << engine.implementations()
                << ": relative l2 " << report.samples[static_cast<std::size_t>(report.worst)].relative_l2 << " of "
                << report.bound << "\n";
    }
  }
}

/// Inputs of FP8 weights are not rounded then.
TEST_F(EngineGpu, JointProductsOfFp8WeightsPassTheCheck) {
  const test::Fp8Checkpoint folder("smla_gpu_fp8_joint", test::fp8_model());
  EngineOptions options = fp8_options(folder);
  options.layer.implementations["joint_projection"] = "cuda_stream";
  RunCheck check(kFewRequests, options, 12);
  Engine engine(options, &check);
  for (const RequestSpec& s : kFewRequests) engine.submit(s);
  finish(engine);
  const CheckReport report = check.finish();
  EXPECT_TRUE(report.passed) << report.samples[static_cast<std::size_t>(report.worst)].relative_l2;
  EXPECT_EQ(report.bound, 0.01);
  EXPECT_EQ(engine.implementations().find("quantize_rows"), std::string::npos) << engine.implementations();
}

/// The quantised queries are read on the indexer's stream; scales are copied together inside recorded graphs.
TEST_F(EngineGpu, Fp8WeightsGiveTheSameBitsWithGraphsAndSideStreams) {
  const test::Fp8Checkpoint folder("smla_gpu_fp8_bits", test::fp8_model());
  EngineOptions options = fp8_options(folder);
  const Outcome recorded = run(options);
  EXPECT_GT(recorded.totals.graph_steps, 20);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(recorded.digests, run(options).digests) << "run " << i;
  options.layer.side_streams = false;
  EXPECT_EQ(recorded.digests, run(options).digests);
  options.graphs = false;
  EXPECT_EQ(run(options).totals.graph_steps, 0);
  options.layer.deterministic = true;
  const Outcome queued = run(options);
  options.graphs = true;
  options.layer.side_streams = true;
  EXPECT_EQ(queued.digests, run(options).digests);
}

EngineOptions nvfp4_options(const test::Nvfp4Checkpoint& folder) {
  EngineOptions options = gpu_options();
  options.model = test::fp8_model();
  options.weights = folder.open();
  options.nvfp4_weights = true;
  options.layer.deterministic = false;
  options.max_batched_tokens = 96;  // joint products up to 64, one for each weight beyond
  return options;
}

TEST_F(EngineGpu, Nvfp4WeightsPassTheCheck) {
  const test::Nvfp4Checkpoint folder("smla_gpu_nvfp4_check", test::fp8_model());
  for (const bool deterministic : {false, true}) {
    for (const char* projections : {"", "cuda", "sm90_stream"}) {
      if (std::string_view(projections) == "sm90_stream" && !test::has_sm90_stream()) continue;
      EngineOptions options = nvfp4_options(folder);
      options.layer.deterministic = deterministic;
      if (*projections != 0) options.layer.implementations["projection"] = projections;
      RunCheck check(kFewRequests, options, 12);
      Engine engine(options, &check);
      for (const RequestSpec& s : kFewRequests) engine.submit(s);
      finish(engine);
      const CheckReport report = check.finish();
      const double worst = report.samples[static_cast<std::size_t>(report.worst)].relative_l2;
      EXPECT_TRUE(report.passed) << worst << " of " << report.bound;
      EXPECT_EQ(report.bound, 0.01);  // no input is rounded
      EXPECT_EQ(engine.implementations().find("quantize_rows"), std::string::npos) << engine.implementations();
      const auto runs = [&](const std::string& text) {
        return engine.implementations().find(text) != std::string::npos;
      };
      EXPECT_EQ(runs("joint_projection cuda_stream"), !deterministic && *projections == 0) << engine.implementations();
      EXPECT_TRUE(runs(std::string("projection ") + projections)) << engine.implementations();
      std::cout << "[ measured ] NVFP4 weights, " << (deterministic ? "deterministic: " : "")
                << engine.implementations() << ": relative l2 " << worst << " of " << report.bound << "\n";
    }
  }
}

TEST_F(EngineGpu, Nvfp4WeightsGiveTheSameBitsWithGraphsAndSideStreams) {
  const test::Nvfp4Checkpoint folder("smla_gpu_nvfp4_bits", test::fp8_model());
  const std::vector<RequestSpec> specs{{.id = 0, .prompt_tokens = 3, .output_tokens = 36},
                                       {.id = 1, .prompt_tokens = 130, .output_tokens = 9}};
  EngineOptions options = nvfp4_options(folder);
  const Outcome recorded = run(options, specs);
  EXPECT_GT(recorded.totals.graph_steps, 20);
  ASSERT_EQ(recorded.digests, run(options, specs).digests);
  options.layer.side_streams = false;
  EXPECT_EQ(recorded.digests, run(options, specs).digests);
  options.layer.deterministic = true;
  options.graphs = false;
  const Outcome queued = run(options, specs);
  options.graphs = true;
  options.layer.side_streams = true;
  EXPECT_EQ(queued.digests, run(options, specs).digests);
}

TEST_F(EngineGpu, FiveHundredAndTwelveRequestsAtOnce) {
  EngineOptions options = gpu_options();
  options.max_seqs = 512;
  options.max_batched_tokens = 700;
  options.num_blocks = 12'000;
  std::vector<RequestSpec> specs;
  for (int i = 0; i < 512; ++i)
    specs.push_back({.id = i, .arrival_seconds = 0, .prompt_tokens = 1 + i % 9, .output_tokens = 9 + i % 3});
  const Outcome recorded = run(options, specs);
  EXPECT_GT(recorded.totals.graph_steps, 0);
  options.graphs = false;
  options.max_seqs = 33;
  EXPECT_EQ(run(options, specs).digests, recorded.digests);
}

TEST_F(EngineGpu, ARestoredRequestGoesOnBitForBit) {
  const EngineOptions options = gpu_options();
  const Outcome whole = run(options);
  Engine first(options);
  for (const RequestSpec& s : kRequests) first.submit(s);
  for (int i = 0; i < 45; ++i) first.step([] { return 0.0; });
  EngineOptions other = options;
  other.num_blocks = 2500;
  Engine second(other);
  int moved = 0;
  for (const RequestResult& r : first.results()) {
    if (r.state != RequestResult::State::kRunning) continue;
    second.restore_request(first.save_request(r.spec.id));
    ++moved;
  }
  ASSERT_GT(moved, 0);
  for (const auto& [id, digest] : finish(second).digests) EXPECT_EQ(digest, whole.digests.at(id)) << "request " << id;
}

/// A model wide enough for the bounds of the float64 check, which are those of real shapes.
EngineOptions checked_options() {
  EngineOptions o = gpu_options();
  o.model = model_preset("tiny");
  o.max_batched_tokens = 512;
  return o;
}

/// Every front-end, format and option against the float64 layer; all three kinds of layer.
TEST_F(EngineGpu, EveryFrontEndAndFormatIsTheFloat64Layer) {
  struct Variant {
    const char* name;
    std::function<void(EngineOptions&)> set;
  };
  const std::vector<Variant> variants{
      {"flashmla", [](EngineOptions&) {}},
      {"flashmla, cuBLASLt allowed", [](EngineOptions& o) { o.layer.deterministic = false; }},
      {"gathered prefills", [](EngineOptions& o) { o.layer.gather_prefill = true; }},
      {"bf16 rows", [](EngineOptions& o) { o.layer.caches.rows = &bf16_rows(); }},
      {"mxfp4 index, hadamard",
       [](EngineOptions& o) {
         o.layer.caches.index = &index_mxfp4_rows();
         o.model.hadamard = true;
       }},
      {"flashinfer, per-tensor rows, e4m3 q",
       [](EngineOptions& o) {
         o.layer.front_end = FrontEnd::kFlashInfer;
         o.layer.caches.rows = &fp8_per_tensor_rows();
         o.layer.caches.kv_scale = 0.02F;
         o.layer.q_scale = 0.02F;
         o.layer.q = DType::kE4M3;
       }},
      {"sm120, speculative",
       [](EngineOptions& o) {
         o.layer.front_end = FrontEnd::kSm120;
         o.speculative = 2;
       }},
      {"joint products", [](EngineOptions& o) { o.layer.implementations["joint_projection"] = "cuda_stream"; }},
      {"joint products in small steps, fp8 output projection",
       [](EngineOptions& o) {
         o.layer.implementations["joint_projection"] = "cuda_stream";
         o.layer.deterministic = false;
         o.layer.fp8_output = OutputScale::kF32;
       }},
      {"fp8 output projection", [](EngineOptions& o) { o.layer.fp8_output = OutputScale::kF32; }},
      {"bf16 rows, ue8m0 output projection",
       [](EngineOptions& o) {
         o.layer.caches.rows = &bf16_rows();
         o.layer.fp8_output = OutputScale::kUe8m0x4;
       }},
      {"float32", [](EngineOptions& o) { o.layer.precision = Precision::kF32; }},
      {"one layer's top-k for all", [](EngineOptions& o) { o.model.index_topk_freq = 3; }}};
  for (const Variant& v : variants) {
    SCOPED_TRACE(v.name);
    EngineOptions options = checked_options();
    v.set(options);
    RunCheck check(kRequests, options, 12);
    Engine engine(options, &check);
    for (const RequestSpec& s : kRequests) engine.submit(s);
    (void)finish(engine);
    const CheckReport report = check.finish();
    ASSERT_GE(report.worst, 0);
    const CheckedSample& worst = report.samples[static_cast<std::size_t>(report.worst)];
    EXPECT_TRUE(report.passed) << "worst relative l2 " << worst.relative_l2 << " of " << report.bound << " at request "
                               << worst.request << " token " << worst.position << " layer " << worst.layer << "; "
                               << engine.implementations();
    for (const CheckedSample& s : report.samples) EXPECT_TRUE(s.topk_ok) << s.topk_text;
  }
}

/// Each planted fault must show on the GPU too, as must a window of one key too few.
TEST_F(EngineGpu, APlantedErrorIsSeen) {
  const auto passes = [](const EngineOptions& expected, const EngineOptions& ran) {
    RunCheck check(kRequests, expected, 12);
    Engine engine(ran, &check);
    for (const RequestSpec& s : kRequests) engine.submit(s);
    (void)finish(engine);
    return check.finish().passed;
  };
  const EngineOptions sound = checked_options();
  for (const PlantedError planted : {PlantedError::kPosition, PlantedError::kBlock, PlantedError::kRope}) {
    EngineOptions options = sound;
    options.planted_error = planted;
    EXPECT_FALSE(passes(options, options)) << "planted " << static_cast<int>(planted);
  }
  EngineOptions narrow = sound;
  narrow.model.window -= 1;
  EXPECT_FALSE(passes(sound, narrow)) << "one key dropped";
}

}  // namespace
}  // namespace smla
