#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

#include "c/descriptors.h"

namespace smla::c {

[[noreturn]] inline void fail_member(std::string_view op, std::string_view member, const std::string& got,
                                     const std::string& expected) {
  throw InvalidArgument(std::string(op) + ": " + std::string(member) + ": got " + got + ", expected " + expected);
}

/// The array of named structs (scalars, arguments) of one call; each is taken once.
template <class Named>
class NamedList {
 public:
  static constexpr std::size_t kMax = 64;  ///< more than any op has members

  /// @throws InvalidArgument for NULL, for structs of different sizes and for one without a name.
  NamedList(std::string_view op, std::string_view what, const Named* given, std::int64_t count) : op_(op) {
    if (count < 0 || count > static_cast<std::int64_t>(kMax))
      fail_member(op, what, std::to_string(count), "0 to " + std::to_string(kMax));
    if (count > 0 && given == nullptr) fail_member(op, what, "NULL", std::to_string(count) + " structs");
    count_ = static_cast<std::size_t>(count);
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (std::size_t i = 0; i < count_; ++i) {
      const auto* one = reinterpret_cast<const Named*>(bytes + i * static_cast<std::size_t>(given->struct_size));
      if (one->struct_size != given->struct_size)
        fail_member(op, what, "structs of different struct_size", "one size in an array");
      list_[i] = read_struct(what, one);
      if (list_[i].name == nullptr) fail_member(op, what, "one without a name", "the name of a member");
    }
  }

  /// The struct of that name; null when there is none. @throws InvalidArgument when there are two.
  const Named* take(std::string_view name) {
    const Named* found = nullptr;
    for (std::size_t i = 0; i < count_; ++i) {
      if (list_[i].name != name) continue;
      if (found != nullptr) fail_member(op_, name, "it twice", "it once");
      found = &list_[i];
      taken_.set(i);
    }
    return found;
  }

  /// The first name that nobody took; null when all were.
  const char* rest() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (!taken_.test(i)) return list_[i].name;
    }
    return nullptr;
  }

 private:
  std::string_view op_;
  std::array<Named, kMax> list_;
  std::size_t count_ = 0;
  std::bitset<kMax> taken_;
};

}  // namespace smla::c
