#pragma once

#include <string>

#include "engine/soak.h"
#include "run_report.h"

namespace smla {

/// `run`: model, trace, options and ranks of the soak; its other members are not read.
std::string soak_text(const RunReport& run, const SoakOptions& options, const SoakReport& report);
/// The report as JSON (schema "smla-soak/1").
std::string soak_json(const RunReport& run, const SoakOptions& options, const SoakReport& report);

}  // namespace smla
