#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "core/members.h"
#include "ops/decision.h"
#include "sparsemla/kv_format.h"

namespace smla {

/// All that a decision depends on, as words: equal words mean the same decision. Building one allocates nothing.
class PlanKey {
 public:
  PlanKey(const auto& problem, const PlanOptions& options, const Machine& machine) {
    add(problem);
    add(options.device);
    add(options.deterministic);
    add(std::string_view(options.implementation));
    add(machine.threads);
    add(machine.gpu.ordinal);
    add(machine.gpu.shared_bytes);
  }

  std::span<const std::uint64_t> words() const { return {words_.data(), used_}; }

 private:
  static constexpr std::size_t kWords = 160;  ///< two row formats of 12 members, a name and much room

  void put(std::uint64_t word) {
    if (used_ == kWords) throw std::length_error("plan key: a problem of too many members");
    words_[used_++] = word;
  }
  void add(std::string_view text) {
    put(text.size());
    for (std::size_t at = 0; at < text.size() && at < kMaxName; at += 8) {
      std::uint64_t word = 0;
      text.substr(at, 8).copy(reinterpret_cast<char*>(&word), 8);
      put(word);
    }
  }
  /// By its contents too: another format may lie where an earlier one lay.
  void add(const RowFormat* format) {
    put(reinterpret_cast<std::uintptr_t>(format));
    if (format != nullptr) add(*format);
  }
  template <class T>
  void add(const std::optional<T>& value) {
    put(value.has_value() ? 1 : 0);
    if (value) add(*value);
  }
  template <class T, std::size_t kSize>
  void add(const std::array<T, kSize>& values) {
    for (const T& value : values) add(value);
  }
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_same_v<T, float>) {
      put(std::bit_cast<std::uint32_t>(value));
    } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      put(static_cast<std::uint64_t>(value));
    } else {
      for_each_member(value, [this](const auto& member) { add(member); });
    }
  }

 public:
  static constexpr std::size_t kMaxName = 64;  ///< of an implementation; a longer one exists nowhere

 private:
  std::size_t used_ = 0;
  std::array<std::uint64_t, kWords> words_;  // written up to used_
};

}  // namespace smla
