// The Walsh-Hadamard transform belongs on both sides of the index scores or on neither (spec 4.1); with one side only,
// recall was lost upstream.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/host_tensor.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/indexer.h"

namespace smla {
namespace {

constexpr std::int64_t kTokens = 64, kEntries = kTokens / 4, kHeads = 8, kBlock = 4;

HostTensor normal(DType dtype, std::vector<std::int64_t> shape, unsigned seed) {
  HostTensor out(dtype, std::move(shape));
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    if (dtype == DType::kF32) {
      out.as<float>()[i] = values(random);
    } else {
      out.as<BF16>()[i] = to_bf16(values(random));
    }
  }
  return out;
}

HostTensor ascending(std::int64_t count) {
  HostTensor out(DType::kI64, {count});
  for (std::int64_t i = 0; i < count; ++i) out.as<std::int64_t>()[i] = i;
  return out;
}

struct Pages {
  std::vector<std::uint8_t> bytes;
  PagedCache cache;
  Pages(const RowFormat& format, std::int64_t rows) {
    const std::int64_t stride = page_bytes(format, kBlock);
    bytes.assign(static_cast<std::size_t>(rows / kBlock * stride), 0);
    cache = {.format = &format,
             .base = bytes.data(),
             .num_blocks = rows / kBlock,
             .block_size = kBlock,
             .block_stride_bytes = stride};
  }
};

/// The scores of one token over all entries, keys and queries through the compressor and the indexer.
std::vector<double> scores(const RowFormat& format, bool rotate_keys, bool rotate_queries) {
  const HostTensor positions = ascending(kTokens);
  const HostTensor kv_score = normal(DType::kF32, {kTokens, 512}, 1);
  const HostTensor ape = normal(DType::kF32, {4, 256}, 2);
  HostTensor norm(DType::kF32, {128});
  HostTensor cos_sin(DType::kF32, {kTokens, 64});
  for (std::int64_t i = 0; i < 128; ++i) norm.as<float>()[i] = 1.0F;
  for (std::int64_t i = 0; i < cos_sin.numel(); ++i) {
    const std::int64_t turns = i / 64 * (i % 32);
    const float angle = 0.1F * static_cast<float>(turns);
    cos_sin.as<float>()[i] = i % 64 < 32 ? std::cos(angle) : std::sin(angle);
  }
  std::vector<std::int32_t> table(kTokens / kBlock);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  const ConstTensorView blocks = view_of(std::as_const(table).data(), {1, kTokens / kBlock});
  Pages states(state_rows(128, 2), kTokens);
  Pages entries(format, kEntries);
  Plan<SaveState>({.tokens = kTokens, .ratio = 4, .dim = 128})
      .run({.kv_score = kv_score.view(),
            .ape = ape.view(),
            .positions = positions.view(),
            .state_slots = positions.view(),
            .state = states.cache});
  HostTensor entry_slots(DType::kI64, {kTokens});
  for (std::int64_t t = 0; t < kTokens; ++t) entry_slots.as<std::int64_t>()[t] = t % 4 == 3 ? t / 4 : -1;
  const HostTensor requests(DType::kI32, {kTokens});
  Plan<CompressStore>({.tokens = kTokens,
                       .ratio = 4,
                       .rope_dim = 64,
                       .compressor = {{{.dim = 128, .format = &format, .hadamard = rotate_keys}}}})
      .run({.positions = positions.view(),
            .token_to_req = requests.view(),
            .entry_slots = std::as_const(entry_slots).view(),
            .cos_sin = std::as_const(cos_sin).view(),
            .compressors = {{{.state_slots = positions.view(),
                              .block_table = blocks,
                              .norm_weight = std::as_const(norm).view(),
                              .state = states.cache,
                              .entries = entries.cache}}}});

  const bool fp4 = format.nope == Element::kE2M1;
  const bool floats = format.nope == Element::kF32;
  const DType in = floats ? DType::kF32 : DType::kBF16;
  const HostTensor q = normal(in, {1, kHeads, 128}, 3);
  const HostTensor weights = normal(in, {1, kHeads}, 4);
  const HostTensor position = ascending(1);
  HostTensor q_out(floats ? DType::kF32 : fp4 ? DType::kU8 : DType::kE4M3, {1, kHeads, fp4 ? 64 : 128});
  HostTensor q_scale(DType::kU8, {1, kHeads, 4});
  HostTensor w_out(DType::kF32, {1, kHeads});
  IndexerQ::Args args{.q = q.view(),
                      .weights = weights.view(),
                      .positions = position.view(),
                      .cos_sin = std::as_const(cos_sin).view(),
                      .q_out = q_out.view()};
  if (fp4) args.q_scale = q_scale.view();
  args.weights_out = w_out.view();
  Plan<IndexerQ>({.tokens = 1, .heads = kHeads, .in = in, .format = &format, .hadamard = rotate_queries}).run(args);
  HostTensor logits(DType::kF32, {1, kEntries});
  const std::vector<std::int32_t> zero{0};
  const std::vector<std::int32_t> lens{static_cast<std::int32_t>(kEntries)};
  IndexerLogits::Args logit_args{.q = std::as_const(q_out).view(), .weights = std::as_const(w_out).view()};
  if (fp4) logit_args.q_scale = std::as_const(q_scale).view();
  logit_args.row_to_req = view_of(zero.data(), {1});
  logit_args.lens = view_of(lens.data(), {1});
  logit_args.block_table = blocks;
  logit_args.cache = entries.cache;
  logit_args.logits = logits.view();
  const Plan<IndexerLogits> plan({.rows = 1, .heads = kHeads, .dim = 128, .width = kEntries, .format = &format});
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  plan.run(logit_args, {.data = workspace.data(), .bytes = workspace.bytes()});
  return {logits.as<float>(), logits.as<float>() + kEntries};
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double off = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(off / size);
}

TEST(Hadamard, OnBothSidesLeavesTheScoresAsTheyAre) {
  const std::vector<double> plain = scores(index_f32_rows(), false, false);
  EXPECT_LT(distance(scores(index_f32_rows(), true, true), plain), 1e-5);
  for (const auto& [format, bound] : {std::pair{&index_fp8_rows(), 0.06}, std::pair{&index_mxfp4_rows(), 0.3}}) {
    EXPECT_LT(distance(scores(*format, false, false), plain), bound) << format->name;
    EXPECT_LT(distance(scores(*format, true, true), plain), bound) << format->name;
  }
}

TEST(Hadamard, OnOneSideOnlyGivesOtherScores) {
  for (const RowFormat* format : {&index_f32_rows(), &index_fp8_rows(), &index_mxfp4_rows()}) {
    const std::vector<double> plain = scores(*format, false, false);
    EXPECT_GT(distance(scores(*format, true, false), plain), 0.5) << format->name;
    EXPECT_GT(distance(scores(*format, false, true), plain), 0.5) << format->name;
  }
}

}  // namespace
}  // namespace smla
