#include "sparsemla/tensor_view.h"

namespace smla {

namespace {
constexpr std::array<std::pair<DType, std::string_view>, 8> kNames{{{DType::kF32, "F32"},
                                                                    {DType::kF64, "F64"},
                                                                    {DType::kBF16, "BF16"},
                                                                    {DType::kE4M3, "F8_E4M3"},
                                                                    {DType::kU8, "U8"},
                                                                    {DType::kI32, "I32"},
                                                                    {DType::kI64, "I64"},
                                                                    {DType::kBool, "BOOL"}}};
}  // namespace

std::string_view name_of(DType dtype) {
  for (const auto& [d, name] : kNames) {
    if (d == dtype) return name;
  }
  return "?";
}

DType dtype_from_name(std::string_view name) {
  std::string accepted;
  for (const auto& [d, n] : kNames) {
    if (n == name) return d;
    accepted += (accepted.empty() ? "" : ", ") + std::string(n);
  }
  throw InvalidArgument("dtype: got \"" + std::string(name) + "\", expected one of " + accepted);
}

std::string describe(const ConstTensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(view.size(i));
  return text + "] " + std::string(name_of(view.dtype));
}

}  // namespace smla
