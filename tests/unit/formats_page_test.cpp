// The table of docs/formats.md is what all_row_formats() says. SMLA_UPDATE_README=1 in the environment rewrites it
// (./dev docs).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "sparsemla/kv_format.h"

namespace smla {
namespace {

/// Rows in a block of the layer's own layout.
std::vector<std::int64_t> block_sizes(const RowFormat& format) {
  if (format.name == "state_c4" || format.name == "state_index") return {4};
  if (format.name == "state_c128") return {8};
  if (format.dim == 128) return {64};
  return {64, 2};
}

std::string size_table() {
  std::string text =
      "| format | numbers | numbers' bytes | scales' bytes | row | rows in a block | block | page "
      "|\n|---|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const RowFormat* format : all_row_formats()) {
    for (const std::int64_t rows : block_sizes(*format)) {
      text += "| `" + std::string(format->name) + "`";
      for (const std::int64_t number :
           {std::int64_t{format->dim}, std::int64_t{format->data_bytes}, std::int64_t{format->scale_bytes},
            std::int64_t{format->row_bytes()}, rows, block_bytes(*format, rows), page_bytes(*format, rows)}) {
        text += " | " + std::to_string(number);
      }
      text += " |\n";
    }
  }
  return text;
}

std::string read_page(const std::string& path) {
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  return file.str();
}

TEST(FormatsPage, SizesAreUpToDate) {
  const std::string path = SMLA_SOURCE_DIR "/docs/formats.md";
  const std::string text = read_page(path);
  const std::string begin_mark = "<!-- formats:begin -->\n";
  const std::size_t begin = text.find(begin_mark);
  const std::size_t end = text.find("<!-- formats:end -->\n");
  ASSERT_NE(begin, std::string::npos) << path << " has no " << begin_mark;
  ASSERT_NE(end, std::string::npos) << path;
  const std::size_t start = begin + begin_mark.size();
  if (std::getenv("SMLA_UPDATE_README") != nullptr) {
    std::ofstream(path) << text.substr(0, start) << size_table() << text.substr(end);
  } else {
    EXPECT_EQ(text.substr(start, end - start), size_table()) << "./dev docs rewrites it";
  }
}

TEST(FormatsPage, EveryFormatHasASection) {
  const std::string text = read_page(SMLA_SOURCE_DIR "/docs/formats.md");
  for (const RowFormat* format : all_row_formats()) {
    const std::string name(format->name);
    const bool drawn =
        text.find("\n## " + name + "\n") != std::string::npos ||       // a section of its own,
        text.find("\n" + name + "  ") != std::string::npos ||          // a line in the picture of the state rows,
        text.find("`" + name + "` is the same") != std::string::npos;  // or another's twin
    EXPECT_TRUE(drawn) << name;
  }
}

}  // namespace
}  // namespace smla
