// The compressor on the GPU against `_ref` over the family's own cases: state rows byte for byte, entries within the
// family's bounds.
#include "device/streams.h"
#include "gpu/gpu_run.h"
#include "parity/compressor_compare.h"
#include "sparsemla/ops/norm_rope.h"
#include "sparsemla/ops/projection.h"

namespace smla {
namespace {

using namespace compressor_cases;

class CompressorGpu : public test::GpuTest {};

/// The same blocks at another distance.
void move_blocks(OwnedCache& owned, std::int64_t further) {
  PagedCache to = owned.cache;
  to.block_stride_bytes += further;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(to.num_blocks * to.block_stride_bytes), kPoison);
  to.base = bytes.data();
  const std::int64_t n = std::min(owned.cache.block_stride_bytes, to.block_stride_bytes);
  for (std::int64_t b = 0; b < to.num_blocks; ++b)
    std::memcpy(to.block(b), owned.cache.block(b), static_cast<std::size_t>(n));
  owned.bytes = std::move(bytes);
  owned.cache = to;
  owned.cache.base = owned.bytes.data();
}

/// Strides that no wide load fits: fp32 rows 4 bytes off, entries an odd number of bytes.
void misalign(CompressorInputs& in) {
  move_blocks(in.state, 4);
  move_blocks(in.entries, 1);
  const std::int64_t width = in.save.kv_score.size(1);
  HostTensor narrow(DType::kF32, {in.save.kv_score.size(0), width + 3});
  for (std::int64_t t = 0; t < in.save.kv_score.size(0); ++t) {
    std::copy_n(in.save.kv_score.as<float>() + t * in.save.kv_score.stride[0], width,
                narrow.as<float>() + t * (width + 3));
  }
  in.kv_score = std::move(narrow);
  in.save.kv_score = std::as_const(in.kv_score).view().slice(1, 0, width);
  in.save.state = in.store.compressors[0].state = in.state.cache;
  in.store.compressors[0].entries = in.entries.cache;
}

CompressorInputs inputs_of(const CompressorCase& c, bool odd) {
  CompressorInputs in = make_inputs(c);
  if (odd) misalign(in);
  return in;
}

void check_save(const CompressorCase& c, bool odd) {
  SCOPED_TRACE(testing::Message() << c << (odd ? ", misaligned" : ""));
  const CompressorInputs want = inputs_of(c, odd);
  const CompressorInputs got = inputs_of(c, odd);
  Plan<SaveState>(c.save(), {.implementation = "ref"}).run(want.save);
  test::run_on_gpu<SaveState>(c.save(), got.save);
  const auto [a, b] = std::mismatch(want.state.bytes.begin(), want.state.bytes.end(), got.state.bytes.begin());
  ASSERT_TRUE(a == want.state.bytes.end()) << "byte " << a - want.state.bytes.begin() << " of blocks of "
                                           << want.state.cache.block_stride_bytes << ": want " << +*a << " got " << +*b;
}

struct Count {
  std::int64_t entries = 0;
  std::int64_t equal = 0;
};

template <class Change>
void check_store_by(const std::string& implementation, const CompressorCase& c, bool odd, const Change& change,
                    Count& count) {
  SCOPED_TRACE(testing::Message() << c << (odd ? ", misaligned" : "") << ", " << implementation);
  CompressorInputs want = inputs_of(c, odd);
  CompressorInputs got = inputs_of(c, odd);
  for (CompressorInputs* in : {&want, &got}) {
    Plan<SaveState>(c.save(), {.implementation = "ref"}).run(in->save);
    change(in->state.cache);
  }
  const std::vector<std::uint8_t> before = got.entries.bytes;
  Plan<CompressStore>(c.store(), {.implementation = "ref"}).run(want.store);
  test::run_on_gpu<CompressStore>(c.store(), got.store, implementation);
  ASSERT_TRUE(want.state.bytes == got.state.bytes) << "the state was changed";
  for (std::int64_t slot = 0; slot < got.entries.cache.num_slots(); ++slot) {
    ASSERT_EQ(written(want.entries.cache, slot), written(got.entries.cache, slot)) << "slot " << slot;
    if (!written(got.entries.cache, slot)) continue;
    ++count.entries;
    count.equal += same_record(want.entries.cache, got.entries.cache, slot) ? 1 : 0;
    expect_close_record(want, got, slot);
    if (testing::Test::HasFatalFailure()) FAIL() << "slot " << slot;
  }
  ASSERT_TRUE(without_records(got.entries) == before) << "bytes outside of the records were changed";
}

/// Every implementation against `_ref`; `change` alters the state after it was saved, alike for both.
template <class Change>
void check_store(const CompressorCase& c, bool odd, const Change& change, Count& count) {
  const std::vector<std::string> implementations = test::gpu_implementations<CompressStore>(c.store());
  ASSERT_FALSE(implementations.empty());
  for (const std::string& implementation : implementations) check_store_by(implementation, c, odd, change, count);
}

void unchanged(PagedCache& /*state*/) {}

TEST_F(CompressorGpu, SavingInTheSameLaunchIsThePair) {
  for (const CompressorCase& c : all_cases()) {
    for (const bool odd : {false, true}) {
      for (const std::string& implementation : test::gpu_implementations<CompressStore>(c.store())) {
        SCOPED_TRACE(testing::Message() << c << (odd ? ", misaligned" : "") << ", " << implementation);
        const CompressorInputs want = inputs_of(c, odd);
        const CompressorInputs got = inputs_of(c, odd);
        test::run_on_gpu<SaveState>(c.save(), want.save);
        test::run_on_gpu<CompressStore>(c.store(), want.store, implementation);
        test::run_on_gpu<CompressStore>(c.store(), got.saving(), implementation);
        if (c.hostile) continue;  // its tokens read slots that others write: either value may be seen
        ASSERT_TRUE(want.state.bytes == got.state.bytes);
        ASSERT_TRUE(want.entries.bytes == got.entries.bytes);
      }
    }
  }
}

/// Two compressors in one launch give the bits of each alone.
TEST_F(CompressorGpu, TwoInOneLaunchAreEachAlone) {
  for (const auto& [layer, index] : pairs()) {
    for (const bool odd : {false, true}) {
      for (const bool saves : {false, true}) {
        SCOPED_TRACE(testing::Message() << layer << " and " << index << (odd ? ", misaligned" : "")
                                        << (saves ? ", saving" : ""));
        CompressorInputs want[] = {make_inputs(layer), make_inputs(index, 2)};
        CompressorInputs got[] = {make_inputs(layer), make_inputs(index, 2)};
        if (odd) misalign(want[1]), misalign(got[1]);
        for (const int i : {0, 1}) {
          const SaveState::Problem save = i == 0 ? layer.save() : index.save();
          Plan<SaveState>(save, {.implementation = "ref"}).run(want[i].save);
          if (!saves) Plan<SaveState>(save, {.implementation = "ref"}).run(got[i].save);
        }
        CompressStore::Args alone = want[1].store;
        alone.entry_slots = want[0].store.entry_slots;
        test::run_on_gpu<CompressStore>(layer.store(), want[0].store);
        test::run_on_gpu<CompressStore>(index.store(), alone);
        test::run_on_gpu<CompressStore>(together(layer, index), saves ? together(got[0].saving(), got[1].saving())
                                                                      : together(got[0].store, got[1].store));
        for (const int i : {0, 1}) {
          ASSERT_TRUE(want[i].state.bytes == got[i].state.bytes) << i;
          ASSERT_TRUE(want[i].entries.bytes == got[i].entries.bytes) << i;
        }
      }
    }
  }
}

TEST_F(CompressorGpu, SaveStateIsRefByteForByte) {
  for (const CompressorCase& c : all_cases()) {
    check_save(c, false);
    if (HasFailure()) return;
  }
}

TEST_F(CompressorGpu, CompressStoreIsRef) {
  Count count;
  for (const CompressorCase& c : all_cases()) {
    check_store(c, false, unchanged, count);
    if (HasFailure()) return;
  }
  EXPECT_GT(count.entries, 500);
  // Sums differ in their last fp32 bit: few codes flip. A wrong rounding would leave hardly a record equal.
  EXPECT_GT(count.equal, count.entries / 2);
}

/// A prompt with more groups than a GPU has clusters of blocks at once: each has the bits that it has among fewer.
TEST_F(CompressorGpu, ManyLongGroupsAreRefAndThoseOfFew) {
  constexpr std::int64_t kFew = 2600;
  const CompressorCase c{.ratio = 128,
                         .format = &fp8_ds_mla_rows(),
                         .requests = {{37, 5000}, {127, 1}, {64, 200}},
                         .state_block = 8,
                         .unmapped = 3};
  Count count;
  check_store(c, false, unchanged, count);
  check_store(c, true, unchanged, count);
  EXPECT_GT(count.entries, 78);
  for (const std::string& implementation : test::gpu_implementations<CompressStore>(c.store())) {
    SCOPED_TRACE(implementation);
    const CompressorInputs many = make_inputs(c);
    test::run_on_gpu<CompressStore>(c.store(), many.saving(), implementation);
    const CompressorInputs few = make_inputs(c);
    CompressStore::Args args = few.saving();
    for (ConstTensorView* tokens : {&args.positions, &args.token_to_req, &args.entry_slots,
                                    &args.compressors[0].state_slots, &args.compressors[0].kv_score}) {
      *tokens = tokens->slice(0, 0, kFew);
    }
    CompressStore::Problem problem = c.store();
    problem.tokens = kFew;
    test::run_on_gpu<CompressStore>(problem, args, implementation);
    int compared = 0;
    for (std::int64_t slot = 0; slot < few.entries.cache.num_slots(); ++slot) {
      if (!written(few.entries.cache, slot)) continue;
      ++compared;
      ASSERT_TRUE(same_record(many.entries.cache, few.entries.cache, slot)) << "slot " << slot;
    }
    EXPECT_EQ(compared, 20);  // positions 127, 255, ... of 37 to 2,636
  }
}

/// Windows that nothing can be read of, between others that the same cluster of blocks pools.
TEST_F(CompressorGpu, AWindowWithoutRowsLeavesItsNeighbours) {
  CompressorCase c{.ratio = 128, .format = &fp8_ds_mla_rows(), .state_block = 128};
  for (int i = 0; i < 70; ++i) c.requests.push_back({127, 1});
  for (const std::string& implementation : test::gpu_implementations<CompressStore>(c.store())) {
    SCOPED_TRACE(implementation);
    CompressorInputs want = make_inputs(c);
    CompressorInputs got = make_inputs(c);
    for (CompressorInputs* in : {&want, &got}) {
      Plan<SaveState>(c.save(), {.implementation = "ref"}).run(in->save);
      for (std::int64_t r = 1; r < 70; r += 4)
        in->block_table.as<std::int32_t>()[r] = std::numeric_limits<std::int32_t>::max();
    }
    Plan<CompressStore>(c.store(), {.implementation = "ref"}).run(want.store);
    test::run_on_gpu<CompressStore>(c.store(), got.store, implementation);
    int entries = 0;
    for (std::int64_t slot = 0; slot < got.entries.cache.num_slots(); ++slot) {
      ASSERT_EQ(written(want.entries.cache, slot), written(got.entries.cache, slot)) << "slot " << slot;
      if (!written(got.entries.cache, slot)) continue;
      ++entries;
      expect_close_record(want, got, slot);
    }
    EXPECT_EQ(entries, 52);
  }
}

std::vector<CompressorCase> few_cases() {
  std::vector<CompressorCase> cases;
  for (const RowFormat* format : {&fp8_ds_mla_rows(), &bf16_rows(), &fp8_per_tensor_rows(), &f32_rows()}) {
    cases.push_back(
        {.format = format, .requests = {{0, 10}, {41, 11}}, .state_block = 3, .entry_block = 5, .small = DType::kF32});
    cases.push_back(
        {.ratio = 128, .format = format, .requests = {{120, 9}, {200, 60}}, .state_block = 53, .entry_block = 2});
  }
  for (const RowFormat* format : {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()}) {
    cases.push_back(
        {.format = format, .requests = {{3, 21}, {0, 4}}, .state_block = 2, .entry_block = 3, .hadamard = true});
  }
  return cases;
}

/// `kTimes` times, as a graph: what a compressor reads is written, a product follows that lets the compressor
/// start when its own wait has ended, and the compressor, beside it or not.
void compress_behind_product(const CompressorCase& c, const std::string& implementation, bool beside,
                             CompressorInputs& in) {
  constexpr int kTimes = 4;
  constexpr std::int64_t kInputs = 1024;
  constexpr std::int64_t kOutputs = 256;
  HostTensor x(DType::kBF16, {1, 1, kInputs});
  HostTensor w(DType::kE4M3, {1, kOutputs, kInputs});
  HostTensor scale(DType::kF32, {1, kOutputs / 128, kInputs / 128});
  HostTensor y(DType::kBF16, {1, 1, kOutputs});
  JointProjection::Args host{.x = std::as_const(x).view()};
  host.parts[0] = {.w = std::as_const(w).view(), .y = y.view(), .w_scale = std::as_const(scale).view()};
  const Plan<JointProjection> product({.m = 1, .k = kInputs, .part = {{{.n = kOutputs, .w = DType::kE4M3}}}},
                                      {.device = DeviceKind::kCuda, .implementation = "sm90_stream"});
  const Plan<CompressStore> compress(c.store(), {.device = DeviceKind::kCuda, .implementation = implementation});
  StagedTensors staged(DeviceKind::kCuda);
  const auto of_product = staged.bring<JointProjection>(host);
  StagedTensors of_compressor(DeviceKind::kCuda);
  auto args = of_compressor.bring<CompressStore>(in.saving());
  args.beside_previous = beside;
  const ConstTensorView rows = args.compressors[0].kv_score;
  TensorView doubled(const_cast<void*>(rows.data), rows.dtype, {rows.size(0), rows.size(1)});
  doubled.stride = rows.stride;
  const Plan<AddRows> add({.rows = rows.size(0), .dim = rows.size(1), .dtype = rows.dtype},
                          {.device = DeviceKind::kCuda});
  const OwnedStream stream(DeviceKind::kCuda);
  const Graph graph(stream.get(), [&] {
    for (int i = 0; i < kTimes; ++i) {
      add.run({.y = rows, .x = doubled}, {}, stream.get());
      product.run(of_product, {}, stream.get());
      compress.run(args, {}, stream.get());
    }
  });
  synchronize(DeviceKind::kCuda);
  graph.launch(stream.get());
  synchronize(DeviceKind::kCuda, stream.get());
  of_compressor.back();
}

TEST_F(CompressorGpu, BesideAProductItReadsWhatIsAheadOfIt) {
  if (!test::has_sm90_stream()) GTEST_SKIP() << "no kernel for Hopper";
  int compared = 0;
  for (const CompressorCase& c : few_cases()) {
    for (const std::string& implementation : test::gpu_implementations<CompressStore>(c.store())) {
      SCOPED_TRACE(testing::Message() << c << ", " << implementation);
      for (const bool odd : {false, true}) {
        CompressorInputs want = inputs_of(c, odd);
        CompressorInputs got = inputs_of(c, odd);
        compress_behind_product(c, implementation, false, want);
        compress_behind_product(c, implementation, true, got);
        ASSERT_TRUE(want.state.bytes == got.state.bytes);
        ASSERT_TRUE(want.entries.bytes == got.entries.bytes);
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 10);
}

TEST_F(CompressorGpu, AnyStrideIsRef) {
  Count count;
  for (const CompressorCase& c : few_cases()) {
    check_save(c, true);
    check_store(c, true, unchanged, count);
    if (HasFailure()) return;
  }
}

/// Logits far apart, -inf among them, and channels with nothing else.
TEST_F(CompressorGpu, ExtremeLogitsAreRef) {
  Count count;
  for (const CompressorCase& c : few_cases()) {
    const std::int64_t half = static_cast<std::int64_t>(c.store().coff()) * c.format->dim;
    const auto change = [half](PagedCache& state) {
      for (std::int64_t slot = 0; slot < state.num_slots(); ++slot) {
        auto* logits = reinterpret_cast<float*>(state.block(slot / state.block_size) +
                                                slot % state.block_size * state.format->data_bytes) +
                       half;
        for (std::int64_t i = 0; i < half; ++i) {
          if (i % 7 == 1) logits[i] *= 40.0F;
          if ((i + slot) % 5 == 2 || i % 11 == 3) logits[i] = -std::numeric_limits<float>::infinity();
        }
      }
    };
    check_store(c, false, change, count);
    if (HasFailure()) return;
  }
}

TEST_F(CompressorGpu, TwentyRepeatsAreTheSameBits) {
  for (const CompressorCase& c : few_cases()) {
    for (const std::string& implementation : test::gpu_implementations<CompressStore>(c.store())) {
      SCOPED_TRACE(testing::Message() << c << ", " << implementation);
      std::vector<std::uint8_t> first;
      for (int i = 0; i <= 20; ++i) {
        const CompressorInputs in = make_inputs(c);
        Plan<SaveState>(c.save(), {.implementation = "ref"}).run(in.save);
        test::run_on_gpu<CompressStore>(c.store(), in.store, implementation);
        if (i == 0) first = in.entries.bytes;
        ASSERT_TRUE(first == in.entries.bytes) << "repeat " << i;
      }
    }
  }
}

TEST_F(CompressorGpu, AnEntryDoesNotDependOnItsNeighbours) {
  for (const CompressorCase& c : few_cases()) {
    for (const std::string& implementation : test::gpu_implementations<CompressStore>(c.store())) {
      SCOPED_TRACE(testing::Message() << c << ", " << implementation);
      CompressorInputs all = make_inputs(c);
      Plan<SaveState>(c.save(), {.implementation = "ref"}).run(all.save);
      test::run_on_gpu<CompressStore>(c.store(), all.store, implementation);
      CompressorInputs alone = make_inputs(c);
      Plan<SaveState>(c.save(), {.implementation = "ref"}).run(alone.save);
      std::int64_t kept = -1;  // the last entry's slot
      for (std::int64_t t = alone.entry_slots.numel() - 1; t >= 0; --t) {
        std::int64_t& slot = alone.entry_slots.as<std::int64_t>()[t];
        if (kept < 0) {
          kept = slot;
        } else {
          slot = -1;
        }
      }
      ASSERT_GE(kept, 0);
      test::run_on_gpu<CompressStore>(c.store(), alone.store, implementation);
      ASSERT_TRUE(written(alone.entries.cache, kept));
      ASSERT_TRUE(same_record(all.entries.cache, alone.entries.cache, kept)) << "slot " << kept;
    }
  }
}

/// 70,000 tokens, of which the last 64 have a slot; every row of kv_score is the same one.
TEST_F(CompressorGpu, MoreThan65535Tokens) {
  constexpr std::int64_t kTokens = 70'000;
  constexpr std::int64_t kLast = 64;
  Random random{9};
  CompressorInputs in[2];
  const HostTensor kv_score = numbers(DType::kF32, {1, 512}, random, 4.0F);
  const HostTensor ape = numbers(DType::kF32, {4, 256}, random);
  const HostTensor weight = numbers(DType::kBF16, {128}, random, 2.0F);
  const HostTensor table = rope_rows(kTokens, 64);
  HostTensor positions(DType::kI64, {kTokens});
  HostTensor requests(DType::kI32, {kTokens});
  HostTensor state_slots(DType::kI64, {kTokens});
  HostTensor entry_slots(DType::kI64, {kTokens});
  HostTensor blocks(DType::kI32, {1, kTokens / 4});
  for (std::int64_t t = 0; t < kTokens; ++t) {
    positions.as<std::int64_t>()[t] = t;
    const std::int64_t i = t - (kTokens - kLast);
    state_slots.as<std::int64_t>()[t] = i;  // negative before the last
    entry_slots.as<std::int64_t>()[t] = t % 4 == 3 && i >= 0 ? i / 4 : -1;
  }
  for (std::int64_t column = 0; column < kTokens / 4; ++column)
    blocks.as<std::int32_t>()[column] = static_cast<std::int32_t>(column - (kTokens - kLast) / 4);
  const SaveState::Problem save{.tokens = kTokens, .ratio = 4, .dim = 128};
  const CompressStore::Problem store{
      .tokens = kTokens, .ratio = 4, .compressor = {{{.dim = 128, .format = &index_fp8_rows()}}}};
  for (CompressorInputs& each : in) {
    each.state.allocate(state_rows(128, 2), kLast / 4, 4, 0);
    each.entries.allocate(index_fp8_rows(), 1, 64, kPoison);
    each.save = {.kv_score = ConstTensorView(kv_score.data(), DType::kF32, {kTokens, 512}),
                 .ape = ape.view(),
                 .positions = std::as_const(positions).view(),
                 .state_slots = std::as_const(state_slots).view(),
                 .state = each.state.cache};
    each.save.kv_score.stride[0] = 0;
    each.store = {.positions = std::as_const(positions).view(),
                  .token_to_req = std::as_const(requests).view(),
                  .entry_slots = std::as_const(entry_slots).view(),
                  .cos_sin = table.view(),
                  .compressors = {{{.state_slots = std::as_const(state_slots).view(),
                                    .block_table = std::as_const(blocks).view(),
                                    .norm_weight = weight.view(),
                                    .state = each.state.cache,
                                    .entries = each.entries.cache}}}};
  }
  Plan<SaveState>(save, {.implementation = "ref"}).run(in[0].save);
  Plan<CompressStore>(store, {.implementation = "ref"}).run(in[0].store);
  test::run_on_gpu<SaveState>(save, in[1].save);
  ASSERT_TRUE(in[0].state.bytes == in[1].state.bytes);
  test::run_on_gpu<CompressStore>(store, in[1].store);
  for (std::int64_t slot = 0; slot < kLast / 4; ++slot) {
    SCOPED_TRACE(slot);
    ASSERT_TRUE(written(in[1].entries.cache, slot));
    expect_close_record(in[0], in[1], slot);
  }
  ASSERT_FALSE(written(in[1].entries.cache, kLast / 4));
}

}  // namespace
}  // namespace smla
