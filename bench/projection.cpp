#include "sparsemla/ops/projection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "bench/inputs.h"
#include "bench/linears.h"
#include "core/codecs.h"
#include "device/large_pages.h"

// The layer's linear maps, bf16, FP8 or NVFP4 weights and bf16 activations. Few rows: the weights change from call to
// call, so that they come from memory as in a decode step, where the other layers' weights have passed through the
// caches since.

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

HostTensor nvfp4_scales(std::int64_t groups, std::int64_t n, std::int64_t k) {
  HostTensor out(DType::kE4M3, {groups, n, k / Projection::kNvfp4Group});
  for (std::int64_t i = 0; i < out.numel(); ++i)
    out.as<E4M3>()[i] = to_e4m3(std::ldexp(1.0F, -6 - static_cast<int>(i % 3)));
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
                                    .w = weight_dtype(options, linear),
                                    .y = linear.y};
  const Plan<Projection> plan(problem, plan_options<Projection>(options, problem));
  Scratch scratch(plan.workspace_bytes());
  const std::int64_t weights = linear.groups * linear.n * linear.k;
  const bool nvfp4 = problem.w == Projection::kNvfp4;
  const std::int64_t k = linear.k / (nvfp4 ? 2 : 1);  // elements of a row of w
  const std::int64_t bytes = linear.groups * linear.n * k * size_of(problem.w);
  const std::int64_t sets = m > kFewRows ? 1 : std::clamp<std::int64_t>(kRotatedBytes / bytes, 1, kMaxSets);
  HostTensor w =
      random_numbers(problem.w, {sets, linear.groups * linear.n * k}, 11, problem.w == DType::kE4M3 ? 256.0F : 0.5F);
  prefer_large_pages(w.data(), w.bytes());
  const auto blocks = [](std::int64_t n) { return (n + Projection::kWeightBlock - 1) / Projection::kWeightBlock; };
  HostTensor scales(DType::kF32, {linear.groups, blocks(linear.n), blocks(linear.k)});
  std::ranges::fill(std::span(scales.as<float>(), static_cast<std::size_t>(scales.numel())), 0x1p-9F);
  // Scales change with the weights: an eighth of their bytes.
  std::vector<HostTensor> group_scales;
  for (std::int64_t s = 0; nvfp4 && s < sets; ++s)
    group_scales.push_back(nvfp4_scales(linear.groups, linear.n, linear.k));
  HostTensor global(DType::kF32, {1});
  global.as<float>()[0] = 0.75F;
  const HostTensor x = random_numbers(DType::kBF16, {m, linear.groups, linear.k}, 12, 1.0F);
  HostTensor y(linear.y, {m, linear.groups, linear.n});
  const auto run = [&](std::int64_t call) {
    const ConstTensorView set(static_cast<const char*>(w.data()) + call % sets * bytes, problem.w,
                              {linear.groups, linear.n, k});
    Projection::Args args{.x = x.view(), .w = set, .y = y.view()};
    if (problem.w == DType::kE4M3) args.w_scale = scales.view();
    if (nvfp4) {
      args.w_scale = std::as_const(group_scales[static_cast<std::size_t>(call % sets)]).view();
      args.w_global_scale = std::as_const(global).view();
    }
    plan.run(args, scratch.get());
  };
  const Timing time = measure(options.measure, run, m > kFewRows ? nullptr : &reader);
  return {.group = "projection",
          .name = fmt::format("{} x {}", linear.name, m),
          .shape = fmt::format("rows {}, {} -> {}{}, {} weights", m, linear.k, linear.n,
                               linear.groups > 1 ? fmt::format(", {} groups", linear.groups) : "",
                               nvfp4 ? "nvfp4" : (problem.w == DType::kE4M3 ? "fp8" : "bf16")),
          .implementation = std::string(plan.implementation()),
          .time = time,
          .flops = 2.0 * static_cast<double>(weights) * static_cast<double>(m),
          .bytes = static_cast<double>(bytes) + (nvfp4 ? static_cast<double>(group_scales[0].bytes()) : 0.0) +
                   static_cast<double>(x.bytes() + y.bytes()),
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
