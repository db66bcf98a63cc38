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

/// What is measured: shapes come from the model, sizes from here.
struct Options {
  ModelConfig model;
  std::int64_t heads = 0;                           ///< query heads; 0: the model's
  std::vector<std::int64_t> batches{1, 16};         ///< decoding requests of a step, a token each
  std::vector<std::int64_t> tokens{512};            ///< prefill tokens of a step
  std::vector<std::int64_t> contexts{8192};         ///< tokens a decoding request has behind it
  std::vector<std::int64_t> keys{128, 640, 1152};   ///< keys a query attends to, group attention
  std::vector<std::int64_t> prefills{1024, 2048};   ///< lengths of whole prompts, group layer
  bool decode = true;                               ///< whether decode steps are measured
  bool prefill = true;                              ///< whether prefill steps are measured
  std::int64_t chunk = 512;                         ///< tokens of a prefill step, group layer
  std::vector<int> ratios{1, 4, 128};               ///< layer kinds by compress ratio
  const RowFormat* rows = &fp8_ds_mla_rows();       ///< of the attention caches
  const RowFormat* index_rows = &index_fp8_rows();  ///< of the index cache
  DeviceKind device = DeviceKind::kCpu;
  std::map<std::string, std::string, std::less<>> implementations;  ///< by op name; "*" for every op that has it
  int threads = 0;
  MeasureOptions measure;

  // With DeviceKind::kCuda; an empty list means the whole grid.
  std::vector<std::int64_t> head_counts;  ///< query heads, each in turn; layers: empty means the model's
  std::vector<std::string> grids;         ///< names of grids, "decode" or "prefill" for example
  std::vector<std::string> layers;        ///< decode attention: "c4a_32k", ...
  std::vector<std::int64_t> key_counts;   ///< keys of a query
  std::vector<std::int64_t> pools;        ///< entries that a prefill chooses from
  std::vector<std::int64_t> next_n{1};    ///< queries of a decoding request
};

/// What came of comparing a row's results with the reference.
struct Check {
  bool done = false;
  double l2 = 0;        ///< |got - want|_2 / |want|_2, the worst of what was compared
  std::string failure;  ///< empty: all right
};

/// What its bytes are held against; on a CPU always reading in order.
enum class Traffic : std::uint8_t { kCopy, kGather };

/// "NAME" for every op that has it ("*"), "OP=NAME" for one.
std::map<std::string, std::string, std::less<>> implementations_of(const std::vector<std::string>& choices);

/// One measured thing.
struct Row {
  std::string group;           ///< "attention"
  std::string name;            ///< "decode", "prefill", "wq_b", ...
  std::string shape;           ///< "tokens 16, heads 64, keys 1152, fp8_ds_mla"
  std::string implementation;  ///< what ran; a layer's list of ops
  Timing time;
  double flops =
      0;  ///< the formula's operations, 2 for a multiply-add; what an implementation does beside it does not count
  double bytes = 0;   ///< what has to come from or go to memory once: weights, cache rows, inputs, outputs
  bool bf16 = false;  ///< both factors of its products are bf16, so that bf16 dot products may compute it
  std::vector<std::pair<std::string, double>> stages;  ///< share of the time by stage; layers only
  std::string cell{};                ///< what other measurements of the same thing are filed under, "decode/64/swa/1"
  Traffic traffic = Traffic::kCopy;  ///< what its bytes are held against
  double product_rate = 1;           ///< of its products beside those of bf16: 2 where both factors are fp8 or fp4
  Check check{};                     ///< where results were recomputed
  std::string skipped{};             ///< why it was not measured; then there is no time
};

/// What limits a row on a machine: "product", "copy" or "gather" of a GPU, "fp32", "bf16" or "read" of a CPU;
/// operations or bytes a second.
struct Bound {
  std::string_view name;
  double rate = 0;
  double seconds = 0;  ///< the least time
};
Bound bound_of(const Row& row, const Machine& machine);
/// The ceilings that rows can be bound by, seconds left out.
std::vector<Bound> bounds_of(const Machine& machine);

/// The least time this machine could take: operations at its peak or bytes at its bandwidth, whichever is longer.
double floor_seconds(const Row& row, const Machine& machine);

using Emit = std::function<void(const Row& row)>;

/// A set of rows that can be asked for by name.
struct Group {
  std::string_view name;
  std::string_view help;
  void (*run)(const Options& options, const Emit& emit);
};

/// In the order in which they run. The ceilings of the machine are no group: they come with every run.
std::span<const Group> groups();
/// Those of a run on a GPU.
std::span<const Group> device_groups();

void bench_attention(const Options& options, const Emit& emit);
void bench_indexer(const Options& options, const Emit& emit);
void bench_topk(const Options& options, const Emit& emit);
void bench_projection(const Options& options, const Emit& emit);
void bench_layer(const Options& options, const Emit& emit);
void bench_device_attention(const Options& options, const Emit& emit);
void bench_device_indexer(const Options& options, const Emit& emit);
void bench_device_ops(const Options& options, const Emit& emit);
void bench_device_projection(const Options& options, const Emit& emit);
void bench_device_layer(const Options& options, const Emit& emit);

/// Whether a filter of Options lets a value through: it is empty or has it.
template <class T>
bool wanted(const std::vector<T>& filter, const T& value) {
  return filter.empty() || std::ranges::find(filter, value) != filter.end();
}

/// Options::batches and Options::tokens, empty where that half is not measured.
std::vector<std::int64_t> decode_rows(const Options& options);
std::vector<std::int64_t> prefill_rows(const Options& options);

/// The config of the model's first layer of this compress ratio (1: window only), with Options::heads. @throws
/// InvalidArgument when it has none.
LayerConfig layer_of_ratio(const Options& options, int ratio);
/// Adds the operations and bytes of one step of a layer: weights once, then what each token attends to and scores. Each
/// request has `before` tokens behind it and brings `tokens` more.
void add_layer_floor(const LayerConfig& config, const Options& options, const LayerWeights& weights,
                     std::int64_t requests, std::int64_t before, std::int64_t tokens, Row& row);
/// "SWA", "C4A" or "C128A".
std::string_view kind_name(int ratio);

}  // namespace smla::bench
