// Index scores over pages and over gathered rows: every implementation against `ref`, with hostile lengths, requests
// and block tables. Rows that no table names are NaN, and hostile tables may name them.
#include <algorithm>
#include <cmath>

#include "aligned_workspace.h"
#include "parity/gathered_cases.h"
#include "parity/indexer_cases.h"
#include "support.h"

namespace smla::fuzz {
namespace {

constexpr std::int64_t kGap = 5;

const RowFormat* choose_format(Input& in) {
  const RowFormat* const formats[] = {&index_fp8_rows(), &index_mxfp4_rows(), &index_f32_rows()};
  return in.choice(formats);
}

/// `begin`..`end` are defined, the rest is not written. Sums may differ by their order only.
void compare(const Guarded<float>& got, const Guarded<float>& want, std::int64_t row, std::int64_t begin,
             std::int64_t end, std::int64_t width) {
  double largest = 0;
  for (std::int64_t j = begin; j < end; ++j) {
    if (std::isfinite(want.at(row, j))) largest = std::max(largest, std::fabs(static_cast<double>(want.at(row, j))));
  }
  for (std::int64_t j = 0; j < width; ++j) {
    if (j < begin || j >= end) {
      require(got.poisoned(row, j), "index scores: a column past the bounds was written");
      continue;
    }
    const float a = got.at(row, j);
    const float b = want.at(row, j);
    require(std::isnan(a) == std::isnan(b), "index scores: NaN in another place");
    if (std::isnan(a) || a == b) continue;
    require(std::isfinite(a) && std::isfinite(b), "index scores: infinity in another place");
    require(std::fabs(static_cast<double>(a) - b) <= 1e-4 * largest, "index scores: another number");
  }
}

void paged(Input& in) {
  constexpr std::int64_t kHeads[] = {1, 2, 3, 5, 8, 16, 64};
  constexpr std::int64_t kBlocks[] = {1, 2, 3, 53, 64};
  cases::IndexerLogitsCase c{.rows = in.range(0, 5),
                             .requests = in.range(1, 3),
                             .heads = in.choice(kHeads),
                             .width = in.range(0, 140) / (in.flag() ? 1 : 8),
                             .block_size = in.choice(kBlocks),
                             .format = choose_format(in)};
  c.seed = in.raw<std::uint16_t>();
  cases::IndexerLogitsInputs inputs(c);
  inputs.lens = in.hostile_list(c.rows, c.width);
  for (std::int32_t& r : inputs.row_to_req) {
    if (in.byte() % 4 == 0) r = in.hostile32(c.requests);
  }
  for (std::int32_t& entry : inputs.table) {
    if (in.byte() % 4 == 0) entry = in.hostile32(inputs.cache.num_blocks);
  }
  const bool narrow = in.flag() && inputs.columns > 0;  // a table one column short of the rows
  const auto run = [&](const std::string& name) {
    Guarded<float> out(c.rows, c.width, kGap);
    IndexerLogits::Args args = inputs.args(c);
    if (narrow) args.block_table.shape[1] -= 1;
    args.logits = out.view(DType::kF32);
    const Plan<IndexerLogits> plan(c.problem(), {.implementation = name, .threads = 1});
    const test::AlignedWorkspace workspace(plan.workspace_bytes());
    plan.run(args, workspace.get());
    out.check("indexer_logits wrote outside its rows");
    return out;
  };
  const Guarded<float> want = run("ref");
  for (const Candidate& candidate : explain<IndexerLogits>(c.problem())) {
    if (!candidate.refusal.empty()) continue;
    const Guarded<float> got = run(candidate.name);
    for (std::int64_t row = 0; row < c.rows; ++row) {
      const std::int64_t end = std::clamp<std::int64_t>(inputs.lens[static_cast<std::size_t>(row)], 0, c.width);
      compare(got, want, row, 0, end, c.width);
      for (std::int64_t j = 0; j < end; ++j) {
        const std::int64_t r = inputs.row_to_req[static_cast<std::size_t>(row)];
        const std::int64_t column = j / c.block_size;
        const bool found = r >= 0 && r < c.requests && column < inputs.columns - (narrow ? 1 : 0);
        const std::int64_t block = found ? inputs.table[static_cast<std::size_t>(r * inputs.columns + column)] : -1;
        if (block < 0 || block >= inputs.cache.num_blocks)
          require(got.at(row, j) == -INFINITY, "indexer_logits: an entry that is not there has a score");
      }
    }
  }
}

void ragged(Input& in) {
  constexpr std::int64_t kHeads[] = {1, 2, 5, 32, 64};
  gathered_cases::RaggedCase c{
      .format = choose_format(in), .heads = in.choice(kHeads), .keys = in.range(0, 200) / (in.flag() ? 1 : 8)};
  const std::int64_t rows = in.range(0, 4);
  c.starts = in.hostile_list(rows, c.keys);
  c.ends = in.hostile_list(rows, c.keys);
  c.seed = in.raw<std::uint16_t>();
  const gathered_cases::RaggedInputs inputs(c);
  const auto run = [&](const std::string& name) {
    Guarded<float> out(rows, c.keys, kGap);
    RaggedIndexerLogits::Args args = inputs.args(c);
    args.logits = out.view(DType::kF32);
    const Plan<RaggedIndexerLogits> plan(c.problem(), {.implementation = name, .threads = 1});
    const test::AlignedWorkspace workspace(plan.workspace_bytes());
    plan.run(args, workspace.get());
    out.check("ragged_indexer_logits wrote outside its rows");
    return out;
  };
  const Guarded<float> want = run("ref");
  for (const Candidate& candidate : explain<RaggedIndexerLogits>(c.problem())) {
    if (!candidate.refusal.empty()) continue;
    const Guarded<float> got = run(candidate.name);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t begin = std::clamp<std::int64_t>(c.starts[static_cast<std::size_t>(row)], 0, c.keys);
      const std::int64_t end = std::clamp<std::int64_t>(c.ends[static_cast<std::size_t>(row)], 0, c.keys);
      compare(got, want, row, begin, std::max(begin, end), c.keys);
    }
  }
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::Input input(data, size);
  if (input.flag()) {
    smla::fuzz::paged(input);
  } else {
    smla::fuzz::ragged(input);
  }
  return 0;
}
