#include "sparsemla/trace.h"

#include <fstream>
#include <istream>
#include <sstream>

#include "core/read_file.h"
#include "model/json.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;  // ids of 512-token blocks of the longest prompt fit
constexpr std::int64_t kMaxTokens = INT32_MAX;
constexpr std::size_t kMaxHashIds = std::size_t{1} << 23;

TraceRequest parse_line(const std::string& where, const std::string& line) {
  const JsonValue value = parse_json(where, line, {.max_bytes = kMaxLineBytes, .max_depth = 8});
  const JsonReader json(where, value);
  return {.arrival_ms = json.number("timestamp", 0.0, 1e15),
          .input_length = json.integer("input_length", 1, kMaxTokens),
          .output_length = json.integer("output_length", 1, kMaxTokens),
          .hash_ids = json.value().find("hash_ids") == nullptr ? std::vector<std::int64_t>()
                                                               : json.integers("hash_ids", 0, INT64_MAX, kMaxHashIds)};
}

/// One line without its end, never more than the limit in memory; false at the end of the text.
bool next_line(std::istream& in, const std::string& where, std::string& line) {
  line.clear();
  std::streambuf* buffer = in.rdbuf();
  for (int c = buffer->sbumpc(); c != std::char_traits<char>::eof(); c = buffer->sbumpc()) {
    if (c == '\n') return true;
    if (line.size() == kMaxLineBytes) {
      throw InvalidArgument(where + ": got a line longer than " + std::to_string(kMaxLineBytes) +
                            " bytes, expected one request a line");
    }
    line.push_back(static_cast<char>(c));
  }
  return !line.empty();
}

std::vector<TraceRequest> parse_stream(const std::string& path, std::istream& in, std::int64_t max_requests) {
  if (max_requests < 0)
    throw InvalidArgument("trace: max_requests: got " + std::to_string(max_requests) + ", expected 0 (all) or more");
  std::vector<TraceRequest> requests;
  std::string line;
  for (std::int64_t number = 1; max_requests == 0 || static_cast<std::int64_t>(requests.size()) < max_requests;
       ++number) {
    const std::string where = path + ":" + std::to_string(number);
    if (!next_line(in, where, line)) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    requests.push_back(parse_line(where, line));
  }
  if (requests.empty()) throw InvalidArgument(path + ": got no request, expected at least one line of JSON");
  return requests;
}

}  // namespace

std::vector<TraceRequest> read_trace(const std::string& path, std::int64_t max_requests) {
  const ReadableFile regular(path, "a JSON Lines trace");
  std::ifstream file(path, std::ios::binary);
  try {
    return parse_stream(path, file, max_requests);
  } catch (const std::ios_base::failure& e) {
    throw IoError("trace: " + path + ": reading failed: " + e.what());
  }
}

std::vector<TraceRequest> parse_trace(std::string_view where, std::string_view text, std::int64_t max_requests) {
  std::istringstream stream{std::string(text)};
  return parse_stream(std::string(where), stream, max_requests);
}

}  // namespace smla
