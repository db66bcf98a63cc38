#include "cache/zero_pages.h"
#include "sparsemla/error.h"

namespace smla {

void cuda_zero_pages(std::uint8_t*, std::int64_t, const PagesOfGroups&, std::span<const GroupBlock>, PagesOnDevice&,
                     Stream) {
  throw Unsupported("cuda: this build has no CUDA");
}

}  // namespace smla
