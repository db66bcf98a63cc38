// What surrounds an op's call on the GPU: validation, recording, the C interface, offsets beyond 32 bits.
#include <gmock/gmock.h>

#include <filesystem>

#include "cases/replay.h"
#include "device/device_tensor.h"
#include "device/streams.h"
#include "gpu/gpu_run.h"
#include "sparsemla/c_api.h"
#include "sparsemla/case.h"
#include "sparsemla/ops/validate.h"

namespace smla {
namespace {

using testing::HasSubstr;

class CallsGpu : public test::GpuTest {};

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST_F(CallsGpu, ValidateNamesTheBadNumberOfADevicesTensor) {
  const std::vector<std::int64_t> positions{3, -2};
  std::vector<std::int32_t> owner{0, 7};
  const std::vector<std::int32_t> table{5, 6};
  const std::vector<std::int32_t> start{0, 2};
  std::vector<std::int64_t> slots(2);
  const SlotMapping::Problem problem{.requests = 1, .tokens = 2, .block_size = 4};
  const SlotMapping::Args args{.query_start_loc = view_of(start.data(), {2}),
                               .positions = view_of(positions.data(), {2}),
                               .token_to_req = view_of(std::as_const(owner).data(), {2}),
                               .block_table = view_of(table.data(), {1, 2}),
                               .slots = view_of(slots.data(), {2})};
  test::run_on_gpu<SlotMapping>(problem, args);
  EXPECT_EQ(slots, (std::vector<std::int64_t>{23, -1})) << "hostile numbers lead nowhere";
  validate_calls(true);
  const std::string text = error_of([&] { test::run_on_gpu<SlotMapping>(problem, args); });
  validate_calls(false);
  EXPECT_THAT(text, HasSubstr("slot_mapping: "));
  EXPECT_THAT(text, HasSubstr("row 1: got "));
}

TEST_F(CallsGpu, ARecordedCallOfTheGpuIsACaseForTheCpu) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "smla_calls_gpu";
  std::filesystem::remove_all(folder);
  std::vector<float> logits(3 * 50);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 50);
  const std::vector<std::int32_t> lens{50, 20, 4};
  std::vector<std::int32_t> chosen(3 * 8);
  record_calls(folder.string());
  test::run_on_gpu<TopK>({.rows = 3, .width = 50, .k = 8}, {.logits = view_of(std::as_const(logits).data(), {3, 50}),
                                                            .lens = view_of(lens.data(), {3}),
                                                            .indices = view_of(chosen.data(), {3, 8})});
  record_calls("");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const CaseFile file = read_case(entry.path().string());
    for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
      const ReplayResult made = replay(file, {.plan = {.device = device}});
      for (const Verdict& verdict : judge(file, made))
        EXPECT_TRUE(verdict.comparison.pass) << verdict.result << " on " << name_of(device);
    }
    ++files;
  }
  EXPECT_EQ(files, 1);
  std::filesystem::remove_all(folder);
}

/// Rows in a cache of 12 GB: every offset past 2^32 bytes must arrive.
TEST_F(CallsGpu, SlotsBeyondFourGigabytes) {
  constexpr std::int64_t kBlocks = 330'000;
  constexpr std::int64_t kBlock = 64;
  constexpr std::int64_t kRows = 96;
  const RowFormat& format = fp8_ds_mla_rows();
  const std::int64_t stride = page_bytes(format, kBlock);
  std::optional<DeviceMemory> slab;
  try {
    slab.emplace(DeviceKind::kCuda, static_cast<std::size_t>(kBlocks * stride), false);
  } catch (const CudaError& e) {
    GTEST_SKIP() << "12 GB of device memory: " << e.what();
  }
  fill_bytes(DeviceKind::kCuda, slab->data(), 0xFF, slab->bytes());  // NaN wherever no row is written
  std::vector<std::int64_t> far;
  std::vector<std::int32_t> far_indices;
  std::vector<std::int64_t> near;
  std::vector<std::int32_t> near_indices;
  for (std::int64_t i = 0; i < kRows; ++i) {
    far.push_back(kBlocks * kBlock - 1 - i * 219'613);
    far_indices.push_back(static_cast<std::int32_t>(far.back()));
    near.push_back(i);
    near_indices.push_back(static_cast<std::int32_t>(i));
  }
  HostTensor rows(DType::kBF16, {kRows, 512});
  HostTensor q(DType::kBF16, {1, 64, 512});
  std::uint32_t seed = 1;
  for (HostTensor* t : {&rows, &q}) {
    for (std::int64_t i = 0; i < t->numel(); ++i) {
      seed = seed * 1664525U + 1013904223U;
      t->as<BF16>()[i] = to_bf16(static_cast<float>(seed >> 8) * 0x1p-23F - 1.0F);
    }
  }
  const auto copy = [](const ConstTensorView& v) { return DeviceTensor::copy_of(DeviceKind::kCuda, v); };
  const DeviceTensor d_rows = copy(rows.view());
  const DeviceTensor d_q = copy(q.view());
  const auto attend = [&](const std::vector<std::int64_t>& slots, const std::vector<std::int32_t>& indices,
                          std::int64_t blocks, const std::string& implementation) {
    const PagedCache cache{.format = &format,
                           .base = static_cast<std::uint8_t*>(slab->data()),
                           .num_blocks = blocks,
                           .block_size = kBlock,
                           .block_stride_bytes = stride};
    const DeviceTensor d_slots = copy(view_of(slots.data(), {kRows}));
    const DeviceTensor d_indices = copy(view_of(indices.data(), {1, kRows}));
    Plan<InsertRows>({.tokens = kRows, .format = &format}, {.device = DeviceKind::kCuda})
        .run({.rows = d_rows.view(), .slot_mapping = d_slots.view(), .cache = cache});
    DeviceTensor o(DeviceKind::kCuda, DType::kBF16, {1, 64, 512});
    SparseAttention::Problem problem{.tokens = 1, .heads = 64};
    problem.scope[0] = {.format = &format, .block_size = kBlock, .width = kRows};
    const Plan<SparseAttention> plan(problem, {.device = DeviceKind::kCuda, .implementation = implementation});
    const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes());
    SparseAttention::Args args{.q = d_q.view(), .scopes = {}, .sink = {}, .o = o.view(), .lse = {}};
    args.scopes[0] = {.cache = cache, .indices = d_indices.view(), .lens = {}};
    plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()});
    std::vector<std::uint16_t> out(64 * 512);
    copy_bytes(DeviceKind::kCuda, out.data(), o.data(), o.bytes());
    return out;
  };
  for (const Candidate& c : explain<SparseAttention>(
           [] {
             SparseAttention::Problem p{.tokens = 1, .heads = 64};
             p.scope[0] = {.format = &fp8_ds_mla_rows(), .block_size = kBlock, .width = kRows};
             return p;
           }(),
           {.device = DeviceKind::kCuda})) {
    if (!c.refusal.empty()) continue;
    const std::vector<std::uint16_t> want = attend(near, near_indices, kBlocks, c.name);
    EXPECT_EQ(want, attend(far, far_indices, kBlocks, c.name)) << c.name;
    EXPECT_TRUE(std::ranges::any_of(want, [](std::uint16_t v) { return v != 0; }));
    EXPECT_TRUE(std::ranges::none_of(want, [](std::uint16_t v) { return (v & 0x7F80U) == 0x7F80U; }))
        << c.name << ": NaN from rows nobody named";
  }
}

smla_tensor describe_for_c(const void* data, smla_dtype dtype, std::initializer_list<std::int64_t> shape) {
  smla_tensor t{};
  t.struct_size = sizeof t;
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.rank = static_cast<std::int32_t>(shape.size());
  std::ranges::copy(shape, t.shape);
  return t;
}

/// Device pointers and a stream through the C interface.
TEST_F(CallsGpu, CInterfaceTakesDevicePointersAndAStream) {
  constexpr std::int64_t kTokens = 3;
  constexpr std::int64_t kHeads = 5;
  constexpr std::int64_t kWidth = 40;
  HostTensor q(DType::kBF16, {kTokens, kHeads, 512});
  HostTensor cache(DType::kBF16, {4, 16, 512});
  HostTensor indices(DType::kI32, {kTokens, kWidth});
  std::uint32_t seed = 7;
  for (HostTensor* t : {&q, &cache}) {
    for (std::int64_t i = 0; i < t->numel(); ++i) {
      seed = seed * 1664525U + 1013904223U;
      t->as<BF16>()[i] = to_bf16(static_cast<float>(seed >> 8) * 0x1p-23F - 1.0F);
    }
  }
  for (std::int64_t i = 0; i < indices.numel(); ++i)
    indices.as<std::int32_t>()[i] = static_cast<std::int32_t>((i * 29) % 70 - 3);
  const DeviceTensor d_q = DeviceTensor::copy_of(DeviceKind::kCuda, q.view());
  const DeviceTensor d_cache = DeviceTensor::copy_of(DeviceKind::kCuda, cache.view());
  const DeviceTensor d_indices = DeviceTensor::copy_of(DeviceKind::kCuda, indices.view());
  DeviceTensor d_o(DeviceKind::kCuda, DType::kBF16, {kTokens, kHeads, 512});
  HostTensor o(DType::kBF16, {kTokens, kHeads, 512});

  const OwnedStream stream(DeviceKind::kCuda);
  const auto call = [&](smla_device device, const void* q_data, void* cache_data, const void* index_data,
                        void* o_data) {
    const smla_tensor q_c = describe_for_c(q_data, SMLA_BF16, {kTokens, kHeads, 512});
    const smla_tensor o_c = describe_for_c(o_data, SMLA_BF16, {kTokens, kHeads, 512});
    const smla_tensor index_c = describe_for_c(index_data, SMLA_I32, {kTokens, kWidth});
    smla_cache cache_c{};
    cache_c.struct_size = sizeof cache_c;
    cache_c.format = "bf16";
    cache_c.base = cache_data;
    cache_c.num_blocks = 4;
    cache_c.block_size = 16;
    smla_attention_scope scope{};
    scope.struct_size = sizeof scope;
    scope.cache = &cache_c;
    scope.indices = &index_c;
    smla_sparse_attention_args args{};
    args.struct_size = sizeof args;
    args.q = &q_c;
    args.scope = &scope;
    args.o = &o_c;
    args.device = device;
    args.implementation = device == SMLA_CPU ? "ref" : nullptr;
    args.stream = device == SMLA_CPU ? nullptr : stream.get().handle;
    std::size_t bytes = 0;
    const char* name = nullptr;
    ASSERT_EQ(smla_sparse_attention_workspace(&args, &bytes, &name), SMLA_OK) << smla_last_error();
    const DeviceMemory workspace(device == SMLA_CPU ? DeviceKind::kCpu : DeviceKind::kCuda, bytes);
    ASSERT_EQ(smla_sparse_attention(&args, workspace.data(), bytes), SMLA_OK) << smla_last_error();
    if (device == SMLA_CUDA) synchronize(DeviceKind::kCuda, stream.get());
  };
  call(SMLA_CPU, q.data(), cache.data(), indices.data(), o.data());
  call(SMLA_CUDA, d_q.data(), d_cache.data(), d_indices.data(), d_o.data());
  HostTensor got(DType::kBF16, {kTokens, kHeads, 512});
  copy_bytes(DeviceKind::kCuda, got.data(), d_o.data(), got.bytes());
  double error = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < o.numel(); ++i) {
    const double want = to_float(o.as<BF16>()[i]);
    error += std::pow(want - to_float(got.as<BF16>()[i]), 2);
    norm += want * want;
  }
  EXPECT_GT(norm, 0);
  EXPECT_LE(std::sqrt(error / norm), 2.2e-3);
}

}  // namespace
}  // namespace smla
