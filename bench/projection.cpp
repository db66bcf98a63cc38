#include "sparsemla/ops/projection.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "bench/inputs.h"
#include "bench/linears.h"
#include "device/large_pages.h"

// The layer's linear maps, bf16 or FP8 weights and bf16 activations. Few rows: the weights change from call to call, so
// that they come from memory as in a decode step, where the other layers' weights have passed through the caches since.

namespace smla::bench {

std::vector<Linear> linears(const Options& options) {
  // A C4A layer has them all.
  const bool c4a = std::ranges::find(options.ratios, 4) != options.ratios.end();
  const LayerConfig c = layer_of_ratio(options, c4a ? 4 : options.ratios.at(0));
  std::vector<Linear> out{
      {.name = "wq_a", .n = c.q_lora_rank, .k = c.hidden_size},
      {.name = "wkv", .n = c.head_dim, .k = c.hidden_size},
      {.name = "wq_b", .n = c.num_heads * c.head_dim, .k = c.q_lora_rank},
      {.name = "wo_a", .n = c.o_lora_rank, .k = c.num_heads / c.o_groups * c.head_dim, .groups = c.o_groups},
      {.name = "wo_b", .n = c.hidden_size, .k = c.o_groups * c.o_lora_rank}};
  if (c.has_compressor())
    out.push_back({.name = "compressor",
                   .n = (c.has_indexer() ? 2 : 1) * c.head_dim,
                   .k = c.hidden_size,
                   .y = DType::kF32,
                   .fp8 = false});
  if (c.has_indexer()) {
    out.push_back({.name = "index wq_b", .n = c.index_n_heads * c.index_head_dim, .k = c.q_lora_rank});
    out.push_back({.name = "index weights", .n = c.index_n_heads, .k = c.hidden_size, .fp8 = false});
  }
  return out;
}

namespace {

constexpr std::int64_t kFewRows = 64;
constexpr std::int64_t kRotatedBytes = std::int64_t{192} << 20;
constexpr std::int64_t kMaxSets = 64;

Row measure_linear(const Options& options, const Linear& linear, std::int64_t m, MemoryReader& reader) {
  const Projection::Problem problem{.m = m,
                                    .n = linear.n,
                                    .k = linear.k,
                                    .groups = linear.groups,
                                    .x = DType::kBF16,
                                    .w = options.fp8_weights && linear.fp8 ? DType::kE4M3 : DType::kBF16,
                                    .y = linear.y};
  const Plan<Projection> plan(problem, plan_options<Projection>(options, problem));
  Scratch scratch(plan.workspace_bytes());
  const std::int64_t weights = linear.groups * linear.n * linear.k;
  const std::int64_t sets =
      m > kFewRows ? 1 : std::clamp<std::int64_t>(kRotatedBytes / (weights * size_of(problem.w)), 1, kMaxSets);
  HostTensor w = random_numbers(problem.w, {sets, weights}, 11, problem.w == DType::kE4M3 ? 256.0F : 0.5F);
  prefer_large_pages(w.data(), w.bytes());
  const auto blocks = [](std::int64_t n) { return (n + Projection::kWeightBlock - 1) / Projection::kWeightBlock; };
  HostTensor scales(DType::kF32, {linear.groups, blocks(linear.n), blocks(linear.k)});
  std::ranges::fill(std::span(scales.as<float>(), static_cast<std::size_t>(scales.numel())), 0x1p-9F);
  const HostTensor x = random_numbers(DType::kBF16, {m, linear.groups, linear.k}, 12, 1.0F);
  HostTensor y(linear.y, {m, linear.groups, linear.n});
  const auto run = [&](std::int64_t call) {
    const ConstTensorView set(static_cast<const char*>(w.data()) + call % sets * weights * size_of(problem.w),
                              problem.w, {linear.groups, linear.n, linear.k});
    Projection::Args args{.x = x.view(), .w = set, .y = y.view()};
    if (problem.w == DType::kE4M3) args.w_scale = scales.view();
    plan.run(args, scratch.get());
  };
  const Timing time = measure(options.measure, run, m > kFewRows ? nullptr : &reader);
  return {.group = "projection",
          .name = fmt::format("{} x {}", linear.name, m),
          .shape = fmt::format("rows {}, {} -> {}{}, {} weights", m, linear.k, linear.n,
                               linear.groups > 1 ? fmt::format(", {} groups", linear.groups) : "",
                               problem.w == DType::kE4M3 ? "fp8" : "bf16"),
          .implementation = std::string(plan.implementation()),
          .time = time,
          .flops = 2.0 * static_cast<double>(weights) * static_cast<double>(m),
          .bytes = static_cast<double>(weights * size_of(problem.w)) + static_cast<double>(x.bytes() + y.bytes()),
          .bf16 = true,
          .stages = {}};
}

}  // namespace

void bench_projection(const Options& options, const Emit& emit) {
  std::vector<std::int64_t> rows = decode_rows(options);
  const std::vector<std::int64_t> prefill = prefill_rows(options);
  rows.insert(rows.end(), prefill.begin(), prefill.end());
  MemoryReader reader(options.threads);
  for (const std::int64_t m : rows) {
    for (const Linear& linear : linears(options)) emit(measure_linear(options, linear, m, reader));
  }
}

}  // namespace smla::bench
