// The C4A indexer on a GPU between its GEMMs, as a layer runs it: scores over every visible entry, and the exact
// selection out of them. Long because its two grids share one fixture.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <optional>

#include "bench/device_inputs.h"
#include "bench/device_timer.h"
#include "bench/inputs.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/topk.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kPage = 64;
constexpr std::int64_t kRatio = 4;
constexpr std::int64_t kSets = 4;
constexpr double kSlack = 1e-3;  // of a row's largest score: what fp8 tensor cores lose in their sums
constexpr std::int64_t kPiece = 4096;
constexpr std::array<std::int64_t, 4> kBatches{1, 8, 32, 128};
constexpr std::array<std::int64_t, 4> kLengths{2048, 8192, 32768, 262144};
constexpr std::array<std::int64_t, 2> kQueries{2048, 4096};
constexpr std::array<std::int64_t, 3> kPools{2048, 8192, 32768};

struct Cell {
  std::string name;
  std::string key;
  std::int64_t requests = 0;
  std::int64_t queries = 0;  ///< of a request
  std::int64_t entries = 0;  ///< of a request
  bool causal = false;

  std::int64_t rows() const { return requests * queries; }
  /// Entries that query i of a request sees; the last one sees all.
  std::int64_t visible(std::int64_t i) const {
    return causal ? std::clamp<std::int64_t>((entries * kRatio - queries + i + 1) / kRatio, 0, entries) : entries;
  }
};

/// Queries of a set as the rows' format wants them.
struct Queries {
  DeviceTensor q;
  DeviceTensor scale;
  DeviceTensor weights;
};

struct IndexerFixture {
  IndexerFixture(const Options& options, const Cell& cell_in, std::int64_t sets, const DeviceTimer& timer);
  static double bytes_of(const Options& options, const Cell& cell, std::int64_t sets);

  IndexerLogits::Args logits_args(std::int64_t set) const;
  void score(std::int64_t set) { logits_plan->run(logits_args(set), lent(), stream); }
  void choose() {
    topk_plan->run(
        {.logits = std::as_const(logits).view(), .lens = std::as_const(lens).view(), .indices = chosen.view()}, lent(),
        stream);
  }
  /// Scores and selection: in one launch where that is what a layer would do.
  void chain(std::int64_t set) {
    if (!joint_plan) return score(set), choose();
    const IndexerLogits::Args a = logits_args(set);
    joint_plan->run({.q = a.q,
                     .q_scale = a.q_scale,
                     .weights = a.weights,
                     .row_to_req = a.row_to_req,
                     .lens = a.lens,
                     .block_table = a.block_table,
                     .cache = a.cache,
                     .indices = chosen.view()},
                    lent(), stream);
  }
  std::string implementation() const {
    if (joint_plan) return fmt::format("indexer_topk {}", joint_plan->implementation());
    return fmt::format("indexer_logits {}, topk {}", logits_plan->implementation(), topk_plan->implementation());
  }
  Workspace lent() const { return {.data = workspace.data(), .bytes = workspace.bytes()}; }
  std::vector<float> reference(std::int64_t set, std::int64_t row) const;
  Check check(std::int64_t set, std::int64_t row) const;

  Cell cell;
  const RowFormat& rows;
  Stream stream;
  std::int64_t heads;
  std::int64_t k;
  IndexerLogits::Problem problem;
  std::optional<Plan<IndexerLogits>> logits_plan;
  std::optional<Plan<TopK>> topk_plan;
  std::optional<Plan<IndexerTopK>> joint_plan;  ///< absent where two launches are chosen, or one of the two is named
  std::int64_t columns = 0;
  DeviceCache cache;
  DeviceTensor tables;  ///< [sets * requests, columns]
  DeviceTensor row_to_req;
  DeviceTensor lens;
  std::vector<Queries> queries;
  DeviceTensor logits;
  DeviceTensor chosen;
  DeviceMemory workspace;
};

DType query_type(const RowFormat& rows) {
  switch (rows.nope) {
    case Element::kE4M3: return DType::kE4M3;
    case Element::kE2M1: return DType::kU8;
    case Element::kBF16: return DType::kBF16;
    case Element::kF32: break;
  }
  return DType::kF32;
}

double IndexerFixture::bytes_of(const Options& options, const Cell& cell, std::int64_t sets) {
  const std::int64_t blocks = cell.requests * ((cell.entries + kPage - 1) / kPage);
  const std::int64_t q = cell.rows() * options.model.index_n_heads * options.index_rows->dim * 4;
  return static_cast<double>(sets) *
             static_cast<double>(DeviceCache::bytes_of(*options.index_rows, blocks, kPage) + q) +
         static_cast<double>(cell.rows() * cell.entries * 4);
}

IndexerFixture::IndexerFixture(const Options& options, const Cell& cell_in, std::int64_t sets, const DeviceTimer& timer)
    : cell(cell_in),
      rows(*options.index_rows),
      stream(timer.stream()),
      heads(options.model.index_n_heads),
      k(options.model.index_topk) {
  problem = {.rows = cell.rows(), .heads = heads, .dim = rows.dim, .width = cell.entries, .format = &rows};
  logits_plan.emplace(problem, plan_options<IndexerLogits>(options, problem));
  const TopK::Problem selection{.rows = cell.rows(), .width = cell.entries, .k = k};
  topk_plan.emplace(selection, plan_options<TopK>(options, selection));
  if (!options.implementations.contains(IndexerLogits::kName) && !options.implementations.contains(TopK::kName)) {
    const IndexerTopK::Problem joint{
        .rows = cell.rows(), .heads = heads, .dim = rows.dim, .width = cell.entries, .k = k, .format = &rows};
    joint_plan.emplace(joint, plan_options<IndexerTopK>(options, joint));
    if (joint_plan->implementation() != IndexerTopK::kOneLaunch) joint_plan.reset();
  }
  columns = (cell.entries + kPage - 1) / kPage;
  const std::int64_t blocks = sets * cell.requests * columns;
  cache = DeviceCache(rows, blocks, kPage, 3, stream);
  const HostTensor order = random_choices(1, blocks, blocks, 4);
  tables = DeviceTensor::copy_of(DeviceKind::kCuda,
                                 ConstTensorView(order.data(), DType::kI32, {sets * cell.requests, columns}));
  HostTensor owner(DType::kI32, {cell.rows()});
  HostTensor seen(DType::kI32, {cell.rows()});
  for (std::int64_t r = 0; r < cell.rows(); ++r) {
    owner.as<std::int32_t>()[r] = static_cast<std::int32_t>(r / cell.queries);
    seen.as<std::int32_t>()[r] = static_cast<std::int32_t>(cell.visible(r % cell.queries));
  }
  row_to_req = DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(owner).view());
  lens = DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(seen).view());
  for (std::int64_t s = 0; s < sets; ++s) {
    const auto seed = static_cast<std::uint64_t>(s);
    Queries set;
    if (query_type(rows) == DType::kU8) {
      // Two e2m1 codes a byte: every byte is a pair of numbers.
      set.q = DeviceTensor(DeviceKind::kCuda, DType::kU8, {cell.rows(), heads, rows.dim / 2});
      gpu_random(TensorView(set.q.data(), DType::kE4M3, {cell.rows(), heads, rows.dim / 2}), 50 + seed, 400.0F, stream);
      set.scale = DeviceTensor(DeviceKind::kCuda, DType::kU8, {cell.rows(), heads, rows.groups()});
      fill_bytes(DeviceKind::kCuda, set.scale.data(), 127, set.scale.bytes(), stream);
    } else {
      set.q = device_numbers(query_type(rows), {cell.rows(), heads, rows.dim}, 50 + seed, 1.5F, stream);
    }
    set.weights = device_numbers(DType::kF32, {cell.rows(), heads}, 70 + seed, 1.0F, stream);
    queries.push_back(std::move(set));
  }
  logits = DeviceTensor(DeviceKind::kCuda, DType::kF32, {cell.rows(), cell.entries});
  chosen = DeviceTensor(DeviceKind::kCuda, DType::kI32, {cell.rows(), k});
  workspace = DeviceMemory(DeviceKind::kCuda,
                           std::max({logits_plan->workspace_bytes(), topk_plan->workspace_bytes(),
                                     joint_plan ? joint_plan->workspace_bytes() : 0}),
                           false);
  synchronize(DeviceKind::kCuda, stream);
}

IndexerLogits::Args IndexerFixture::logits_args(std::int64_t set) const {
  const Queries& q = queries[static_cast<std::size_t>(set)];
  // The one output among views that are only read.
  TensorView scores(logits.data(), DType::kF32, {cell.rows(), cell.entries});
  return {.q = q.q.view(),
          .q_scale = q.scale.view(),
          .weights = q.weights.view(),
          .row_to_req = row_to_req.view(),
          .lens = lens.view(),
          .block_table = tables.view().slice(0, set * cell.requests, (set + 1) * cell.requests),
          .cache = cache.cache(),
          .logits = scores};
}

/// Scores of one row by the reference, over copies of its request's rows.
std::vector<float> IndexerFixture::reference(std::int64_t set, std::int64_t row) const {
  const std::int64_t visible = cell.visible(row % cell.queries);
  DeviceTensor slots(DeviceKind::kCuda, DType::kI32, {1, cell.entries});
  const std::int64_t owner = set * cell.requests + row / cell.queries;
  gpu_make_indices(slots.view(), tables.view().slice(0, owner, owner + 1),
                   {.entries = cell.entries, .kind = IndexRule::Kind::kAll, .page = kPage}, stream);
  std::vector<PackedRows> pieces;
  for (std::int64_t at = 0; at < visible; at += kPiece) {
    pieces.push_back(pack_rows(cache.cache(), static_cast<const std::int32_t*>(slots.data()) + at,
                               std::min(kPiece, visible - at), stream));
  }
  const Queries& from = queries[static_cast<std::size_t>(set)];
  const HostTensor q = to_host(from.q.view().slice(0, row, row + 1), stream);
  const HostTensor scale =
      from.scale.absent() ? HostTensor() : to_host(from.scale.view().slice(0, row, row + 1), stream);
  const HostTensor weights = to_host(from.weights.view().slice(0, row, row + 1), stream);
  const HostTensor zero(DType::kI32, {1, 1});
  std::vector<float> out(static_cast<std::size_t>(visible));
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    try {
      const std::int64_t n = pieces[i].cache.block_size;
      HostTensor length(DType::kI32, {1});
      length.as<std::int32_t>()[0] = static_cast<std::int32_t>(n);
      IndexerLogits::Problem piece = problem;
      piece.rows = 1;
      piece.width = n;
      Plan<IndexerLogits>(piece, {.implementation = "ref"})
          .run({.q = q.view(),
                .q_scale = scale.view(),
                .weights = weights.view(),
                .row_to_req = ConstTensorView(zero.data(), DType::kI32, {1}),
                .lens = length.view(),
                .block_table = zero.view(),
                .cache = pieces[i].cache,
                .logits = TensorView(out.data() + static_cast<std::int64_t>(i) * kPiece, DType::kF32, {1, n})});
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return out;
}

Check IndexerFixture::check(std::int64_t set, std::int64_t row) const {
  const HostTensor got = to_host(chosen.view().slice(0, row, row + 1), stream);
  Check out =
      check_selection(std::span(got.as<std::int32_t>(), static_cast<std::size_t>(k)), reference(set, row), kSlack);
  if (!out.failure.empty()) out.failure = fmt::format("row {} of set {}: {}", row, set, out.failure);
  return out;
}

Row measure_cell(const Options& options, const Cell& cell, const DeviceTimer& timer) {
  const RowFormat& rows = *options.index_rows;
  const std::int64_t heads = options.model.index_n_heads;
  const std::int64_t k = options.model.index_topk;
  Row row;
  row.group = "indexer";
  row.name = cell.name;
  row.shape = fmt::format("rows {}, entries {}, heads {} x {}, k {}, {}", cell.rows(), cell.entries, heads, rows.dim, k,
                          rows.name);
  double scored = 0;
  for (std::int64_t i = 0; i < cell.queries; ++i) scored += static_cast<double>(cell.requests * cell.visible(i));
  row.flops = 2.0 * scored * static_cast<double>(heads * rows.dim);
  row.bytes = static_cast<double>(cell.requests * cell.entries * rows.row_bytes() + cell.rows() * (k * 4 + heads * 4)) +
              static_cast<double>(cell.rows() * heads * rows.dim) *
                  (rows.nope == Element::kE2M1 ? 0.5 : static_cast<double>(size_of(query_type(rows))));
  row.product_rate = rows.nope == Element::kE4M3 || rows.nope == Element::kE2M1 ? 2 : 1;
  if (&rows == &index_fp8_rows() && k == 512) row.cell = cell.key;
  const std::int64_t sets = fitting_sets(
      kSets, [&](std::int64_t n) { return IndexerFixture::bytes_of(options, cell, n); }, row);
  if (sets == 0) return row;
  std::optional<IndexerFixture> made;
  try {
    made.emplace(options, cell, sets, timer);
  } catch (const Unsupported& e) {
    row.skipped = one_line(e);
    return row;
  }
  IndexerFixture& fixture = *made;
  row.implementation = fixture.implementation();
  std::vector<std::function<void()>> chain;
  std::vector<std::function<void()>> alone;
  for (std::int64_t s = 0; s < sets; ++s) {
    alone.emplace_back([&, s] { fixture.score(s); });
    chain.emplace_back([&, s] { fixture.chain(s); });
  }
  const std::vector<GpuRecording> recordings = timer.record(chain);
  row.time = timer.time(options.measure, recordings);
  row.stages.emplace_back("logits_us", timer.time(options.measure, alone).median * 1e6);
  for (const auto& [set, token] : {std::pair<std::int64_t, std::int64_t>(0, 0), {sets - 1, cell.rows() - 1}}) {
    fill_bytes(DeviceKind::kCuda, fixture.chosen.data(), 0x7F, fixture.chosen.bytes(), timer.stream());
    fill_bytes(DeviceKind::kCuda, fixture.logits.data(), 0xFF, fixture.logits.bytes(), timer.stream());
    timer.replay(recordings[static_cast<std::size_t>(set)]);
    row.check = worse(row.check, fixture.check(set, token));
  }
  return row;
}

template <std::size_t n>
std::vector<std::int64_t> or_grid(const std::vector<std::int64_t>& given, const std::array<std::int64_t, n>& grid) {
  return given.empty() ? std::vector<std::int64_t>(grid.begin(), grid.end()) : given;
}

}  // namespace

void bench_device_indexer(const Options& options, const Emit& emit) {
  const DeviceTimer timer;
  if (options.decode && wanted(options.grids, std::string("decode"))) {
    // The grid has one and two queries a request; other numbers can be asked for.
    const std::vector<std::int64_t> next_n =
        options.next_n == std::vector<std::int64_t>{1} ? std::vector<std::int64_t>{1, 2} : options.next_n;
    for (const std::int64_t batch : or_grid(options.batches, kBatches)) {
      for (const std::int64_t n : next_n) {
        for (const std::int64_t length : or_grid(options.pools, kLengths)) {
          emit(measure_cell(options,
                            {.name = fmt::format("decode {} x {} of {}", batch, n, length),
                             .key = fmt::format("indexer/{}/{}/{}", batch, n, length),
                             .requests = batch,
                             .queries = n,
                             .entries = length},
                            timer));
        }
      }
    }
  }
  if (options.prefill && wanted(options.grids, std::string("prefill"))) {
    for (const std::int64_t queries : or_grid(options.tokens, kQueries)) {
      for (const std::int64_t pool : or_grid(options.pools, kPools)) {
        emit(measure_cell(options,
                          {.name = fmt::format("prefill {} of {}", queries, pool),
                           .key = fmt::format("indexer_prefill/{}/{}", queries, pool),
                           .requests = 1,
                           .queries = queries,
                           .entries = pool,
                           .causal = true},
                          timer));
      }
    }
  }
}

}  // namespace smla::bench
