// Packed slabs (spec 5.4): where the caches of a group lie, what a new block zeroes, and rows more than 2^31 bytes from
// the start.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "cache/row_codec.h"
#include "core/host_tensor.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla {
namespace {

KvLayout window_layers(std::int64_t count) {
  std::vector<LayerConfig> layers(static_cast<std::size_t>(count), model_preset("v4-flash").layer(0));
  return make_kv_layout(layers, {});
}

TEST(Slab, FourLayersAndAHundredBlocks) {
  const KvPool pool(window_layers(4), 100);
  const std::int64_t page = page_bytes(fp8_ds_mla_rows(), 64);
  const std::uint8_t* base = pool.cache(0, CacheRole::kWindow).base;
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    const PagedCache cache = pool.cache(layer, CacheRole::kWindow);
    EXPECT_EQ(cache.base - base, layer * page);
    EXPECT_EQ(cache.block_stride_bytes, 4 * page);
    EXPECT_EQ(cache.num_blocks, 101) << "the null block is one more";
    EXPECT_EQ(cache.block_size, 64);
  }
}

// Zeroing by the packed row width wiped the neighbours once.
TEST(Slab, ANewBlockZeroesTheUnpaddedPageOfEachLayerAndNothingElse) {
  KvPool pool(window_layers(4), 100);
  const std::int64_t page = page_bytes(fp8_ds_mla_rows(), 64);
  const std::int64_t used = block_bytes(fp8_ds_mla_rows(), 64);
  ASSERT_LT(used, page);
  std::uint8_t* base = pool.cache(0, CacheRole::kWindow).base;
  const std::int64_t bytes = 101 * 4 * page;
  std::memset(base, 0xAB, static_cast<std::size_t>(bytes));
  for (int i = 0; i < 3; ++i) (void)pool.allocate(0);
  const std::int32_t block = *pool.allocate(0);
  std::memset(base, 0xAB, static_cast<std::size_t>(bytes));
  pool.release(0, block);
  ASSERT_EQ(*pool.allocate(0), block);
  for (std::int64_t i = 0; i < bytes; ++i) {
    const bool zeroed = i / (4 * page) == block && i % page < used;
    ASSERT_EQ(base[i], zeroed ? 0 : 0xAB)
        << "byte " << i % page << " of layer " << i / page % 4 << " of block " << i / (4 * page);
  }
}

/// 12 GiB of addresses, of which only what is touched becomes memory.
class SparseMemory {
 public:
  SparseMemory()
      : base_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (there()) ::munmap(base_, kBytes);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool there() const { return base_ != MAP_FAILED; }
  std::uint8_t* base() const { return static_cast<std::uint8_t*>(base_); }
  static constexpr std::size_t kBytes = std::size_t{12} << 30;

 private:
  void* base_;
};

/// Blocks whose bytes begin below 2^31, between 2^31 and 2^32, and past 2^33.
struct FarCache {
  std::vector<std::int32_t> blocks;
  PagedCache far, near;
  std::vector<std::uint8_t> near_bytes;

  FarCache(const SparseMemory& memory, const RowFormat& format, std::int64_t block_size, std::int64_t offset) {
    const std::int64_t page = page_bytes(format, block_size);
    const std::int64_t stride = (std::int64_t{1} << 20) + 64;
    blocks = {3, 2100, 4095, 4200, 9001, 1};
    far = {.format = &format,
           .base = memory.base() + offset,
           .num_blocks = 10'000,
           .block_size = block_size,
           .block_stride_bytes = stride};
    near_bytes.assign(static_cast<std::size_t>(page * std::ssize(blocks)), 0);
    near = {.format = &format,
            .base = near_bytes.data(),
            .num_blocks = std::ssize(blocks),
            .block_size = block_size,
            .block_stride_bytes = page};
  }
  std::int64_t slots() const { return near.num_slots(); }
  std::int64_t far_slot(std::int64_t slot) const {
    return blocks[static_cast<std::size_t>(slot / near.block_size)] * near.block_size + slot % near.block_size;
  }
  bool same_rows() const {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (std::memcmp(far.block(blocks[b]), near.block(static_cast<std::int64_t>(b)),
                      static_cast<std::size_t>(block_bytes(*near.format, near.block_size))) != 0)
        return false;
    }
    return true;
  }
};

void fill(HostTensor& t, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < t.numel(); ++i) t.as<BF16>()[i] = to_bf16(normal(random));
}

template <class Op>
void run_as(const typename Op::Problem& problem, const typename Op::Args& args, const std::string& implementation) {
  const Plan<Op> plan(problem, {.implementation = implementation, .threads = 1});
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()});
}

template <class Op>
std::vector<std::string> accepting(const typename Op::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& c : explain<Op>(problem)) {
    if (c.refusal.empty()) names.push_back(c.name);
  }
  return names;
}

/// All slots of both caches filled with the same rows.
void insert_everywhere(FarCache& c, const std::string& implementation) {
  HostTensor rows(DType::kBF16, {c.slots(), c.near.format->dim});
  fill(rows, 3);
  HostTensor near_slots(DType::kI64, {c.slots()});
  HostTensor far_slots(DType::kI64, {c.slots()});
  for (std::int64_t i = 0; i < c.slots(); ++i) {
    near_slots.as<std::int64_t>()[i] = i;
    far_slots.as<std::int64_t>()[i] = c.far_slot(i);
  }
  const InsertRows::Problem problem{.tokens = c.slots(), .format = c.near.format};
  run_as<InsertRows>(problem, {.rows = rows.view(), .slot_mapping = near_slots.view(), .cache = c.near},
                     implementation);
  run_as<InsertRows>(problem, {.rows = rows.view(), .slot_mapping = far_slots.view(), .cache = c.far}, implementation);
}

TEST(Slab, AttentionRowsPastTwoGigabytes) {
  const SparseMemory memory;
  if (!memory.there()) GTEST_SKIP() << "SKIP: no 12 GiB of addresses";
  for (const RowFormat* format : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows()}) {
    FarCache c(memory, *format, 16, 640);
    ASSERT_GT(c.far.block(c.blocks[4]) - c.far.base, std::int64_t{1} << 33);
    for (const std::string& name : accepting<InsertRows>({.tokens = c.slots(), .format = format})) {
      insert_everywhere(c, name);
      ASSERT_TRUE(c.same_rows()) << format->name << " " << name;
    }

    HostTensor q(DType::kBF16, {2, 3, 512});
    fill(q, 4);
    HostTensor near_indices(DType::kI32, {2, c.slots()});
    HostTensor far_indices(DType::kI32, {2, c.slots()});
    for (std::int64_t i = 0; i < near_indices.numel(); ++i) {
      near_indices.as<std::int32_t>()[i] = static_cast<std::int32_t>(i % c.slots());
      far_indices.as<std::int32_t>()[i] = static_cast<std::int32_t>(c.far_slot(i % c.slots()));
    }
    SparseAttention::Problem problem{.tokens = 2, .heads = 3, .scopes = 1};
    problem.scope[0] = {.format = format, .block_size = 16, .width = c.slots()};
    for (const std::string& name : accepting<SparseAttention>(problem)) {
      HostTensor near_o(DType::kBF16, {2, 3, 512});
      HostTensor far_o(DType::kBF16, {2, 3, 512});
      SparseAttention::Args args;
      args.q = q.view();
      args.o = near_o.view();
      args.scopes[0] = {.cache = c.near, .indices = near_indices.view(), .lens = {}};
      run_as<SparseAttention>(problem, args, name);
      args.o = far_o.view();
      args.scopes[0] = {.cache = c.far, .indices = far_indices.view(), .lens = {}};
      run_as<SparseAttention>(problem, args, name);
      EXPECT_EQ(std::memcmp(near_o.data(), far_o.data(), near_o.bytes()), 0) << format->name << " " << name;
    }

    const std::vector<std::int32_t> lens{static_cast<std::int32_t>(c.slots())};
    const std::vector<std::int32_t> near_table{0, 1, 2, 3, 4, 5};
    const GatherRows::Problem gather{.requests = 1, .rows = c.slots(), .format = format};
    for (const std::string& name : accepting<GatherRows>(gather)) {
      HostTensor near_rows(DType::kBF16, {1, c.slots(), 512});
      HostTensor far_rows(DType::kBF16, {1, c.slots(), 512});
      run_as<GatherRows>(gather,
                         {.cache = c.near,
                          .seq_lens = view_of(lens.data(), {1}),
                          .gather_lens = {},
                          .block_table = view_of(near_table.data(), {1, 6}),
                          .out = near_rows.view()},
                         name);
      run_as<GatherRows>(gather,
                         {.cache = c.far,
                          .seq_lens = view_of(lens.data(), {1}),
                          .gather_lens = {},
                          .block_table = view_of(std::as_const(c.blocks).data(), {1, 6}),
                          .out = far_rows.view()},
                         name);
      EXPECT_EQ(std::memcmp(near_rows.data(), far_rows.data(), near_rows.bytes()), 0) << format->name << " " << name;
    }
  }
}

TEST(Slab, IndexRowsPastTwoGigabytes) {
  const SparseMemory memory;
  if (!memory.there()) GTEST_SKIP() << "SKIP: no 12 GiB of addresses";
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows()}) {
    FarCache c(memory, *format, 16, 64);
    insert_everywhere(c, "ref");
    ASSERT_TRUE(c.same_rows());
    const bool fp4 = format == &index_mxfp4_rows();
    const IndexerLogits::Problem problem{.rows = 1, .heads = 8, .dim = 128, .width = c.slots(), .format = format};
    HostTensor q(fp4 ? DType::kU8 : DType::kE4M3, {1, 8, fp4 ? 64 : 128});
    for (std::int64_t i = 0; i < q.numel(); ++i)
      static_cast<std::uint8_t*>(q.data())[i] = static_cast<std::uint8_t>(i * 37 % 120);
    HostTensor q_scale(DType::kU8, {1, 8, 4});
    std::memset(q_scale.data(), 127, q_scale.bytes());
    HostTensor weights(DType::kF32, {1, 8});
    for (std::int64_t h = 0; h < 8; ++h) weights.as<float>()[h] = 0.1F * static_cast<float>(h + 1);
    const std::vector<std::int32_t> request{0};
    const std::vector<std::int32_t> lens{static_cast<std::int32_t>(c.slots())};
    const std::vector<std::int32_t> near_table{0, 1, 2, 3, 4, 5};
    for (const std::string& name : accepting<IndexerLogits>(problem)) {
      HostTensor near(DType::kF32, {1, c.slots()});
      HostTensor far(DType::kF32, {1, c.slots()});
      IndexerLogits::Args args{.q = q.view(),
                               .q_scale = {},
                               .weights = weights.view(),
                               .row_to_req = view_of(request.data(), {1}),
                               .lens = view_of(lens.data(), {1})};
      if (fp4) args.q_scale = q_scale.view();
      args.block_table = view_of(near_table.data(), {1, 6});
      args.cache = c.near;
      args.logits = near.view();
      run_as<IndexerLogits>(problem, args, name);
      args.block_table = view_of(std::as_const(c.blocks).data(), {1, 6});
      args.cache = c.far;
      args.logits = far.view();
      run_as<IndexerLogits>(problem, args, name);
      EXPECT_EQ(std::memcmp(near.data(), far.data(), near.bytes()), 0) << format->name << " " << name;
    }
  }
}

TEST(Slab, StatesPastTwoGigabytes) {
  const SparseMemory memory;
  if (!memory.there()) GTEST_SKIP() << "SKIP: no 12 GiB of addresses";
  FarCache c(memory, state_rows(512, 2), 4, 64);
  HostTensor kv_score(DType::kF32, {c.slots(), 2048});
  for (std::int64_t i = 0; i < kv_score.numel(); ++i) kv_score.as<float>()[i] = std::sin(static_cast<float>(i));
  HostTensor ape(DType::kF32, {4, 1024});
  HostTensor positions(DType::kI64, {c.slots()});
  HostTensor near_slots(DType::kI64, {c.slots()});
  HostTensor far_slots(DType::kI64, {c.slots()});
  for (std::int64_t i = 0; i < c.slots(); ++i) {
    positions.as<std::int64_t>()[i] = i;
    near_slots.as<std::int64_t>()[i] = i;
    far_slots.as<std::int64_t>()[i] = c.far_slot(i);
  }
  const SaveState::Problem save{.tokens = c.slots(), .ratio = 4, .dim = 512};
  for (const std::string& name : accepting<SaveState>(save)) {
    run_as<SaveState>(save,
                      {.kv_score = kv_score.view(),
                       .ape = ape.view(),
                       .positions = positions.view(),
                       .state_slots = near_slots.view(),
                       .state = c.near},
                      name);
    run_as<SaveState>(save,
                      {.kv_score = kv_score.view(),
                       .ape = ape.view(),
                       .positions = positions.view(),
                       .state_slots = far_slots.view(),
                       .state = c.far},
                      name);
    ASSERT_TRUE(c.same_rows()) << name;
  }

  FarCache entries(memory, fp8_ds_mla_rows(), 2, 1 << 17);  // behind the states in every block
  HostTensor requests(DType::kI32, {c.slots()});
  HostTensor norm(DType::kF32, {512});
  for (std::int64_t i = 0; i < 512; ++i) norm.as<float>()[i] = 1.0F;
  HostTensor cos_sin(DType::kF32, {c.slots(), 64});
  for (std::int64_t i = 0; i < cos_sin.numel(); ++i) cos_sin.as<float>()[i] = i % 64 < 32 ? 0.8F : 0.6F;
  HostTensor near_entries(DType::kI64, {c.slots()});
  HostTensor far_entries(DType::kI64, {c.slots()});
  for (std::int64_t i = 0; i < c.slots(); ++i) {
    const bool closes = (i + 1) % 4 == 0;
    near_entries.as<std::int64_t>()[i] = closes ? i / 4 : -1;
    far_entries.as<std::int64_t>()[i] = closes ? entries.far_slot(i / 4) : -1;
  }
  const std::vector<std::int32_t> near_table{0, 1, 2, 3, 4, 5};
  const CompressStore::Problem store{
      .tokens = c.slots(), .ratio = 4, .rope_dim = 64, .compressor = {{{.dim = 512, .format = &fp8_ds_mla_rows()}}}};
  for (const std::string& name : accepting<CompressStore>(store)) {
    CompressStore::Args args{.positions = positions.view(), .token_to_req = requests.view()};
    args.compressors[0].norm_weight = norm.view();
    args.cos_sin = cos_sin.view();
    args.compressors[0].state_slots = near_slots.view();
    args.entry_slots = near_entries.view();
    args.compressors[0].block_table = view_of(near_table.data(), {1, 6});
    args.compressors[0].state = c.near;
    args.compressors[0].entries = entries.near;
    run_as<CompressStore>(store, args, name);
    args.compressors[0].state_slots = far_slots.view();
    args.entry_slots = far_entries.view();
    args.compressors[0].block_table = view_of(std::as_const(c.blocks).data(), {1, 6});
    args.compressors[0].state = c.far;
    args.compressors[0].entries = entries.far;
    run_as<CompressStore>(store, args, name);
    ASSERT_TRUE(entries.same_rows()) << name;
  }
}

}  // namespace
}  // namespace smla
