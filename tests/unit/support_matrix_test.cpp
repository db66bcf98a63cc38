// The support matrix of README.md is what the op tables say. SMLA_UPDATE_README=1 in the environment rewrites it (./dev
// docs).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "ops/catalog.h"

namespace smla {
namespace {

struct Column {
  std::string_view implementation;
  std::string_view title;
};
constexpr std::array<Column, 8> kColumns{{{"ref", "reference"},
                                          {"cpu", "any CPU"},
                                          {"avx2", "AVX2"},
                                          {"avx512", "AVX-512"},
                                          {"onednn", "oneDNN"},
                                          {"cublaslt", "cuBLASLt"},
                                          {"cuda", "CUDA sm_80+"},
                                          {"sm90", "Hopper"}}};

/// A second implementation for a machine is named after the first: "cuda_simt" stands in the column of "cuda".
bool belongs(const Candidate& candidate, const Column& column) {
  return candidate.name == column.implementation ||
         candidate.name.starts_with(std::string(column.implementation) + "_");
}

std::string support_matrix() {
  std::string text = "| op | family |";
  std::string rule = "|---|---|";
  for (const Column& column : kColumns) {
    text += " " + std::string(column.title) + " |";
    rule += ":-:|";
  }
  text += "\n" + rule + "\n";
  for (const OpInfo& op : op_catalog()) {
    const std::vector<Candidate> candidates = op.candidates({});
    text += "| " + std::string(op.name) + " | " + std::string(op.family) + " |";
    for (const Column& column : kColumns) {
      const bool has =
          std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& c) { return belongs(c, column); });
      text += has ? " yes |" : " - |";
    }
    text += "\n";
  }
  return text;
}

TEST(SupportMatrix, EveryImplementationHasAColumn) {
  for (const OpInfo& op : op_catalog()) {
    const std::vector<Candidate> candidates = op.candidates({});
    ASSERT_FALSE(candidates.empty()) << op.name;
    EXPECT_EQ(candidates.back().name, "ref") << op.name << ": the reference comes last";
    for (const Candidate& candidate : candidates) {
      EXPECT_TRUE(std::any_of(kColumns.begin(), kColumns.end(), [&](const Column& c) { return belongs(candidate, c); }))
          << op.name << " has an implementation \"" << candidate.name << "\" that the matrix does not know";
    }
  }
}

TEST(SupportMatrix, ReadmeIsUpToDate) {
  const std::string path = SMLA_SOURCE_DIR "/README.md";
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  const std::string text = file.str();
  const std::string begin_mark = "<!-- matrix:begin -->\n";
  const std::size_t begin = text.find(begin_mark);
  const std::size_t end = text.find("<!-- matrix:end -->\n");
  ASSERT_NE(begin, std::string::npos) << path << " has no " << begin_mark;
  ASSERT_NE(end, std::string::npos) << path;
  const std::size_t start = begin + begin_mark.size();
  if (std::getenv("SMLA_UPDATE_README") != nullptr) {
    std::ofstream(path) << text.substr(0, start) << support_matrix() << text.substr(end);
  } else {
    EXPECT_EQ(text.substr(start, end - start), support_matrix()) << "./dev docs rewrites it";
  }
}

}  // namespace
}  // namespace smla
