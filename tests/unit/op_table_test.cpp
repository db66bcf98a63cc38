// The ops as data: every tensor has its shape in words, and the scalars that a call's tensors determine are those of
// the call.
#include "ops/op_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "cases/replay.h"
#include "fuzz/described_case.h"
#include "ops/call_observer.h"
#include "ops/op_descriptions.h"
#include "ops/registry.h"
#include "ops/rule_names.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using Value = std::variant<std::int64_t, double, std::string_view>;

const OpRow& row(std::string_view name) {
  for (const OpRow& op : op_table())
    if (op.name == name) return op;
  throw std::out_of_range(std::string(name));
}

TEST(OpTable, EveryTensorHasItsShapeInWordsAndEveryFlagIsAScalar) {
  for (const OpRow& op : op_table()) {
    std::set<std::pair<bool, std::string_view>> names;
    for (const OpMember& member : op.members) {
      SCOPED_TRACE(std::string(op.name) + ": " + std::string(member.name));
      EXPECT_TRUE(names.insert({member.is_tensor(), member.name}).second);
      if (!member.is_tensor()) continue;
      ASSERT_NE(member.shape, nullptr);
      const bool is_cache = member.shape->dtype == "cache" || member.shape->dtype == "state cache";
      EXPECT_EQ(is_cache, member.kind == MemberKind::kCache);
      if (!member.shape->flag.empty()) {
        ASSERT_NE(op.scalar(member.shape->flag), nullptr);
        EXPECT_EQ(op.scalar(member.shape->flag)->kind, MemberKind::kFlag);
      }
    }
  }
}

/// Scalars of a problem by name.
struct ListValues {
  std::map<std::string_view, Value>& values;

  void operator()(const char* name, const std::int64_t& v) const { values[name] = v; }
  void operator()(const char* name, const int& v) const { values[name] = std::int64_t{v}; }
  void operator()(const char* name, const bool& v) const { values[name] = std::int64_t{v}; }
  void operator()(const char* name, const float& v) const { values[name] = static_cast<double>(v); }
  void operator()(const char* name, const DType& v) const { values[name] = name_of(v); }
  void operator()(const char* name, const RowFormat* const& v) const {
    values[name] = v == nullptr ? std::string_view() : v->name;
  }
  template <Rule Word>
  void operator()(const char* name, const Word& v) const {
    values[name] = rule_name(v);
  }
};

struct ListTensors {
  std::vector<NamedTensor>& list;
  void in(const char* name, const ConstTensorView& view) const { add(name, view); }
  void out(const char* name, const TensorView& view) const { add(name, view); }
  void cache(const char* name, const PagedCache& cache, CacheAccess /*access*/) const {
    if (cache.format != nullptr)
      list.push_back({.name = name, .shape = {}, .format = cache.format, .block_size = cache.block_size});
  }
  template <class View>
  void add(const char* name, const View& view) const {
    if (!view.absent())
      list.push_back({.name = name,
                      .dtype = view.dtype,
                      .shape = std::span(view.shape).first(static_cast<std::size_t>(view.rank))});
  }
};

std::map<std::string_view, int>& seen() {
  static std::map<std::string_view, int> calls;
  return calls;
}

/// What the tensors say must be what the call says. A bound may say more; 0 may stand for what the tensors say.
void compare(const OpRow& op, const std::vector<NamedScalar>& found, const std::map<std::string_view, Value>& values) {
  for (const NamedScalar& s : found) {
    SCOPED_TRACE(std::string(op.name) + ": " + std::string(s.name));
    const Value& actual = values.at(s.name);
    const auto* a = std::get_if<std::int64_t>(&actual);
    const auto* b = std::get_if<std::int64_t>(&s.value);
    const bool bound = s.name == "heads";
    const bool filled = (s.name == "out_heads" || s.name == "value_dim") && a != nullptr && *a == 0;
    if (filled || (bound && a != nullptr && b != nullptr && *b >= *a)) continue;
    EXPECT_EQ(s.value, actual);
  }
}

template <class Op>
void look(const typename Op::Problem& problem, const typename Op::Args& args, const CallPlace& /*place*/,
          const std::function<void()>& run) {
  ++seen()[Op::kName];
  typename Op::Problem p = problem;
  typename Op::Args a = args;
  std::map<std::string_view, Value> values;
  OpDescription<Op>::fields(p, ListValues{values});
  std::vector<NamedTensor> tensors;
  OpDescription<Op>::tensors(a, ListTensors{tensors});
  const OpRow& op = row(Op::kName);
  compare(op, determine_scalars(op, {}, tensors), values);

  // The same with bytes where a framework lacks the type: they become what they stand for. Rows of any type stay.
  std::vector<NamedTensor> bytes = tensors;
  for (NamedTensor& t : bytes)
    if (t.dtype == DType::kE4M3 || t.dtype == DType::kBool) t.dtype = DType::kU8;
  const bool any_type = op.scalar("dtype") != nullptr && op.tensor("packed") != nullptr;
  if (!any_type) {
    compare(op, determine_scalars(op, {}, bytes), values);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      EXPECT_EQ(bytes[i].dtype, tensors[i].dtype) << op.name << ": " << bytes[i].name;
  }
  run();
}

struct Looks {
  Looks() {
    for_each_op([]<class Op>() { call_observer<Op>.store(look<Op>); });
  }
  ~Looks() {
    for_each_op([]<class Op>() { call_observer<Op>.store(nullptr); });
  }
};

TEST(OpTable, TensorsDetermineTheScalarsOfRecordedCalls) {
  const Looks observed;
  const std::string path = testing::TempDir() + "op_table_case.safetensors";
  for (const auto& entry : std::filesystem::directory_iterator(SMLA_SOURCE_DIR "/tests/fuzz/corpus/case")) {
    if (!entry.path().filename().string().starts_with("seed_")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string seed{std::istreambuf_iterator<char>(file), {}};
    SCOPED_TRACE(entry.path().filename().string());
    if (!fuzz::write_described(seed.substr(1), path)) continue;  // whole layers
    try {
      replay(read_case(path), {});
    } catch (const InvalidArgument&) {
      continue;  // a seed's numbers are of any kind: this call is refused
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(SMLA_SOURCE_DIR "/tests/golden/upstream"))
    replay(read_case(entry.path().string()), {});
  std::filesystem::remove(path);
  EXPECT_GT(seen().size(), 20U);
}

/// The scalars that these shapes determine, as text.
std::string determined(std::string_view op, std::vector<NamedTensor> tensors, std::vector<NamedScalar> given = {}) {
  std::string text;
  for (const NamedScalar& s : determine_scalars(row(op), given, tensors)) {
    text += (text.empty() ? "" : " ") + std::string(s.name) + "=";
    if (const auto* integer = std::get_if<std::int64_t>(&s.value)) text += std::to_string(*integer);
    if (const auto* word = std::get_if<std::string_view>(&s.value)) text += *word;
  }
  return text;
}

TEST(OpTable, SizesFollowFromSumsProductsAndBounds) {
  const std::vector<std::int64_t> loc{9}, two{2}, q{5, 16, 512}, o{5, 8, 512}, score{7, 2048}, ape{4, 1024},
      list{5, 20};
  EXPECT_EQ(determined("prefill_lens", {{.name = "query_start_loc", .dtype = DType::kI32, .shape = loc},
                                        {.name = "gather_lens", .dtype = DType::kI32, .shape = two}}),
            "requests=8 decodes=6");
  EXPECT_EQ(determined("save_state", {{.name = "kv_score", .dtype = DType::kF32, .shape = score},
                                      {.name = "ape", .dtype = DType::kBF16, .shape = ape}}),
            "tokens=7 ratio=4 dim=512");
  // q may have more heads than are read; o says how many come out.
  EXPECT_EQ(
      determined("sparse_attention",
                 {{.name = "q", .dtype = DType::kBF16, .shape = q}, {.name = "o", .dtype = DType::kF32, .shape = o}},
                 {{.name = "heads", .value = std::int64_t{8}}}),
      "q=BF16 o=F32 tokens=5 dim=512 out_heads=8 value_dim=512");
  EXPECT_EQ(determined("sparse_attention", {{.name = "scopes[1].indices", .dtype = DType::kI32, .shape = list}}),
            "scopes=2 scopes[1].width=20")
      << "tokens may share rows";
}

}  // namespace
}  // namespace smla
