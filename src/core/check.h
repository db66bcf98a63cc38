#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <tuple>

#include "sparsemla/tensor_view.h"

namespace smla {

/// A dimension of any size.
inline constexpr std::int64_t kAny = -1;

inline void put(std::string& text, std::string_view part) { text += part; }
inline void put(std::string& text, DType dtype) { text += name_of(dtype); }
inline void put(std::string& text, const ConstTensorView& view) { text += describe(view); }
template <std::integral T>
void put(std::string& text, T number) {
  text += std::to_string(number);
}

/// Several things one after the other, as text; put together only when it is wanted. Refers to its parts.
template <class... Parts>
struct Words {
  std::tuple<const Parts&...> parts;
};
template <class... Parts>
Words<Parts...> words(const Parts&... parts) {
  return {std::tuple<const Parts&...>(parts...)};
}
template <class... Parts>
void put(std::string& text, const Words<Parts...>& words) {
  std::apply([&](const auto&... part) { (put(text, part), ...); }, words.parts);
}

/// A text, a number, a dtype, a tensor (its description) or words() of such, as an argument of a check: it becomes a
/// string only when the check fails. Refers to what it was made of.
class Text {
 public:
  template <class T>
  Text(const T& from)  // NOLINT(google-explicit-constructor): arguments of checks are written plainly
      : from_(&from), put_([](std::string& text, const void* p) { put(text, *static_cast<const T*>(p)); }) {}

  std::string str() const {
    std::string text;
    put_(text, from_);
    return text;
  }

 private:
  const void* from_;
  void (*put_)(std::string&, const void*);
};

/// @throws InvalidArgument "<op>: <tensor>: got ..., expected ..." unless `view` has this shape (kAny matches all), one
/// of the dtypes and, when it has elements, data. The last dimension must be contiguous.
void check_tensor(std::string_view op, const Text& tensor, const ConstTensorView& view,
                  std::initializer_list<std::int64_t> shape, std::initializer_list<DType> dtypes);

/// @throws InvalidArgument "<op>: <what>: got <got>, expected <expected>" unless `ok`.
void check_that(bool ok, std::string_view op, const Text& what, const Text& got, const Text& expected);

}  // namespace smla
