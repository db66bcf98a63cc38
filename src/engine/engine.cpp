#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "engine/engine_state.h"
#include "engine/synthetic.h"
#include "layer/weight_names.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "engine";

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

Engine::State::Rope& Engine::State::rope_of(const RopeConfig& config) {
  for (Rope& rope : ropes) {
    if (rope.config == config || options.planted_error == PlantedError::kRope) return rope;
  }
  HostTensor table(DType::kF32, {options.max_model_len, config.dim});
  std::ranges::copy(rope_table(config, options.max_model_len), table.as<float>());
  DeviceTensor placed;
  if (device() != DeviceKind::kCpu) placed = DeviceTensor::copy_of(device(), table.view());
  ropes.push_back({.config = config, .host = std::move(table), .device = std::move(placed)});
  return ropes.back();
}

/// Views of weights in the device's memory.
LayerWeights Engine::State::place_weights(const LayerConfig& config, const LayerWeights& host) {
  LayerWeights placed = host;
  if (device() == DeviceKind::kCpu) return placed;
  std::vector<DeviceTensor>& storage = device_weights.emplace_back();
  visit_weights(config, placed, [&](std::string_view, ConstTensorView& view) {
    storage.push_back(DeviceTensor::copy_of(device(), view));
    view = storage.back().view();
  });
  return placed;
}

void Engine::State::add_layer(std::int64_t model_layer, const LayerConfig& config) {
  LayerOptions layer_options = options.layer;
  if (options.weights == nullptr) {
    weights.push_back(random_weights(config, layer_seed(options.seed, model_layer)));
  } else {
    loaded.push_back(options.weights->load_layer(model_layer, config, 0, 1, {.keep_fp8 = options.fp8_weights}));
    weights.push_back({.storage = {}, .views = layer_weights(loaded.back())});
    layer_options.q_scale = loaded.back().q_scale.value_or(layer_options.q_scale);
  }
  const Rope& rope = rope_of(config.rope);
  layers.emplace_back(config, place_weights(config, weights.back().views), layer_options,
                      rope.device.absent() ? rope.host.view() : rope.device.view());
}

/// Per-tensor rows by the checkpoint's scales where it has any.
void Engine::State::set_cache_scales() {
  if (loaded.empty() || options.layer.caches.rows->scale != ScaleKind::kPerTensor) return;
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    const float window = loaded[i].kv_scale.value_or(options.layer.caches.kv_scale);
    pool->set_scale(layer, CacheRole::kWindow, window);
    if (configs[i].has_compressor())
      pool->set_scale(layer, CacheRole::kCompressed, loaded[i].compressed_kv_scale.value_or(window));
  }
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
  check_that(options.max_model_len <= options.model.max_position, kWhat, "max_model_len", options.max_model_len,
             "at most " + std::to_string(options.model.max_position) + ", the model's max_position");
  check_that(options.speculative >= 0, kWhat, "speculative", options.speculative, "0 or more");
  check_that(options.draft_acceptance >= 0 && options.draft_acceptance <= 1, kWhat, "draft_acceptance",
             std::to_string(options.draft_acceptance), "0 to 1");
  State& s = *state_;
  s.options = options;
  s.observer = observer;
  if (s.options.layer.precision == Precision::kF32)
    s.options.layer.caches = {.rows = &f32_rows(), .index = &index_f32_rows(), .kv_scale = 1.0F};
  bool chosen = false;
  for (const std::int64_t index : options.layers) {
    s.configs.push_back(options.model.layer(index));
    chosen = chosen || s.configs.back().chooses();
    check_that(chosen || !s.configs.back().reuses_topk, kWhat, "layers",
               "layer " + std::to_string(index) + ", which reuses an earlier layer's top-k",
               "a C4A layer that chooses before it");
  }
  s.stream = OwnedStream(s.device());
  s.ropes.reserve(s.configs.size());
  for (std::size_t i = 0; i < s.configs.size(); ++i) s.add_layer(options.layers[i], s.configs[i]);
  s.pool = std::make_unique<KvPool>(make_kv_layout(s.configs, s.options.layer.caches), options.num_blocks, s.device(),
                                    s.stream.get());
  s.set_cache_scales();
  s.scheduler = std::make_unique<Scheduler>(*s.pool, options.max_batched_tokens, options.max_seqs, options.speculative,
                                            options.adaptive_speculation);
  s.metadata = std::make_unique<StepMetadata>(s.pool->layout(), s.configs, options.layer.front_end, s.device());
  if (!options.layer.strict) return;
  std::vector<std::string> names;
  for (const std::int64_t index : options.layers) names.push_back("layers." + std::to_string(index) + ".attn");
  check_upstream_layout(s.pool->layout(), names);
}

/// What is still queued reads the members that go now.
Engine::~Engine() {
  try {
    synchronize(state_->device(), state_->stream.get());
  } catch (const Error&) {  // a destructor has nobody to tell
  }
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
    r.blocks.slide(*pool, r.computed);
    if (emits) {
      r.result.generated += decoding ? kept : 1;
      if (r.result.first_token_seconds < 0) r.result.first_token_seconds = now;
    }
    if (r.result.generated >= r.result.spec.output_tokens) {
      r.result.finish_seconds = now;
      for (const std::uint64_t d : r.digests) r.result.digest = mix(r.result.digest, d);
      scheduler->finish(&r);
    }
  }
}

bool Engine::step(const std::function<double()>& now) {
  State& s = *state_;
  std::vector<Scheduled> parts = s.scheduler->schedule();
  s.totals.preemptions = s.scheduler->preemptions();
  if (parts.empty()) return !s.scheduler->idle();
  const auto start = std::chrono::steady_clock::now();
  const StepTensors batch = make_step(std::move(parts), s.options, *s.pool);
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
const RunTotals& Engine::totals() const { return state_->totals; }

std::vector<RequestResult> Engine::results() const {
  std::vector<RequestResult> out;
  for (const auto& r : state_->requests) out.push_back(r->result);
  return out;
}

const AttentionLayer& Engine::layer(std::int64_t index) const {
  return state_->layers.at(static_cast<std::size_t>(index));
}
ConstTensorView Engine::rope(std::int64_t index) const {
  return std::as_const(state_->rope_of(state_->configs.at(static_cast<std::size_t>(index)).rope).host).view();
}
const LayerWeights& Engine::weights(std::int64_t index) const {
  return state_->weights.at(static_cast<std::size_t>(index)).views;
}
std::string Engine::implementations() const { return state_->implementations; }

}  // namespace smla
