#include "cases/case_file.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "checkpoint/safetensors.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::string_view kFormat = "smla-case/1";
constexpr std::string_view kPrefixes[] = {"in.", "weights.", "out."};

const std::string& metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    throw InvalidArgument(file.path() + ": metadata " + key + ": got no such key, expected one (" +
                          std::string(kFormat) + ")");
  return found->second;
}

}  // namespace

const HostTensor* CaseFile::find(const std::string& name) const {
  asked.tensors.insert(name);
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

const HostTensor& CaseFile::tensor(const std::string& name) const {
  const HostTensor* found = find(name);
  if (found == nullptr) throw InvalidArgument(path + ": " + name + ": got no such tensor, expected one for op " + op);
  return *found;
}

ConstTensorView CaseFile::view(const std::string& name) const {
  const HostTensor* found = find(name);
  return found == nullptr ? ConstTensorView{} : found->view();
}

std::vector<std::string> CaseFile::names(std::string_view prefix) const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) out.push_back(name.substr(prefix.size()));
  }
  return out;
}

void CaseFile::expect_inputs(const std::vector<std::string>& accepted) const {
  for (const std::string& name : names("in.")) {
    if (std::find(accepted.begin(), accepted.end(), name) != accepted.end()) continue;
    std::string list;
    for (const std::string& a : accepted) list += (list.empty() ? "" : ", ") + ("in." + a);
    throw InvalidArgument(path + ": in." + name + ": got a tensor that op " + op + " does not have, expected one of " +
                          list);
  }
}

CaseFile read_case(const std::string& path) {
  const SafetensorsFile file(path);
  const std::string& format = metadata(file, "format");
  if (format != kFormat)
    throw InvalidArgument(path + ": metadata format: got \"" + format + "\", expected \"" + std::string(kFormat) +
                          "\"");
  CaseFile out{.path = path,
               .op = metadata(file, "op"),
               .params = parse_json(path + ": params", metadata(file, "params")),
               .tensors = {}};
  out.reader();  // throws unless the params are an object
  for (const auto& [name, entry] : file.tensors()) {
    const bool known = std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [&name = name](std::string_view prefix) {
      return name.starts_with(prefix) && name.size() > prefix.size();
    });
    if (!known)
      throw InvalidArgument(path + ": tensor " + name +
                            ": got a name without prefix, expected in.*, weights.* or out.*");
    if (entry.shape.size() > static_cast<std::size_t>(TensorView::kMaxRank)) {
      throw InvalidArgument(path + ": tensor " + name + ": got " + std::to_string(entry.shape.size()) +
                            " dimensions, expected at most 4");
    }
    try {
      out.tensors.emplace(name, file.read(name));
    } catch (const std::bad_alloc&) {
      throw IoError(path + ": tensor " + name + ": got " + std::to_string(entry.end - entry.begin) +
                    " bytes, expected no more than memory holds");
    }
  }
  return out;
}

void write_case(const std::string& path, std::string_view op, std::string_view params_json,
                const std::map<std::string, const HostTensor*>& tensors) {
  const std::vector<std::pair<std::string, const HostTensor*>> list(tensors.begin(), tensors.end());
  write_safetensors(
      path, {{"format", std::string(kFormat)}, {"op", std::string(op)}, {"params", std::string(params_json)}}, list);
}

std::string to_json(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull: return "null";
    case JsonValue::Kind::kBool: return value.boolean ? "true" : "false";
    case JsonValue::Kind::kInteger: return std::to_string(value.integer);
    case JsonValue::Kind::kNumber: {
      char buffer[40];
      std::snprintf(buffer, sizeof buffer, "%.17g", value.number);
      return buffer;
    }
    case JsonValue::Kind::kString: return json_string(value.text);
    case JsonValue::Kind::kArray: {
      std::string out = "[";
      for (const JsonValue& item : value.items) out += (out.size() > 1 ? ", " : "") + to_json(item);
      return out + "]";
    }
    case JsonValue::Kind::kObject: {
      std::string out = "{";
      for (const auto& [key, item] : value.members)
        out += (out.size() > 1 ? ", " : "") + json_string(key) + ": " + to_json(item);
      return out + "}";
    }
  }
  return "null";
}

}  // namespace smla
