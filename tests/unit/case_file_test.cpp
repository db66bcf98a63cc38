#include "cases/case_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "cache/row_codec.h"
#include "cases/replay.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/attention.h"

namespace smla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kTolerance = "\"tolerance\": {\"o\": {\"l2\": 2.2e-3}, \"lse\": {\"abs\": 1e-5, \"rel\": 1e-5}}";

/// A sparse_attention case under construction: two scopes of different formats, strided blocks, hostile indices, all
/// kinds of sink.
struct Draft {
  std::string op = "sparse_attention";
  std::string params = std::string(
                           "{\"scale\": 0.04419417382415922, \"format0\": \"fp8_ds_mla\", \"block_size0\": 4, "
                           "\"format1\": \"bf16\", \"block_size1\": 3, ") +
                       kTolerance + "}";
  std::map<std::string, HostTensor> tensors;

  HostTensor& add(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    return tensors.insert_or_assign(name, HostTensor(dtype, std::move(shape))).first->second;
  }
  void write(const std::string& path) const {
    std::map<std::string, const HostTensor*> list;
    for (const auto& [name, tensor] : tensors) list[name] = &tensor;
    write_case(path, op, params, list);
  }
};

void fill_cache(HostTensor& bytes, const RowFormat& format, std::int64_t block_size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::memset(bytes.data(), 0xFF, bytes.bytes());
  const PagedCache cache{.format = &format,
                         .base = bytes.as<std::uint8_t>(),
                         .num_blocks = bytes.size(0),
                         .block_size = block_size,
                         .block_stride_bytes = bytes.size(1)};
  std::vector<float> row(static_cast<std::size_t>(format.dim));
  for (std::int64_t slot = 0; slot < cache.num_slots(); ++slot) {
    for (float& v : row) v = normal(random);
    encode_row(cache, slot, row.data());
  }
}

Draft make_draft() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kHeads = 5;
  Draft draft;
  HostTensor& q = draft.add("in.q", DType::kBF16, {kTokens, kHeads, 512});
  for (std::int64_t i = 0; i < q.numel(); ++i) q.as<BF16>()[i] = to_bf16(normal(random));
  fill_cache(draft.add("in.cache0", DType::kU8, {5, block_bytes(fp8_ds_mla_rows(), 4) + 64}), fp8_ds_mla_rows(), 4,
             random);
  fill_cache(draft.add("in.cache1", DType::kU8, {4, block_bytes(bf16_rows(), 3)}), bf16_rows(), 3, random);
  HostTensor& first = draft.add("in.indices0", DType::kI32, {kTokens, 7});
  HostTensor& second = draft.add("in.indices1", DType::kI32, {kTokens, 4});
  std::uniform_int_distribution<std::int32_t> slot(-3, 24);  // some outside the cache
  for (std::int64_t i = 0; i < first.numel(); ++i) first.as<std::int32_t>()[i] = i / 7 == 2 ? -1 : slot(random);
  for (std::int64_t i = 0; i < second.numel(); ++i) second.as<std::int32_t>()[i] = i / 4 == 2 ? -1 : slot(random);
  HostTensor& lens = draft.add("in.lens0", DType::kI32, {kTokens});
  lens.as<std::int32_t>()[0] = 4;
  lens.as<std::int32_t>()[1] = 1000;
  lens.as<std::int32_t>()[2] = -5;
  HostTensor& sink = draft.add("in.sink", DType::kF32, {kHeads});
  const float sinks[] = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), 0.0F, -20.0F,
                         20.0F};
  std::copy(std::begin(sinks), std::end(sinks), sink.as<float>());
  return draft;
}

class CaseFileTest : public ::testing::Test {
 protected:
  CaseFile save(const Draft& draft) {
    draft.write(path_);
    return read_case(path_);
  }
  /// The case with the reference's results as expectation.
  Draft with_results() {
    Draft draft = make_draft();
    ReplayResult made = replay(save(draft), {.plan = {.implementation = "ref"}});
    for (auto& [name, tensor] : made.results) draft.tensors["out." + name] = std::move(tensor);
    return draft;
  }
  /// The text of the error that reading, replaying or judging raises.
  std::string error_of(const Draft& draft) {
    draft.write(path_);
    return error_of_file();
  }
  std::string error_of_file() {
    try {
      const CaseFile file = read_case(path_);
      judge(file, replay(file, {.plan = {.implementation = "ref", .threads = 1}}));
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(path_));
      return e.what();
    }
    return "";
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  std::string path_ =
      ::testing::TempDir() + "smla_" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors";
};

TEST_F(CaseFileTest, RowsWiderThanTheirValues) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  Draft draft;
  draft.params = std::string("{\"value_dim\": 512, \"format0\": \"fp8_v32\", \"block_size0\": 3, ") + kTolerance + "}";
  HostTensor& q = draft.add("in.q", DType::kBF16, {2, 4, 576});
  for (std::int64_t i = 0; i < q.numel(); ++i) q.as<BF16>()[i] = to_bf16(normal(random));
  fill_cache(draft.add("in.cache0", DType::kU8, {2, block_bytes(fp8_v32_rows(), 3) + 32}), fp8_v32_rows(), 3, random);
  HostTensor& indices = draft.add("in.indices0", DType::kI32, {2, 5});
  for (std::int64_t i = 0; i < indices.numel(); ++i) indices.as<std::int32_t>()[i] = static_cast<std::int32_t>(i) - 2;
  ReplayResult made = replay(save(draft), {.plan = {.implementation = "ref"}});
  EXPECT_EQ(made.results.at("o").size(2), 512);
  for (auto& [name, tensor] : made.results) draft.tensors["out." + name] = std::move(tensor);
  const CaseFile file = save(draft);
  for (const Verdict& v : judge(file, replay(file, {.plan = {.implementation = "cpu"}})))
    EXPECT_TRUE(v.comparison.pass) << v.result << ": " << v.comparison.failure;
}

TEST_F(CaseFileTest, ReadsBackWhatWasWritten) {
  const Draft draft = make_draft();
  const CaseFile file = save(draft);
  EXPECT_EQ(file.op, "sparse_attention");
  EXPECT_EQ(file.reader().integer("block_size0", 1, 100), 4);
  EXPECT_EQ(file.names("in."),
            (std::vector<std::string>{"cache0", "cache1", "indices0", "indices1", "lens0", "q", "sink"}));
  EXPECT_EQ(file.tensor("in.q").shape(), draft.tensors.at("in.q").shape());
  EXPECT_TRUE(file.view("in.lens1").absent());
  EXPECT_THROW(file.tensor("in.nothing"), InvalidArgument);
  EXPECT_EQ(to_json(parse_json("again", to_json(file.params))), to_json(file.params));
}

TEST_F(CaseFileTest, EveryImplementationPassesTheReferencesCase) {
  const CaseFile file = save(with_results());
  SparseAttention::Problem problem{.tokens = 3, .heads = 5, .scopes = 2};
  problem.scope[0] = {.format = &fp8_ds_mla_rows(), .block_size = 4, .width = 7};
  problem.scope[1] = {.format = &bf16_rows(), .block_size = 3, .width = 4};
  for (const Candidate& candidate : explain<SparseAttention>(problem)) {
    if (!candidate.refusal.empty()) {
      std::printf("not run: %s: %s\n", candidate.name.c_str(), candidate.refusal.c_str());
      continue;
    }
    const std::vector<Verdict> verdicts = judge(file, replay(file, {.plan = {.implementation = candidate.name}}));
    ASSERT_EQ(verdicts.size(), 2U);
    for (const Verdict& v : verdicts) {
      EXPECT_EQ(v.implementation, candidate.name);
      EXPECT_TRUE(v.comparison.pass) << candidate.name << " " << v.result << ": " << v.comparison.failure << " "
                                     << v.comparison.detail;
    }
  }
}

TEST_F(CaseFileTest, AWrongExpectationFails) {
  Draft draft = with_results();
  BF16& first = draft.tensors.at("out.o").as<BF16>()[0];
  first = to_bf16(to_float(first) + 100.0F);
  const CaseFile file = save(draft);
  for (const Verdict& v : judge(file, replay(file, {.plan = {.threads = 1}})))
    EXPECT_EQ(v.comparison.pass, v.result != "o") << v.result;
}

TEST_F(CaseFileTest, AWrongInputFails) {
  Draft draft = with_results();
  auto* sink = draft.tensors.at("in.sink").as<float>();
  sink[4] = -sink[4];
  const CaseFile file = save(draft);
  bool pass = true;
  for (const Verdict& v : judge(file, replay(file, {.plan = {.threads = 1}}))) pass = pass && v.comparison.pass;
  EXPECT_FALSE(pass);
}

TEST_F(CaseFileTest, OneScopeWithE4m3QueriesAndPerTensorRows) {
  Draft draft = make_draft();
  for (const char* name : {"in.cache1", "in.indices1"}) draft.tensors.erase(name);
  std::mt19937 random(3);
  fill_cache(draft.add("in.cache0", DType::kU8, {5, block_bytes(fp8_per_tensor_rows(), 4)}), fp8_per_tensor_rows(), 4,
             random);
  HostTensor& q = draft.add("in.q", DType::kE4M3, {3, 5, 512});
  for (std::int64_t i = 0; i < q.numel(); ++i) q.as<E4M3>()[i] = {static_cast<std::uint8_t>(random() % 0x70)};
  draft.params =
      "{\"scale\": 0.001, \"format0\": \"fp8_per_tensor\", \"block_size0\": 4, \"kv_scale0\": 0.5, \"q_scale\": 0.25}";
  const ReplayResult scaled = replay(save(draft), {});
  draft.params = "{\"scale\": 0.00025, \"format0\": \"fp8_per_tensor\", \"block_size0\": 4, \"kv_scale0\": 0.5}";
  const ReplayResult folded = replay(save(draft), {});
  const Comparison same =
      compare(scaled.results.at("o"), folded.results.at("o"), parse_tolerance("t", parse_json("t", "{\"l2\": 1e-3}")));
  EXPECT_TRUE(same.pass) << same.failure;
}

TEST_F(CaseFileTest, MissingAndUnknownTensorsAreNamed) {
  for (const char* name : {"in.q", "in.cache0", "in.indices0", "in.cache1", "in.indices1"}) {
    Draft draft = with_results();
    draft.tensors.erase(name);
    EXPECT_THAT(error_of(draft), HasSubstr(name));
  }
  Draft draft = with_results();
  draft.add("in.block_table", DType::kI32, {3});
  EXPECT_THAT(error_of(draft), AllOf(HasSubstr("in.block_table"), HasSubstr("in.indices0")));
  draft = with_results();
  draft.add("out.probabilities", DType::kF32, {3});
  EXPECT_THAT(error_of(draft), AllOf(HasSubstr("out.probabilities"), HasSubstr("out.lse")));
  draft = with_results();
  draft.add("q", DType::kF32, {3});
  EXPECT_THAT(error_of(draft), AllOf(HasSubstr("tensor q"), HasSubstr("in.*")));
  EXPECT_THAT(error_of(make_draft()), HasSubstr("out.*"));
}

TEST_F(CaseFileTest, WrongShapesAndDtypesAreNamed) {
  const auto replaced = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    Draft draft = with_results();
    draft.add(name, dtype, std::move(shape));
    return error_of(draft);
  };
  EXPECT_THAT(replaced("in.q", DType::kI32, {3, 5, 512}), AllOf(HasSubstr("in.q"), HasSubstr("I32")));
  EXPECT_THAT(replaced("in.q", DType::kBF16, {3, 512}), HasSubstr("in.q"));
  EXPECT_THAT(replaced("in.q", DType::kBF16, {3, 5, 256}), AllOf(HasSubstr("in.q"), HasSubstr("256")));
  EXPECT_THAT(replaced("in.q", DType::kBF16, {3, 129, 512}), HasSubstr("129"));
  EXPECT_THAT(replaced("in.q", DType::kBF16, {1, 1, 1, 1, 512}), HasSubstr("in.q"));
  EXPECT_THAT(replaced("in.indices0", DType::kI64, {3, 7}), HasSubstr("in.indices0"));
  EXPECT_THAT(replaced("in.indices0", DType::kI32, {4, 7}), HasSubstr("in.indices0"));
  EXPECT_THAT(replaced("in.lens0", DType::kI32, {2}), HasSubstr("in.lens0"));
  EXPECT_THAT(replaced("in.sink", DType::kF32, {4}), HasSubstr("in.sink"));
  EXPECT_THAT(replaced("in.cache0", DType::kBF16, {5, 4096}), HasSubstr("in.cache0"));
  EXPECT_THAT(replaced("in.cache0", DType::kU8, {5, 100}), AllOf(HasSubstr("in.cache0"), HasSubstr("stride")));
}

TEST_F(CaseFileTest, WrongParamsAreNamed) {
  const auto with_params = [&](const std::string& params) {
    Draft draft = with_results();
    draft.params = params;
    return error_of(draft);
  };
  const std::string scopes =
      "\"format0\": \"fp8_ds_mla\", \"block_size0\": 4, \"format1\": \"bf16\", \"block_size1\": 3";
  EXPECT_EQ(with_params("{" + scopes + "}"), "");
  EXPECT_EQ(with_params("{" + scopes + ", \"note\": \"of 1789\"}"), "");
  EXPECT_THAT(with_params("{\"format0\": \"e5m2\", \"block_size0\": 4}"),
              AllOf(HasSubstr("format0"), HasSubstr("e5m2"), HasSubstr("fp8_ds_mla")));
  EXPECT_THAT(with_params("{\"format0\": \"index_fp8\", \"block_size0\": 4}"), HasSubstr("format0"));
  EXPECT_THAT(with_params("{\"block_size0\": 4}"), HasSubstr("format0"));
  EXPECT_THAT(with_params("{\"format0\": \"fp8_ds_mla\"}"), HasSubstr("block_size0"));
  for (const char* bad : {"0", "-4", "1e30", "\"4\"", "null", "4.5", "9223372036854775807"}) {
    EXPECT_THAT(with_params(std::string("{\"format0\": \"fp8_ds_mla\", \"block_size0\": ") + bad + "}"),
                HasSubstr("block_size0"))
        << bad;
  }
  EXPECT_THAT(with_params("{\"scale\": \"big\", " + scopes + "}"), HasSubstr("scale"));
  EXPECT_THAT(with_params("{\"scale\": NaN, " + scopes + "}"), HasSubstr("scale"));
  EXPECT_THAT(with_params("{" + scopes + ", \"tolerance\": {\"o\": {\"l3\": 1}}}"),
              AllOf(HasSubstr("tolerance"), HasSubstr("l3")));
  for (const char* wide : {"\"abs\": 1e9", "\"rel\": 1e300", "\"ulp\": 65535", "\"l2\": 1", "\"cos\": 2"})
    EXPECT_THAT(with_params("{" + scopes + ", \"tolerance\": {\"o\": {" + wide + "}}}"),
                AllOf(HasSubstr("o: "), HasSubstr("zeros pass")))
        << wide;
  EXPECT_THAT(with_params("{" + scopes + ", \"tolerance\": {\"ouput\": {\"l2\": 0.1}}}"),
              AllOf(HasSubstr("ouput"), HasSubstr("lse, o")));
  EXPECT_THAT(with_params("{" + scopes + ", \"scael\": 0.1}"),
              AllOf(HasSubstr("scael"), HasSubstr("q_scale, rope_dim, scale")));
  EXPECT_THAT(with_params("{" + scopes + ", \"out_heads\": 1048576}"), HasSubstr("out_heads"));
  EXPECT_THAT(with_params("{" + scopes + ", \"tolerance\": 3}"), HasSubstr("tolerance"));
  EXPECT_THAT(with_params("{" + scopes + ", \"tolerance\": {\"o\": {\"set\": true}}}"),
              AllOf(HasSubstr("out.o"), HasSubstr("set")));
  EXPECT_THAT(with_params("[]"), HasSubstr("params"));
  EXPECT_THAT(with_params("{"), HasSubstr("params"));
  EXPECT_THAT(with_params(std::string(5000, '{')), HasSubstr("params"));
}

TEST_F(CaseFileTest, UnknownOpsFormatsAndImplementations) {
  Draft draft = with_results();
  draft.op = "dense_attention";
  EXPECT_THAT(error_of(draft),
              AllOf(HasSubstr("dense_attention"), HasSubstr("sparse_attention"), HasSubstr("attention_layer")));
  std::ofstream(path_, std::ios::binary) << std::string("\x02\0\0\0\0\0\0\0{}", 10);
  EXPECT_THAT(error_of_file(), HasSubstr("format"));
  const CaseFile file = save(with_results());
  EXPECT_THROW(replay(file, {.plan = {.implementation = "abacus"}}), InvalidArgument);
}

// A truncated case at any of many places, and any header byte changed: a typed error or a verdict, never a crash.
TEST_F(CaseFileTest, DamagedFilesAreSurvived) {
  with_results().write(path_);
  std::ifstream in(path_, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto put = [&](const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; };
  for (std::size_t n = 0; n < whole.size(); n += 1 + whole.size() / 64) {
    put(whole.substr(0, n));
    EXPECT_NE(error_of_file(), "") << n;
  }
  for (std::size_t n = 0; n < 1500; n += 3) {
    std::string broken = whole;
    broken[n] = static_cast<char>(broken[n] ^ 0x11);
    put(broken);
    try {
      const CaseFile file = read_case(path_);
      judge(file, replay(file, {.plan = {.threads = 1}}));
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace smla
