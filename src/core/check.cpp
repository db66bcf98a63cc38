#include "core/check.h"

namespace smla {

void check_tensor(std::string_view op, const Text& tensor, const ConstTensorView& view,
                  std::initializer_list<std::int64_t> shape, std::initializer_list<DType> dtypes) {
  bool ok = view.rank == static_cast<int>(shape.size());
  int i = 0;
  for (const std::int64_t n : shape) {
    if (!ok) break;
    ok = view.size(i) >= 0 && (n == kAny || view.size(i) == n);
    ++i;
  }
  bool dtype_ok = false;
  for (const DType d : dtypes) dtype_ok = dtype_ok || view.dtype == d;
  const bool empty = ok && view.numel() == 0;
  const bool data_ok = empty || view.data != nullptr;
  const bool dense =
      view.rank == 0 || view.size(view.rank - 1) <= 1 || view.stride[static_cast<std::size_t>(view.rank - 1)] == 1;
  if (ok && dtype_ok && data_ok && dense) return;

  std::string expected = "[";
  for (const std::int64_t n : shape)
    expected += (expected.size() > 1 ? ", " : "") + (n == kAny ? std::string("*") : std::to_string(n));
  expected += "]";
  const char* separator = " ";
  for (const DType d : dtypes) {
    expected += separator + std::string(name_of(d));
    separator = " or ";
  }
  std::string got = view.absent() ? "no tensor" : describe(view);
  if (ok && dtype_ok && !data_ok) got += " without data";
  if (ok && dtype_ok && !dense)
    got += " with last stride " + std::to_string(view.stride[static_cast<std::size_t>(view.rank - 1)]);
  throw InvalidArgument(std::string(op) + ": " + tensor.str() + ": got " + got + ", expected " + expected +
                        (dense ? "" : " with last stride 1"));
}

void check_that(bool ok, std::string_view op, const Text& what, const Text& got, const Text& expected) {
  if (ok) return;
  throw InvalidArgument(std::string(op) + ": " + what.str() + ": got " + got.str() + ", expected " + expected.str());
}

}  // namespace smla
