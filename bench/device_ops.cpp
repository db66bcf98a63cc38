// The ops of a layer beside attention, indexer and GEMMs on a GPU, under the names that other people's kernels of the
// same work have (data/peers/ops.csv). Long because each op has inputs of its own.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>

#include "bench/device_inputs.h"
#include "bench/device_timer.h"
#include "bench/inputs.h"
#include "cache/row_codec.h"
#include "cases/tolerance.h"
#include "ops/staging.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/index.h"
#include "sparsemla/ops/indexer.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kSets = 3;
constexpr std::array<std::int64_t, 5> kTokens{1, 64, 256, 2048, 8192};
constexpr std::int64_t kMaxDecodes = 256;             // more tokens are one prompt's
constexpr std::int64_t kEnd = 32768;                  // positions: a context's last ones
constexpr std::int64_t kMaxCheckedNumbers = 1 << 24;  // numbers of a call that the reference computes again
constexpr double kBound = 4e-3;
constexpr double kCodeBound = 1e-2;  // of 8-bit codes: one in a hundred at a rounding boundary

bool quantised(const RowFormat& f) { return f.nope == Element::kE4M3 || f.nope == Element::kE2M1; }

/// What a call writes, on the host.
struct Written {
  std::vector<HostTensor> tensors;
  std::vector<double> bounds;
};
struct Collect {
  Written& to;
  void in(const char*, const ConstTensorView&) const {}
  void out(const char*, const TensorView& v) const {
    if (v.absent()) return;
    HostTensor copy(v.dtype, std::vector<std::int64_t>(v.shape.begin(), v.shape.begin() + v.rank));
    std::copy_n(static_cast<const std::uint8_t*>(v.data), copy.bytes(), static_cast<std::uint8_t*>(copy.data()));
    to.tensors.push_back(std::move(copy));
    const bool number = v.dtype == DType::kBF16 || v.dtype == DType::kF32;
    to.bounds.push_back(number ? kBound : (v.dtype == DType::kE4M3 ? kCodeBound : 0));
  }
  void cache(const char*, const PagedCache& c, CacheAccess access) const {
    if (access == CacheAccess::kRead || c.format == nullptr) return;
    HostTensor numbers(DType::kF32, {c.num_slots(), c.format->dim});
#pragma omp parallel for
    for (std::int64_t slot = 0; slot < c.num_slots(); ++slot)
      decode_row(c, slot, numbers.as<float>() + slot * c.format->dim);
    to.tensors.push_back(std::move(numbers));
    to.bounds.push_back(quantised(*c.format) ? kCodeBound : kBound);
  }
};

/// Makes a call's results worthless: what is then right was written by the next call.
struct Poison {
  Stream stream;
  void in(const char*, const ConstTensorView&) const {}
  void out(const char*, const TensorView& v) const {
    if (!v.absent())
      fill_bytes(DeviceKind::kCuda, v.data, 0xFF, static_cast<std::size_t>(v.numel() * size_of(v.dtype)), stream);
  }
  void cache(const char*, const PagedCache& c, CacheAccess access) const {
    if (access == CacheAccess::kRead || c.format == nullptr) return;
    fill_bytes(DeviceKind::kCuda, c.base, 0, static_cast<std::size_t>(c.num_blocks * c.block_stride_bytes), stream);
  }
};

/// Counts what a call left of the poison.
struct CountPoison {
  Stream stream;
  std::int64_t& bad;
  void in(const char*, const ConstTensorView&) const {}
  void out(const char*, const TensorView& v) const {
    if (v.dtype == DType::kBF16 || v.dtype == DType::kF32 || v.dtype == DType::kE4M3) bad += gpu_count_nan(v, stream);
  }
  void cache(const char*, const PagedCache&, CacheAccess) const {}
};

/// For calls whose results are too many for the reference: whether they were written at all. Not a check of what they
/// are.
template <class Op>
Check check_written(typename Op::Args args, Stream stream, const std::function<void()>& replay) {
  OpDescription<Op>::tensors(args, Poison{stream});
  replay();
  std::int64_t bad = 0;
  OpDescription<Op>::tensors(args, CountPoison{stream, bad});
  if (bad == 0) return {};
  return {.done = true, .l2 = 0, .failure = fmt::format("{}: {} results are NaN or were not written", Op::kName, bad)};
}

template <class Op>
Check check_call(const typename Op::Problem& problem, typename Op::Args args, Stream stream,
                 const std::function<void()>& replay) {
  OpDescription<Op>::tensors(args, Poison{stream});
  synchronize(DeviceKind::kCuda, stream);
  StagedTensors before(DeviceKind::kCpu, stream);
  typename Op::Args host = before.bring<Op>(args);
  Plan<Op>(problem, {.implementation = "ref"}).run(host);
  replay();
  StagedTensors after(DeviceKind::kCpu, stream);
  typename Op::Args brought = after.bring<Op>(args);
  Written want;
  Written got;
  OpDescription<Op>::tensors(host, Collect{want});
  OpDescription<Op>::tensors(brought, Collect{got});
  Check out;
  for (std::size_t i = 0; i < want.tensors.size(); ++i) {
    Check one;
    if (want.bounds[i] > 0) {
      one = check_result(got.tensors[i], want.tensors[i], want.bounds[i]);
    } else {
      const Comparison same = compare(got.tensors[i], want.tensors[i], {});
      one = {.done = true, .l2 = 0, .failure = same.pass ? "" : same.failure};
    }
    if (!one.failure.empty())
      one.failure = fmt::format("{} result {}: {} (l2 {:.2e})", Op::kName, i, one.failure, one.l2);
    out = worse(out, one);
  }
  return out;
}

/// Inputs and calls of one op with T tokens, in several sets.
class OpFixture {
 public:
  OpFixture(const Options& options_in, std::int64_t tokens_in, Stream stream_in)
      : options(options_in), tokens(tokens_in), stream(stream_in) {
    config = model_preset("v4-pro").layer(0);
    for (std::int64_t i = 0; config.compress_ratio != 4; ++i) config = model_preset("v4-pro").layer(i);
    const std::vector<float> table = rope_table(config.rope, kEnd);
    rope_ = DeviceTensor::copy_of(DeviceKind::kCuda,
                                  ConstTensorView(table.data(), DType::kF32, {kEnd, config.rope_head_dim}));
  }

  const Options& options;
  std::int64_t tokens;
  Stream stream;
  LayerConfig config;
  std::uint64_t set = 0;  ///< that is being made
  std::vector<std::vector<std::function<void()>>> calls{};
  std::vector<std::function<Check(const std::function<void()>&)>> checks{};  ///< of the first set
  std::string implementation;
  double bytes = 0;  ///< of a set, touched once
  std::int64_t numbers_out = 0;

  bool decodes() const { return tokens <= kMaxDecodes; }
  std::int64_t requests() const { return decodes() ? tokens : 1; }
  ConstTensorView rope() const { return rope_.view(); }

  TensorView empty(DType dtype, std::vector<std::int64_t> shape) {
    return tensors_.emplace_back(DeviceKind::kCuda, dtype, std::move(shape)).view();
  }
  TensorView numbers(DType dtype, std::vector<std::int64_t> shape, float width = 1) {
    return tensors_.emplace_back(device_numbers(dtype, std::move(shape), ++seed_, width, stream)).view();
  }
  /// values(i) of n elements.
  template <class T, class F>
  ConstTensorView values(std::vector<std::int64_t> shape, F&& value) {
    HostTensor host(dtype_of<T>, std::move(shape));
    for (std::int64_t i = 0; i < host.numel(); ++i) host.as<T>()[i] = static_cast<T>(value(i));
    return std::as_const(tensors_.emplace_back(DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(host).view())))
        .view();
  }
  /// Distinct numbers below `limit` in random order, as T.
  template <class T>
  ConstTensorView choices(std::int64_t n, std::int64_t limit) {
    const HostTensor host = random_choices(1, n, limit, ++seed_);
    return values<T>({n}, [&](std::int64_t i) { return host.as<std::int32_t>()[i]; });
  }
  /// [rows, columns] I32: blocks in random order, each once.
  ConstTensorView table(std::int64_t rows, std::int64_t columns) {
    const HostTensor host = random_choices(1, rows * columns, rows * columns, ++seed_);
    return values<std::int32_t>({rows, columns}, [&](std::int64_t i) { return host.as<std::int32_t>()[i]; });
  }
  PagedCache cache(const RowFormat& format, std::int64_t rows, std::int64_t block_size) {
    return caches_.emplace_back(format, (rows + block_size - 1) / block_size, block_size, ++seed_, stream).cache();
  }
  /// A prompt's last positions, or a decode's last one.
  ConstTensorView positions() {
    return values<std::int64_t>({tokens}, [&](std::int64_t t) { return decodes() ? kEnd - 1 : kEnd - tokens + t; });
  }
  ConstTensorView token_to_req() {
    return values<std::int32_t>({tokens}, [&](std::int64_t t) { return decodes() ? t : 0; });
  }
  ConstTensorView starts() {
    return values<std::int32_t>({requests() + 1}, [&](std::int64_t r) { return decodes() ? r : r * tokens; });
  }
  ConstTensorView lengths(std::int64_t length) {
    return values<std::int32_t>({requests()}, [&](std::int64_t) { return length; });
  }

  template <class Op>
  void call(const typename Op::Problem& problem, const typename Op::Args& args) {
    auto plan = std::make_shared<Plan<Op>>(problem, plan_options<Op>(options, problem));
    auto workspace = std::make_shared<DeviceMemory>(DeviceKind::kCuda, plan->workspace_bytes(), false);
    calls.back().emplace_back([this, plan, workspace, args] {
      plan->run(args, {.data = workspace->data(), .bytes = workspace->bytes()}, stream);
    });
    if (set > 0) return;
    implementation += fmt::format("{}{} {}", implementation.empty() ? "" : ", ", Op::kName, plan->implementation());
    checks.emplace_back([this, problem, args](const std::function<void()>& replay) {
      return numbers_out <= kMaxCheckedNumbers ? check_call<Op>(problem, args, stream, replay)
                                               : check_written<Op>(args, stream, replay);
    });
  }
  void count(std::int64_t touched, std::int64_t out) {
    if (set > 0) return;
    bytes += static_cast<double>(touched);
    numbers_out += out;
  }

 private:
  std::deque<DeviceTensor> tensors_;
  std::deque<DeviceCache> caches_;
  DeviceTensor rope_;
  std::uint64_t seed_ = 0;
};

void norms(OpFixture& b) {
  const std::int64_t qr_dim = b.config.q_lora_rank;
  const std::int64_t kv_dim = b.config.head_dim;
  b.call<LatentNorms>({.rows = b.tokens, .qr_dim = qr_dim, .kv_dim = kv_dim},
                      {.qr = b.numbers(DType::kBF16, {b.tokens, qr_dim}),
                       .qr_weight = b.numbers(DType::kBF16, {qr_dim}),
                       .qr_out = b.empty(DType::kBF16, {b.tokens, qr_dim}),
                       .kv = b.numbers(DType::kBF16, {b.tokens, kv_dim}),
                       .kv_weight = b.numbers(DType::kBF16, {kv_dim}),
                       .kv_out = b.empty(DType::kBF16, {b.tokens, kv_dim})});
  b.count((4 * b.tokens + 2) * (qr_dim + kv_dim), b.tokens * (qr_dim + kv_dim));
}

void insert(OpFixture& b, const RowFormat& format) {
  const std::int64_t heads = b.config.num_heads;
  const std::int64_t dim = b.config.head_dim;
  const DType out = format.scale == ScaleKind::kPerTensor ? DType::kE4M3 : DType::kBF16;
  b.call<QNormRopeInsert>(
      {.tokens = b.tokens, .heads = heads, .out_heads = heads, .q_out = out, .format = &format, .q_scale_inv = 64},
      {.q = b.numbers(DType::kBF16, {b.tokens, heads, dim}),
       .kv = b.numbers(DType::kBF16, {b.tokens, dim}),
       .positions = b.positions(),
       .cos_sin = b.rope(),
       .slot_mapping = b.choices<std::int64_t>(b.tokens, b.tokens),
       .q_out = b.empty(out, {b.tokens, heads, dim}),
       .cache = b.cache(format, b.tokens, 64)});
  const std::int64_t rope = b.decodes() ? 1 : b.tokens;
  b.count(b.tokens * (heads * dim * (2 + size_of(out)) + 2 * dim + format.row_bytes() + 16) +
              rope * 4 * b.config.rope_head_dim,
          b.tokens * heads * dim);
}

void inverse_rope(OpFixture& b) {
  const std::int64_t heads = b.config.num_heads;
  const std::int64_t dim = b.config.head_dim;
  const std::int64_t groups = b.config.o_groups;
  const std::int64_t width = heads / groups * dim;
  const std::int64_t padded = (b.tokens + 3) / 4 * 4;
  b.call<InverseRopeQuant>({.tokens = b.tokens, .heads = heads, .groups = groups},
                           {.x = b.numbers(DType::kBF16, {b.tokens, heads, dim}),
                            .positions = b.positions(),
                            .cos_sin = b.rope(),
                            .values = b.empty(DType::kE4M3, {groups, b.tokens, width}),
                            .scales = b.empty(DType::kF32, {groups, width / 128, padded})});
  const std::int64_t rope = b.decodes() ? 1 : b.tokens;
  b.count(b.tokens * (heads * dim * 3 + heads * dim / 32 + 8) + rope * 4 * b.config.rope_head_dim,
          b.tokens * heads * dim);
}

void global_topk(OpFixture& b) {
  const std::int64_t k = b.config.index_topk;
  const std::int64_t entries = kEnd / 4;
  const HostTensor topk = random_choices(b.tokens, k, entries, 1 + b.set);
  b.call<GlobalTopk>(
      {.requests = b.requests(), .tokens = b.tokens, .k = k, .storage_block = 64},
      {.topk = b.values<std::int32_t>({b.tokens, k}, [&](std::int64_t i) { return topk.as<std::int32_t>()[i]; }),
       .token_to_req = b.token_to_req(),
       .block_table = b.table(b.requests(), entries / 64),
       .valid = b.values<bool>({b.tokens}, [](std::int64_t) { return true; }),
       .indices = b.empty(DType::kI32, {b.tokens, k}),
       .lens = b.empty(DType::kI32, {b.tokens})});
  b.count(b.tokens * (8 * k + 9) + b.requests() * entries / 64 * 4, b.tokens * k);
}

void combine(OpFixture& b) {
  const std::int64_t k = b.config.index_topk;
  const std::int64_t window = 128;
  const std::int64_t queries = b.decodes() ? 1 : b.tokens;
  const std::int64_t n = kEnd / 4;
  const HostTensor topk = random_choices(b.tokens, k, n, 1 + b.set);
  b.call<CombineTopkWindow>(
      {.requests = b.requests(), .tokens = b.tokens, .ratio = 4, .top_k = k, .m = n + queries + window - 1, .n = n},
      {.topk = b.values<std::int32_t>({b.tokens, k}, [&](std::int64_t i) { return topk.as<std::int32_t>()[i]; }),
       .query_start_loc = b.starts(),
       .seq_lens = b.lengths(kEnd),
       .gather_lens = b.lengths(queries + window - 1),
       .indices = b.empty(DType::kI32, {b.tokens, k + window}),
       .lens = b.empty(DType::kI32, {b.tokens})});
  b.count(b.tokens * (4 * k + 4 * (k + window) + 4), b.tokens * (k + window));
}

void mixed(OpFixture& b) {
  const std::int64_t k = b.config.index_topk;
  const std::int64_t window = 128;
  const std::int64_t decodes = b.decodes() ? b.tokens : 0;
  const std::int64_t entries = kEnd / 4;
  const HostTensor topk = random_choices(b.tokens, k, entries, 1 + b.set);
  const ConstTensorView chosen =
      b.values<std::int32_t>({b.tokens, k}, [&](std::int64_t i) { return topk.as<std::int32_t>()[i]; });
  MixedSparseIndices::Args args{.query_start_loc = b.starts(),
                                .seq_lens = b.lengths(kEnd),
                                .token_to_req = b.token_to_req(),
                                .window_table = b.table(b.requests(), kEnd / 64),
                                .compressed_table = b.table(b.requests(), entries / 64),
                                .indices = b.empty(DType::kI32, {b.tokens, window + k}),
                                .lens = b.empty(DType::kI32, {b.tokens})};
  args.decode_window = b.values<std::int32_t>({decodes, window}, [&](std::int64_t i) { return i; });
  args.decode_valid = b.values<bool>({decodes}, [](std::int64_t) { return true; });
  args.decode_compressed = chosen.slice(0, 0, decodes);
  args.prefill_topk = chosen.slice(0, decodes, b.tokens);
  b.call<MixedSparseIndices>({.requests = b.requests(),
                              .tokens = b.tokens,
                              .decode_tokens = decodes,
                              .ratio = 4,
                              .top_k = k,
                              .compressed_width = k,
                              .local = true},
                             args);
  b.count(b.tokens * 8 * (window + k), b.tokens * (window + k));
}

std::int64_t state_block(int ratio) { return ratio == 4 ? 4 : 8; }

void save(OpFixture& b, int ratio, int dim) {
  const SaveState::Problem problem{.tokens = b.tokens, .ratio = ratio, .dim = dim};
  const std::int64_t half = static_cast<std::int64_t>(problem.coff()) * dim;
  b.call<SaveState>(problem, {.kv_score = b.numbers(DType::kF32, {b.tokens, 2 * half}),
                              .ape = b.numbers(DType::kF32, {ratio, half}),
                              .positions = b.positions(),
                              .state_slots = b.choices<std::int64_t>(b.tokens, b.tokens),
                              .state = b.cache(state_rows(dim, problem.coff()), b.tokens, state_block(ratio))});
  b.count(b.tokens * (16 * half + 16), b.tokens * 2 * half);
}

/// `all`: every token is a request's and closes a group; else the tokens are a prompt's last.
void compress(OpFixture& b, int ratio, int dim, const RowFormat& format, bool all) {
  const CompressStore::Problem problem{
      .tokens = b.tokens, .ratio = ratio, .compressor = {{{.dim = dim, .format = &format}}}};
  const std::int64_t window = std::int64_t{problem.coff()} * ratio;
  const std::int64_t block = state_block(ratio);
  const std::int64_t requests = all ? b.tokens : 1;
  const std::int64_t before = all ? window : b.tokens + window;  // states that can be read
  const std::int64_t end =
      (before + ratio - 1) / ratio * ratio;  // positions 0..end-1 exist; a table of all of them stays small
  const std::int64_t first = all ? end - 1 : end - b.tokens;
  const std::int64_t closed = all ? b.tokens : std::max<std::int64_t>(end / ratio - first / ratio, 1);
  const std::int64_t columns = (end + block - 1) / block;
  const HostTensor entry = random_choices(1, closed, closed, 5 + b.set);
  b.call<CompressStore>(
      problem,
      {.positions = b.values<std::int64_t>({b.tokens}, [&](std::int64_t t) { return all ? end - 1 : first + t; }),
       .token_to_req = b.values<std::int32_t>({b.tokens}, [&](std::int64_t t) { return all ? t : 0; }),
       .entry_slots = b.values<std::int64_t>(
           {b.tokens},
           [&](std::int64_t t) {
             if (all) return static_cast<std::int64_t>(entry.as<std::int32_t>()[t]);
             if ((first + t + 1) % ratio != 0) return std::int64_t{-1};
             return std::int64_t{entry.as<std::int32_t>()[(first + t + 1) / ratio - first / ratio - 1]};
           }),
       .cos_sin = b.rope(),
       .compressors = {{{.state_slots = b.values<std::int64_t>({b.tokens}, [](std::int64_t t) { return t; }),
                         .block_table = b.table(requests, columns),
                         .norm_weight = b.numbers(DType::kBF16, {dim}),
                         .state = b.cache(state_rows(dim, problem.coff()), requests * columns * block, block),
                         .entries = b.cache(format, closed, ratio == 128 ? 2 : 64)}}}});
  // A group reads one half of each row of its window where windows overlap: no number of a state is read twice.
  b.count(closed * (window * dim * 8 + format.row_bytes() + 256) + b.tokens * 28, closed * window * dim);
}

void index_queries(OpFixture& b) {
  const std::int64_t heads = b.config.index_n_heads;
  const std::int64_t dim = b.config.index_head_dim;
  b.call<IndexerQ>({.tokens = b.tokens, .heads = heads, .format = &index_fp8_rows()},
                   {.q = b.numbers(DType::kBF16, {b.tokens, heads, dim}),
                    .weights = b.numbers(DType::kBF16, {b.tokens, heads}),
                    .positions = b.positions(),
                    .cos_sin = b.rope(),
                    .q_out = b.empty(DType::kE4M3, {b.tokens, heads, dim}),
                    .q_scale = {},
                    .weights_out = b.empty(DType::kF32, {b.tokens, heads})});
  b.count(b.tokens * heads * (3 * dim + 6) + (b.decodes() ? 1 : b.tokens) * 256, b.tokens * heads * dim);
}

void insert_rows(OpFixture& b, const RowFormat& format) {
  b.call<InsertRows>({.tokens = b.tokens, .format = &format},
                     {.rows = b.numbers(DType::kBF16, {b.tokens, format.dim}),
                      .slot_mapping = b.choices<std::int64_t>(b.tokens, b.tokens),
                      .cache = b.cache(format, b.tokens, 64)});
  b.count(b.tokens * (2 * format.dim + format.row_bytes() + 8), b.tokens * format.dim);
}

void gather(OpFixture& b) {
  const RowFormat& format = fp8_ds_mla_rows();
  const std::int64_t columns = (b.tokens + 63) / 64;
  b.call<GatherRows>({.requests = 1, .rows = b.tokens, .format = &format},
                     {.cache = b.cache(format, b.tokens, 64),
                      .seq_lens = b.values<std::int32_t>({1}, [&](std::int64_t) { return b.tokens; }),
                      .gather_lens = {},
                      .block_table = b.table(1, columns),
                      .out = b.empty(DType::kBF16, {1, b.tokens, format.dim})});
  b.count(b.tokens * (format.row_bytes() + 2 * format.dim), b.tokens * format.dim);
}

void compressed_slots(OpFixture& b) {
  b.call<CompressedSlotMapping>({.requests = b.requests(), .tokens = b.tokens},
                                {.query_start_loc = b.starts(),
                                 .seq_lens = b.lengths(kEnd),
                                 .block_table = b.table(b.requests(), kEnd / 4 / 64),
                                 .slots = b.empty(DType::kI64, {b.tokens})});
  b.count(b.tokens * 8 + b.requests() * 12, b.tokens);
}

struct Op {
  std::string_view name;
  void (*make)(OpFixture& fixture);
  bool decode_alone = false;
};
constexpr std::array<Op, 22> kOps{{
    {"q_kv_rmsnorm", norms},
    {"fused_qnorm_rope_kv_insert_fp8", [](OpFixture& b) { insert(b, fp8_ds_mla_rows()); }},
    {"full_cache_bf16_insert", [](OpFixture& b) { insert(b, bf16_rows()); }},
    {"full_cache_fp8_insert", [](OpFixture& b) { insert(b, fp8_per_tensor_rows()); }},
    {"inv_rope_fp8_quant", inverse_rope},
    {"global_topk_indices", global_topk},
    {"combine_topk_swa", combine},
    {"mixed_sparse_indices", mixed},
    {"save_partial_states_c4_main", [](OpFixture& b) { save(b, 4, 512); }},
    {"compress_c4_main_prefill", [](OpFixture& b) { compress(b, 4, 512, fp8_ds_mla_rows(), false); }},
    {"compress_c4_main_decode_all_boundary", [](OpFixture& b) { compress(b, 4, 512, fp8_ds_mla_rows(), true); }, true},
    {"save_partial_states_c128_main", [](OpFixture& b) { save(b, 128, 512); }},
    {"compress_c128_main_prefill_two_stage", [](OpFixture& b) { compress(b, 128, 512, fp8_ds_mla_rows(), false); }},
    {"compress_c128_main_decode_all_boundary_two_stage",
     [](OpFixture& b) { compress(b, 128, 512, fp8_ds_mla_rows(), true); }, true},
    {"save_partial_states_c4_indexer", [](OpFixture& b) { save(b, 4, 128); }},
    {"compress_c4_indexer_prefill", [](OpFixture& b) { compress(b, 4, 128, index_fp8_rows(), false); }},
    {"compress_c4_indexer_decode_all_boundary", [](OpFixture& b) { compress(b, 4, 128, index_fp8_rows(), true); },
     true},
    {"indexer_q_rope_fp8", index_queries},
    {"indexer_k_quant_insert", [](OpFixture& b) { insert_rows(b, index_fp8_rows()); }},
    {"dequant_gather", gather},
    {"quantize_insert_k", [](OpFixture& b) { insert_rows(b, fp8_ds_mla_rows()); }},
    {"compressed_slot_mapping", compressed_slots},
}};

Row measure_op(const Options& options, const Op& op, std::int64_t tokens, const DeviceTimer& timer) {
  OpFixture fixture(options, tokens, timer.stream());
  std::vector<std::function<void()>> sets;
  for (; fixture.set < kSets; ++fixture.set) {
    fixture.calls.emplace_back();
    op.make(fixture);
  }
  for (const std::vector<std::function<void()>>& calls : fixture.calls) {
    sets.emplace_back([&calls] {
      for (const std::function<void()>& call : calls) call();
    });
  }
  synchronize(DeviceKind::kCuda, timer.stream());
  const std::vector<GpuRecording> recordings = timer.record(sets);
  Row row;
  row.group = "ops";
  row.name = fmt::format("{} x {}", op.name, tokens);
  row.shape = fmt::format("tokens {}, v4-pro", tokens);
  row.implementation = fixture.implementation;
  row.time = timer.time(options.measure, recordings);
  row.bytes = fixture.bytes;
  row.cell = fmt::format("ops/{}/{}", op.name, tokens);
  for (const auto& check : fixture.checks) row.check = worse(row.check, check([&] { timer.replay(recordings[0]); }));
  return row;
}

}  // namespace

void bench_device_ops(const Options& options, const Emit& emit) {
  const DeviceTimer timer;
  const std::vector<std::int64_t> tokens =
      options.tokens.empty() ? std::vector<std::int64_t>(kTokens.begin(), kTokens.end()) : options.tokens;
  for (const Op& op : kOps) {
    if (!wanted(options.layers, std::string(op.name))) continue;
    for (const std::int64_t t : tokens) {
      if (!op.decode_alone || t <= kMaxDecodes) emit(measure_op(options, op, t, timer));
    }
  }
}

}  // namespace smla::bench
