#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/host_tensor.h"
#include "model/json.h"

namespace smla {

/// One call of one operation, read from a smla-case/1 file: safetensors whose metadata hold `format`, `op` and
/// `params`, with tensors in.<argument>, weights.<checkpoint name> and out.<result>. Lookups throw InvalidArgument
/// naming the file and the tensor.
struct CaseFile {
  std::string path;
  std::string op;
  JsonValue params;                           ///< an object
  std::map<std::string, HostTensor> tensors;  ///< by full name

  /// "in.q" and the like; null when absent.
  const HostTensor* find(const std::string& name) const;
  /// @throws InvalidArgument when absent.
  const HostTensor& tensor(const std::string& name) const;
  /// Its view, or an absent view.
  ConstTensorView view(const std::string& name) const;
  /// Names below a prefix, without it: names("out.") -> {"lse", "o"}.
  std::vector<std::string> names(std::string_view prefix) const;
  /// @throws InvalidArgument for an in.* tensor that is none of these (an argument that would be dropped silently).
  void expect_inputs(const std::vector<std::string>& accepted) const;
  /// Typed access to the params; errors start with the file's name.
  JsonReader reader() const { return JsonReader(path + ": params", params); }
};

/// @throws IoError for a damaged file, InvalidArgument for one that is no smla-case/1 or has a tensor outside in.,
/// weights. and out.
CaseFile read_case(const std::string& path);

/// @throws IoError.
void write_case(const std::string& path, std::string_view op, std::string_view params_json,
                const std::map<std::string, const HostTensor*>& tensors);

/// A JSON value as text again.
std::string to_json(const JsonValue& value);

}  // namespace smla
