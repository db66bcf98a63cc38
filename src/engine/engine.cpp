#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "engine/engine_state.h"
#include "engine/prompt.h"
#include "engine/synthetic.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = kEngine;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint64_t digest_row(const ConstTensorView& rows, std::int64_t row) {
  const std::int64_t bytes = rows.size(1) * size_of(rows.dtype);
  const auto* p = static_cast<const std::uint8_t*>(rows.data) + row * rows.stride[0] * size_of(rows.dtype);
  std::uint64_t h = 0xCBF2'9CE4'8422'2325U;
  for (std::int64_t i = 0; i + 8 <= bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + i, 8);
    h = mix(h ^ word);
  }
  return h;
}

}  // namespace

std::shared_ptr<const RopeTable> Engine::State::rope_of(const RopeConfig& config) {
  for (const auto& rope : ropes) {
    if (rope->config() == config || options.planted_error == PlantedError::kRope) return rope;
  }
  ropes.push_back(std::make_shared<const RopeTable>(config, options.max_model_len, device(), true));
  return ropes.back();
}

void Engine::State::add_layer(std::int64_t model_layer, const LayerConfig& config) {
  const int rank = options.layer.tensor_parallel == nullptr ? 0 : options.layer.tensor_parallel->rank();
  const int ranks = options.layer.tensor_parallel == nullptr ? 1 : options.layer.tensor_parallel->ranks();
  LayerSource source{.config = tensor_parallel_slice(config, rank, ranks), .weights = {}};
  if (options.weights == nullptr) {
    OwnedLayerWeights whole = random_weights(config, layer_seed(options.seed, model_layer));
    weights.push_back(ranks == 1 ? std::move(whole) : sliced_weights(config, whole, rank, ranks));
    source.weights = weights.back().views;
  } else {
    loaded.push_back(options.weights->load_layer(
        model_layer, config, rank, ranks, {.keep_fp8 = options.fp8_weights, .keep_nvfp4 = options.nvfp4_weights}));
    source = LayerSource::of(loaded.back());
    weights.push_back({.storage = {}, .views = source.weights});
  }
  layers.emplace_back(std::move(source), options.layer, rope_of(config.rope));
}

/// Per-tensor rows by the checkpoint's scales where it has any.
void Engine::State::set_cache_scales() {
  if (options.layer.caches.rows->scale != ScaleKind::kPerTensor) return;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    for (const CacheRole role : {CacheRole::kWindow, CacheRole::kCompressed}) {
      if (pool->layout().find(layer, role) != nullptr) pool->set_scale(layer, role, layers[i].scale_of(role));
    }
  }
}

std::vector<LayerConfig> layer_configs(const EngineOptions& options) {
  std::vector<LayerConfig> configs;
  for (const std::int64_t index : options.layers) configs.push_back(options.model.layer(index));
  if (const std::string& pattern = options.index_topk_pattern; !pattern.empty()) {
    const auto choosers = std::ranges::count_if(configs, &LayerConfig::has_indexer);
    const bool letters = pattern.find_first_not_of("FS") == std::string::npos && pattern.front() == 'F';
    check_that(letters && std::ssize(pattern) == choosers, kWhat, "index_topk_pattern", pattern,
               "F and then F or S, " + std::to_string(choosers) + " in all, one for each C4A layer");
    std::size_t next = 0;
    for (LayerConfig& config : configs) {
      if (config.has_indexer()) config.reuses_topk = pattern[next++] == 'S';
    }
  }
  for (const std::int64_t index : options.dspark_layers) {
    configs.push_back(options.model.layer(index));
    check_that(!configs.back().has_compressor(), kWhat, "dspark_layers",
               "layer " + std::to_string(index) + " of compress_ratio " + std::to_string(configs.back().compress_ratio),
               "window-only layers");
  }
  return configs;
}

KvLayout engine_layout(const EngineOptions& options) {
  CacheOptions caches = effective_options(options.layer).caches;
  caches.draft_blocks = !options.dspark_layers.empty();
  return make_kv_layout(layer_configs(options), caches);
}

Engine::Engine(const EngineOptions& options, EngineObserver* observer) : state_(std::make_unique<State>()) {
  const auto positive = [](std::int64_t value, std::string_view name) {
    check_that(value >= 1, kWhat, name, value, "1 or more");
  };
  check_that(!options.layers.empty(), kWhat, "layers", std::string("none"), "at least one");
  positive(options.max_batched_tokens, "max_batched_tokens");
  positive(options.max_seqs, "max_seqs");
  positive(options.num_blocks, "num_blocks");
  positive(options.max_model_len, "max_model_len");
  positive(options.max_graphs, "max_graphs");
  positive(options.max_graph_bytes, "max_graph_bytes");
  positive(options.graph_after, "graph_after");
  check_that(options.max_model_len <= options.model.max_position, kWhat, "max_model_len", options.max_model_len,
             "at most " + std::to_string(options.model.max_position) + ", the model's max_position");
  check_that(options.speculative >= 0, kWhat, "speculative", options.speculative, "0 or more");
  check_that(options.speculative >= 1 || options.dspark_layers.empty(), kWhat, "speculative", options.speculative,
             "1 or more draft tokens with dspark_layers");
  check_that(options.draft_acceptance >= 0 && options.draft_acceptance <= 1, kWhat, "draft_acceptance",
             std::to_string(options.draft_acceptance), "0 to 1");
  State& s = *state_;
  s.options = options;
  s.observer = observer;
  s.options.layer = effective_options(options.layer);
  if (const Communicator* context = s.options.layer.context_parallel.get(); context != nullptr) {
    check_that(!options.prefix_cache, kWhat, "prefix_cache", std::string("given with context_parallel"), "none");
    s.options.layer.caches.context_rank = context->rank();
    s.options.layer.caches.context_ranks = context->ranks();
  }
  bool chosen = false;
  s.configs = layer_configs(options);
  for (std::size_t i = 0; i < s.stack(); ++i) {
    chosen = chosen || s.configs[i].runs_indexer();
    check_that(chosen || !s.configs[i].reuses_topk, kWhat, "layers",
               "layer " + std::to_string(options.layers[i]) + ", which reuses an earlier layer's top-k",
               "a C4A layer that chooses before it");
  }
  s.ordinal = current_device(s.device());
  s.stream = OwnedStream(s.device());
  s.ropes.reserve(s.configs.size());
  std::vector<std::int64_t> model_layers = options.layers;
  model_layers.insert(model_layers.end(), options.dspark_layers.begin(), options.dspark_layers.end());
  for (std::size_t i = 0; i < s.configs.size(); ++i) s.add_layer(model_layers[i], s.configs[i]);
  s.pool = std::make_unique<KvPool>(engine_layout(s.options), options.num_blocks, s.device(), s.stream.get());
  s.set_cache_scales();
  if (options.prefix_cache) {
    s.prefixes = std::make_unique<PrefixCache>(s.pool->layout(), s.pool->blocks(), *options.prefix_cache);
  }
  s.scheduler = std::make_unique<Scheduler>(*s.pool, options.max_batched_tokens, options.max_seqs, options.speculative,
                                            options.adaptive_speculation, s.prefixes.get());
  s.tables = std::make_unique<BlockTables>(s.pool->layout(), s.device(), padded_count(options.max_seqs),
                                           options.max_model_len);
  s.graphs = std::make_unique<DecodeGraphs>(options.max_graphs, options.max_graph_bytes, options.graph_after);
  s.metadata = std::make_unique<StepMetadata>(s.pool->layout(), s.configs, s.options.layer.front_end, s.device());
  if (!options.dspark_layers.empty())
    s.drafts =
        std::make_unique<DraftStep>(s.pool->layout(), s.configs, s.stack(), s.options.layer.front_end, s.device());
  if (!options.layer.strict) return;
  std::vector<std::string> names;
  for (const std::int64_t index : model_layers) names.push_back("layers." + std::to_string(index) + ".attn");
  check_upstream_layout(s.pool->layout(), names);
}

/// What is still queued reads the members that go now.
Engine::~Engine() {
  try {
    synchronize(state_->device(), state_->stream.get());
  } catch (const Error&) {  // a destructor has nobody to tell
  }
}

/// Keeps what a request computed from `before` on for others.
void Engine::State::keep_prefix(Request& r, std::int64_t before) {
  if (prefixes == nullptr) return;
  extend_keys(r.keys, r.result.spec, prefixes->unit(), r.computed);
  prefixes->keep(r.keys, r.blocks, before, r.computed, r.result.spec.prompt_tokens,
                 std::span<const std::uint64_t>(r.digests).first(static_cast<std::size_t>(r.computed)));
}

/// Accepts, counts, finishes.
void Engine::State::complete(const StepTensors& batch, const HostTensor& x, double now) {
  std::int64_t row = 0;
  for (const Scheduled& part : batch.parts) {
    Request& r = *part.request;
    const bool decoding = r.decoding();
    std::int64_t kept = 0;
    for (std::int64_t j = 0; j < part.tokens; ++j, ++row) {
      const StepRow& info = batch.rows[static_cast<std::size_t>(row)];
      if (info.rejected) continue;
      ++kept;
      r.digests[static_cast<std::size_t>(info.position)] = digest_row(x.view(), row);
    }
    totals.draft_tokens += part.drafts;
    r.learn(part.drafts, kept - 1);
    totals.rejected_drafts += part.tokens - kept;
    totals.recomputed_tokens += std::clamp<std::int64_t>(r.furthest - r.computed, 0, kept);
    (decoding ? totals.decode_tokens : totals.prefill_tokens) += kept;
    const bool emits = r.computed + kept == r.known() || decoding;
    r.computed += kept;
    r.furthest = std::max(r.furthest, r.computed);
    keep_prefix(r, r.computed - kept);
    r.blocks.slide(*pool, r.computed);
    if (emits) {
      r.result.generated += decoding ? kept : 1;
      if (r.result.first_token_seconds < 0) r.result.first_token_seconds = now;
    }
    if (r.result.generated >= r.result.spec.output_tokens) {
      r.result.finish_seconds = now;
      for (const std::uint64_t d : r.digests) r.result.digest = mix(r.result.digest, d);
      scheduler->finish(&r);
      r.retire();
    }
  }
}

bool Engine::step(const std::function<double()>& now) {
  try {
    return state_->step(now);
  } catch (const std::exception& e) {
    for (Communicator* ranks : state_->ranks()) ranks->abort(e.what());
    throw;
  }
}

std::vector<Communicator*> Engine::State::ranks() const {
  std::vector<Communicator*> all;
  for (const auto& group : {options.layer.tensor_parallel, options.layer.context_parallel}) {
    if (group != nullptr) all.push_back(group.get());
  }
  return all;
}

/// Before a step's first sum: every rank has scheduled the same tokens of the same requests.
void Engine::State::agree(const std::vector<Scheduled>& parts) const {
  const std::vector<Communicator*> groups = ranks();
  if (groups.empty()) return;
  std::uint64_t batch = 0;
  std::int64_t tokens = 0;
  for (const Scheduled& part : parts) {
    const Request& r = *part.request;
    for (const std::int64_t number : {r.result.spec.id, r.computed, part.tokens, part.drafts})
      batch = mix(batch, static_cast<std::uint64_t>(number));
    tokens += part.tokens;
  }
  const std::string text = "step " + std::to_string(totals.steps + 1) + ": " + std::to_string(tokens) + " tokens of " +
                           std::to_string(parts.size()) + " requests, batch " + std::to_string(batch);
  for (Communicator* group : groups) group->agree(text);
}

/// What the step computed is whole once every rank's part of it has come.
void Engine::State::wait_for_ranks() const {
  for (Communicator* group : ranks()) group->wait(stream.get());
}

bool Engine::State::step(const std::function<double()>& now) {
  State& s = *this;
  s.check_device();
  std::vector<Scheduled> parts = s.scheduler->schedule();
  const auto decoding = [](const Scheduled& part) { return part.request->decoding(); };
  s.tables->keep_rows({parts.begin(), std::ranges::find_if_not(parts, decoding)});
  s.totals.preemptions = s.scheduler->preemptions();
  s.totals.cached_requests = s.scheduler->cached_requests();
  s.totals.cached_tokens = s.scheduler->cached_tokens();
  s.totals.recovered_tokens = s.scheduler->recovered_tokens();
  s.agree(parts);
  if (parts.empty()) return !s.scheduler->idle();
  const auto start = std::chrono::steady_clock::now();
  const StepTensors batch = make_step(std::move(parts), s.options);
  HostTensor x = step_inputs(batch, s.options);
  s.totals.residual_seconds += seconds_since(start);
  s.totals.peak_blocks = std::max(s.totals.peak_blocks, s.pool->num_blocks() - s.pool->free_blocks());
  s.run_layers(batch, x);
  ++s.totals.steps;
  std::int64_t prefill_rows = 0;
  for (const Scheduled& part : batch.parts) prefill_rows += part.request->decoding() ? 0 : part.tokens;
  const double share = static_cast<double>(prefill_rows) / static_cast<double>(batch.rows.size());
  std::int64_t cached = 0;
  for (const auto& r : s.requests) {
    if (r->result.state == RequestResult::State::kRunning) cached += r->computed;
  }
  s.totals.peak_cached_tokens =
      std::max(s.totals.peak_cached_tokens, cached + static_cast<std::int64_t>(batch.rows.size()));
  s.complete(batch, x, now());
  const double spent = seconds_since(start);
  s.totals.prefill_seconds += spent * share;
  s.totals.decode_seconds += spent * (1 - share);
  return true;
}

bool Engine::idle() const { return state_->scheduler->idle(); }
const KvPool& Engine::pool() const { return *state_->pool; }
const PrefixCache* Engine::prefix_cache() const { return state_->prefixes.get(); }
const RunTotals& Engine::totals() const { return state_->totals; }

std::vector<RequestResult> Engine::results() const {
  std::vector<RequestResult> out;
  for (const auto& r : state_->requests) out.push_back(r->result);
  return out;
}

const AttentionLayer& Engine::layer(std::int64_t index) const {
  return state_->layers.at(static_cast<std::size_t>(index)).layer();
}
ConstTensorView Engine::rope(std::int64_t index) const {
  return state_->layers.at(static_cast<std::size_t>(index)).rope().host();
}
const LayerWeights& Engine::weights(std::int64_t index) const {
  return state_->weights.at(static_cast<std::size_t>(index)).views;
}
std::string Engine::implementations() const { return state_->implementations; }

}  // namespace smla
