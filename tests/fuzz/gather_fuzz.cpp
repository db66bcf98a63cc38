// GatherRows and GatherIndexRows over caches of any format, with hostile lengths, offsets and block tables: every
// implementation against `ref`, and `ref` against the rows one by one.
#include <algorithm>

#include "cache/row_codec.h"
#include "core/codecs.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/indexer.h"
#include "support.h"

namespace smla::fuzz {
namespace {

/// Requests over a cache of any format; lengths and tables may hold anything.
struct PagedRequests {
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> table;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> memory;
  PagedCache cache;

  PagedRequests(Input& in, const RowFormat& format) {
    constexpr std::int64_t kBlocks[] = {1, 2, 3, 5, 64};
    const std::int64_t block = in.choice(kBlocks);
    const std::int64_t blocks = in.range(0, block > 5 ? 1 : 5);
    columns = in.range(0, 4);
    seq_lens = in.hostile_list(in.range(0, 3), 12);
    table = in.hostile_list(requests() * columns, blocks);
    const std::int64_t stride = page_bytes(format, block) + 64 * in.range(0, 1);
    memory.assign(static_cast<std::size_t>(blocks * stride), 0xFF);
    cache = {.format = &format,
             .base = memory.data(),
             .num_blocks = blocks,
             .block_size = block,
             .block_stride_bytes = stride,
             .scale = 0.37F};
    // Any numbers do, as long as they are finite and of many sizes.
    std::uint32_t state = in.raw<std::uint16_t>();
    std::vector<float> row(static_cast<std::size_t>(format.dim));
    for (std::int64_t slot = 0; slot < cache.num_slots(); ++slot) {
      for (float& v : row) {
        state = state * 1664525U + 1013904223U;
        v = static_cast<float>(static_cast<std::int32_t>(state) >> 16) / static_cast<float>(1U << (state >> 8 & 15));
      }
      encode_row(cache, slot, row.data());
    }
  }
  std::int64_t requests() const { return static_cast<std::int64_t>(seq_lens.size()); }
  ConstTensorView table_view() const { return view_of(table.data(), {requests(), columns}); }
};

/// The slot of position i of request b; -1 where there is none.
std::int64_t slot_of(const PagedRequests& r, std::int64_t b, std::int64_t i) {
  if (i < 0 || i / r.cache.block_size >= r.columns) return -1;
  const std::int64_t block = r.table[static_cast<std::size_t>(b * r.columns + i / r.cache.block_size)];
  return block < 0 || block >= r.cache.num_blocks ? -1 : block * r.cache.block_size + i % r.cache.block_size;
}

void gather_rows(Input& in) {
  const auto formats = all_row_formats();
  const RowFormat& format = *formats[in.byte() % formats.size()];
  const PagedRequests r(in, format);
  const GatherRows::Problem p{
      .requests = r.requests(), .rows = in.range(0, 40), .offset = in.range(0, 44), .format = &format};
  const bool with_gather = in.flag();
  const std::vector<std::int32_t> gather = in.hostile_list(r.requests(), 80);
  const auto run = [&](const std::string& name) {
    Guarded<std::uint16_t> out(p.requests * p.rows, format.dim, 5);
    GatherRows::Args args{.cache = r.cache,
                          .seq_lens = view_of(r.seq_lens.data(), {p.requests}),
                          .gather_lens = {},
                          .block_table = r.table_view(),
                          .out = {}};
    if (with_gather) args.gather_lens = view_of(gather.data(), {p.requests});
    args.out = TensorView(out.row(0), DType::kBF16, {p.requests, p.rows, format.dim});
    args.out.stride[1] = format.dim + 5;
    args.out.stride[0] = p.rows * args.out.stride[1];
    Plan<GatherRows>(p, {.implementation = name, .threads = 1}).run(args);
    out.check("gather_rows wrote outside its rows");
    return out;
  };
  const Guarded<std::uint16_t> want = run("ref");
  std::vector<float> row(static_cast<std::size_t>(format.dim));
  for (std::int64_t b = 0; b < p.requests; ++b) {
    const std::int64_t seq = std::max(r.seq_lens[static_cast<std::size_t>(b)], 0);
    const std::int64_t length =
        with_gather ? std::clamp<std::int64_t>(gather[static_cast<std::size_t>(b)], 0, seq) : seq;
    for (std::int64_t i = 0; i < p.rows; ++i) {
      const bool written = i >= p.offset && i - p.offset < length;
      const std::int64_t slot = written ? slot_of(r, b, seq - length + i - p.offset) : -1;
      std::fill(row.begin(), row.end(), 0.0F);
      if (slot >= 0) decode_row(r.cache, slot, row.data());
      bool good = true;
      for (std::int64_t d = 0; written && d < format.dim; ++d)
        good = good && want.at(b * p.rows + i, d) == to_bf16(row[static_cast<std::size_t>(d)]).bits;
      require(written ? good : want.poisoned(b * p.rows + i), "gather_rows: ref");
    }
  }
  for (const Candidate& candidate : explain<GatherRows>(p)) {
    if (candidate.refusal.empty() && candidate.name != "ref")
      require(run(candidate.name) == want, "gather_rows: an implementation is not ref");
  }
}

void gather_index_rows(Input& in) {
  const RowFormat* const formats[] = {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()};
  const RowFormat& format = *in.choice(formats);
  const PagedRequests r(in, format);
  const GatherIndexRows::Problem p{.requests = r.requests(), .rows = in.range(0, 60), .format = &format};
  std::vector<std::int32_t> starts = in.hostile_list(p.requests + 1, p.rows);
  const bool ascending = in.flag();
  if (ascending) std::sort(starts.begin(), starts.end());
  const auto run = [&](const std::string& name) {
    std::pair<Guarded<std::uint8_t>, Guarded<std::uint8_t>> out{{p.rows, format.data_bytes, 5},
                                                                {p.rows, format.scale_bytes, 5}};
    GatherIndexRows::Args args{.cache = r.cache,
                               .cu_seq_lens = view_of(starts.data(), {p.requests + 1}),
                               .block_table = r.table_view(),
                               .values = out.first.view(DType::kU8),
                               .scales = {}};
    if (format.scale_bytes > 0) args.scales = out.second.view(DType::kU8);
    Plan<GatherIndexRows>(p, {.implementation = name, .threads = 1}).run(args);
    out.first.check("gather_index_rows wrote outside its values");
    out.second.check("gather_index_rows wrote outside its scales");
    return out;
  };
  const auto want = run("ref");
  for (std::int64_t i = 0; ascending && i < p.rows; ++i) {
    std::int64_t slot = -1;
    for (std::int64_t b = 0; b < p.requests; ++b) {
      const std::int64_t first = starts[static_cast<std::size_t>(b)];
      if (i >= first && i < starts[static_cast<std::size_t>(b) + 1]) slot = slot_of(r, b, i - first);
    }
    const std::int64_t block = slot / r.cache.block_size;
    const std::int64_t at = slot % r.cache.block_size;
    if (slot < 0) {
      require(want.first.poisoned(i) && want.second.poisoned(i),
              "gather_index_rows: a row that is nobody's was written");
    } else {
      const auto same = [](const std::uint8_t* a, const std::uint8_t* b, int n) {
        return std::memcmp(a, b, static_cast<std::size_t>(n)) == 0;
      };
      require(same(want.first.row(i), row_data(r.cache, block, at), format.data_bytes), "gather_index_rows: values");
      require(same(want.second.row(i), row_scales(r.cache, block, at), format.scale_bytes),
              "gather_index_rows: scales");
    }
  }
  for (const Candidate& candidate : explain<GatherIndexRows>(p)) {
    if (candidate.refusal.empty() && candidate.name != "ref")
      require(run(candidate.name) == want, "gather_index_rows: an implementation is not ref");
  }
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::Input input(data, size);
  if (input.flag()) {
    smla::fuzz::gather_rows(input);
  } else {
    smla::fuzz::gather_index_rows(input);
  }
  return 0;
}
