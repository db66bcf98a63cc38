#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <map>

#include "property/few_cases.h"
#include "sparsemla/block_pool.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

struct Held {
  int group = 0;
  std::int64_t owners = 0;
  std::int64_t keepers = 0;
  bool idle() const { return owners == keepers; }
};

bool throws(const auto& f) {
  try {
    f();
  } catch (const InvalidArgument&) {
    return true;
  }
  return false;
}

/// Random calls against a map from blocks to their group and owners.
TEST(BlockPoolProperty, AgreesWithAMapOfOwners) {
  test::check_few("calls of a block pool", 50, [] {
    constexpr int kGroups = 3;
    const auto size = *rc::gen::inRange<std::int64_t>(0, 12);
    BlockPool pool(size, {"a", "b", "c"});
    std::map<std::int32_t, Held> model;
    std::array<std::int64_t, kGroups> most{};
    for (int call = 0; call < 200; ++call) {
      const int group = *rc::gen::inRange(0, kGroups);
      const auto block = static_cast<std::int32_t>(*rc::gen::inRange<std::int64_t>(-1, size + 2));
      const auto found = model.find(block);
      const bool fits = found != model.end() && found->second.group == group;
      switch (*rc::gen::inRange(0, 6)) {
        case 0: {
          const auto got = pool.allocate(group);
          RC_ASSERT(got.has_value() == (static_cast<std::int64_t>(model.size()) < size));
          if (!got) break;
          RC_ASSERT(*got > kNullBlock && *got <= size && !model.contains(*got));
          model[*got] = {.group = group, .owners = 1, .keepers = 0};
          break;
        }
        case 1:
          RC_ASSERT(throws([&] { pool.share(group, block); }) != fits);
          if (fits) ++found->second.owners;
          break;
        case 2:
          RC_ASSERT(throws([&] { pool.keep(group, block); }) != fits);
          if (!fits) break;
          ++found->second.owners;
          ++found->second.keepers;
          break;
        case 3: {
          const bool kept = fits && found->second.keepers > 0;
          bool last = false;
          RC_ASSERT(throws([&] { last = pool.let_go(group, block); }) != kept);
          if (!kept) break;
          --found->second.keepers;
          RC_ASSERT(last == (--found->second.owners == 0));
          if (last) model.erase(found);
          break;
        }
        default: {
          const bool owned = fits && !found->second.idle();
          bool last = false;
          RC_ASSERT(throws([&] { last = pool.release(group, block); }) != owned);
          if (!owned) break;
          RC_ASSERT(last == (--found->second.owners == 0));
          if (last) model.erase(found);
        }
      }
      RC_ASSERT(pool.free_blocks() == size - static_cast<std::int64_t>(model.size()));
      for (int g = 0; g < kGroups; ++g) {
        const std::int64_t held =
            std::ranges::count_if(model, [g](const auto& entry) { return entry.second.group == g; });
        auto& peak = most[static_cast<std::size_t>(g)];
        peak = std::max(peak, held);
        RC_ASSERT(pool.held(g) == held && pool.peak(g) == peak);
      }
      RC_ASSERT(pool.idle_blocks() == std::ranges::count_if(model, [](const auto& e) { return e.second.idle(); }));
      for (std::int32_t b = 1; b <= size; ++b) {
        const auto owned = model.find(b);
        RC_ASSERT(pool.owners(b) == (owned == model.end() ? 0 : owned->second.owners));
        RC_ASSERT(pool.idle(b) == (owned != model.end() && owned->second.idle()));
      }
    }
  });
}

}  // namespace
}  // namespace smla
