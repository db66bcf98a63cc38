#pragma once

#include <string_view>

#include "sparsemla/model_config.h"

namespace smla {

/// parse_model_config with the name of the text in errors: a path.
ModelConfig parse_model_config(std::string_view text, std::string_view where);

}  // namespace smla
