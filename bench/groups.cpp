#include <algorithm>
#include <array>

#include "bench/bench.h"
#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr std::array<Group, 5> kGroups{{
    {.name = "attention", .help = "sparse attention over --keys rows, for --batch decodes and --tokens of prefill", .run = bench_attention},
    {.name = "indexer", .help = "index scores over --context / 4 entries, for --batch decodes and --tokens of prefill", .run = bench_indexer},
    {.name = "topk", .help = "exact selection out of the same score rows", .run = bench_topk},
    {.name = "projection", .help = "the layer's linear maps with --batch and --tokens rows", .run = bench_projection},
    {.name = "layer",
     .help = "one attention layer of each --kind: decode at --context, prompts of --prefill tokens in steps of --chunk",
     .run = bench_layer},
}};

constexpr std::array<Group, 1> kDeviceGroups{{
    {.name = "attention",
     .help = "sparse attention: the grids decode and prefill over --heads, --batch, --layer, --keys, --pool, --tokens and --next-n",
     .run = bench_device_attention},
}};

}  // namespace

std::span<const Group> groups() { return kGroups; }
std::span<const Group> device_groups() { return kDeviceGroups; }

double floor_seconds(const Row& row, const Machine& machine) {
  if (!machine.gpu.empty()) {
    const double product = machine.peak("product");
    const double bandwidth = row.traffic == Traffic::kGather ? machine.gather() : machine.bandwidth("copy");
    return std::max(product > 0 ? row.flops / product : 0, bandwidth > 0 ? row.bytes / bandwidth : 0);
  }
  const double peak = row.bf16 ? machine.bf16_peak() : machine.fp32_peak();
  return std::max(peak > 0 ? row.flops / peak : 0, machine.read_bandwidth > 0 ? row.bytes / machine.read_bandwidth : 0);
}

std::vector<std::int64_t> decode_rows(const Options& options) { return options.decode ? options.batches : std::vector<std::int64_t>{}; }
std::vector<std::int64_t> prefill_rows(const Options& options) { return options.prefill ? options.tokens : std::vector<std::int64_t>{}; }

LayerConfig layer_of_ratio(const Options& options, int ratio) {
  for (std::int64_t i = 0; i < options.model.num_layers + options.model.num_mtp_layers; ++i) {
    LayerConfig config = options.model.layer(i);
    if (config.compress_ratio != ratio) continue;
    if (options.heads > 0) config.num_heads = options.heads;
    return config;
  }
  throw InvalidArgument("bench: got kind " + std::string(kind_name(ratio)) + ", expected one that " + options.model.name + " has");
}

std::string_view kind_name(int ratio) { return ratio == 1 ? "SWA" : (ratio == 4 ? "C4A" : "C128A"); }

}  // namespace smla::bench
