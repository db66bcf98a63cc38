#pragma once

// A case file in few bytes, as the seeds of the case target are:
//   <byte><op>\n<params as JSON>\n, then a line "<name> <dtype> <sizes>" for each tensor, an empty line, and bytes that
//   the tensors' numbers are made of.

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/codecs.h"
#include "core/host_tensor.h"
#include "model/json.h"

namespace smla::fuzz {

inline constexpr std::int64_t kMaxNumbers = 1 << 17;  ///< of a tensor: the target is for wild calls, not for large ones

/// Sizes that an op may be asked for without being told by a tensor.
inline bool too_large(const JsonValue& value) {
  constexpr std::int64_t kTiny = 4096;
  if (value.kind == JsonValue::Kind::kInteger) return value.integer > kTiny && value.integer < INT64_MAX;
  if (value.kind == JsonValue::Kind::kNumber) return value.number > static_cast<double>(kTiny);
  const auto inside = [](const auto& list, auto&& get) {
    return std::any_of(list.begin(), list.end(), [&](const auto& v) { return too_large(get(v)); });
  };
  return inside(value.items, [](const JsonValue& v) -> const JsonValue& { return v; }) ||
         inside(value.members, [](const auto& v) -> const JsonValue& { return v.second; });
}

/// Numbers that mean something more often than random bits do: small integers with the ends of their type, floats
/// around 1 with infinities and NaN.
inline void fill(HostTensor& tensor, const std::string& pool, std::size_t& at) {
  const auto next = [&] {
    return pool.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(pool[at++ % pool.size()]);
  };
  const auto real = [&] {
    const std::uint8_t b = next();
    if (b == 0x7F) return std::numeric_limits<float>::infinity();
    if (b == 0x80) return std::numeric_limits<float>::quiet_NaN();
    if (b == 0x81) return -std::numeric_limits<float>::infinity();
    if (b == 0x82) return 3e38F;
    return static_cast<float>(static_cast<std::int8_t>(b)) / 32.0F;
  };
  const auto whole = [&]() -> std::int64_t {
    const std::uint8_t b = next();
    constexpr std::int32_t kEnds[] = {INT32_MIN, -7, -1, -1, 64, 1000, 2147480000, INT32_MAX};
    return b >= 0xF0 ? kEnds[b % 8] : b % 24;
  };
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    switch (tensor.dtype()) {
      case DType::kF32: tensor.as<float>()[i] = real(); break;
      case DType::kF64: tensor.as<double>()[i] = real(); break;
      case DType::kBF16: tensor.as<BF16>()[i] = to_bf16(real()); break;
      case DType::kI32: tensor.as<std::int32_t>()[i] = static_cast<std::int32_t>(whole()); break;
      case DType::kI64: tensor.as<std::int64_t>()[i] = whole(); break;
      case DType::kBool: static_cast<std::uint8_t*>(tensor.data())[i] = next() & 1; break;
      default: static_cast<std::uint8_t*>(tensor.data())[i] = next(); break;
    }
  }
}

/// Writes the case file of a description without its first byte. False when the description is of no use.
inline bool write_described(const std::string& text, const std::string& path) {
  std::istringstream in(text);
  std::string op;
  std::string params;
  std::getline(in, op);
  std::getline(in, params);
  if (too_large(parse_json("params", params))) return false;
  std::vector<std::pair<std::string, HostTensor>> tensors;
  std::string line;
  while (std::getline(in, line) && !line.empty() && tensors.size() < 32) {
    std::istringstream words(line);
    std::string name;
    std::string dtype;
    words >> name >> dtype;
    std::vector<std::int64_t> shape;
    std::int64_t numbers = 1;
    for (std::int64_t n = 0; words >> n;) {
      if (n < 0 || n > kMaxNumbers || shape.size() > 6) return false;
      shape.push_back(n);
      numbers *= std::max<std::int64_t>(n, 1);
      if (numbers > kMaxNumbers) return false;
    }
    tensors.emplace_back(name, HostTensor(dtype_from_name(dtype), shape));
  }
  const auto used = in.tellg();
  const std::string pool = used < 0 ? "" : text.substr(static_cast<std::size_t>(used));
  std::size_t at = 0;
  std::vector<std::pair<std::string, const HostTensor*>> list;
  for (auto& [name, tensor] : tensors) {
    fill(tensor, pool, at);
    list.emplace_back(name, &tensor);
  }
  write_safetensors(path, {{"format", "smla-case/1"}, {"op", op}, {"params", params}}, list);
  return true;
}

}  // namespace smla::fuzz
