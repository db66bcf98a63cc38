#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// How the files of record_calls end.
inline constexpr std::string_view kRecordedCaseSuffix = ".smla-case.safetensors";

/// Records every op that runs from now on as a case file `<number>_<op>.smla-case.safetensors` in `folder` (made if
/// needed), which `smla verify` replays; an empty name stops. Calls are recorded one at a time, whatever thread they
/// come from. Runs become slow; a file holds the call's tensors and the cache blocks that it uses, numbered anew. Runs
/// on a GPU are waited for and cannot be recorded in a CUDA graph meanwhile.
/// @throws IoError when the folder cannot be made. A file that cannot be written, or that is there already, makes the
/// run that it records throw IoError.
void record_calls(const std::string& folder);

/// record_calls with the folder named by the environment variable SMLA_DUMP; nothing when it is unset or empty.
void record_calls_from_environment();

/// How many calls this process has recorded.
std::int64_t recorded_calls();
/// Bytes of their files.
std::int64_t recorded_bytes();

}  // namespace smla
