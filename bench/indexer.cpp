#include "sparsemla/ops/indexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/inputs.h"
#include "sparsemla/ops/topk.h"

// The C4A indexer between its GEMMs: scores over every entry of a context, and the exact selection out of them.

namespace smla::bench {

namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kRatio = 4;
constexpr std::int64_t kSets = 4;

/// Rows of a step, and whether they are requests of their own or tokens of one.
struct Step {
  std::int64_t rows = 0;
  bool decode = false;
};

std::vector<Step> steps(const Options& options) {
  std::vector<Step> out;
  for (const std::int64_t b : decode_rows(options)) out.push_back({.rows = b, .decode = true});
  for (const std::int64_t t : prefill_rows(options)) out.push_back({.rows = t, .decode = false});
  return out;
}

HostTensor constant(std::int64_t n, std::int64_t value) {
  HostTensor out(DType::kI32, {n});
  std::fill_n(out.as<std::int32_t>(), n, static_cast<std::int32_t>(value));
  return out;
}

Row measure_logits(const Options& options, const Step& step, std::int64_t entries) {
  const RowFormat& rows = *options.index_rows;
  const std::int64_t heads = options.model.index_n_heads;
  const IndexerLogits::Problem problem{
      .rows = step.rows, .heads = heads, .dim = rows.dim, .width = entries, .format = &rows};
  const Plan<IndexerLogits> plan(problem, plan_options<IndexerLogits>(options, problem));
  Scratch scratch(plan.workspace_bytes());

  const std::int64_t requests = step.decode ? step.rows : 1;
  const std::int64_t columns = (entries + kBlock - 1) / kBlock;
  const OwnedCache cache = random_cache(rows, std::max<std::int64_t>(requests * columns, 1), kBlock, 3);
  const HostTensor table = random_choices(1, requests * columns, requests * columns, 4);
  const ConstTensorView table_view(table.data(), DType::kI32, {requests, columns});
  HostTensor row_to_req(DType::kI32, {step.rows});
  for (std::int64_t r = 0; step.decode && r < step.rows; ++r)
    row_to_req.as<std::int32_t>()[r] = static_cast<std::int32_t>(r);
  const HostTensor lens = constant(step.rows, entries);
  const HostTensor weights = random_numbers(DType::kF32, {step.rows, heads}, 5, 1.0F);
  const bool packed = rows.nope == Element::kE2M1;
  const bool e4m3 = rows.nope == Element::kE4M3;
  std::vector<HostTensor> q;
  for (std::int64_t s = 0; s < kSets; ++s) {
    const HostTensor numbers = random_numbers(e4m3 ? DType::kE4M3 : DType::kF32, {step.rows, heads, rows.dim},
                                              static_cast<std::uint64_t>(s), 1.5F);
    q.push_back(packed ? HostTensor(DType::kU8, {step.rows, heads, rows.dim / 2}) : numbers.clone());
    if (packed)
      std::copy_n(static_cast<const std::uint8_t*>(numbers.data()), q.back().bytes(), q.back().as<std::uint8_t>());
  }
  HostTensor q_scale;
  if (packed) {
    q_scale = HostTensor(DType::kU8, {step.rows, heads, rows.groups()});
    std::fill_n(q_scale.as<std::uint8_t>(), q_scale.numel(), std::uint8_t{127});
  }
  HostTensor logits(DType::kF32, {step.rows, entries});
  const Timing time = measure(options.measure, [&](std::int64_t call) {
    plan.run({.q = q[static_cast<std::size_t>(call % kSets)].view(),
              .q_scale = q_scale.view(),
              .weights = weights.view(),
              .row_to_req = row_to_req.view(),
              .lens = lens.view(),
              .block_table = table_view,
              .cache = cache.cache,
              .logits = logits.view()},
             scratch.get());
  });
  return {.group = "indexer",
          .name = fmt::format("logits {} x {}", step.rows, entries),
          .shape = fmt::format("{} {}, entries {}, heads {} x {}, {}", step.decode ? "requests" : "tokens", step.rows,
                               entries, heads, rows.dim, rows.name),
          .implementation = std::string(plan.implementation()),
          .time = time,
          .flops = 2.0 * static_cast<double>(step.rows * entries * heads * rows.dim),
          .bytes = static_cast<double>(requests * entries * rows.row_bytes()) +
                   static_cast<double>(q[0].bytes() + logits.bytes()),
          .bf16 = false,
          .stages = {}};
}

Row measure_topk(const Options& options, const Step& step, std::int64_t entries) {
  const TopK::Problem problem{.rows = step.rows, .width = entries, .k = options.model.index_topk};
  const Plan<TopK> plan(problem, plan_options<TopK>(options, problem));
  Scratch scratch(plan.workspace_bytes());
  std::vector<HostTensor> logits;
  for (std::int64_t s = 0; s < kSets; ++s)
    logits.push_back(random_numbers(DType::kF32, {step.rows, entries}, static_cast<std::uint64_t>(s), 3.0F));
  const HostTensor lens = constant(step.rows, entries);
  HostTensor indices(DType::kI32, {step.rows, problem.k});
  const Timing time = measure(options.measure, [&](std::int64_t call) {
    plan.run({.logits = logits[static_cast<std::size_t>(call % kSets)].view(),
              .lens = lens.view(),
              .indices = indices.view()},
             scratch.get());
  });
  return {.group = "topk",
          .name = fmt::format("top {} of {} x {}", problem.k, step.rows, entries),
          .shape = fmt::format("rows {}, entries {}, k {}", step.rows, entries, problem.k),
          .implementation = std::string(plan.implementation()),
          .time = time,
          .flops = 0,
          .bytes = static_cast<double>(logits[0].bytes() + indices.bytes()),
          .bf16 = false,
          .stages = {}};
}

}  // namespace

void bench_indexer(const Options& options, const Emit& emit) {
  for (const std::int64_t context : options.contexts) {
    for (const Step& step : steps(options))
      emit(measure_logits(options, step, std::max<std::int64_t>(context / kRatio, 1)));
  }
}

void bench_topk(const Options& options, const Emit& emit) {
  for (const std::int64_t context : options.contexts) {
    for (const Step& step : steps(options))
      emit(measure_topk(options, step, std::max<std::int64_t>(context / kRatio, 1)));
  }
}

}  // namespace smla::bench
