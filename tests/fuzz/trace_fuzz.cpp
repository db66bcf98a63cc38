// Traces: requests with lengths of at least 1, or an error with its line.
#include "sparsemla/trace.h"
#include "support.h"

namespace smla::fuzz {
namespace {

void run(const std::string& text) {
  const std::vector<TraceRequest> all = parse_trace("t", text);
  require(!all.empty(), "a trace without requests was accepted");
  for (const TraceRequest& r : all) {
    require(r.input_length >= 1 && r.output_length >= 1 && r.arrival_ms >= 0, "a request that cannot be");
  }
  const std::vector<TraceRequest> first = parse_trace("t", text, 1);
  require(first.size() == 1 && first[0] == all[0], "the first request depends on the others");
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::survives([&] { smla::fuzz::run(std::string(reinterpret_cast<const char*>(data), size)); });
  return 0;
}
