#include "sparsemla/ops/attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/inputs.h"

// Sparse attention as a layer calls it: a window of 128 rows in one cache, the other keys anywhere in a second one.

namespace smla::bench {

namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kWindow = 128;
constexpr std::int64_t kSets = 4;  // calls take queries and indices in turn

struct Caches {
  OwnedCache window;
  OwnedCache entries;
};

Row measure_attention(const Options& options, const Caches& caches, std::int64_t tokens, std::int64_t heads,
                      std::int64_t keys) {
  const RowFormat& rows = *options.rows;
  const std::int64_t window = std::min(keys, kWindow);
  const bool per_tensor = rows.scale == ScaleKind::kPerTensor;
  SparseAttention::Problem problem{.tokens = tokens,
                                   .heads = heads,
                                   .dim = rows.dim,
                                   .q = per_tensor ? DType::kE4M3 : DType::kBF16,
                                   .scopes = keys > window ? 2 : 1};
  problem.scope[0] = {.format = &rows, .block_size = kBlock, .width = window};
  if (keys > window) problem.scope[1] = {.format = &rows, .block_size = kBlock, .width = keys - window};
  const Plan<SparseAttention> plan(problem, plan_options<SparseAttention>(options, problem));
  Scratch scratch(plan.workspace_bytes());

  struct Set {
    HostTensor q, window, entries;
  };
  std::vector<Set> sets;
  for (std::int64_t s = 0; s < kSets; ++s) {
    const auto seed = static_cast<std::uint64_t>(s);
    sets.push_back({.q = random_numbers(problem.q, {tokens, heads, rows.dim}, seed, 1.5F),
                    .window = random_choices(tokens, window, caches.window.cache.num_slots(), 100 + seed),
                    .entries = random_choices(tokens, keys - window, caches.entries.cache.num_slots(), 200 + seed)});
  }
  const HostTensor sink = random_numbers(DType::kF32, {heads}, 7, 1.0F);
  HostTensor o(DType::kBF16, {tokens, heads, rows.dim});
  const Timing time = measure(options.measure, [&](std::int64_t call) {
    const Set& set = sets[static_cast<std::size_t>(call % kSets)];
    SparseAttention::Args args{.q = set.q.view(), .scopes = {}, .sink = sink.view(), .o = o.view(), .lse = {}};
    args.scopes[0] = {.cache = caches.window.cache, .indices = set.window.view(), .lens = {}};
    if (problem.scopes == 2)
      args.scopes[1] = {.cache = caches.entries.cache, .indices = set.entries.view(), .lens = {}};
    plan.run(args, scratch.get());
  });
  // A row that several queries name has to come from memory once.
  const std::int64_t read = std::min(tokens * window, caches.window.cache.num_slots()) +
                            std::min(tokens * (keys - window), caches.entries.cache.num_slots());
  return {.group = "attention",
          .name = fmt::format("{} tokens", tokens),
          .shape = fmt::format("tokens {}, heads {}, keys {}, {}", tokens, heads, keys, rows.name),
          .implementation = std::string(plan.implementation()),
          .time = time,
          .flops = 4.0 * static_cast<double>(tokens * heads * keys * rows.dim),
          .bytes = static_cast<double>(read * rows.row_bytes()) + static_cast<double>(sets[0].q.bytes() + o.bytes()),
          .bf16 = false,
          .stages = {}};
}

}  // namespace

void bench_attention(const Options& options, const Emit& emit) {
  const std::int64_t most = *std::ranges::max_element(options.keys);
  const std::int64_t pool = std::max<std::int64_t>((most + kBlock - 1) / kBlock, 256);
  const Caches caches{.window = random_cache(*options.rows, 64, kBlock, 1),
                      .entries = random_cache(*options.rows, pool, kBlock, 2)};
  std::vector<std::int64_t> tokens = decode_rows(options);
  const std::vector<std::int64_t> prefill = prefill_rows(options);
  tokens.insert(tokens.end(), prefill.begin(), prefill.end());
  const std::int64_t heads = options.heads > 0 ? options.heads : options.model.num_heads;
  for (const std::int64_t keys : options.keys) {
    for (const std::int64_t t : tokens) emit(measure_attention(options, caches, t, heads, keys));
  }
}

}  // namespace smla::bench
