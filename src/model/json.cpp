#include "model/json.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "sparsemla/error.h"

namespace smla {

namespace {

std::string quote(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return out + (text.size() > kShown ? "...\"" : "\"");
}

std::string plain(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", value);
  return buffer;
}

/// Builds a JsonValue from nlohmann's events; false or an exception stops the parse.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view where, int max_depth) : where_(where), max_depth_(max_depth) {}

  bool null() override { return put({}); }
  bool boolean(bool v) override { return put({.kind = JsonValue::Kind::kBool, .boolean = v}); }
  bool number_integer(number_integer_t v) override {
    return put({.kind = JsonValue::Kind::kInteger, .integer = v, .number = static_cast<double>(v)});
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (v <= static_cast<std::uint64_t>(INT64_MAX)) return number_integer(static_cast<std::int64_t>(v));
    return put({.kind = JsonValue::Kind::kNumber, .number = static_cast<double>(v)});
  }
  bool number_float(number_float_t v, const string_t&) override {
    if (!std::isfinite(v)) fail("got a number that is not finite, expected one that fits a double");
    return put({.kind = JsonValue::Kind::kNumber, .number = v});
  }
  bool string(string_t& v) override { return put({.kind = JsonValue::Kind::kString, .text = std::move(v)}); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonValue::Kind::kObject); }
  bool start_array(std::size_t) override { return open(JsonValue::Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    if (!keys_.back().insert(v).second) fail("got the key " + quote(v) + " twice, expected it once");
    last_key_ = v;
    open_.back().members.emplace_back(std::move(v), JsonValue{});
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& e) override {
    const bool range = e.id == 406;
    fail("got " + std::string(range ? "a number that no double can hold" : "text that is not JSON") + " at byte " +
         std::to_string(position) + ", expected " + (range ? "a finite number" : "complete JSON"));
  }

  JsonValue take() { return std::move(root_); }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidArgument(where_ + ": " + (last_key_.empty() ? "" : "after key " + quote(last_key_) + ": ") + what);
  }
  bool put(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().kind == JsonValue::Kind::kArray) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().members.back().second = std::move(value);
    }
    return true;
  }
  bool open(JsonValue::Kind kind) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      fail("got nesting deeper than " + std::to_string(max_depth_) + ", expected at most " +
           std::to_string(max_depth_));
    }
    open_.push_back({.kind = kind});
    keys_.emplace_back();
    return true;
  }
  bool close() {
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return put(std::move(value));
  }

  std::string where_;
  int max_depth_;
  std::string last_key_;
  JsonValue root_;
  std::vector<JsonValue> open_;
  std::vector<std::unordered_set<std::string>> keys_;
};

/// The first of "a|b|c", for texts.
std::string_view first_name(std::string_view names) { return names.substr(0, names.find('|')); }

bool same(const JsonValue& a, const JsonValue& b) {
  if (a.is_number() && b.is_number()) return a.number == b.number;
  if (a.kind != b.kind || a.boolean != b.boolean || a.text != b.text) return false;
  if (a.items.size() != b.items.size() || a.members.size() != b.members.size()) return false;
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!same(a.items[i], b.items[i])) return false;
  }
  for (std::size_t i = 0; i < a.members.size(); ++i) {
    if (a.members[i].first != b.members[i].first || !same(a.members[i].second, b.members[i].second)) return false;
  }
  return true;
}

bool whole(const JsonValue& value, std::int64_t& out) {
  if (value.kind == JsonValue::Kind::kInteger) {
    out = value.integer;
    return true;
  }
  if (value.kind != JsonValue::Kind::kNumber || std::trunc(value.number) != value.number ||
      std::fabs(value.number) > 0x1p62)
    return false;
  out = static_cast<std::int64_t>(value.number);
  return true;
}

std::string range_text(std::string_view kind, const std::string& min, const std::string& max) {
  return std::string(kind) + " from " + min + " to " + max;
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string JsonValue::describe() const {
  switch (kind) {
    case Kind::kNull: return "null";
    case Kind::kBool: return boolean ? "true" : "false";
    case Kind::kInteger: return std::to_string(integer);
    case Kind::kNumber: return plain(number);
    case Kind::kString: return "the string " + quote(text);
    case Kind::kArray: return "an array of " + std::to_string(items.size());
    case Kind::kObject: return "an object";
  }
  return "?";
}

JsonValue parse_json(std::string_view where, std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw InvalidArgument(std::string(where) + ": got " + std::to_string(text.size()) +
                          " bytes of JSON, expected at most " + std::to_string(limits.max_bytes));
  }
  Builder builder(where, limits.max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw InvalidArgument(std::string(where) + ": got text that is not JSON, expected complete JSON");
  }
  return builder.take();
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

JsonReader::JsonReader(std::string where, const JsonValue& value) : where_(std::move(where)), value_(&value) {
  if (value.kind != JsonValue::Kind::kObject)
    throw InvalidArgument(where_ + ": got " + value.describe() + ", expected an object");
}

const JsonValue* JsonReader::find(std::string_view names) const {
  const JsonValue* found = nullptr;
  std::string_view found_name;
  while (!names.empty()) {
    const std::string_view name = first_name(names);
    names.remove_prefix(name.size() == names.size() ? name.size() : name.size() + 1);
    const JsonValue* value = value_->find(name);
    if (value == nullptr || value->kind == JsonValue::Kind::kNull) continue;
    if (found == nullptr) {
      found = value;
      found_name = name;
    } else if (!same(*found, *value)) {
      fail(name, value->describe(), "the same as " + std::string(found_name) + ", " + found->describe());
    }
  }
  return found;
}

const JsonValue& JsonReader::required(std::string_view names, const std::string& expected) const {
  const JsonValue* value = find(names);
  if (value == nullptr) fail(names, value_->find(first_name(names)) != nullptr ? "null" : "no such key", expected);
  return *value;
}

std::int64_t JsonReader::integer(std::string_view names, std::int64_t min, std::int64_t max,
                                 std::optional<std::int64_t> fallback) const {
  if (fallback && !has(names)) return *fallback;
  const std::string expected = range_text("an integer", std::to_string(min), std::to_string(max));
  const JsonValue& value = required(names, expected);
  std::int64_t out = 0;
  if (!whole(value, out) || out < min || out > max) fail(names, value.describe(), expected);
  return out;
}

double JsonReader::number(std::string_view names, double min, double max, std::optional<double> fallback) const {
  if (fallback && !has(names)) return *fallback;
  const std::string expected = range_text("a number", plain(min), plain(max));
  const JsonValue& value = required(names, expected);
  if (!value.is_number() || !(value.number >= min && value.number <= max)) fail(names, value.describe(), expected);
  return value.number;
}

std::string JsonReader::text(std::string_view names, std::optional<std::string> fallback) const {
  if (fallback && !has(names)) return *fallback;
  const JsonValue& value = required(names, "a string");
  if (value.kind != JsonValue::Kind::kString) fail(names, value.describe(), "a string");
  return value.text;
}

bool JsonReader::flag(std::string_view names, std::optional<bool> fallback) const {
  if (fallback && !has(names)) return *fallback;
  const JsonValue& value = required(names, "true or false");
  if (value.kind != JsonValue::Kind::kBool) fail(names, value.describe(), "true or false");
  return value.boolean;
}

std::vector<std::int64_t> JsonReader::integers(std::string_view names, std::int64_t min, std::int64_t max,
                                               std::size_t max_items) const {
  const std::string expected = "an array of at most " + std::to_string(max_items) + " integers from " +
                               std::to_string(min) + " to " + std::to_string(max);
  const JsonValue& value = required(names, expected);
  if (value.kind != JsonValue::Kind::kArray || value.items.size() > max_items) fail(names, value.describe(), expected);
  std::vector<std::int64_t> out;
  out.reserve(value.items.size());
  for (const JsonValue& item : value.items) {
    std::int64_t v = 0;
    if (!whole(item, v) || v < min || v > max) {
      fail(std::string(first_name(names)) + "[" + std::to_string(out.size()) + "]", item.describe(),
           range_text("an integer", std::to_string(min), std::to_string(max)));
    }
    out.push_back(v);
  }
  return out;
}

std::optional<JsonReader> JsonReader::object(std::string_view names) const {
  const JsonValue* value = find(names);
  if (value == nullptr) return std::nullopt;
  return JsonReader(where_ + ": " + std::string(first_name(names)), *value);
}

void JsonReader::fail(std::string_view names, const std::string& got, const std::string& expected) const {
  throw InvalidArgument(where_ + ": " + std::string(first_name(names)) + ": got " + got + ", expected " + expected);
}

}  // namespace smla
