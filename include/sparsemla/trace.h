#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// Tokens of a prompt that one of its `hash_ids` stands for.
inline constexpr std::int64_t kTraceBlockTokens = 512;

/// One request of a recorded trace.
struct TraceRequest {
  double arrival_ms = 0.0;         ///< milliseconds, `timestamp` in the file
  std::int64_t input_length = 0;   ///< prompt tokens, at least 1
  std::int64_t output_length = 0;  ///< tokens to generate, at least 1
  /// One id for each block of kTraceBlockTokens of the prompt, the last one perhaps in part; equal ids stand for equal
  /// blocks behind equal ones. May be empty.
  std::vector<std::int64_t> hash_ids;
  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

/// Reads a trace as JSON Lines: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]} a line
/// (hash_ids may be missing), other keys ignored, blank lines skipped, requests in file order. Reads no further than
/// the first `max_requests` (0: all).
/// @throws IoError when the file cannot be read; InvalidArgument "<path>:<line>: <key>: got ..., expected ..." for the
/// first bad line, and for a trace without a request.
std::vector<TraceRequest> read_trace(const std::string& path, std::int64_t max_requests = 0);

/// Reads a trace from its text. `where` stands for the path in errors.
std::vector<TraceRequest> parse_trace(std::string_view where, std::string_view text, std::int64_t max_requests = 0);

}  // namespace smla
