#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "sparsemla/device.h"

namespace smla {

/// The key that stands for every op that has the implementation.
inline constexpr std::string_view kEveryOp = "*";

/// Whether each choice (op, or kEveryOp, to implementation) names something that exists on `device`.
/// @throws InvalidArgument "<where>: got ..., expected ..." for an unknown op, for a name that the op (for kEveryOp:
/// any op) does not have on `device`, and for one that this CPU cannot run for any op.
void check_named_implementations(std::string_view where, const std::map<std::string, std::string, std::less<>>& choices,
                                 DeviceKind device);

}  // namespace smla
