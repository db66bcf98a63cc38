#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smla {

/// A JSON value as plain data, members in the order of the text. Everything the library reads passes through here, so
/// that hostile text meets one set of limits: no duplicate keys, no deep nesting, no number that a double cannot hold.
struct JsonValue {
  enum class Kind : std::uint8_t { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;                                  ///< kInteger
  double number = 0.0;                                       ///< kInteger and kNumber
  std::string text{};                                        ///< kString
  std::vector<JsonValue> items{};                            ///< kArray
  std::vector<std::pair<std::string, JsonValue>> members{};  ///< kObject

  bool is_number() const { return kind == Kind::kInteger || kind == Kind::kNumber; }
  /// The member of that name, or null; null too when this is no object.
  const JsonValue* find(std::string_view key) const;
  /// "-3", "the string \"x\"", "an array of 4": for error texts.
  std::string describe() const;
};

/// What is refused before it costs memory or stack.
struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;
  int max_depth = 32;
};

/// Parses one JSON text completely. @throws InvalidArgument "<where>: ..." with the last key seen and what is wrong.
JsonValue parse_json(std::string_view where, std::string_view text, const JsonLimits& limits = {});

/// `text` as a JSON string with its quotes; bytes that are no UTF-8 are replaced.
std::string json_string(std::string_view text);

/// Typed access to an object's members; every error reads "<where>: <key>: got ..., expected ...".
/// A key may be given with aliases ("hidden_size|dim"): the first that is present counts, and two that disagree are an
/// error.
class JsonReader {
 public:
  /// @throws InvalidArgument unless `value` is an object.
  JsonReader(std::string where, const JsonValue& value);

  /// Null when none of the names is present or the value is JSON null.
  const JsonValue* find(std::string_view names) const;
  bool has(std::string_view names) const { return find(names) != nullptr; }

  /// Without a default the key is required. Limits are inclusive. Whole numbers written as 4.0 are integers too.
  std::int64_t integer(std::string_view names, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> fallback = std::nullopt) const;
  double number(std::string_view names, double min, double max, std::optional<double> fallback = std::nullopt) const;
  std::string text(std::string_view names, std::optional<std::string> fallback = std::nullopt) const;
  bool flag(std::string_view names, std::optional<bool> fallback = std::nullopt) const;
  /// Required array of integers.
  std::vector<std::int64_t> integers(std::string_view names, std::int64_t min, std::int64_t max,
                                     std::size_t max_items) const;
  /// A nested object, or nothing.
  std::optional<JsonReader> object(std::string_view names) const;

  [[noreturn]] void fail(std::string_view names, const std::string& got, const std::string& expected) const;
  const std::string& where() const { return where_; }
  const JsonValue& value() const { return *value_; }

 private:
  const JsonValue& required(std::string_view names, const std::string& expected) const;

  std::string where_;
  const JsonValue* value_;
};

}  // namespace smla
