#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/machine.h"
#include "bench/measure.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/layer.h"
#include "sparsemla/model_config.h"
#include "sparsemla/op.h"

namespace smla::bench {

/// What a run of `smla bench` measures. The model gives the shapes, these the sizes.
struct Options {
  ModelConfig model;
  std::int64_t heads = 0;                           ///< query heads; 0: the model's
  std::vector<std::int64_t> batches{1, 16};         ///< decoding requests in a step, one token each
  std::vector<std::int64_t> tokens{512};            ///< prefill tokens in a step
  std::vector<std::int64_t> contexts{8192};         ///< tokens that a decoding request has already
  std::vector<std::int64_t> keys{128, 640, 1152};   ///< keys that a query attends to (group attention)
  std::vector<std::int64_t> prefills{1024, 2048};   ///< lengths of whole prompts (group layer)
  bool decode = true;                               ///< whether decode steps are measured
  bool prefill = true;                              ///< whether prefill steps are measured
  std::int64_t chunk = 512;                         ///< tokens of a prefill step (group layer)
  std::vector<int> ratios{1, 4, 128};               ///< layer kinds by compress ratio
  const RowFormat* rows = &fp8_ds_mla_rows();       ///< format of rows in the attention caches
  const RowFormat* index_rows = &index_fp8_rows();  ///< format of rows in the index cache
  bool fp8_weights = false;                         ///< E4M3 weights with scales of 128 x 128 blocks
  bool nvfp4_weights = false;                       ///< NVFP4 weights, in place of those
  DeviceKind device = DeviceKind::kCpu;
  std::map<std::string, std::string, std::less<>>
      implementations;  ///< forced one by op name; "*": for every op that has it
  int threads = 0;
  MeasureOptions measure;

  // Filters of a run on a GPU (DeviceKind::kCuda). An empty list lets the whole grid through.
  std::vector<std::int64_t> head_counts;  ///< query heads; for layers an empty list means the model's
  std::vector<std::string> grids;         ///< names of grids, for example "decode"
  std::vector<std::string> layers;        ///< layers of decode attention, for example "c4a_32k"
  std::vector<std::int64_t> key_counts;   ///< keys of a query
  std::vector<std::int64_t> pools;        ///< entries that a prefill's queries choose from
  std::vector<std::int64_t> next_n{1};    ///< queries of a decoding request
};

/// The outcome of comparing a row's results with the reference.
struct Check {
  bool done = false;
  double l2 = 0;        ///< largest |got - want|_2 / |want|_2 of what was compared
  std::string failure;  ///< what was wrong; empty when nothing was
};

/// The bandwidth that a row's bytes are compared with on a GPU. On a CPU it is always that of reading in order.
enum class Traffic : std::uint8_t { kCopy, kGather };

/// One line of a report: something that was measured.
struct Row {
  std::string group;           ///< "attention"
  std::string name;            ///< "decode", "prefill", "wq_b", ...
  std::string shape;           ///< "tokens 16, heads 64, keys 1152, fp8_ds_mla"
  std::string implementation;  ///< the one that ran; of a layer a list by op
  Timing time;
  double flops =
      0;  ///< operations of the formula, a multiply-add being 2; extra work of an implementation does not count
  double bytes = 0;   ///< of weights, cache rows, inputs and outputs, each read or written once
  bool bf16 = false;  ///< both factors of its products are bf16, so bf16 dot products can compute it
  std::vector<std::pair<std::string, double>> stages;  ///< share of the time by stage; layers only
  std::string cell{};                ///< the name under which peers' times are found, "decode/64/swa/1"
  Traffic traffic = Traffic::kCopy;  ///< the bandwidth that its bytes are compared with
  double product_rate = 1;           ///< rate of its products over that of bf16: 2 where both factors are fp8 or fp4
  Check check{};                     ///< of results that were recomputed
  std::string skipped{};             ///< why it was not measured; then there is no time

  /// The bandwidth that bounds it on a CPU: what was read in turn with it, else the machine's.
  double read_bandwidth(const Machine& machine) const {
    return time.reading > 0 ? time.reading : machine.read_bandwidth;
  }
};

/// The ceiling that limits a row on a machine: "product", "copy" or "gather" of a GPU, "fp32", "bf16" or "read" of a
/// CPU. `rate` is in operations or bytes a second.
struct Bound {
  std::string_view name;
  double rate = 0;
  double seconds = 0;  ///< the least time of the row
};
Bound bound_of(const Row& row, const Machine& machine);
/// All ceilings of a machine that can limit a row, without seconds.
std::vector<Bound> bounds_of(const Machine& machine);

/// The least time in seconds that this machine could take for a row: its operations at the peak or its bytes at the
/// bandwidth, whichever is longer.
double floor_seconds(const Row& row, const Machine& machine);

using Emit = std::function<void(const Row& row)>;

/// Rows that are measured together and named on the command line: `smla bench NAME`.
struct Group {
  std::string_view name;
  std::string_view help;
  std::string_view options;  ///< of the command line, beside those of every group: what it reads
  void (*run)(const Options& options, const Emit& emit);
};

/// The groups of a run on the CPU, in the order in which they run. The machine's ceilings are measured in every run.
std::span<const Group> groups();
/// The groups of a run on a GPU.
std::span<const Group> device_groups();

void bench_attention(const Options& options, const Emit& emit);
void bench_indexer(const Options& options, const Emit& emit);
void bench_topk(const Options& options, const Emit& emit);
void bench_projection(const Options& options, const Emit& emit);
void bench_layer(const Options& options, const Emit& emit);
/// On either device: the host's time and the bytes moved before the first layer of a decode step runs.
void bench_engine(const Options& options, const Emit& emit);
void bench_move(const Options& options, const Emit& emit);
void bench_device_attention(const Options& options, const Emit& emit);
void bench_device_indexer(const Options& options, const Emit& emit);
void bench_device_ops(const Options& options, const Emit& emit);
void bench_device_projection(const Options& options, const Emit& emit);
void bench_device_layer(const Options& options, const Emit& emit);

/// Whether a filter of Options lets a value through: the filter is empty or contains it.
template <class T>
bool wanted(const std::vector<T>& filter, const T& value) {
  return filter.empty() || std::ranges::find(filter, value) != filter.end();
}

/// Options::batches and Options::tokens; empty where Options::decode or Options::prefill is off.
std::vector<std::int64_t> decode_rows(const Options& options);
std::vector<std::int64_t> prefill_rows(const Options& options);

/// The config of the model's first layer of this compress ratio (1: window only), with Options::heads. @throws
/// InvalidArgument when it has none.
LayerConfig layer_of_ratio(const Options& options, int ratio);
/// Adds to `row` the operations and bytes of one step of a layer: the weights once, and the rows that each token scores
/// and attends to. Each request has `before` tokens already and brings `tokens` more.
void add_layer_floor(const LayerConfig& config, const Options& options, const LayerWeights& weights,
                     std::int64_t requests, std::int64_t before, std::int64_t tokens, Row& row);
/// "SWA", "C4A" or "C128A".
std::string_view kind_name(int ratio);

}  // namespace smla::bench
