// Index ops with hostile numbers against a second computation, straight from their contracts. Every output has
// canaries; every index list, length and block table may hold anything. Over 300 lines: nine ops.
#include <algorithm>
#include <optional>

#include "sparsemla/ops/index.h"
#include "support.h"

namespace smla::fuzz {
namespace {

using Wide = __int128;  // no sum or product of the second computation can overflow

/// A batch whose numbers may be anything.
struct Batch {
  std::int64_t requests, tokens, block, columns, table_stride;
  std::vector<std::int32_t> start, seq, request, table;
  std::vector<std::int64_t> positions, slots;
  bool ascending;

  explicit Batch(Input& in)
      : requests(in.range(0, 4)),
        tokens(in.range(0, 12)),
        block(in.choice(kBlocks)),
        columns(in.range(0, 4)),
        table_stride(columns + in.range(0, 2)) {
    ascending = in.flag();
    if (ascending) {
      std::int32_t sum = 0;
      for (std::int64_t r = 0; r <= requests; ++r)
        start.push_back(r == 0 ? 0 : sum += static_cast<std::int32_t>(in.range(0, 5)));
    } else {
      start = in.hostile_list(requests + 1, tokens);
    }
    seq = in.hostile_list(requests, 600);
    request = in.hostile_list(tokens, requests);
    positions = in.hostile_longs(tokens, 600);
    slots = in.hostile_longs(tokens, 600);
    table = in.hostile_list(requests * table_stride, 9);
  }
  ConstTensorView start_view() const { return view_of(start.data(), {requests + 1}); }
  ConstTensorView seq_view() const { return view_of(seq.data(), {requests}); }
  ConstTensorView request_view() const { return view_of(static_cast<const std::int32_t*>(request.data()), {tokens}); }
  ConstTensorView positions_view() const {
    return view_of(static_cast<const std::int64_t*>(positions.data()), {tokens});
  }
  ConstTensorView slots_view() const { return view_of(static_cast<const std::int64_t*>(slots.data()), {tokens}); }
  ConstTensorView table_view() const {
    ConstTensorView v(table.data(), DType::kI32, {requests, columns});
    v.stride[0] = table_stride;
    return v;
  }
  std::int32_t start_of(std::int64_t r) const { return start[static_cast<std::size_t>(r)]; }
  bool holds(std::int64_t r, std::int64_t t) const { return start_of(r) <= t && t < start_of(r + 1); }
  /// seq_len - query_len + (t - start)
  Wide position_in(std::int64_t r, std::int64_t t) const {
    const Wide query_len = static_cast<Wide>(start_of(r + 1)) - start_of(r);
    return static_cast<Wide>(seq[static_cast<std::size_t>(r)]) - query_len + (t - static_cast<Wide>(start_of(r)));
  }
  /// The slot of entry i of request r; nothing where the table does not lead to one. `clamp`: negative blocks are block
  /// 0.
  std::optional<Wide> slot(std::int64_t r, Wide i, std::int64_t block_size, bool clamp = false) const {
    if (r < 0 || r >= requests || i < 0 || i / block_size >= columns) return std::nullopt;
    Wide b = table[static_cast<std::size_t>(r * table_stride + static_cast<std::int64_t>(i / block_size))];
    if (b < 0 && clamp) b = 0;
    if (b < 0) return std::nullopt;
    return b * block_size + i % block_size;
  }
  /// The same as a column of an int32 row.
  std::int32_t index(std::int64_t r, Wide i, std::int64_t block_size) const { return narrow(slot(r, i, block_size)); }
  static std::int32_t narrow(std::optional<Wide> v) {
    return v && *v >= 0 && *v <= INT32_MAX ? static_cast<std::int32_t>(*v) : -1;
  }

  static constexpr std::int64_t kBlocks[] = {1, 2, 3, 53, 64, 256, INT32_MAX};
};

void token_to_req(Input& in) {
  const Batch b(in);
  Guarded<std::int32_t> out(1, b.tokens, 3);
  Plan<TokenToReq>({.requests = b.requests, .tokens = b.tokens})
      .run({.query_start_loc = b.start_view(), .token_to_req = view_of(out.row(0), {b.tokens})});
  out.check("token_to_req wrote outside");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    const std::int64_t r = out.at(0, t);
    bool nobody = true;
    for (std::int64_t other = 0; other < b.requests; ++other) nobody = nobody && !b.holds(other, t);
    require(nobody ? r == 0 : r >= 0 && r < b.requests && b.holds(r, t),
            "token_to_req names a request that does not hold the token");
  }
}

void slot_mapping(Input& in) {
  const Batch b(in);
  Guarded<std::int64_t> out(1, b.tokens, 3);
  Plan<SlotMapping>({.requests = b.requests, .tokens = b.tokens, .block_size = b.block})
      .run({.query_start_loc = b.start_view(),
            .positions = b.positions_view(),
            .token_to_req = b.request_view(),
            .block_table = b.table_view(),
            .slots = view_of(out.row(0), {b.tokens})});
  out.check("slot_mapping wrote outside");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    Wide want = -1;
    if (t < b.start.back())
      want = b.slot(b.request[static_cast<std::size_t>(t)], b.positions[static_cast<std::size_t>(t)], b.block)
                 .value_or(-1);
    require(out.at(0, t) == want, "slot_mapping");
  }
}

void compressed_slot_mapping(Input& in) {
  const Batch b(in);
  constexpr std::int64_t kRatios[] = {1, 2, 4, 128};
  const std::int64_t ratio = in.choice(kRatios);
  Guarded<std::int64_t> out(1, b.tokens, 3);
  Plan<CompressedSlotMapping>({.requests = b.requests, .tokens = b.tokens, .ratio = ratio, .storage_block = b.block})
      .run({.query_start_loc = b.start_view(),
            .seq_lens = b.seq_view(),
            .block_table = b.table_view(),
            .slots = view_of(out.row(0), {b.tokens})});
  out.check("compressed_slot_mapping wrote outside");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    // Where the starts descend, a token may lie in several requests: one of them must explain the slot.
    bool explained = false;
    bool closes = false;
    for (std::int64_t r = 0; r < b.requests; ++r) {
      const Wide pos = b.position_in(r, t);
      if (!b.holds(r, t) || pos < 0 || (pos + 1) % ratio != 0) continue;
      closes = true;
      explained = explained || out.at(0, t) == b.slot(r, pos / ratio, b.block, true).value_or(-1);
    }
    require(closes ? explained : out.at(0, t) == -1, "compressed_slot_mapping");
  }
}

void window_indices(Input& in) {
  const Batch b(in);
  constexpr std::int64_t kWindows[] = {1, 2, 5, 128};
  const std::int64_t window = in.choice(kWindows);
  const std::int64_t width = window + in.range(0, 3);
  Guarded<std::int32_t> out(b.tokens, width, in.range(0, 2));
  Guarded<std::int32_t> lens(1, b.tokens, 3);
  const std::int64_t noncausal = std::min<std::int64_t>(in.range(0, 12), b.tokens);
  Plan<WindowIndices>({.requests = b.requests,
                       .tokens = b.tokens,
                       .window = window,
                       .block_size = b.block,
                       .noncausal_tokens = noncausal})
      .run({.query_start_loc = b.start_view(),
            .seq_lens = b.seq_view(),
            .token_to_req = b.request_view(),
            .slot_mapping = b.slots_view(),
            .block_table = b.table_view(),
            .indices = out.view(DType::kI32),
            .lens = view_of(lens.row(0), {b.tokens})});
  out.check("window_indices wrote outside its rows");
  lens.check("window_indices wrote outside its lens");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    const std::int64_t r = b.request[static_cast<std::size_t>(t)];
    const bool known = b.slots[static_cast<std::size_t>(t)] >= 0 && r >= 0 && r < b.requests;
    const Wide pos = known ? b.position_in(r, t) : -1;
    Wide len = std::clamp<Wide>(pos + 1, 0, window);
    Wide first = pos + 1 - len;
    if (pos >= 0 && t < noncausal) {  // a draft block that sees itself whole
      first = std::max<Wide>(b.position_in(r, b.start_of(r)) - window, 0);
      len = std::clamp<Wide>(b.seq[static_cast<std::size_t>(r)] - first, 0, width);
    }
    require(lens.at(0, t) == len, "window_indices: length");
    for (std::int64_t c = 0; c < width; ++c) {
      require(out.at(t, c) == (c < len ? b.index(r, first + c, b.block) : -1), "window_indices: column");
    }
  }
}

/// min((pos+1)/ratio, most), 0 for a negative position.
std::int64_t visible(Wide pos, std::int64_t ratio, std::int64_t most) {
  return pos < 0 ? 0 : static_cast<std::int64_t>(std::min<Wide>((pos + 1) / ratio, most));
}

void dense_compressed_indices(Input& in) {
  const Batch b(in);
  constexpr std::int64_t kRatios[] = {1, 4, 128};
  const std::int64_t ratio = in.choice(kRatios);
  const std::int64_t width = in.range(0, 9);
  const bool global = in.flag();
  Guarded<std::int32_t> out(b.tokens, width, in.range(0, 2));
  Guarded<std::int32_t> lens(1, b.tokens, 3);
  DenseCompressedIndices::Args args{.positions = b.positions_view(),
                                    .token_to_req = b.request_view(),
                                    .slot_mapping = b.slots_view(),
                                    .block_table = b.table_view(),
                                    .indices = out.view(DType::kI32),
                                    .lens = view_of(lens.row(0), {b.tokens})};
  if (!global && in.flag()) args.block_table = {};
  Plan<DenseCompressedIndices>({.requests = b.requests,
                                .tokens = b.tokens,
                                .ratio = ratio,
                                .storage_block = b.block,
                                .width = width,
                                .global = global})
      .run(args);
  out.check("dense_compressed_indices wrote outside its rows");
  lens.check("dense_compressed_indices wrote outside its lens");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    const auto at = static_cast<std::size_t>(t);
    const std::int64_t n = b.slots[at] < 0 ? 0 : visible(b.positions[at], ratio, width);
    require(lens.at(0, t) == n, "dense_compressed_indices: length");
    for (std::int64_t j = 0; j < width; ++j) {
      const std::int64_t want = j >= n ? -1 : global ? b.index(b.request[at], j, b.block) : j;
      require(out.at(t, j) == want, "dense_compressed_indices: column");
    }
  }
}

void global_topk(Input& in) {
  const Batch b(in);
  const std::int64_t k = in.range(0, 7);
  const bool compact = in.flag();
  const std::int64_t gap = in.range(0, 2);
  const std::vector<std::int32_t> local = in.hostile_list(b.tokens * (k + gap), 192);
  std::vector<std::uint8_t> valid;
  for (std::int64_t t = 0; t < b.tokens; ++t) valid.push_back(in.flag() ? 1 : 0);
  Guarded<std::int32_t> out(b.tokens, k, gap);
  Guarded<std::int32_t> lens(1, b.tokens, 3);
  ConstTensorView topk(local.data(), DType::kI32, {b.tokens, k});
  topk.stride[0] = k + gap;
  if (in.flag()) {  // in place
    for (std::int64_t t = 0; t < b.tokens; ++t) std::copy_n(local.data() + t * (k + gap), k, out.row(t));
    topk = out.view(DType::kI32);
  }
  Plan<GlobalTopk>({.requests = b.requests, .tokens = b.tokens, .k = k, .storage_block = b.block, .compact = compact})
      .run({.topk = topk,
            .token_to_req = b.request_view(),
            .block_table = b.table_view(),
            .valid = ConstTensorView(valid.data(), DType::kBool, {b.tokens}),
            .indices = out.view(DType::kI32),
            .lens = view_of(lens.row(0), {b.tokens})});
  out.check("global_topk wrote outside its rows");
  lens.check("global_topk wrote outside its lens");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    std::vector<std::int32_t> want;
    std::int64_t found = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int32_t v =
          b.index(b.request[static_cast<std::size_t>(t)], local[static_cast<std::size_t>(t * (k + gap) + j)], b.block);
      found += v >= 0 ? 1 : 0;
      if (v >= 0 || !compact) want.push_back(v);
    }
    want.resize(static_cast<std::size_t>(k), -1);
    require(std::equal(want.begin(), want.end(), out.row(t)), "global_topk: row");
    require(lens.at(0, t) == (valid[static_cast<std::size_t>(t)] != 0 ? found : 0), "global_topk: length");
  }
}

void short_context_topk(Input& in) {
  const std::int64_t tokens = in.range(0, 9);
  const std::int64_t k = in.range(0, 9);
  constexpr std::int64_t kRatios[] = {1, 4, 128};
  const std::int64_t ratio = in.choice(kRatios);
  const std::vector<std::int64_t> positions = in.hostile_longs(tokens, 64);
  Guarded<std::int32_t> out(tokens, k, in.range(0, 2));
  Plan<ShortContextTopk>({.tokens = tokens, .ratio = ratio, .k = k})
      .run({.positions = view_of(static_cast<const std::int64_t*>(positions.data()), {tokens}),
            .indices = out.view(DType::kI32)});
  out.check("short_context_topk wrote outside");
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t n = visible(positions[static_cast<std::size_t>(t)], ratio, k);
    for (std::int64_t j = 0; j < k; ++j) require(out.at(t, j) == (j < n ? j : -1), "short_context_topk");
  }
}

void combine_topk_window(Input& in) {
  Batch b(in);
  if (b.ascending && in.flag()) {  // a chunk of a longer batch
    const auto base = static_cast<std::int32_t>(in.range(0, 200));
    for (std::int32_t& s : b.start) s += base;
  }
  constexpr std::int64_t kRatios[] = {1, 4, 128};
  constexpr std::int64_t kSizes[] = {0, 1, 36, 400, 3000, INT32_MAX};
  const CombineTopkWindow::Problem p{.requests = b.requests,
                                     .tokens = b.tokens,
                                     .window = in.range(1, 9),
                                     .ratio = in.choice(kRatios),
                                     .top_k = in.range(0, 6),
                                     .m = in.choice(kSizes),
                                     .n = in.choice(kSizes),
                                     .clear_rest = in.flag()};
  const std::int64_t width = p.top_k + p.window + in.range(0, 3);
  const std::int64_t stride = p.top_k + in.range(0, 2);
  const std::vector<std::int32_t> topk = in.hostile_list(b.tokens * stride, 40);
  const std::vector<std::int32_t> gather = in.hostile_list(b.requests, 600);
  Guarded<std::int32_t> out(b.tokens, width, in.range(0, 2));
  Guarded<std::int32_t> lens(1, b.tokens, 3);
  CombineTopkWindow::Args args{.topk = {},
                               .query_start_loc = b.start_view(),
                               .seq_lens = b.seq_view(),
                               .gather_lens = view_of(gather.data(), {b.requests}),
                               .indices = out.view(DType::kI32),
                               .lens = view_of(lens.row(0), {b.tokens})};
  if (p.top_k > 0) {
    args.topk = ConstTensorView(topk.data(), DType::kI32, {b.tokens, p.top_k});
    args.topk.stride[0] = stride;
  }
  Plan<CombineTopkWindow>(p).run(args);
  out.check("combine_topk_window wrote outside its rows");
  lens.check("combine_topk_window wrote outside its lens");
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    require(lens.at(0, t) >= 0 && lens.at(0, t) <= p.top_k + p.window, "combine_topk_window: length");
    if (!b.ascending) continue;
    std::int64_t len = 0;
    for (std::int64_t r = 0; r < b.requests; ++r) {
      const std::int64_t token = t + b.start[0];
      const Wide pos = b.position_in(r, token);
      if (!b.holds(r, token) || pos < 0) continue;
      const std::int64_t entries = visible(pos, p.ratio, p.top_k);
      const Wide seen = std::min<Wide>(pos + 1, p.window);
      len = entries + static_cast<std::int64_t>(seen);
      for (std::int64_t j = 0; j < entries; ++j) {
        const Wide v = topk[static_cast<std::size_t>(t * stride + j)];
        require(out.at(t, j) == (v < 0 ? -1 : Batch::narrow(v + static_cast<Wide>(p.m) * r)),
                "combine_topk_window: entry");
      }
      const Wide gathered = static_cast<Wide>(b.seq[static_cast<std::size_t>(r)]) - gather[static_cast<std::size_t>(r)];
      for (std::int64_t i = 0; i < seen; ++i) {
        const Wide row = static_cast<Wide>(p.m) * r + p.n + (pos - seen + 1 - gathered) + i;
        require(out.at(t, entries + i) == Batch::narrow(row), "combine_topk_window: window");
      }
    }
    require(lens.at(0, t) == len, "combine_topk_window: length of the row");
    for (std::int64_t c = len; c < width; ++c)
      require(p.clear_rest ? out.at(t, c) == -1 : out.poisoned(t, c), "combine_topk_window: rest");
  }
}

/// Where a flat token axis has slot s.
std::int32_t remapped(std::optional<Wide> s, std::int64_t block, std::int64_t span) {
  if (!s || *s < 0) return -1;
  return Batch::narrow(*s / block * (span == 0 ? block : span) + *s % block);
}

void mixed_sparse_indices(Input& in) {
  const Batch b(in);
  constexpr std::int64_t kRatios[] = {1, 4, 128};
  constexpr std::int64_t kSpans[] = {0, 1, 7, INT32_MAX};
  MixedSparseIndices::Problem p{.requests = b.requests,
                                .tokens = b.tokens,
                                .decode_tokens = std::min<std::int64_t>(in.range(0, 12), b.tokens),
                                .window = in.range(1, 9),
                                .ratio = in.choice(kRatios),
                                .top_k = in.range(0, 5),
                                .window_block = b.block,
                                .compressed_block = in.choice(Batch::kBlocks),
                                .local = in.flag()};
  p.window_width = p.window + in.range(0, 3);
  p.compressed_width = p.top_k + in.range(0, 3);
  const auto span = [&](std::int64_t block) {
    const std::int64_t more = in.choice(kSpans);
    return more == 0 ? 0 : std::min<std::int64_t>(block + more, INT32_MAX);
  };
  p.window_span = span(p.window_block);
  p.compressed_span = span(p.compressed_block);
  const std::int64_t columns = in.range(0, 7);
  const std::int64_t prefill = b.tokens - p.decode_tokens;
  const std::int64_t prefill_columns = p.top_k + in.range(0, 1);
  const std::vector<std::int32_t> window = in.hostile_list(p.decode_tokens * p.window_width, 600);
  const std::vector<std::int32_t> compressed = in.hostile_list(p.decode_tokens * columns, 300);
  const std::vector<std::int32_t> decode_lens = in.hostile_list(p.decode_tokens, columns);
  const std::vector<std::int32_t> topk = in.hostile_list(prefill * prefill_columns, 300);
  std::vector<std::uint8_t> valid;
  for (std::int64_t t = 0; t < p.decode_tokens; ++t) valid.push_back(in.flag() ? 1 : 0);
  const bool with_compressed = in.flag();
  const bool with_lens = in.flag() && !p.local;

  Guarded<std::int32_t> out(b.tokens, p.window_width + p.compressed_width, in.range(0, 2));
  Guarded<std::int32_t> lens(1, b.tokens, 3);
  MixedSparseIndices::Args args{.decode_window = view_of(window.data(), {p.decode_tokens, p.window_width}),
                                .decode_compressed = {},
                                .decode_lens = {},
                                .decode_valid = ConstTensorView(valid.data(), DType::kBool, {p.decode_tokens}),
                                .prefill_topk = view_of(topk.data(), {prefill, prefill_columns}),
                                .query_start_loc = b.start_view(),
                                .seq_lens = b.seq_view(),
                                .token_to_req = b.request_view(),
                                .window_table = b.table_view(),
                                .compressed_table = b.table_view(),
                                .indices = out.view(DType::kI32),
                                .lens = view_of(lens.row(0), {b.tokens})};
  if (with_compressed) args.decode_compressed = view_of(compressed.data(), {p.decode_tokens, columns});
  if (with_lens) args.decode_lens = view_of(decode_lens.data(), {p.decode_tokens});
  Plan<MixedSparseIndices>(p).run(args);
  out.check("mixed_sparse_indices wrote outside its rows");
  lens.check("mixed_sparse_indices wrote outside its lens");

  for (std::int64_t t = 0; t < b.tokens; ++t) {
    std::vector<std::int32_t> row(static_cast<std::size_t>(p.window_width + p.compressed_width), -1);
    std::int32_t* entries = row.data() + p.window_width;
    std::int64_t len = 0;
    const std::int64_t r = b.request[static_cast<std::size_t>(t)];
    const auto look_up = [&](std::int64_t v) {
      return remapped(b.slot(r, v, p.compressed_block), p.compressed_block, p.compressed_span);
    };
    if (t < p.decode_tokens) {
      for (std::int64_t c = 0; c < p.window_width; ++c) {
        row[static_cast<std::size_t>(c)] =
            remapped(window[static_cast<std::size_t>(t * p.window_width + c)], p.window_block, p.window_span);
      }
      const std::int64_t used = with_compressed ? std::min(columns, p.compressed_width) : 0;
      std::int64_t there = 0;
      for (std::int64_t j = 0; j < used; ++j) {
        const std::int32_t v = compressed[static_cast<std::size_t>(t * columns + j)];
        there += v >= 0 ? 1 : 0;
        entries[j] = p.local ? look_up(v) : remapped(v, p.compressed_block, p.compressed_span);
      }
      const std::int64_t given =
          with_lens ? std::clamp<std::int64_t>(decode_lens[static_cast<std::size_t>(t)], 0, used) : used;
      len = p.window_width + (!p.local ? given : valid[static_cast<std::size_t>(t)] != 0 ? there : 0);
    } else if (r >= 0 && r < b.requests && b.holds(r, t) && b.position_in(r, t) >= 0) {
      const Wide pos = b.position_in(r, t);
      const Wide seen = std::min<Wide>(pos + 1, p.window);
      for (std::int64_t i = 0; i < seen; ++i) {
        row[static_cast<std::size_t>(i)] =
            remapped(b.slot(r, pos - seen + 1 + i, p.window_block), p.window_block, p.window_span);
      }
      const std::int64_t n = visible(pos, p.ratio, p.top_k);
      for (std::int64_t j = 0; j < n; ++j)
        entries[j] = look_up(topk[static_cast<std::size_t>((t - p.decode_tokens) * prefill_columns + j)]);
      len = p.window_width + n;
    }
    require(std::equal(row.begin(), row.end(), out.row(t)), "mixed_sparse_indices: row");
    require(lens.at(0, t) == len, "mixed_sparse_indices: length");
  }
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace smla::fuzz;
  constexpr void (*kOps[])(Input&) = {
      token_to_req, slot_mapping,       compressed_slot_mapping, window_indices,      dense_compressed_indices,
      global_topk,  short_context_topk, combine_topk_window,     mixed_sparse_indices};
  Input input(data, size);
  kOps[input.byte() % 9](input);
  return 0;
}
