// Every op of the list by its name through the C interface: each call of the C++ interface is made again by
// smla_plan_run, from the op's description, and must give the same bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <vector>

#include "cases/replay.h"
#include "core/host_tensor.h"
#include "fuzz/described_case.h"
#include "ops/call_observer.h"
#include "ops/op_descriptions.h"
#include "ops/rule_names.h"
#include "sparsemla/c_api.h"
#include "sparsemla/error.h"
#include "unit/c_views.h"

namespace smla {
namespace {

/// The scalars of a problem by name.
struct NameScalars {
  std::vector<smla_scalar>& list;

  void operator()(const char* name, bool value) const { add(name, value ? 1 : 0, 0, nullptr); }
  void operator()(const char* name, int value) const { add(name, value, 0, nullptr); }
  void operator()(const char* name, std::int64_t value) const { add(name, value, 0, nullptr); }
  void operator()(const char* name, float value) const { add(name, 0, static_cast<double>(value), nullptr); }
  void operator()(const char* name, DType value) const {
    add(name, test::describe_for_c(ConstTensorView(nullptr, value, {0})).dtype, 0, nullptr);
  }
  void operator()(const char* name, const RowFormat* value) const {
    if (value != nullptr) add(name, 0, 0, value->name.data());
  }
  template <Rule Value>
  void operator()(const char* name, Value value) const {
    add(name, 0, 0, rule_name(value).data());
  }
  void add(const char* name, std::int64_t integer, double number, const char* text) const {
    list.push_back(
        {.struct_size = sizeof(smla_scalar), .name = name, .integer = integer, .number = number, .text = text});
  }
};

/// The tensors of a call by name, and the memory that the call writes.
struct NameArguments {
  struct Written {
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
    std::vector<std::uint8_t> before{}, after{};
  };
  std::vector<std::unique_ptr<smla_tensor>> tensors;
  std::vector<std::unique_ptr<smla_cache>> caches;
  std::vector<smla_argument> list;
  std::vector<Written> written;

  void in(const char* name, const ConstTensorView& view) { add(name, view); }
  void out(const char* name, const TensorView& view) {
    add(name, view);
    if (view.absent() || view.numel() == 0) return;
    std::int64_t last = 0;
    for (int i = 0; i < view.rank; ++i) last += (view.size(i) - 1) * view.stride[static_cast<std::size_t>(i)];
    note(view.data, (last + 1) * size_of(view.dtype));
  }
  void cache(const char* name, const PagedCache& cache, CacheAccess /*access*/) {
    if (cache.format == nullptr) return;
    caches.push_back(std::make_unique<smla_cache>(smla_cache{.struct_size = sizeof(smla_cache),
                                                             .format = cache.format->name.data(),
                                                             .base = cache.base,
                                                             .num_blocks = cache.num_blocks,
                                                             .block_size = cache.block_size,
                                                             .block_stride_bytes = cache.block_stride_bytes,
                                                             .kv_scale = cache.scale,
                                                             .reserved = 0}));
    list.push_back(
        {.struct_size = sizeof(smla_argument), .name = name, .tensor = nullptr, .cache = caches.back().get()});
    if (cache.num_blocks > 0)
      note(cache.base,
           (cache.num_blocks - 1) * cache.block_stride_bytes + block_bytes(*cache.format, cache.block_size));
  }

 private:
  void add(const char* name, const ConstTensorView& view) {
    if (view.absent()) return;
    tensors.push_back(std::make_unique<smla_tensor>(test::describe_for_c(view)));
    list.push_back(
        {.struct_size = sizeof(smla_argument), .name = name, .tensor = tensors.back().get(), .cache = nullptr});
  }
  void note(void* data, std::int64_t bytes) {
    written.push_back({.data = static_cast<std::uint8_t*>(data), .bytes = static_cast<std::size_t>(bytes)});
  }
};

std::set<std::string_view>& seen() {
  static std::set<std::string_view> names;
  return names;
}

/// Makes a call again through C. `chosen`: the implementation that the C++ interface takes.
void call_by_name(const std::string& op, const std::vector<smla_scalar>& scalars, const NameArguments& named,
                  const std::string& chosen) {
  smla_plan* plan = nullptr;
  ASSERT_EQ(smla_plan_create(op.c_str(), scalars.data(), static_cast<std::int64_t>(scalars.size()), nullptr, &plan),
            SMLA_OK)
      << smla_last_error();
  std::size_t bytes = 0;
  const char* name = nullptr;
  EXPECT_EQ(smla_plan_workspace(plan, &bytes, &name), SMLA_OK) << smla_last_error();
  EXPECT_EQ(name, chosen);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(bytes)});
  EXPECT_EQ(smla_plan_run(plan, named.list.data(), static_cast<std::int64_t>(named.list.size()), workspace.data(),
                          bytes, nullptr),
            SMLA_OK)
      << smla_last_error();
  smla_plan_destroy(plan);
}

/// Runs a call, then calls it again by name from the same memory: the bytes must be the same.
void run_twice(NameArguments& named, const std::function<void()>& run, const std::string& op,
               const std::function<void()>& again) {
  for (auto& piece : named.written) piece.before.assign(piece.data, piece.data + piece.bytes);
  run();
  for (auto& piece : named.written) piece.after.assign(piece.data, piece.data + piece.bytes);
  for (const auto& piece : named.written) std::memcpy(piece.data, piece.before.data(), piece.bytes);
  again();
  for (std::size_t i = 0; i < named.written.size(); ++i) {
    const auto& piece = named.written[i];
    EXPECT_EQ(std::memcmp(piece.data, piece.after.data(), piece.bytes), 0) << op << ", written tensor " << i;
  }
}

/// Runs the call, then again through C from the same memory.
template <class Op>
void twice(const typename Op::Problem& problem, const typename Op::Args& args, const CallPlace& /*place*/,
           const std::function<void()>& run) {
  seen().insert(Op::kName);
  typename Op::Problem p = problem;
  typename Op::Args a = args;
  std::vector<smla_scalar> scalars;
  OpDescription<Op>::fields(p, NameScalars{scalars});
  NameArguments named;
  OpDescription<Op>::tensors(a, named);
  const std::string op(Op::kName);
  run_twice(named, run, op, [&] {
    call_observer<Op>.store(nullptr);
    call_by_name(op, scalars, named, std::string(Plan<Op>(problem).implementation()));
    call_observer<Op>.store(twice<Op>);
  });
}

struct CallsTwice {
  CallsTwice() {
    for_each_op([]<class Op>() { call_observer<Op>.store(twice<Op>); });
  }
  ~CallsTwice() {
    for_each_op([]<class Op>() { call_observer<Op>.store(nullptr); });
  }
};

/// Scores of two entries of a cache that is all zeros, and one of them chosen.
void run_indexer_topk() {
  const std::vector<float> weights{1, 2};
  const std::vector<std::int32_t> zero{0};
  const std::vector<std::int32_t> lens{2};
  HostTensor q(DType::kF32, {1, 2, 128});
  HostTensor memory(DType::kU8, {page_bytes(index_f32_rows(), 2)});
  HostTensor chosen(DType::kI32, {1, 1});
  const IndexerTopK::Problem problem{.rows = 1, .heads = 2, .width = 2, .k = 1, .format = &index_f32_rows()};
  const Plan<IndexerTopK> plan(problem);
  HostTensor scratch(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run({.q = std::as_const(q).view(),
            .weights = view_of(weights.data(), {1, 2}),
            .row_to_req = view_of(zero.data(), {1}),
            .lens = view_of(lens.data(), {1}),
            .block_table = view_of(zero.data(), {1, 1}),
            .cache = {.format = &index_f32_rows(),
                      .base = static_cast<std::uint8_t*>(memory.data()),
                      .num_blocks = 1,
                      .block_size = 2,
                      .block_stride_bytes = memory.numel()},
            .indices = chosen.view()},
           {.data = scratch.data(), .bytes = plan.workspace_bytes()});
}

/// Those that no recorded case calls.
void run_the_rest() {
  run_indexer_topk();
  HostTensor x(DType::kF32, {3, 256});
  HostTensor y(DType::kF32, {3, 256});
  std::iota(x.as<float>(), x.as<float>() + x.numel(), -300.0F);
  std::iota(y.as<float>(), y.as<float>() + y.numel(), 0.5F);
  Plan<AddRows>({.rows = 3, .dim = 256, .dtype = DType::kF32}).run({.y = std::as_const(y).view(), .x = x.view()});
  HostTensor values(DType::kE4M3, {3, 256});
  HostTensor scales(DType::kF32, {1, 2, 4});
  Plan<QuantizeRows>({.rows = 3, .dim = 256, .in = DType::kF32})
      .run({.x = std::as_const(x).view(), .values = values.view(), .scales = scales.view()});

  HostTensor first(DType::kF32, {3, 1, 2});
  HostTensor second(DType::kBF16, {3, 1, 1});
  JointProjection::Args joint{.x = view_of(std::as_const(x).as<float>(), {3, 1, 256})};
  joint.parts[0] = {.w = view_of(std::as_const(y).as<float>(), {1, 2, 256}), .y = first.view()};
  joint.parts[1] = {.w = view_of(std::as_const(y).as<float>() + 512, {1, 1, 256}), .y = second.view()};
  const JointProjection::Problem weights{
      .m = 3,
      .k = 256,
      .x = DType::kF32,
      .parts = 2,
      .part = {{{.n = 2, .w = DType::kF32, .y = DType::kF32}, {.n = 1, .w = DType::kF32, .y = DType::kBF16}}}};
  const Plan<JointProjection> at_once(weights);
  HostTensor scratch(DType::kU8, {static_cast<std::int64_t>(at_once.workspace_bytes())});
  at_once.run(joint, {.data = scratch.data(), .bytes = at_once.workspace_bytes()});

  HostTensor z(DType::kF32, {3, 1, 2});
  HostTensor out(DType::kF32, {3, 1, 3});
  const Plan<OutputProjection> both({.m = 3,
                                     .k = 256,
                                     .rank = 2,
                                     .n = 3,
                                     .x = DType::kF32,
                                     .wo_a = DType::kF32,
                                     .wo_b = DType::kF32,
                                     .y = DType::kF32});
  HostTensor room(DType::kU8, {static_cast<std::int64_t>(both.workspace_bytes())});
  both.run({.x = joint.x,
            .wo_a = view_of(std::as_const(y).as<float>(), {1, 2, 256}),
            .z = z.view(),
            .wo_b = view_of(std::as_const(y).as<float>(), {1, 3, 2}),
            .y = out.view()},
           {.data = room.data(), .bytes = both.workspace_bytes()});

  HostTensor latent(DType::kF32, {3, 256});
  Plan<LatentNorms>({.rows = 3,
                     .qr_dim = 256,
                     .kv_dim = 256,
                     .in = DType::kF32,
                     .out = DType::kF32,
                     .has_weight = false,
                     .eps = 1e-3F})
      .run({.qr = std::as_const(x).view(),
            .qr_weight = {},
            .qr_out = latent.view(),
            .kv = std::as_const(y).view(),
            .kv_weight = {},
            .kv_out = y.view()});

  const std::vector<std::int32_t> starts{0, 2, 3};
  const std::vector<std::int32_t> lens{9, 5};
  const std::vector<std::int64_t> positions{7, 8, 4};
  const std::vector<std::int64_t> slots{70, 71, -1};
  HostTensor valid(DType::kBool, {3});
  std::vector<std::int32_t> a(3), b(3);
  std::vector<std::int64_t> next(2);
  const auto loc = view_of(starts.data(), {3});
  const auto seq = view_of(lens.data(), {2});
  Plan<VisibleEntries>({.tokens = 3, .ratio = 4, .top_k = 1})
      .run({.positions = view_of(positions.data(), {3}),
            .slot_mapping = view_of(slots.data(), {3}),
            .valid = valid.view(),
            .lens = view_of(a.data(), {3}),
            .topk_lens = view_of(b.data(), {3})});
  Plan<PrefillLens>({.requests = 2, .decodes = 1, .window = 4, .ratio = 4})
      .run({.query_start_loc = loc,
            .seq_lens = seq,
            .gather_lens = view_of(a.data(), {1}),
            .entry_counts = view_of(b.data(), {1})});
  Plan<DraftPositions>({.requests = 2}).run({.seq_lens = seq, .positions = view_of(next.data(), {2})});
  const std::vector<float> scores{3, 1, 0, 2, 2, 5, 1, 0};
  const std::vector<std::int32_t> entries{0, 2, 1, 0, 1, 0, 3, -1};
  std::vector<std::int32_t> chosen(4), own(4);
  Plan<MergeTopK>({.rows = 2, .k = 2, .share = {.rank = 1, .ranks = 2, .interleave = 1}})
      .run({.scores = view_of(scores.data(), {2, 2, 2}),
            .indices = view_of(entries.data(), {2, 2, 2}),
            .chosen = view_of(chosen.data(), {2, 2}),
            .own = view_of(own.data(), {2, 2})});
  HostTensor packed(DType::kF32, {2, 2, 256});
  const PackSequences::Problem pack{.requests = 2, .tokens = 3, .max_len = 2, .row = 256, .dtype = DType::kF32};
  Plan<PackSequences>(pack).run({.rows = std::as_const(x).view(), .query_start_loc = loc, .packed = packed.view()});
  Plan<UnpackSequences>(pack).run({.packed = std::as_const(packed).view(), .query_start_loc = loc, .rows = y.view()});
}

TEST(CPlan, EveryOpByNameGivesTheBitsOfItsPlan) {
  const CallsTwice observed;
  const std::string path = testing::TempDir() + "c_plan_case.safetensors";
  int cases = 0;
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
    ++cases;
  }
  std::filesystem::remove(path);
  EXPECT_GT(cases, 30);
  run_the_rest();
  for_each_op([]<class Op>() { EXPECT_THAT(seen(), testing::Contains(Op::kName)); });
}

}  // namespace
}  // namespace smla
