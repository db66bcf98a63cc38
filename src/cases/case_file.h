#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/host_tensor.h"
#include "model/json.h"

namespace smla {

/// Typed access to the params of a case that notes what was looked for; otherwise a JsonReader.
class CaseParams : public JsonReader {
 public:
  using Names = std::set<std::string, std::less<>>;
  CaseParams(std::string where, const JsonValue& value, Names& asked)
      : JsonReader(std::move(where), value), asked_(&asked) {}

  bool has(std::string_view name) const { return noted(name).has(name); }
  std::int64_t integer(std::string_view name, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> fallback = std::nullopt) const {
    return noted(name).integer(name, min, max, fallback);
  }
  double number(std::string_view name, double min, double max, std::optional<double> fallback = std::nullopt) const {
    return noted(name).number(name, min, max, fallback);
  }
  std::string text(std::string_view name, std::optional<std::string> fallback = std::nullopt) const {
    return noted(name).text(name, std::move(fallback));
  }
  bool flag(std::string_view name, std::optional<bool> fallback = std::nullopt) const {
    return noted(name).flag(name, fallback);
  }
  std::vector<std::int64_t> integers(std::string_view name, std::int64_t min, std::int64_t max,
                                     std::size_t max_items) const {
    return noted(name).integers(name, min, max, max_items);
  }
  std::optional<JsonReader> object(std::string_view name) const { return noted(name).object(name); }

 private:
  const JsonReader& noted(std::string_view name) const {
    asked_->emplace(name);
    return *this;
  }
  Names* asked_;
};

/// One call of one operation, read from a smla-case/1 file: safetensors whose metadata hold `format`, `op` and
/// `params`, with tensors in.<argument>, weights.<checkpoint name> and out.<result>. Lookups throw InvalidArgument
/// naming the file and the tensor.
struct CaseFile {
  std::string path;
  std::string op;
  JsonValue params;                           ///< an object
  std::map<std::string, HostTensor> tensors;  ///< by full name

  /// What a replay has looked for, so that what nobody asked for can be named.
  struct Asked {
    CaseParams::Names params{};
    std::set<std::string> tensors{};
  };
  mutable Asked asked{};

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
  CaseParams reader() const { return CaseParams(path + ": params", params, asked.params); }
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
