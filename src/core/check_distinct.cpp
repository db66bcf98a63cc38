#include "core/check_distinct.h"

#include <algorithm>
#include <array>
#include <string>

#include "sparsemla/error.h"

namespace smla {

void check_distinct(std::string_view op, std::string_view tensor, const ConstTensorView& view) {
  // From the smallest stride up, each must pass all that the smaller ones reach.
  std::array<int, ConstTensorView::kMaxRank> order{};
  const auto stride = [&](int i) { return view.stride[static_cast<std::size_t>(i)]; };
  auto end = order.begin();
  for (int i = 0; i < view.rank; ++i) {
    if (view.size(i) == 0) return;
    if (view.size(i) <= 1) continue;
    *end = i;
    std::rotate(std::ranges::upper_bound(order.begin(), end, stride(i), {}, stride), end, end + 1);
    ++end;
  }
  std::int64_t reach = 1;
  for (auto at = order.begin(); at != end; ++at) {
    const int i = *at;
    if (stride(i) < reach) {
      throw InvalidArgument(std::string(op) + ": " + std::string(tensor) + ": got " + describe(view) + " with stride " +
                            std::to_string(stride(i)) + " of dimension " + std::to_string(i) + ", expected at least " +
                            std::to_string(reach) + " (rows of an output must not overlap)");
    }
    reach += (view.size(i) - 1) * stride(i);
  }
}

}  // namespace smla
