// Sparse attention on a GPU as a layer calls it: the last 128 positions of each query in pages of 64, and entries of
// its request in a second cache. Each cell has several sets of queries, pages and indices, and no replay finds anything
// of the one before. Long because its two grids share one fixture.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>

#include "bench/device_inputs.h"
#include "bench/device_timer.h"
#include "bench/inputs.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/attention.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kWindow = 128;
constexpr std::int64_t kPage = 64;
constexpr std::int64_t kSets = 4;
constexpr double kBound = 4e-3;  // relative error that bf16 weights and outputs allow, with room
constexpr std::int64_t kProTopK = 1024;
constexpr std::int64_t kManyHeads = 64;

/// What a query attends to beside its window, by layer and context.
struct DecodeLayer {
  std::string_view name;
  std::int64_t keys = 0;     ///< in all; 0: the window and the model's top-k
  std::int64_t entries = 0;  ///< of a request
  std::int64_t page = kPage;
};
constexpr std::array<DecodeLayer, 6> kDecodeLayers{{{.name = "swa", .keys = 128},
                                                    {.name = "c4a_32k", .entries = 8192},
                                                    {.name = "c128_8k", .keys = 192, .entries = 64, .page = 2},
                                                    {.name = "c128_32k", .keys = 384, .entries = 256, .page = 2},
                                                    {.name = "c128_128k", .keys = 1152, .entries = 1024, .page = 2},
                                                    {.name = "c128_1M", .keys = 8320, .entries = 8192, .page = 2}}};
constexpr std::array<std::int64_t, 2> kHeads{64, 128};
constexpr std::array<std::int64_t, 9> kDecodeBatches{1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr std::array<std::int64_t, 2> kPrefillPools{8192, 32768};
constexpr std::array<std::int64_t, 3> kPrefillKeys{640, 1152, 2048};
constexpr std::array<std::int64_t, 4> kPrefillTokens{512, 2048, 4096, 8192};

struct Cell {
  std::string name;  ///< for people
  std::string key;   ///< where peers have it
  std::int64_t heads = 0;
  std::int64_t requests = 0;
  std::int64_t queries = 0;  ///< of a request
  std::int64_t named = 0;    ///< entries that a query names beside its window
  std::int64_t entries = 0;  ///< of a request
  std::int64_t page = kPage;
  bool random = false;

  std::int64_t tokens() const { return requests * queries; }
  std::int64_t keys() const { return kWindow + named; }
};

/// Rows of one kind in a paged cache, for all sets, and who owns which blocks.
struct Pool {
  Pool(const RowFormat& format, std::int64_t sets, std::int64_t requests_in, std::int64_t entries_in,
       std::int64_t page_in, std::uint64_t seed, Stream stream)
      : requests(requests_in),
        entries(entries_in),
        columns((entries + page_in - 1) / page_in),
        cache(format, sets * requests * columns, page_in, seed, stream),
        tables(DeviceTensor::copy_of(DeviceKind::kCuda, shuffled_tables(sets, seed).view())) {}
  /// Blocks of a set's requests: [requests, columns].
  ConstTensorView tables_of(std::int64_t set) const {
    return std::as_const(tables).view().slice(0, set * requests, (set + 1) * requests);
  }

  std::int64_t requests;
  std::int64_t entries;
  std::int64_t columns;
  DeviceCache cache;
  DeviceTensor tables;

 private:
  HostTensor shuffled_tables(std::int64_t sets, std::uint64_t seed) const {
    const std::int64_t rows = sets * requests;
    const HostTensor order = random_choices(1, rows * columns, rows * columns, seed);
    HostTensor out(DType::kI32, {rows, columns});
    std::copy_n(order.as<std::int32_t>(), order.numel(), out.as<std::int32_t>());
    return out;
  }
};

/// A cell's problem, its sets of inputs, and what runs over them.
class AttentionFixture {
 public:
  AttentionFixture(const Options& options, const Cell& cell, std::int64_t sets, const DeviceTimer& timer);

  std::vector<std::function<void()>> calls();
  std::string_view implementation() const { return plan_->implementation(); }
  /// Poisons the output, lets `replay` run set `set`, and compares some of its tokens with the reference.
  Check check(std::int64_t set, std::span<const std::int64_t> tokens, const std::function<void()>& replay);

  static double bytes_of(const Options& options, const Cell& cell, std::int64_t sets);

 private:
  SparseAttention::Args args_of(std::int64_t set);
  HostTensor reference(std::int64_t set, std::int64_t token) const;

  Cell cell_;
  const RowFormat& rows_;
  Stream stream_;
  SparseAttention::Problem problem_;
  std::optional<Plan<SparseAttention>> plan_;
  std::optional<Pool> window_;
  std::optional<Pool> pool_;
  std::vector<DeviceTensor> q_;
  std::vector<DeviceTensor> window_slots_;
  std::vector<DeviceTensor> pool_slots_;
  DeviceTensor window_lens_;
  DeviceTensor pool_lens_;
  HostTensor host_sink_;
  DeviceTensor sink_;
  DeviceTensor o_;
  DeviceMemory workspace_;
};

DType query_type(const RowFormat& rows) { return rows.scale == ScaleKind::kPerTensor ? DType::kE4M3 : DType::kBF16; }

/// Positions that a request's queries look back on, wherever in a page they begin.
std::int64_t window_span(const Cell& cell) { return kPage - 1 + cell.queries - 1 + kWindow; }

double AttentionFixture::bytes_of(const Options& options, const Cell& cell, std::int64_t sets) {
  const auto blocks = [](std::int64_t n, std::int64_t page) { return (n + page - 1) / page; };
  const std::int64_t caches =
      DeviceCache::bytes_of(*options.rows, cell.requests * blocks(window_span(cell), kPage), kPage) +
      DeviceCache::bytes_of(*options.rows, cell.requests * blocks(cell.entries, cell.page), cell.page);
  const std::int64_t numbers = cell.tokens() * cell.heads * options.rows->dim;
  return static_cast<double>(sets) * static_cast<double>(caches + numbers * 2 + cell.tokens() * cell.keys() * 4) +
         static_cast<double>(numbers * 2);
}

AttentionFixture::AttentionFixture(const Options& options, const Cell& cell, std::int64_t sets,
                                   const DeviceTimer& timer)
    : cell_(cell), rows_(*options.rows), stream_(timer.stream()) {
  problem_ = {.tokens = cell.tokens(),
              .heads = cell.heads,
              .dim = rows_.dim,
              .q = query_type(rows_),
              .scopes = cell.named > 0 ? 2 : 1};
  problem_.scope[0] = {.format = &rows_, .block_size = kPage, .width = kWindow};
  if (cell.named > 0) problem_.scope[1] = {.format = &rows_, .block_size = cell.page, .width = cell.named};
  plan_.emplace(problem_, plan_options<SparseAttention>(options, problem_));
  window_.emplace(rows_, sets, cell.requests, window_span(cell), kPage, 1, stream_);
  if (cell.named > 0) pool_.emplace(rows_, sets, cell.requests, cell.entries, cell.page, 2, stream_);
  for (std::int64_t s = 0; s < sets; ++s) {
    const auto seed = static_cast<std::uint64_t>(s);
    q_.push_back(device_numbers(problem_.q, {cell.tokens(), cell.heads, rows_.dim}, 100 + seed, 1.5F, stream_));
    window_slots_.emplace_back(DeviceKind::kCuda, DType::kI32, std::vector<std::int64_t>{cell.tokens(), kWindow});
    IndexRule rule{.queries_of_request = cell.queries,
                   .entries = window_->entries,
                   .kind = IndexRule::Kind::kSliding,
                   .seed = 200 + seed};
    rule.first_below = rule.page = kPage;
    gpu_make_indices(window_slots_.back().view(), window_->tables_of(s), rule, stream_);
    if (cell.named == 0) continue;
    pool_slots_.emplace_back(DeviceKind::kCuda, DType::kI32, std::vector<std::int64_t>{cell.tokens(), cell.named});
    rule = {.queries_of_request = cell.queries,
            .entries = cell.entries,
            .kind = cell.random ? IndexRule::Kind::kRandom : IndexRule::Kind::kAll,
            .seed = 300 + seed,
            .page = cell.page};
    gpu_make_indices(pool_slots_.back().view(), pool_->tables_of(s), rule, stream_);
  }
  window_lens_ = device_constant(cell.tokens(), kWindow);
  pool_lens_ = device_constant(cell.tokens(), cell.named);
  host_sink_ = random_numbers(DType::kF32, {cell.heads}, 7, 1.0F);
  sink_ = DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(host_sink_).view());
  o_ = DeviceTensor(DeviceKind::kCuda, DType::kBF16, {cell.tokens(), cell.heads, rows_.dim});
  workspace_ = DeviceMemory(DeviceKind::kCuda, plan_->workspace_bytes(), false);
  synchronize(DeviceKind::kCuda, stream_);
}

SparseAttention::Args AttentionFixture::args_of(std::int64_t set) {
  const auto s = static_cast<std::size_t>(set);
  SparseAttention::Args args{.q = q_[s].view(), .scopes = {}, .sink = sink_.view(), .o = o_.view(), .lse = {}};
  args.scopes[0] = {.cache = window_->cache.cache(), .indices = window_slots_[s].view(), .lens = window_lens_.view()};
  if (problem_.scopes == 2)
    args.scopes[1] = {.cache = pool_->cache.cache(), .indices = pool_slots_[s].view(), .lens = pool_lens_.view()};
  return args;
}

std::vector<std::function<void()>> AttentionFixture::calls() {
  std::vector<std::function<void()>> out;
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(q_.size()); ++s) {
    out.emplace_back([this, args = args_of(s)] {
      plan_->run(args, {.data = workspace_.data(), .bytes = workspace_.bytes()}, stream_);
    });
  }
  return out;
}

/// One token's outputs by the reference, [heads, dim], from copies of the very rows that the token names.
HostTensor AttentionFixture::reference(std::int64_t set, std::int64_t token) const {
  const auto s = static_cast<std::size_t>(set);
  const auto rows_of = [&](const Pool& pool, const DeviceTensor& slots, std::int64_t width) {
    return pack_rows(pool.cache.cache(), static_cast<const std::int32_t*>(slots.data()) + token * width, width,
                     stream_);
  };
  std::vector<PackedRows> packed;
  packed.push_back(rows_of(*window_, window_slots_[s], kWindow));
  if (cell_.named > 0) packed.push_back(rows_of(*pool_, pool_slots_[s], cell_.named));
  const HostTensor q = to_host(q_[s].view().slice(0, token, token + 1), stream_);
  HostTensor o(DType::kBF16, {1, cell_.heads, rows_.dim});
  HostTensor order(DType::kI32, {1, std::max(kWindow, cell_.named)});
  for (std::int64_t i = 0; i < order.numel(); ++i) order.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);

  SparseAttention::Problem problem = problem_;
  problem.tokens = 1;
  SparseAttention::Args args{.q = q.view(), .scopes = {}, .sink = host_sink_.view(), .o = o.view(), .lse = {}};
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const std::int64_t width = packed[i].cache.block_size;
    problem.scope[i].block_size = width;
    args.scopes[i] = {.cache = packed[i].cache, .indices = std::as_const(order).view().slice(1, 0, width), .lens = {}};
  }
  // Heads by themselves: the reference has one thread.
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t h = 0; h < cell_.heads; h += 4) {
    try {
      const std::int64_t end = std::min(cell_.heads, h + 4);
      SparseAttention::Problem slice = problem;
      slice.heads = end - h;
      SparseAttention::Args part = args;
      part.q = args.q.slice(1, h, end);
      part.sink = args.sink.slice(0, h, end);
      part.o = args.o.slice(1, h, end);
      Plan<SparseAttention>(slice, {.implementation = "ref"}).run(part);
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return o;
}

Check AttentionFixture::check(std::int64_t set, std::span<const std::int64_t> tokens,
                              const std::function<void()>& replay) {
  fill_bytes(DeviceKind::kCuda, o_.data(), 0xFF, o_.bytes(), stream_);
  replay();
  Check out{.done = true, .l2 = 0, .failure = ""};
  if (const std::int64_t bad = gpu_count_nan(std::as_const(o_).view(), stream_); bad > 0) {
    out.failure = fmt::format("{} outputs of set {} are NaN or were not written", bad, set);
  }
  for (const std::int64_t token : tokens) {
    Check one = check_result(to_host(std::as_const(o_).view().slice(0, token, token + 1), stream_),
                             reference(set, token), kBound);
    if (!one.failure.empty())
      one.failure = fmt::format("token {} of set {}: {} (l2 {:.2e})", token, set, one.failure, one.l2);
    out = worse(out, one);
  }
  return out;
}

Row describe(const Options& options, const Cell& cell) {
  const RowFormat& rows = *options.rows;
  const std::int64_t tokens = cell.tokens();
  // Rows that several queries name have to come from memory once.
  const std::int64_t window = cell.requests * std::min(cell.queries * kWindow, cell.queries - 1 + kWindow);
  const std::int64_t entries =
      cell.requests * std::min(cell.entries, cell.random ? cell.queries * cell.named : cell.named);
  const double numbers = static_cast<double>(tokens * cell.heads * rows.dim);
  Row row;
  row.group = "attention";
  row.name = cell.name;
  row.shape = fmt::format("tokens {}, heads {}, keys {}, {}", tokens, cell.heads, cell.keys(), rows.name);
  row.flops = 4.0 * numbers * static_cast<double>(cell.keys());
  row.bytes = static_cast<double>((window + entries) * rows.row_bytes()) +
              numbers * static_cast<double>(size_of(query_type(rows)) + size_of(DType::kBF16));
  row.bf16 = true;
  row.traffic = Traffic::kGather;
  if (&rows == &fp8_ds_mla_rows() && !cell.key.empty()) row.cell = cell.key;
  return row;
}

Row measure_cell(const Options& options, const Cell& cell, const DeviceTimer& timer) {
  Row row = describe(options, cell);
  const std::int64_t sets = fitting_sets(
      kSets, [&](std::int64_t n) { return AttentionFixture::bytes_of(options, cell, n); }, row);
  if (sets == 0) return row;
  std::optional<AttentionFixture> made;
  try {
    made.emplace(options, cell, sets, timer);
  } catch (const Unsupported& e) {
    row.skipped = one_line(e);
    return row;
  }
  AttentionFixture& fixture = *made;
  row.implementation = fixture.implementation();
  const std::vector<std::function<void()>> calls = fixture.calls();
  const std::vector<GpuRecording> recordings = timer.record(calls);
  row.time = timer.time(options.measure, recordings);
  // After the timing, so that what was timed is what is checked: the first and the last token of the first set, the
  // middle one of the last.
  const auto replay = [&](std::int64_t set) {
    return [&, set] { timer.replay(recordings[static_cast<std::size_t>(set)]); };
  };
  std::vector<std::int64_t> ends{0};
  if (cell.tokens() > 1) ends.push_back(cell.tokens() - 1);
  const std::array<std::int64_t, 1> middle{cell.tokens() / 2};
  row.check = worse(fixture.check(0, ends, replay(0)), fixture.check(sets - 1, middle, replay(sets - 1)));
  return row;
}

std::vector<Cell> decode_cells(const Options& options, std::int64_t heads) {
  std::vector<Cell> out;
  const std::vector<std::int64_t> batches =
      options.batches.empty() ? std::vector<std::int64_t>(kDecodeBatches.begin(), kDecodeBatches.end())
                              : options.batches;
  for (const DecodeLayer& layer : kDecodeLayers) {
    const std::int64_t top_k = heads > kManyHeads ? kProTopK : options.model.index_topk;
    const std::int64_t keys = layer.keys > 0 ? layer.keys : kWindow + top_k;
    if (!wanted(options.layers, std::string(layer.name)) || !wanted(options.key_counts, keys)) continue;
    for (const std::int64_t next_n : options.next_n) {
      for (const std::int64_t batch : batches) {
        Cell cell{.name = fmt::format("decode {} x {}", layer.name, batch),
                  .key = next_n == 1 ? fmt::format("decode/{}/{}/{}", heads, layer.name, batch) : "",
                  .heads = heads,
                  .requests = batch,
                  .queries = next_n,
                  .named = keys - kWindow,
                  .entries = layer.entries,
                  .page = layer.page,
                  .random = layer.keys == 0};
        if (next_n > 1) cell.name += fmt::format(" x {}", next_n);
        out.push_back(cell);
      }
    }
  }
  return out;
}

std::vector<Cell> prefill_cells(const Options& options, std::int64_t heads) {
  std::vector<Cell> out;
  const std::vector<std::int64_t> lengths =
      options.tokens.empty() ? std::vector<std::int64_t>(kPrefillTokens.begin(), kPrefillTokens.end()) : options.tokens;
  for (const std::int64_t pool : kPrefillPools) {
    if (!wanted(options.pools, pool)) continue;
    for (const std::int64_t keys : kPrefillKeys) {
      if (!wanted(options.key_counts, keys)) continue;
      for (const std::int64_t tokens : lengths) {
        out.push_back({.name = fmt::format("prefill {} of {} x {}", keys, pool, tokens),
                       .key = fmt::format("prefill/{}/{}/{}/{}", heads, pool, keys, tokens),
                       .heads = heads,
                       .requests = 1,
                       .queries = tokens,
                       .named = keys - kWindow,
                       .entries = pool,
                       .random = true});
      }
    }
  }
  return out;
}

}  // namespace

void bench_device_attention(const Options& options, const Emit& emit) {
  const DeviceTimer timer;
  for (const std::string& grid : {std::string("decode"), std::string("prefill")}) {
    if (!wanted(options.grids, grid) || (grid == "decode" ? !options.decode : !options.prefill)) continue;
    const std::vector<std::int64_t> grid_heads(kHeads.begin(), kHeads.end());
    for (const std::int64_t heads : options.head_counts.empty() ? grid_heads : options.head_counts) {
      for (const Cell& cell : grid == "decode" ? decode_cells(options, heads) : prefill_cells(options, heads))
        emit(measure_cell(options, cell, timer));
    }
  }
}

}  // namespace smla::bench
