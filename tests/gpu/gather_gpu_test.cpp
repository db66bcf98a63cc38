// Rows that leave their pages and partial results that become one, on the GPU against `_ref`: copies byte for byte,
// merges within the family's bounds.
#include <random>

#include "gpu/gpu_run.h"
#include "parity/attention_compare.h"
#include "parity/gathered_cases.h"
#include "parity/merge_cases.h"

namespace smla {
namespace {

using namespace gathered_cases;
using attention_cases::AttentionOutputs;
using attention_cases::MergeCase;
using attention_cases::MergeInputs;

class GatherGpu : public test::GpuTest {};
class MergeGpu : public test::GpuTest {};

constexpr std::uint16_t kPoison16 = 0xA5A5;
constexpr std::uint8_t kPoison8 = 0xA5;

/// Whether two bf16 codes are NaN, whose payload is the machine's.
bool same(std::uint16_t a, std::uint16_t b) { return a == b || ((a & 0x7FFF) > 0x7F80 && (b & 0x7FFF) > 0x7F80); }
bool same(std::uint8_t a, std::uint8_t b) { return a == b; }

template <class T>
void expect_same(const std::vector<T>& want, const std::vector<T>& got, std::int64_t width, const char* what) {
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (same(want[i], got[i])) continue;
    const auto at = static_cast<std::int64_t>(i);
    FAIL() << what << ": row " << at / width << " column " << at % width << " of " << width << ": want " << +want[i]
           << " got " << +got[i];
  }
}

struct Random {
  std::mt19937_64 engine;
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  }
  template <class List>
  auto of(const List& list) {
    return list[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(std::size(list)) - 1))];
  }
  std::int32_t wild() {
    constexpr std::int32_t kWild[] = {INT32_MIN, -70000, -1, 114514, INT32_MAX - 1, INT32_MAX};
    return pick(0, 1) == 0 ? of(kWild) : static_cast<std::int32_t>(engine());
  }
  /// Numbers 0..most, and some that are anything.
  std::vector<std::int32_t> list(std::int64_t n, std::int64_t most, bool hostile) {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < n; ++i)
      out.push_back(hostile && pick(0, 3) == 0 ? wild() : static_cast<std::int32_t>(pick(0, most)));
    return out;
  }
};

/// A cache of random bytes, NaN codes among them, whose blocks lie at any distance.
struct RandomCache {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;
  RandomCache(const RowFormat& format, std::int64_t blocks, std::int64_t block_size, std::int64_t gap, Random& random) {
    const std::int64_t stride = block_bytes(format, block_size) + gap;
    bytes.resize(static_cast<std::size_t>(blocks * stride));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.engine() >> 40);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = blocks,
             .block_size = block_size,
             .block_stride_bytes = stride,
             .scale = format.scale == ScaleKind::kPerTensor ? 0.37F : 1.0F};
  }
};

/// GatherRows by `ref` and by the GPU into memory whose rows are `padding` numbers apart.
void check_rows(const GatherRows::Problem& problem, GatherRows::Args args, std::int64_t padding) {
  const std::int64_t width = problem.format->dim + padding;
  std::vector<std::uint16_t> want(static_cast<std::size_t>(problem.requests * problem.rows * width), kPoison16);
  std::vector<std::uint16_t> got = want;
  const auto attach = [&](std::vector<std::uint16_t>& out) {
    args.out = TensorView(out.data(), DType::kBF16, {problem.requests, problem.rows, problem.format->dim});
    args.out.stride[0] = problem.rows * width;
    args.out.stride[1] = width;
    return args;
  };
  Plan<GatherRows>(problem, {.implementation = "ref"}).run(attach(want));
  test::run_on_gpu<GatherRows>(problem, attach(got), "cuda");
  expect_same(want, got, width, "gather_rows");
}

TEST_F(GatherGpu, RowsAreRefBitForBit) {
  for (const GatherCase& c : gather_cases()) {
    SCOPED_TRACE(testing::Message() << c);
    const PagedRequests inputs(*c.format, c.block_size, c.seq, c.hostile, 7);
    GatherRows::Args args;
    args.cache = inputs.cache;
    args.seq_lens = view_of(inputs.seq_lens.data(), {inputs.requests()});
    if (!c.gather.empty()) args.gather_lens = view_of(c.gather.data(), {inputs.requests()});
    args.block_table = inputs.table_view();
    for (const std::int64_t padding : {5, 8}) check_rows(c.problem(), args, padding);
    if (HasFailure()) return;
  }
}

TEST_F(GatherGpu, RandomBytesAndHostileNumbersAreRef) {
  for (unsigned seed = 0; seed < 120 && !HasFailure(); ++seed) {
    Random random{std::mt19937_64(seed)};
    const RowFormat& format = *all_row_formats()[seed % all_row_formats().size()];
    constexpr std::int64_t kSizes[] = {1, 2, 53, 64, 256};
    constexpr std::int64_t kGaps[] = {0, 1, 2, 4, 8, 16, 67};
    constexpr std::int64_t kPaddings[] = {0, 1, 4, 8};
    const std::int64_t block_size = random.of(kSizes);
    const bool hostile = seed % 2 == 1;
    const std::int64_t blocks =
        std::min<std::int64_t>(random.pick(1, 9), std::max<std::int64_t>(1, 400'000 / block_bytes(format, block_size)));
    const RandomCache memory(format, blocks, block_size, random.of(kGaps), random);
    const std::int64_t requests = random.pick(0, 5);
    const std::int64_t columns = random.pick(hostile ? 0 : 1, 6);
    const std::int64_t stride = columns + random.pick(0, 2);
    const std::vector<std::int32_t> table = random.list(requests * stride + 1, blocks - 1, hostile);
    const std::vector<std::int32_t> seq = random.list(requests, columns * block_size, hostile);
    const std::vector<std::int32_t> lens = random.list(requests, columns * block_size, hostile);
    GatherRows::Args args;
    args.cache = memory.cache;
    args.seq_lens = view_of(seq.data(), {requests});
    if (random.pick(0, 1) == 0) args.gather_lens = view_of(lens.data(), {requests});
    args.block_table = view_of(table.data(), {requests, columns});
    args.block_table.stride[0] = stride;
    const GatherRows::Problem problem{
        .requests = requests, .rows = random.pick(0, 90), .offset = random.pick(0, 12), .format = &format};
    const std::int64_t padding = random.of(kPaddings);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << format.name << " block " << block_size << " stride "
                                    << memory.cache.block_stride_bytes << " padding " << padding << " rows "
                                    << problem.rows << " offset " << problem.offset);
    check_rows(problem, args, padding);
  }
}

TEST_F(GatherGpu, MoreThan65535Rows) {
  const PagedRequests inputs(index_mxfp4_rows(), 64, {40'000, 39'000}, false, 3);
  GatherRows::Args args;
  args.cache = inputs.cache;
  args.seq_lens = view_of(inputs.seq_lens.data(), {2});
  args.block_table = inputs.table_view();
  check_rows({.requests = 2, .rows = 40'001, .offset = 1, .format = &index_mxfp4_rows()}, args, 0);
}

/// GatherIndexRows by `ref` and by the GPU; both outputs have `padding` bytes behind their rows.
void check_index_rows(const GatherIndexRows::Problem& problem, GatherIndexRows::Args args, std::int64_t padding) {
  const std::int64_t value_width = problem.format->data_bytes + padding;
  const std::int64_t scale_width = problem.format->scale_bytes + padding;
  std::vector<std::uint8_t> want_values(static_cast<std::size_t>(problem.rows * value_width), kPoison8);
  std::vector<std::uint8_t> want_scales(static_cast<std::size_t>(problem.rows * scale_width), kPoison8);
  std::vector<std::uint8_t> got_values = want_values;
  std::vector<std::uint8_t> got_scales = want_scales;
  const auto attach = [&](std::vector<std::uint8_t>& values, std::vector<std::uint8_t>& scales) {
    args.values = view_of(values.data(), {problem.rows, problem.format->data_bytes});
    args.values.stride[0] = value_width;
    args.scales = {};
    if (problem.format->scale_bytes > 0) {
      args.scales = view_of(scales.data(), {problem.rows, problem.format->scale_bytes});
      args.scales.stride[0] = scale_width;
    }
    return args;
  };
  Plan<GatherIndexRows>(problem, {.implementation = "ref"}).run(attach(want_values, want_scales));
  test::run_on_gpu<GatherIndexRows>(problem, attach(got_values, got_scales), "cuda");
  expect_same(want_values, got_values, value_width, "values");
  if (scale_width > 0) expect_same(want_scales, got_scales, scale_width, "scales");
}

TEST_F(GatherGpu, IndexRowsAreRefByteForByte) {
  for (unsigned seed = 0; seed < 160 && !HasFailure(); ++seed) {
    Random random{std::mt19937_64(seed)};
    const RowFormat* const formats[] = {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows(), &fp8_ds_mla_rows()};
    const RowFormat& format = *formats[seed % 4];
    constexpr std::int64_t kSizes[] = {1, 2, 53, 64, 256};
    constexpr std::int64_t kGaps[] = {0, 1, 2, 4, 8, 16, 67};
    constexpr std::int64_t kPaddings[] = {0, 1, 4, 12, 16};
    const std::int64_t block_size = random.of(kSizes);
    const bool hostile = seed % 8 >= 4;
    const std::int64_t blocks = random.pick(1, 5);
    const RandomCache memory(format, blocks, block_size, random.of(kGaps), random);
    const std::int64_t requests = random.pick(0, 1) == 0 ? random.pick(0, 5) : random.pick(30, 100);
    const std::int64_t columns = random.pick(hostile ? 0 : 1, 4);
    const std::int64_t stride = columns + random.pick(0, 2);
    const std::vector<std::int32_t> table = random.list(requests * stride + 1, blocks - 1, hostile);
    const std::int64_t rows = random.pick(0, 700);
    std::vector<std::int32_t> starts = random.list(requests + 1, rows, hostile);
    if (!hostile || seed % 3 == 0) std::sort(starts.begin(), starts.end());
    GatherIndexRows::Args args;
    args.cache = memory.cache;
    args.cu_seq_lens = view_of(starts.data(), {requests + 1});
    args.block_table = view_of(table.data(), {requests, columns});
    args.block_table.stride[0] = stride;
    const std::int64_t padding = random.of(kPaddings);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << format.name << " block " << block_size << " stride "
                                    << memory.cache.block_stride_bytes << " requests " << requests << " rows " << rows
                                    << " padding " << padding);
    check_index_rows({.requests = requests, .rows = rows, .format = &format}, args, padding);
  }
}

TEST_F(GatherGpu, MoreThan65535IndexRows) {
  const PagedRequests inputs(index_fp8_rows(), 64, {1, 90'000, 0, 30'000}, false, 3);
  const std::vector<std::int32_t> starts{0, 1, 90'001, 90'001, 120'001};
  GatherIndexRows::Args args;
  args.cache = inputs.cache;
  args.cu_seq_lens = view_of(starts.data(), {5});
  args.block_table = inputs.table_view();
  check_index_rows({.requests = 4, .rows = 120'005, .format = &index_fp8_rows()}, args, 0);
}

AttentionOutputs merge_on_gpu(const MergePartials::Problem& problem, const MergeCase& c, const MergeInputs& in) {
  AttentionOutputs out(c.shape());
  test::run_on_gpu<MergePartials>(problem, in.args(out), "cuda");
  return out;
}

AttentionOutputs merge_by_ref(const MergeCase& c, const MergeInputs& in) {
  AttentionOutputs out(c.shape());
  Plan<MergePartials>(c.problem(), {.implementation = "ref"}).run(in.args(out));
  return out;
}

TEST_F(MergeGpu, CasesAreRef) {
  std::vector<MergeCase> cases = attention_cases::merge_cases();
  cases.push_back({33, 2, 128});
  cases.push_back({5, 3, 7, 516, DType::kF32, 0.1, 1.0F});
  cases.push_back({2, 700, 100, 8, DType::kBF16});  // more than 65,535 rows
  cases.push_back({100, 1, 1, 2048, DType::kF32});
  for (const MergeCase& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c));
    const MergeInputs in(c);
    expect_parity(merge_by_ref(c, in), merge_on_gpu(c.problem(), c, in));
    if (HasFailure()) return;
  }
}

TEST_F(MergeGpu, StridesOfPartialsAreFree) {
  for (const std::int64_t gap : {0, 1, 4}) {
    SCOPED_TRACE(gap);
    const MergeCase c{.slices = 9, .tokens = 4, .heads = 6, .dim = 128, .o = DType::kF32, .sink = 0.5F};
    const MergeInputs in(c);
    // A token's slices together, numbers and lse with gaps of NaN.
    const std::int64_t width = c.dim + gap;
    std::vector<float> o(static_cast<std::size_t>(c.slices * c.tokens * c.heads * width),
                         std::numeric_limits<float>::quiet_NaN());
    std::vector<float> lse(static_cast<std::size_t>(c.slices * c.tokens * (c.heads + gap)),
                           std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t s = 0; s < c.slices; ++s) {
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        for (std::int64_t h = 0; h < c.heads; ++h) {
          const std::int64_t from = (s * c.tokens + t) * c.heads + h;
          lse[static_cast<std::size_t>((t * c.slices + s) * (c.heads + gap) + h)] =
              in.partial_lse[static_cast<std::size_t>(from)];
          std::copy_n(in.partial_o.begin() + from * c.dim, c.dim,
                      o.begin() + ((t * c.slices + s) * c.heads + h) * width);
        }
      }
    }
    AttentionOutputs got(c.shape());
    MergePartials::Args args = in.args(got);
    args.partial_o.data = o.data();
    args.partial_o.stride = {c.heads * width, c.slices * c.heads * width, width, 1};
    args.partial_lse.data = lse.data();
    args.partial_lse.stride = {c.heads + gap, c.slices * (c.heads + gap), 1, 0};
    test::run_on_gpu<MergePartials>(c.problem(), args, "cuda");
    expect_parity(merge_by_ref(c, in), got);
  }
}

TEST_F(MergeGpu, AbsentLseAndContiguousOutput) {
  const MergeCase c{.slices = 3, .tokens = 2, .heads = 3, .dim = 64};
  const MergeInputs in(c);
  AttentionOutputs want = merge_on_gpu(c.problem(), c, in);
  std::vector<BF16> o(static_cast<std::size_t>(c.tokens * c.heads * c.dim));
  MergePartials::Args args = in.args(want);
  args.o = view_of(o.data(), {c.tokens, c.heads, c.dim});
  args.lse = {};
  test::run_on_gpu<MergePartials>(c.problem(), args, "cuda");
  for (std::int64_t i = 0; i < c.tokens * c.heads * c.dim; ++i) {
    ASSERT_EQ(want.value(i / c.dim / c.heads, i / c.dim % c.heads, i % c.dim), to_float(o[static_cast<std::size_t>(i)]))
        << "number " << i;
  }
}

TEST_F(MergeGpu, TwentyRepeatsAreTheSameBits) {
  const MergeCase c{.slices = 41, .tokens = 3, .heads = 5, .sink = 0.2F};
  const MergeInputs in(c);
  const AttentionOutputs first = merge_on_gpu(c.problem(), c, in);
  for (int i = 0; i < 20; ++i) {
    const AttentionOutputs again = merge_on_gpu(c.problem(), c, in);
    ASSERT_EQ(first.o, again.o);
    ASSERT_EQ(0, std::memcmp(first.lse.data(), again.lse.data(), first.lse.size() * sizeof(float)));
  }
}

}  // namespace
}  // namespace smla
