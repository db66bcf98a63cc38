// Live calls become case files, and the files replay to the same results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "aligned_workspace.h"
#include "cases/replay.h"
#include "ops/call_observer.h"
#include "ops/catalog.h"
#include "parity/attention_cases.h"
#include "parity/compressor_cases.h"
#include "parity/insert_cases.h"
#include "sparsemla/case.h"
#include "sparsemla/engine.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/topk.h"

namespace smla {
namespace {

using namespace norm_rope_cases;
using testing::HasSubstr;
using testing::ThrowsMessage;

class RecordCalls : public testing::Test {
 protected:
  RecordCalls() : folder_(std::filesystem::temp_directory_path() / ("smla_record_" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
  }
  ~RecordCalls() override {
    record_calls("");
    std::filesystem::remove_all(folder_);
  }
  std::vector<CaseFile> files() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<CaseFile> out;
    for (const auto& path : paths) out.push_back(read_case(path.string()));
    return out;
  }
  static bool passes(const CaseFile& file, const std::string& implementation) {
    ReplayOptions options;
    options.plan.implementation = implementation;
    bool all = true;
    for (const Verdict& verdict : judge(file, replay(file, options))) all = all && verdict.comparison.pass;
    return all;
  }
  std::filesystem::path folder_;
};

TEST_F(RecordCalls, StridedTensorsAndWrittenCachesReplay) {
  const InsertCase c{.tokens = 9,
                     .inserted = 7,
                     .heads = 2,
                     .out_heads = 3,
                     .format = &fp8_ds_mla_rows(),
                     .block_size = 3,
                     .hostile = true};
  const InsertInputs in = make_inputs(c);
  record_calls(folder_.string());
  const std::int64_t before = recorded_calls();
  Plan<QNormRopeInsert>(c.problem()).run(in.args);
  record_calls("");
  Plan<QNormRopeInsert>(c.problem()).run(in.args);
  EXPECT_EQ(recorded_calls(), before + 1);

  std::vector<CaseFile> cases = files();
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases[0].op, "qnorm_rope_insert");
  for (const char* implementation : {"", "ref", "cpu"}) EXPECT_TRUE(passes(cases[0], implementation)) << implementation;
  cases[0].tensors.at("out.cache").as<std::uint8_t>()[0] ^= 0x40U;
  EXPECT_FALSE(passes(cases[0], "ref"));
}

TEST_F(RecordCalls, EveryKindOfScalarComesBack) {
  HostTensor x(DType::kF32, {3, 4, 512});
  std::mt19937_64 random(3);
  fill_activations(x, random);
  HostTensor positions(DType::kI64, {3});
  const HostTensor table = rope_rows(4, 64);
  HostTensor values(DType::kE4M3, {2, 3, 1024});
  HostTensor scales(DType::kI32, {2, 2, 4});
  const std::vector<std::int32_t> topk{3, -1, 0, 4};
  const std::vector<std::int32_t> requests{0};
  const std::vector<std::int32_t> blocks{5, 9};
  const std::vector<std::uint8_t> valid{1};
  std::vector<std::int32_t> indices(4);
  std::vector<std::int32_t> lens(1);

  record_calls(folder_.string());
  Plan<InverseRopeQuant>({.tokens = 3, .heads = 4, .groups = 2, .in = DType::kF32, .scale = OutputScale::kUe8m0x4})
      .run({.x = x.view(),
            .positions = positions.view(),
            .cos_sin = table.view(),
            .values = values.view(),
            .scales = scales.view()});
  Plan<GlobalTopk>({.requests = 1, .tokens = 1, .k = 4, .storage_block = 2, .compact = true})
      .run({.topk = view_of(topk.data(), {1, 4}),
            .token_to_req = view_of(requests.data(), {1}),
            .block_table = view_of(blocks.data(), {1, 2}),
            .valid = ConstTensorView(valid.data(), DType::kBool, {1}),
            .indices = view_of(indices.data(), {1, 4}),
            .lens = view_of(lens.data(), {1})});
  record_calls("");
  std::vector<CaseFile> cases = files();
  ASSERT_EQ(cases.size(), 2U);
  for (const CaseFile& file : cases) EXPECT_TRUE(passes(file, "ref")) << file.op;
  CaseFile& changed = cases[0];
  for (auto& [key, value] : changed.params.members) {
    if (key == "scale") value.text = "f32";
  }
  EXPECT_THROW(passes(changed, "ref"), InvalidArgument);  // int32 words are no fp32 scales
  for (auto& [key, value] : changed.params.members) {
    if (key == "scale") value.text = "f16";
  }
  EXPECT_THAT([&] { passes(changed, "ref"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("scale: got \"f16\", expected f32 or ue8m0x4")));
}

/// What ops take along as options is part of a recorded call.
TEST_F(RecordCalls, NeighboursInACallComeBack) {
  const NormInsertCase norm{
      .insert = {.tokens = 5, .inserted = 4, .heads = 0, .out_heads = 0, .format = &fp8_ds_mla_rows(), .block_size = 3},
      .dim = 64};
  NormInsertInputs rows(norm);
  const compressor_cases::CompressorCase layer{.format = &fp8_ds_mla_rows(), .requests = {{2, 9}}};
  const compressor_cases::CompressorCase index{
      .format = &index_fp8_rows(), .requests = {{2, 9}}, .state_block = 3, .hadamard = true};
  const compressor_cases::CompressorInputs states[] = {compressor_cases::make_inputs(layer),
                                                       compressor_cases::make_inputs(index)};
  attention_cases::AttentionInputs queries =
      attention_cases::make_inputs({.tokens = 2, .heads = 3, .scopes = {{.width = 20}}});
  attention_cases::AttentionOutputs out(queries.problem);
  SparseAttention::Problem attention = queries.problem;
  attention.query_prologue = {.rope_dim = 64, .eps = 1e-4F};
  attention.output_epilogue = {.rope_dim = 64};
  SparseAttention::Args args = queries.args();
  out.attach(args);
  const std::int64_t positions[] = {3, 1};
  const HostTensor table = rope_rows(4, 64);
  args.output_epilogue = {.positions = view_of(positions, {2}), .cos_sin = table.view()};
  args.query_prologue = {.positions = args.output_epilogue.positions, .cos_sin = args.output_epilogue.cos_sin};

  const auto run = [](const auto& plan, const auto& arguments) {
    const test::AlignedWorkspace scratch(plan.workspace_bytes());
    plan.run(arguments, scratch.get());
  };
  record_calls(folder_.string());
  run(Plan<LatentNorms>(norm.problem(true)), rows.args(norm, true));
  run(Plan<CompressStore>(compressor_cases::together(layer, index)),
      compressor_cases::together(states[0].saving(), states[1].saving()));
  run(Plan<SparseAttention>(attention), args);
  record_calls("");
  std::vector<CaseFile> cases = files();
  ASSERT_EQ(cases.size(), 3U);
  for (CaseFile& file : cases) {
    EXPECT_TRUE(passes(file, "ref")) << file.op;
    EXPECT_TRUE(passes(file, "cpu")) << file.op;
    const char* const last = file.op == "latent_norms"
                                 ? "out.insert.cache"
                                 : (file.op == "compress_store" ? "out.compressors[1].entries" : "in.cos_sin");
    std::memset(file.tensors.at(last).data(), 0x3D, file.tensors.at(last).bytes());
    EXPECT_FALSE(passes(file, "ref")) << file.op;
  }
}

/// All caches of a layer stand in one slab, and blocks of one cache lie among the bytes of the others.
TEST_F(RecordCalls, EveryCallOfAStepReplaysAndHoldsOnlyItsBlocks) {
  EngineOptions options;
  options.model = model_preset("tiny");
  options.model.index_topk = 8;  // fewer than there are entries: they are scored
  options.layers = {0, 1, 2};
  options.max_batched_tokens = 64;
  options.num_blocks = 400;
  options.max_model_len = 300;
  Engine engine(options);
  for (const std::int64_t id : {0, 1}) engine.submit({.id = id, .prompt_tokens = 60 + 90 * id, .output_tokens = 4});
  const auto step = [&] { engine.step([] { return 0.0; }); };
  step(), step();  // a prefill, which makes state and entries
  record_calls(folder_.string());
  const std::int64_t calls = recorded_calls();
  const std::int64_t bytes = recorded_bytes();
  step();
  record_calls("");
  const std::vector<CaseFile> cases = files();
  EXPECT_EQ(static_cast<std::int64_t>(cases.size()), recorded_calls() - calls);
  std::int64_t size = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    size += static_cast<std::int64_t>(entry.file_size());
  EXPECT_EQ(recorded_bytes() - bytes, size);
  std::set<std::string> ops;
  for (const CaseFile& file : cases) {
    ops.insert(file.op);
    for (const char* implementation : {"", "ref"}) {
      ReplayOptions replaying;
      replaying.plan.implementation = implementation;
      for (const Verdict& verdict : judge(file, replay(file, replaying)))
        EXPECT_TRUE(verdict.comparison.pass)
            << file.path << " " << verdict.result << ": " << verdict.comparison.failure << " by " << implementation;
    }
    for (const auto& [name, tensor] : file.tensors) {
      if (tensor.dtype() == DType::kU8 && tensor.rank() == 2) {
        EXPECT_LT(tensor.size(0), 60) << file.path << " " << name;
      }
    }
  }
  EXPECT_TRUE(ops.contains("compress_store") && ops.contains("sparse_attention") && ops.contains("indexer_logits"))
      << testing::PrintToString(ops);
}

/// Two rows of a top-k may choose as many entries as each other.
TEST_F(RecordCalls, EqualLengthsOfSlotsAreNoDuplicates) {
  const std::vector<float> logits{1, 2, 3, 3, 2, 1};
  const std::vector<std::int32_t> lens{3, 3};
  const std::vector<std::int32_t> requests{0, 0};
  const std::vector<std::int32_t> table{0, 1};
  const std::vector<std::uint8_t> valid{1, 1};
  std::vector<std::int32_t> indices(4), slots(4), slot_lens(2);
  record_calls(folder_.string());
  const Plan<TopK> plan({.rows = 2, .width = 3, .k = 2, .slots = TopK::Slots{.storage_block = 2}});
  std::vector<std::uint8_t> scratch(plan.workspace_bytes());
  plan.run({.logits = view_of(logits.data(), {2, 3}),
            .lens = view_of(lens.data(), {2}),
            .indices = view_of(indices.data(), {2, 2}),
            .slots = {.token_to_req = view_of(requests.data(), {2}),
                      .block_table = view_of(table.data(), {1, 2}),
                      .valid = ConstTensorView(valid.data(), DType::kBool, {2}),
                      .slots = view_of(slots.data(), {2, 2}),
                      .lens = view_of(slot_lens.data(), {2})}},
           {.data = scratch.data(), .bytes = scratch.size()});
  record_calls("");
  std::vector<CaseFile> cases = files();
  ASSERT_EQ(cases.size(), 1U);
  CaseFile& file = cases[0];
  EXPECT_TRUE(passes(file, "ref"));
  file.tensors.at("out.slots.lens").as<std::int32_t>()[1] = 1;
  EXPECT_FALSE(passes(file, "ref"));
}

TEST_F(RecordCalls, AFileOfAnEarlierRecordingStays) {
  record_calls(folder_.string());
  char number[24];
  std::snprintf(number, sizeof number, "%06lld_", static_cast<long long>(recorded_calls()));
  std::ofstream(folder_ / (number + std::string("draft_positions") + std::string(kRecordedCaseSuffix))) << "evidence";
  const std::vector<std::int32_t> lens{3};
  std::vector<std::int64_t> positions(1);
  EXPECT_THAT(
      [&] {
        Plan<DraftPositions>({.requests = 1})
            .run({.seq_lens = view_of(lens.data(), {1}), .positions = view_of(positions.data(), {1})});
      },
      ThrowsMessage<IoError>(HasSubstr("a file of an earlier recording")));
}

/// A call that began while calls were recorded, and gets its turn when they no longer are.
TEST_F(RecordCalls, ACallThatBeganBeforeTheEndIsNotWrittenElsewhere) {
  record_calls(folder_.string());
  const CallObserver<TokenToReq> seen = call_observer<TokenToReq>.load();
  ASSERT_NE(seen, nullptr);
  record_calls("");
  const auto cases_here = [] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::current_path()))
      count += entry.path().string().ends_with(".smla-case.safetensors") ? 1 : 0;
    return count;
  };
  const int before = cases_here();
  const std::int64_t recorded = recorded_calls();
  const std::vector<std::int32_t> start{0, 2};
  std::vector<std::int32_t> out(2);
  int runs = 0;
  seen({.requests = 1, .tokens = 2},
       {.query_start_loc = view_of(start.data(), {2}), .token_to_req = view_of(out.data(), {2})}, {}, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(recorded_calls(), recorded);
  EXPECT_EQ(cases_here(), before);
}

TEST_F(RecordCalls, TheEnvironmentNamesTheFolder) {
  ASSERT_EQ(setenv("SMLA_DUMP", folder_.c_str(), 1), 0);
  record_calls_from_environment();
  unsetenv("SMLA_DUMP");
  EXPECT_TRUE(std::filesystem::is_directory(folder_));
  EXPECT_THROW(record_calls("/dev/null/nowhere"), IoError);
}

TEST(ReplayTable, EveryOpOfTheLibraryHasACaseForm) {
  std::vector<std::string_view> names;
  for (const ReplayEntry& entry : replay_table()) names.push_back(entry.op);
  for (const OpInfo& op : op_catalog()) EXPECT_THAT(names, testing::Contains(op.name));
}

}  // namespace
}  // namespace smla
