// The bounds of upstream dumps can fail: each recorded call passes, and does not once its expectation is bent further
// than the bound allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cases/replay.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

CaseFile golden(const std::string& name) {
  return read_case(std::string(SMLA_SOURCE_DIR) + "/tests/golden/upstream/" + name + ".safetensors");
}

bool passes(const CaseFile& file) {
  bool all = true;
  for (const Verdict& verdict : judge(file, replay(file, {}))) all = all && verdict.comparison.pass;
  return all;
}

std::uint8_t* bytes(CaseFile& file, const std::string& name) {
  return static_cast<std::uint8_t*>(file.tensors.at(name).data());
}

/// Moves one byte of an expectation by `by`.
bool passes_with(const std::string& name, const std::string& result, std::int64_t at, int by) {
  CaseFile file = golden(name);
  std::uint8_t& byte = bytes(file, "out." + result)[at];
  byte = static_cast<std::uint8_t>(byte + by);
  return passes(file);
}

/// First slot of a case, and the bytes of a block's rows before it.
std::int64_t first_slot(const CaseFile& file, const std::string& tensor) {
  const HostTensor& slots = file.tensor(tensor);
  for (std::int64_t i = 0; i < slots.numel(); ++i) {
    if (slots.as<std::int64_t>()[i] >= 0) return slots.as<std::int64_t>()[i];
  }
  return -1;
}

TEST(UpstreamCase, InsertedRowsAreExactButForTheRotatedPart) {
  const std::string name = "fused_insert_h8p8_t6_b64";
  const CaseFile file = golden(name);
  const RowFormat& format = fp8_ds_mla_rows();
  const std::int64_t slot = first_slot(file, "in.slot_mapping");
  const std::int64_t block = slot / 64 * file.tensor("out.cache").size(1);
  const std::int64_t row = block + slot % 64 * format.data_bytes;
  EXPECT_TRUE(passes(file));
  EXPECT_FALSE(passes_with(name, "cache", row, 1)) << "a code";
  EXPECT_FALSE(passes_with(name, "cache", block + 64 * format.data_bytes + slot % 64 * format.scale_bytes, 1))
      << "a scale";
  EXPECT_FALSE(passes_with(name, "cache", block + block_bytes(format, 64), 1)) << "padding";
  EXPECT_FALSE(passes_with(name, "cache", row + format.nope_dim, 3)) << "three ulp";
  EXPECT_TRUE(passes_with(name, "cache", row + format.nope_dim, 1) ||
              passes_with(name, "cache", row + format.nope_dim, -1))
      << "one ulp";

  // A row that the call does not write keeps its bytes, even where a written one may be an ulp off.
  std::set<std::int64_t> written;
  for (std::int64_t i = 0; i < file.tensor("in.slot_mapping").numel(); ++i)
    written.insert(file.tensor("in.slot_mapping").as<std::int64_t>()[i]);
  std::int64_t other = 0;
  while (written.contains(other)) ++other;
  EXPECT_FALSE(
      passes_with(name, "cache",
                  other / 64 * file.tensor("out.cache").size(1) + other % 64 * format.data_bytes + format.nope_dim, 1));
}

TEST(UpstreamCase, FullRowsAreComparedAsRows) {
  const CaseFile file = golden("full_bf16_h64_t4");
  const std::int64_t slot = first_slot(file, "in.slot_mapping");
  const std::int64_t other = slot == 127 ? 126 : 127;
  EXPECT_TRUE(passes_with("full_bf16_h64_t4", "cache", slot * 1024 + 1022, 0));
  EXPECT_FALSE(passes_with("full_bf16_h64_t4", "cache", slot * 1024 + 1022, 3));
  EXPECT_FALSE(passes_with("full_bf16_h64_t4", "cache", other * 1024 + 1022, 1));
}

TEST(UpstreamCase, PooledEntriesMayBeAStepOff) {
  const std::string name = "compress_c4_indexer_fp8";
  const CaseFile file = golden(name);
  const RowFormat& format = index_fp8_rows();
  const std::int64_t slot = first_slot(file, "in.kv_slot");
  const std::int64_t row = slot / 64 * file.tensor("out.cache").size(1) + slot % 64 * format.data_bytes;
  EXPECT_TRUE(passes_with(name, "cache", row + 1, 1) || passes_with(name, "cache", row + 1, -1));
  EXPECT_FALSE(passes_with(name, "cache", row + 1, 2));
  EXPECT_FALSE(passes_with(name, "state_rows", 3, 1)) << "an exponent";
}

TEST(UpstreamCase, OnlyDefinedScoresCount) {
  CaseFile file = golden("paged_mqa_logits_nn1");
  HostTensor& logits = file.tensors.at("out.logits");
  const std::int64_t width = logits.size(1);
  const std::int32_t* lens = file.tensor("in.context_lens").as<std::int32_t>();
  for (std::int64_t row = 0; row < logits.size(0); ++row) {
    for (std::int64_t j = lens[row]; j < width; ++j)
      logits.as<float>()[row * width + j] = std::numeric_limits<float>::quiet_NaN();
  }
  EXPECT_TRUE(passes(file));
  float* last = logits.as<float>() + width + lens[1] - 1;
  const float kept = *last;
  float largest = 0;
  for (std::int64_t j = 0; j < lens[1]; ++j) largest = std::max(largest, std::fabs(logits.as<float>()[width + j]));
  *last = kept + 0.02F * largest;
  EXPECT_FALSE(passes(file));
  *last = kept;
  EXPECT_TRUE(passes(file));
}

TEST(UpstreamCase, IntegersAndScalesAreExact) {
  EXPECT_FALSE(passes_with("global_topk", "global_topk_indices", 0, 1));
  EXPECT_FALSE(passes_with("combine_topk_swa_c1", "combined_lens", 0, 1));
  EXPECT_FALSE(passes_with("mixed_sparse_local", "sparse_topk_lens", 0, 1));
  EXPECT_FALSE(passes_with("inv_rope_h64_t5_f32", "o_scale", 0, 1)) << "a bit of a power of two";
  EXPECT_FALSE(passes_with("inv_rope_h64_t5_f32", "o_fp8", 700, 2));
  EXPECT_FALSE(passes_with("formula_indexer_q_mxfp4", "q_packed", 3, 1)) << "U8 that is no cache";
  EXPECT_FALSE(passes_with("dequant_gather_tail", "out", 0, 2)) << "a row that nobody writes";
}

TEST(UpstreamCase, ZeroHasOneValueInFp8) {
  CaseFile file = golden("inv_rope_h64_t5_f32");
  HostTensor& codes = file.tensors.at("out.o_fp8");
  std::int64_t zeros = 0;
  for (std::int64_t i = 0; i < codes.numel(); ++i) {
    if ((codes.as<E4M3>()[i].bits & 0x7FU) != 0U) continue;
    codes.as<E4M3>()[i].bits ^= 0x80U;
    ++zeros;
  }
  EXPECT_GT(zeros, 0);
  EXPECT_TRUE(passes(file));
}

TEST(UpstreamCase, ParamsRuleOverTheDefaults) {
  CaseFile file = golden("indexer_q_fp8_t6");
  EXPECT_TRUE(passes(file));
  file.params.members.emplace_back("tolerance", parse_json("test", R"({"q_fp8": {"ulp": 0}})"));
  EXPECT_FALSE(passes(file)) << "one code of this case is a step off";
}

TEST(UpstreamCase, NamesWithAndWithoutTheLibrary) {
  CaseFile file = golden("paged_mqa_logits_nn1");
  EXPECT_EQ(file.op, "upstream:DeepGEMM fp8_paged_mqa_logits (sm90)");
  file.op = "upstream:fp8_paged_mqa_logits";
  EXPECT_TRUE(passes(file));
  file.op = "upstream:fp8_paged_mqa";
  EXPECT_THAT([&] { passes(file); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("upstream:fp8_paged_mqa\""), HasSubstr("upstream:vllm cooperative_topk"))));
}

TEST(UpstreamCase, ErrorsNameTheTensor) {
  for (const auto& [name, tensor] :
       {std::pair{"global_topk", "in.block_table"}, std::pair{"dequant_gather_tail", "in.seq_lens"},
        std::pair{"compress_c4_main", "in.state_before"}, std::pair{"formula_mqa_logits", "in.ke"},
        std::pair{"mixed_sparse_local", "in.swa_block_table"}, std::pair{"q_kv_rmsnorm_1024", "in.q_weight"}}) {
    CaseFile file = golden(name);
    file.tensors.erase(tensor);
    EXPECT_THAT([&] { passes(file); }, ThrowsMessage<InvalidArgument>(HasSubstr(tensor)));
    CaseFile wrong = golden(name);
    wrong.tensors.at(tensor) = HostTensor(DType::kF64, {1, 1});
    EXPECT_THROW(passes(wrong), Error) << name;
  }
}

}  // namespace
}  // namespace smla
