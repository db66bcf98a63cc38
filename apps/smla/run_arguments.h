#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run_report.h"

namespace smla {

/// The options of `smla run` as they were typed.
struct RunArguments {
  std::string model;
  std::string weights;
  std::string fp8_weights = "auto";
  std::string nvfp4_weights = "auto";
  std::string layers;
  std::string trace;
  std::int64_t max_requests = 0;
  std::optional<double> scale_lengths;
  double arrival_speed = 0;
  std::string clock = "wall";
  std::int64_t max_batched_tokens = 512;
  std::int64_t max_seqs = 16;
  std::int64_t kv_blocks = 0;
  std::string kv_bytes;
  std::string front_end = "flashmla";
  bool strict = false;
  bool gather_prefill = false;
  std::string cache_dtype;  ///< empty: the front-end's default
  std::string index_dtype = "fp8";
  std::string output_projection = "bf16";
  bool hadamard = false;
  std::int64_t index_topk_freq = 0;  ///< 0: the model's
  std::string index_topk_pattern;    ///< empty: by frequency
  std::string precision = "bf16";
  double kv_scale = 1.0;
  double q_scale = 1.0;
  int speculative = 0;
  double acceptance = 0.7;
  bool adaptive_speculation = false;
  bool dspark = false;
  bool prefix_cache = false;
  std::int64_t prefix_retention = PrefixCacheOptions{}.retention_interval;
  bool prefix_compare = false;
  int check = 8;
  int threads = 0;
  std::uint64_t seed = 0;
  std::string json;
  std::vector<std::string> implementations;
  std::string device = "cpu";
  int tensor_parallel = 1;
  int context_parallel = 1;
  bool no_graphs = false;
  std::int64_t max_graphs = EngineOptions{}.max_graphs;
  std::int64_t graph_memory = EngineOptions{}.max_graph_bytes >> 20;  ///< MiB
  std::int64_t graph_after = EngineOptions{}.graph_after;
  bool stage_times = false;
  bool deterministic = false;
  bool quiet = false;
  std::string plant_error;
  std::string dump;            ///< folder for case files of one step's calls
  std::int64_t dump_step = 1;  ///< counted from 1
};

/// The trace's requests, scaled, in order of arrival; notes in the report where they came from. @throws
/// InvalidArgument, IoError.
std::vector<RequestSpec> read_requests(const RunArguments& a, RunReport& report);

/// What the engine is to do. @throws InvalidArgument naming the option, what was got and what was expected.
EngineOptions engine_options(const RunArguments& a, const std::vector<RequestSpec>& specs);

/// The ranks that --tp and --cp ask for.
ParallelOptions parallel_options(const RunArguments& a);

/// The model's name, or the path of its config.json with the name that stands in it.
std::string model_label(const RunArguments& a, const EngineOptions& o);

}  // namespace smla
