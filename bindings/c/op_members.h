#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "c/named.h"
#include "ops/op_description.h"
#include "ops/rule_names.h"

namespace smla::c {

/// Fills a Problem from named scalars.
struct ReadScalars {
  std::string_view op;
  NamedList<smla_scalar>& given;

  void operator()(const char* name, std::int64_t& value) const { read_integer(name, value); }
  void operator()(const char* name, int& value) const { read_integer(name, value); }
  void operator()(const char* name, bool& value) const {
    if (const smla_scalar* s = integer(name)) {
      if (s->integer != 0 && s->integer != 1) fail_member(op, name, std::to_string(s->integer), "0 or 1");
      value = s->integer == 1;
    }
  }
  void operator()(const char* name, DType& value) const {
    if (const smla_scalar* s = integer(name)) {
      const bool fits = s->integer >= SMLA_F32 && s->integer <= SMLA_BOOL;
      value = read_dtype(std::string(op) + ": " + name, fits ? static_cast<smla_dtype>(s->integer) : 0);
    }
  }
  void operator()(const char* name, float& value) const {
    const smla_scalar* s = given.take(name);
    if (s == nullptr) return;
    if (s->integer != 0 || s->text != nullptr) wrong_kind(name, *s, "number");
    value = static_cast<float>(s->number);
  }
  void operator()(const char* name, const RowFormat*& value) const {
    if (const char* word = text(name)) {
      for (const RowFormat* format : all_row_formats()) {
        if (format->name == word) {
          value = format;
          return;
        }
      }
      std::string names;
      for (const RowFormat* format : all_row_formats())
        names += (names.empty() ? "" : ", ") + std::string(format->name);
      fail_member(op, name, "\"" + std::string(word) + "\"", "one of " + names);
    }
  }
  template <Rule Value>
  void operator()(const char* name, Value& value) const {
    const char* word = text(name);
    if (word != nullptr && !set_rule(value, word))
      fail_member(op, name, "\"" + std::string(word) + "\"", rule_names<Value>());
  }

 private:
  [[noreturn]] void wrong_kind(const char* name, const smla_scalar& s, const std::string& expected) const {
    std::string got;
    if (s.integer != 0) got += "integer " + std::to_string(s.integer);
    if (s.number != 0) got += (got.empty() ? "number " : ", number ") + std::to_string(s.number);
    if (s.text != nullptr) got += (got.empty() ? "text \"" : ", text \"") + std::string(s.text) + "\"";
    fail_member(op, name, got.empty() ? "no text" : got, "a value in `" + expected + "` alone");
  }
  const smla_scalar* integer(const char* name) const {
    const smla_scalar* s = given.take(name);
    if (s != nullptr && (s->number != 0 || s->text != nullptr)) wrong_kind(name, *s, "integer");
    return s;
  }
  template <class T>
  void read_integer(const char* name, T& value) const {
    const smla_scalar* s = integer(name);
    if (s == nullptr) return;
    if (s->integer < std::numeric_limits<T>::min() || s->integer > std::numeric_limits<T>::max())
      fail_member(op, name, std::to_string(s->integer), "a number of " + std::to_string(8 * sizeof(T)) + " bits");
    value = static_cast<T>(s->integer);
  }
  /// The word given; null when the member was not named.
  const char* text(const char* name) const {
    const smla_scalar* s = given.take(name);
    if (s == nullptr) return nullptr;
    if (s->text == nullptr || s->integer != 0 || s->number != 0) wrong_kind(name, *s, "text");
    return s->text;
  }
};

/// Fills Args from named tensors and caches. `names`: "<op>: <member>", in the order of the description.
struct ReadArguments {
  std::string_view op;
  NamedList<smla_argument>& given;
  std::span<const std::string> names;
  std::size_t next = 0;

  void in(const char* name, ConstTensorView& view) { view = tensor(name); }
  void out(const char* name, TensorView& view) { view = tensor(name); }
  void cache(const char* name, PagedCache& cache, CacheAccess /*access*/) {
    const std::string& full_name = names[next++];
    const smla_argument* a = given.take(name);
    if (a == nullptr) return;
    if (a->tensor != nullptr) fail_member(op, name, "a tensor", "a cache");
    if (a->cache != nullptr) cache = read_cache(full_name, a->cache);
  }

 private:
  TensorView tensor(const char* name) {
    const std::string& full_name = names[next++];
    const smla_argument* a = given.take(name);
    if (a == nullptr) return {};
    if (a->cache != nullptr) fail_member(op, name, "a cache", "a tensor");
    return read_tensor(full_name, a->tensor);
  }
};

}  // namespace smla::c
