#include <algorithm>
#include <array>

#include "bench/bench.h"
#include "sparsemla/error.h"

namespace smla::bench {

namespace {

constexpr std::array<Group, 7> kGroups{{
    {.name = "attention",
     .help = "sparse attention over --keys rows, for --batch decodes and --tokens of prefill",
     .options = "--batch --tokens --keys --heads --cache-dtype --only",
     .run = bench_attention},
    {.name = "indexer",
     .help = "index scores over --context / 4 entries, for --batch decodes and --tokens of prefill",
     .options = "--batch --tokens --context --index-dtype --only",
     .run = bench_indexer},
    {.name = "topk",
     .help = "exact selection out of the same score rows",
     .options = "--batch --tokens --context --only",
     .run = bench_topk},
    {.name = "projection",
     .help = "the layer's linear maps with --batch and --tokens rows",
     .options = "--batch --tokens --kind --heads --fp8-weights --nvfp4-weights --only",
     .run = bench_projection},
    {.name = "layer",
     .help = "one attention layer of each --kind: decode at --context, prompts of --prefill tokens in steps of --chunk",
     .options = "--kind --batch --context --prefill --chunk --heads --fp8-weights --nvfp4-weights --cache-dtype "
                "--index-dtype --only",
     .run = bench_layer},
    {.name = "engine",
     .help = "a decode step of 256 requests without its layers: the host's time, and the bytes that it moves",
     .options = "--only",
     .run = bench_engine},
    {.name = "move",
     .help = "256 MB of a snapshot through a pipe and through a socket, beside plain reads and writes",
     .options = "",
     .run = bench_move},
}};

constexpr std::array<Group, 6> kDeviceGroups{{
    {.name = "attention",
     .help = "sparse attention: the grids decode and prefill over --heads, --batch, --layer, --keys, --pool, --tokens "
             "and --next-n",
     .options = "--heads --batch --layer --keys --pool --tokens --next-n --grid --cache-dtype --only",
     .run = bench_device_attention},
    {.name = "indexer",
     .help = "index scores and the selection out of them: the grids decode (--batch, --next-n, --pool) and prefill "
             "(--tokens, --pool)",
     .options = "--batch --next-n --pool --tokens --grid --index-dtype --only",
     .run = bench_device_indexer},
    {.name = "ops",
     .help = "the other ops with V4-Pro's shapes, --tokens tokens",
     .options = "--tokens --layer",
     .run = bench_device_ops},
    {.name = "projection",
     .help =
         "the layer's linear maps with --batch and --tokens rows; inputs of --fp8-weights are E4M3 or bf16, as layers "
         "on a GPU have them; E4M3 unless the --impl takes bf16 alone",
     .options = "--batch --tokens --fp8-weights --nvfp4-weights --only",
     .run = bench_device_projection},
    {.name = "layer",
     .help = "one attention layer of each --kind as a graph: decode at --context with --batch requests, prompts of "
             "--prefill tokens in one step",
     .options = "--kind --batch --context --prefill --heads --next-n --grid --fp8-weights --nvfp4-weights "
                "--cache-dtype --index-dtype --only",
     .run = bench_device_layer},
    {.name = "engine",
     .help = "a decode step of 256 requests without its layers: the host's time, and the bytes that it moves",
     .options = "--only",
     .run = bench_engine},
}};

}  // namespace

std::span<const Group> groups() { return kGroups; }
std::span<const Group> device_groups() { return kDeviceGroups; }

Bound bound_of(const Row& row, const Machine& machine) {
  const bool gpu = !machine.gpu.empty();
  const bool gather = row.traffic == Traffic::kGather;
  Bound work{.name = gpu ? "product" : (row.bf16 ? "bf16" : "fp32"),
             .rate = gpu ? row.product_rate * machine.peak("product")
                         : (row.bf16 ? machine.bf16_peak() : machine.fp32_peak())};
  Bound bytes{.name = gpu ? (gather ? "gather" : "copy") : "read",
              .rate = gpu ? (gather ? machine.gather() : machine.bandwidth("copy")) : row.read_bandwidth(machine)};
  if (work.rate > 0) work.seconds = row.flops / work.rate;
  if (bytes.rate > 0) bytes.seconds = row.bytes / bytes.rate;
  return work.seconds > bytes.seconds ? work : bytes;
}

std::vector<Bound> bounds_of(const Machine& machine) {
  if (machine.gpu.empty()) {
    return {{.name = "fp32", .rate = machine.fp32_peak()},
            {.name = "bf16", .rate = machine.bf16_peak()},
            {.name = "read", .rate = machine.read_bandwidth}};
  }
  return {{.name = "product", .rate = machine.peak("product")},
          {.name = "copy", .rate = machine.bandwidth("copy")},
          {.name = "gather", .rate = machine.gather()}};
}

double floor_seconds(const Row& row, const Machine& machine) { return bound_of(row, machine).seconds; }

std::vector<std::int64_t> decode_rows(const Options& options) {
  return options.decode ? options.batches : std::vector<std::int64_t>{};
}
std::vector<std::int64_t> prefill_rows(const Options& options) {
  return options.prefill ? options.tokens : std::vector<std::int64_t>{};
}

LayerConfig layer_of_ratio(const Options& options, int ratio) {
  for (std::int64_t i = 0; i < options.model.num_layers + options.model.num_mtp_layers; ++i) {
    LayerConfig config = options.model.layer(i);
    if (config.compress_ratio != ratio) continue;
    if (options.heads > 0) config.num_heads = options.heads;
    return config;
  }
  throw InvalidArgument("bench: got kind " + std::string(kind_name(ratio)) + ", expected one that " +
                        options.model.name + " has");
}

std::string_view kind_name(int ratio) { return ratio == 1 ? "SWA" : (ratio == 4 ? "C4A" : "C128A"); }

}  // namespace smla::bench
