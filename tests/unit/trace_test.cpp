#include "sparsemla/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "sparsemla/error.h"

namespace smla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGood = R"({"timestamp": 27, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]})";

std::string error_of(const std::string& text) {
  try {
    parse_trace("t.jsonl", text);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

TEST(Trace, ReadsTheBundledSlice) {
  const auto requests = read_trace(SMLA_SOURCE_DIR "/data/conversation-head.jsonl");
  ASSERT_EQ(requests.size(), 40U);
  EXPECT_EQ(requests[0].input_length, 6758);
  EXPECT_EQ(requests[0].output_length, 500);
  for (const TraceRequest& r : requests)
    EXPECT_EQ(static_cast<std::int64_t>(r.hash_ids.size()), (r.input_length + 511) / 512);
  EXPECT_EQ(read_trace(SMLA_SOURCE_DIR "/data/conversation-head.jsonl", 3).size(), 3U);
}

TEST(Trace, FieldsAndLineEnds) {
  const auto requests = parse_trace(
      "t", kGood + "\r\n\n   \n" +
               R"({"type": "chat", "timestamp": 1.5, "input_length": 1, "output_length": 1, "hash_ids": []})");
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0],
            (TraceRequest{.arrival_ms = 27, .input_length = 6758, .output_length = 500, .hash_ids = {0, 1, 2}}));
  EXPECT_DOUBLE_EQ(requests[1].arrival_ms, 1.5);
}

TEST(Trace, StopsAtMaxRequests) {
  EXPECT_EQ(parse_trace("t", kGood + "\nthis line is never read", 1).size(), 1U);
  EXPECT_THROW(parse_trace("t", kGood, -1), InvalidArgument);
}

TEST(Trace, ErrorsCarryTheLine) {
  EXPECT_THAT(error_of(kGood + "\n\n{\"timestamp\": 0}"), HasSubstr("t.jsonl:3: input_length"));
  EXPECT_THAT(error_of(kGood + "\n" + kGood.substr(0, 40)), HasSubstr("t.jsonl:2: "));
  for (std::size_t n = 1; n < kGood.size(); ++n)
    EXPECT_THAT(error_of(kGood.substr(0, n)), HasSubstr("t.jsonl:1: ")) << n;
}

TEST(Trace, HostileValuesAreNamed) {
  const auto with = [](const std::string& key, const std::string& value) {
    std::string line = kGood;
    const std::size_t at = line.find("\"" + key + "\": ") + key.size() + 4;
    const std::size_t end = line[at] == '[' ? line.find(']', at) + 1 : line.find_first_of(",}", at);
    return line.replace(at, end - at, value);
  };
  ASSERT_EQ(error_of(with("input_length", "7")), "");
  for (const char* key : {"timestamp", "input_length", "output_length"}) {
    for (const char* bad : {"-1", "1e30", "99999999999999999999999", "\"7\"", "[7]", "{}", "true", "null"}) {
      EXPECT_THAT(error_of(with(key, bad)),
                  AllOf(HasSubstr("t.jsonl:1: "), HasSubstr(key), HasSubstr("got "), HasSubstr("expected ")))
          << key << " " << bad;
    }
    for (const char* bad : {"NaN", "Infinity", "-Infinity", "1e999"}) {
      EXPECT_THAT(error_of(with(key, bad)), AllOf(HasSubstr("t.jsonl:1: "), HasSubstr(key))) << key << " " << bad;
    }
  }
  for (const char* key : {"input_length", "output_length"}) {
    for (const char* bad : {"0", "2147483648", "1.5"}) EXPECT_THAT(error_of(with(key, bad)), HasSubstr(key)) << bad;
    EXPECT_EQ(error_of(with(key, "2147483647")), "");
  }
  for (const char* bad : {"3", "\"x\"", "{}", "null"})
    EXPECT_THAT(error_of(with("hash_ids", bad)), HasSubstr("hash_ids")) << bad;
  EXPECT_THAT(error_of(with("hash_ids", "[0, -1]")), HasSubstr("hash_ids[1]"));
  EXPECT_THAT(error_of(with("hash_ids", "[0, 1.5]")), HasSubstr("hash_ids[1]"));
  EXPECT_THAT(error_of(with("hash_ids", std::string(100000, '['))), HasSubstr("nesting"));
  EXPECT_THAT(error_of("{\"input_length\": 1, \"input_length\": 2}"),
              AllOf(HasSubstr("input_length"), HasSubstr("twice")));
}

TEST(Trace, MissingKeysAreNamed) {
  for (const char* key : {"timestamp", "input_length", "output_length"}) {
    std::string line = kGood;
    line[line.find(key)] = '_';
    EXPECT_THAT(error_of(line), AllOf(HasSubstr(key), HasSubstr("no such key"))) << key;
  }
  // hash_ids have no effect yet, so a trace of lengths alone is one.
  const auto bare = parse_trace("t", R"({"timestamp": 0, "input_length": 5, "output_length": 2})");
  EXPECT_EQ(bare.at(0), (TraceRequest{.arrival_ms = 0, .input_length = 5, .output_length = 2, .hash_ids = {}}));
  EXPECT_THAT(error_of("[1]"), HasSubstr("object"));
}

TEST(Trace, EmptyMissingAndUnreadableFiles) {
  EXPECT_THAT(error_of(""), HasSubstr("no request"));
  EXPECT_THAT(error_of("\n\n"), HasSubstr("no request"));
  EXPECT_THROW(read_trace("/no/such/trace.jsonl"), IoError);
  EXPECT_THROW(read_trace(::testing::TempDir()), IoError);
  const std::string path = ::testing::TempDir() + "smla_empty.jsonl";
  std::ofstream(path) << "";
  EXPECT_THROW(read_trace(path), InvalidArgument);
  const std::string pipe = ::testing::TempDir() + "smla_trace_pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_trace(pipe), IoError) << "a pipe must not hang the reader";
  std::remove(pipe.c_str());
}

TEST(Trace, AHugeLineIsRefused) {
  EXPECT_THAT(error_of(kGood + "\n" + std::string((std::size_t{64} << 20) + 1, ' ')),
              HasSubstr("t.jsonl:2: got a line longer"));
}

}  // namespace
}  // namespace smla
