// Plans are decided once: the same problem, options and machine give the same decision. That it is found without an
// allocation is a test of tests/allocations.
#include "ops/plan_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/host_tensor.h"
#include "ops/op_list.h"
#include "ops/plan_key.h"
#include "ops/registry.h"

namespace smla {
namespace {

using Words = std::vector<std::uint64_t>;

Words words_of(const auto& problem, const PlanOptions& options = {}, const Machine& machine = {}) {
  const PlanKey key(problem, options, machine);
  return {key.words().begin(), key.words().end()};
}

SparseAttention::Problem attention_of(std::int64_t tokens) {
  SparseAttention::Problem p{.tokens = tokens, .heads = 64, .scopes = 2};
  p.scope[0] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 128};
  p.scope[1] = {.format = &fp8_ds_mla_rows(), .block_size = 64, .width = 512};
  return p;
}

/// Changes one member of an aggregate, the `which`th of all, those of inner aggregates included.
struct ChangeOne {
  int which;
  int seen = 0;

  void operator()(const RowFormat* const& format) {
    if (seen++ == which) const_cast<const RowFormat*&>(format) = format == &f32_rows() ? &bf16_rows() : &f32_rows();
  }
  template <class T, std::size_t kSize>
  void operator()(const std::array<T, kSize>& values) {
    for (const T& value : values) (*this)(value);
  }
  /// An absent value becomes a present one.
  template <class T>
  void operator()(const std::optional<T>& value) {
    if (seen++ == which) const_cast<std::optional<T>&>(value) = T{};
  }
  template <class T>
  void operator()(const T& value) {
    if constexpr (std::is_aggregate_v<T>) {
      for_each_member(value, *this);
    } else if (seen++ == which) {
      const_cast<T&>(value) = static_cast<T>(value == T{} ? 1 : 0);
    }
  }
};

TEST(PlanKey, EveryMemberOfEveryProblemCounts) {
  for_each_op([]<class Op>() {
    using Problem = typename Op::Problem;
    const Problem plain{};
    std::set<Words> different{words_of(plain)};
    ChangeOne count{.which = -1};
    for_each_member(plain, [&](const auto& member) { count(member); });
    EXPECT_GT(count.seen, 0) << Op::kName;
    for (int i = 0; i < count.seen; ++i) {
      Problem changed{};
      ChangeOne change{.which = i};
      for_each_member(changed, [&](const auto& member) { change(member); });
      EXPECT_TRUE(different.insert(words_of(changed)).second) << Op::kName << ": member " << i << " does not count";
    }
  });
}

TEST(PlanKey, PartsThatMayBeAbsentCount) {
  std::set<Words> different;
  const auto is_new = [&](auto&& change) {
    SparseAttention::Problem p;
    change(p);
    return different.insert(words_of(p)).second;
  };
  using P = SparseAttention::Problem;
  EXPECT_TRUE(is_new([](P&) {}));
  EXPECT_TRUE(is_new([](P& p) { p.query_prologue = {.rope_dim = 64, .eps = 0}; }));
  EXPECT_TRUE(is_new([](P& p) { p.query_prologue = {.rope_dim = 32, .eps = 0}; }));
  EXPECT_TRUE(is_new([](P& p) { p.query_prologue = {.rope_dim = 64, .eps = 1}; }));
  EXPECT_TRUE(is_new([](P& p) { p.output_epilogue = {.rope_dim = 64}; }));
  EXPECT_TRUE(is_new([](P& p) { p.output_epilogue = {.rope_dim = 32}; }));
  EXPECT_NE(words_of(TopK::Problem{}), words_of(TopK::Problem{.slots = {{.storage_block = 2}}}));
  EXPECT_NE(words_of(TopK::Problem{.slots = {{.storage_block = 2}}}),
            words_of(TopK::Problem{.slots = {{.storage_block = 3}}}));
  EXPECT_NE(words_of(LatentNorms::Problem{.insert = {{.format = &bf16_rows()}}}),
            words_of(LatentNorms::Problem{.insert = {{.format = &f32_rows()}}}));
}

TEST(PlanKey, OptionsAndMachineCount) {
  const AddRows::Problem p{.rows = 1, .dim = 8};
  std::set<Words> different{words_of(p)};
  const auto is_new = [&](const PlanOptions& options, const Machine& machine) {
    return different.insert(words_of(p, options, machine)).second;
  };
  EXPECT_FALSE(is_new({}, {}));
  EXPECT_TRUE(is_new({.device = DeviceKind::kCuda}, {}));
  EXPECT_TRUE(is_new({.implementation = "ref"}, {}));
  EXPECT_TRUE(is_new({.implementation = "longer than eight bytes"}, {}));
  EXPECT_TRUE(is_new({.deterministic = true}, {}));
  EXPECT_TRUE(is_new({}, {.threads = 7}));
  EXPECT_TRUE(is_new({}, {.gpu = {.ordinal = 0}}));
  EXPECT_TRUE(is_new({}, {.gpu = {.ordinal = 1}}));
  EXPECT_TRUE(is_new({}, {.gpu = {.ordinal = 1, .shared_bytes = 99 << 10}}));
}

TEST(PlanKey, AFormatCountsByItsContents) {
  RowFormat format = bf16_rows();
  GatherRows::Problem p{.requests = 1, .rows = 4, .format = &format};
  const Words before = words_of(p);
  format.nope_dim = 0;
  EXPECT_NE(before, words_of(p));
}

TEST(PlanCache, AKnownShapeAndACopyAreTheSamePlan) {
  const SparseAttention::Problem p = attention_of(3);
  const PlanOptions options{.implementation = "cpu", .threads = 2};
  const Plan<SparseAttention> first(p, options);
  const Plan<SparseAttention> again(p, options);
  const Plan<SparseAttention> copy = again;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_EQ(first.workspace_bytes(), copy.workspace_bytes());
  EXPECT_EQ("cpu", copy.implementation());
  EXPECT_EQ(&first.problem(), &again.problem());
}

TEST(PlanCache, APlanMadeAlikeIsOfTheOtherProblemAndLeavesTheFirst) {
  SparseAttention::Problem fused = attention_of(3);
  fused.query_prologue = SparseAttention::QueryPrologue{.rope_dim = 64};
  const Plan<SparseAttention> first(fused, {.implementation = "ref"});
  SparseAttention::Problem apart = fused;
  apart.query_prologue.reset();
  const Plan<SparseAttention> alike = first.alike(apart);
  EXPECT_EQ("ref", alike.implementation());
  EXPECT_FALSE(alike.problem().query_prologue.has_value());
  EXPECT_TRUE(first.problem().query_prologue.has_value());
  EXPECT_EQ(first.workspace_bytes(), alike.workspace_bytes());
  apart.heads = -1;
  EXPECT_THROW((void)first.alike(apart), InvalidArgument);
}

TEST(PlanCache, OtherOptionsAreDecidedAnew) {
  const SparseAttention::Problem p = attention_of(3);
  const Plan<SparseAttention> cpu(p, {.implementation = "cpu"});
  EXPECT_EQ("ref", Plan<SparseAttention>(p, {.implementation = "ref"}).implementation());
  EXPECT_THROW(Plan<SparseAttention>(p, {.implementation = std::string(100, 'x')}), InvalidArgument);
  EXPECT_THROW(Plan<SparseAttention>(p, {.implementation = "no such"}), InvalidArgument);
}

TEST(PlanCache, IsBoundedAndWhatIsHeldStays) {
  PlanCache<int> cache;
  const std::uint64_t zero[] = {0};
  cache.insert(zero, std::make_shared<const int>(41));
  const std::shared_ptr<const int> held = cache.find(zero);
  for (std::uint64_t i = 1; i < 3 * PlanCache<int>::kCapacity; ++i) {
    cache.insert(std::vector<std::uint64_t>{i, i}, std::make_shared<const int>(0));
    ASSERT_LE(cache.size(), PlanCache<int>::kCapacity);
  }
  EXPECT_EQ(nullptr, cache.find(zero));
  EXPECT_EQ(41, *held);
}

TEST(PlanCache, ThreadsMayPlanAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (std::int64_t i = 0; i < 2000; ++i) {
        const Plan<AddRows> plan({.rows = i % 700, .dim = 8, .dtype = DType::kF32});
        ASSERT_EQ(i % 700, plan.problem().rows);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Decision, AWorkspaceMustBeLargeEnoughAndAligned) {
  alignas(64) std::byte memory[128];
  EXPECT_NO_THROW(check_workspace("op", {.data = memory, .bytes = 128}, 128));
  EXPECT_NO_THROW(check_workspace("op", {.data = memory + 1, .bytes = 0}, 0));
  const auto text = [&](const Workspace& workspace) -> std::string {
    try {
      check_workspace("op", workspace, 100);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ("op: workspace: got 99 bytes, expected at least 100", text({.data = memory, .bytes = 99}));
  EXPECT_EQ("op: workspace: got an address 16 bytes past a multiple of 64, expected a multiple of 64",
            text({.data = memory + 16, .bytes = 112}));
}

}  // namespace
}  // namespace smla
