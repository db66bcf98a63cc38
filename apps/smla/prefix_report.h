#pragma once

#include <cstdint>
#include <string>

#include "run_report.h"

namespace smla {

/// Requests whose outputs are not those of the run without the cache.
std::int64_t different_outputs(const RunReport& report);
/// Lines about the prefix cache; none without one.
std::string prefix_text(const RunReport& report);
/// The same as the text of a JSON value; null without one.
std::string prefix_json(const RunReport& report);

}  // namespace smla
