#include "core/check_distinct.h"

#include <algorithm>
#include <array>
#include <string>

#include "sparsemla/error.h"

namespace smla {

void check_distinct(std::string_view op, std::string_view tensor, const ConstTensorView& view) {
  // From the smallest stride up, each must pass all that the smaller ones reach.
  std::array<int, ConstTensorView::kMaxRank> order{};
  int dims = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.size(i) == 0) return;
    if (view.size(i) > 1) order[static_cast<std::size_t>(dims++)] = i;
  }
  const auto stride = [&](int i) { return view.stride[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.begin() + dims, [&](int a, int b) { return stride(a) < stride(b); });
  std::int64_t reach = 1;
  for (int k = 0; k < dims; ++k) {
    const int i = order[static_cast<std::size_t>(k)];
    if (stride(i) < reach) {
      throw InvalidArgument(std::string(op) + ": " + std::string(tensor) + ": got " + describe(view) + " with stride " +
                            std::to_string(stride(i)) + " of dimension " + std::to_string(i) + ", expected at least " +
                            std::to_string(reach) + " (rows of an output must not overlap)");
    }
    reach += (view.size(i) - 1) * stride(i);
  }
}

}  // namespace smla
