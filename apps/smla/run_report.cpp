#include "run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "prefix_report.h"
#include "run_times.h"

namespace smla {

namespace {

using Json = nlohmann::ordered_json;

std::int64_t count(const RunReport& r, RequestResult::State state) {
  return std::ranges::count_if(r.results, [&](const RequestResult& q) { return q.state == state; });
}

double rate(std::int64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }

std::string bytes_text(double bytes) {
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", bytes, unit);
}

std::string kind_name(int ratio) { return ratio == 4 ? "C4A" : (ratio == 128 ? "C128A" : "window"); }

/// Group bytes at the peak, and for each token that stood in the caches at the run's peak.
struct GroupUse {
  std::string name;
  std::int64_t blocks = 0;
  double bytes = 0, per_token = 0;
};

std::vector<GroupUse> group_use(const RunReport& r) {
  std::vector<GroupUse> out;
  for (std::size_t g = 0; g < r.layout.groups.size(); ++g) {
    const double bytes = static_cast<double>(r.peak_blocks[g] * r.layout.groups[g].page_bytes);
    out.push_back({.name = r.layout.groups[g].name,
                   .blocks = r.peak_blocks[g],
                   .bytes = bytes,
                   .per_token = bytes / static_cast<double>(std::max<std::int64_t>(r.totals.peak_cached_tokens, 1))});
  }
  return out;
}

/// Stage names and seconds, the engine's own parts last.
std::vector<std::pair<std::string, double>> stages(const RunReport& r) {
  std::vector<std::pair<std::string, double>> out;
  for (int i = 0; i < kNumStages; ++i) {
    if (static_cast<Stage>(i) == Stage::kRanks && r.parallel.tensor == 1) continue;
    out.emplace_back(name_of(static_cast<Stage>(i)), r.totals.stage_seconds[static_cast<std::size_t>(i)]);
  }
  out.emplace_back("metadata", r.totals.metadata_seconds);
  out.emplace_back("inputs and residual", r.totals.residual_seconds);
  return out;
}

/// A relative error as text; the sign of a NaN says nothing.
std::string error_text(double error) { return std::isnan(error) ? "nan" : fmt::format("{:.3e}", error); }

std::string_view verdict(const CheckReport& c) {
  if (c.computed == 0) return "nothing was checked";
  return c.passed ? "PASS" : "FAIL";
}

std::string check_text(const RunReport& r) {
  std::string out = fmt::format("\ncheck against float64 (relative l2 of attention(x), bound {:.3g})\n", r.check.bound);
  out += "  request    token  layer  kind     relative l2  top-k\n";
  for (const CheckedSample& s : r.check.samples) {
    const std::string where =
        fmt::format("  {:>7}  {:>7}  {:>5}  {:<7}", s.request, s.position, s.model_layer,
                    s.layer < std::ssize(r.options.layers) ? kind_name(s.compress_ratio) : "DSpark");
    if (!s.computed) {
      out += where + "  not computed in this run\n";
      continue;
    }
    std::string topk = "-";
    if (s.compress_ratio == 4)
      topk = s.topk_ok ? fmt::format("{:.1f} % differ", 100 * s.topk_difference) : "WRONG: " + s.topk_text;
    out += fmt::format("{}  {:>11}  {}{}\n", where, error_text(s.relative_l2), topk,
                       s.relative_l2 <= s.bound ? "" : "  OVER THE BOUND");
  }
  if (r.check.worst < 0) {
    return out + fmt::format("  {}: {}\n", verdict(r.check),
                             r.check.samples.empty() ? "no request of this run could be sampled"
                                                     : "the run reached none of the sampled places");
  }
  const CheckedSample& w = r.check.samples[static_cast<std::size_t>(r.check.worst)];
  return out + fmt::format("  worst {} at request {} token {} layer {}, {} of {} samples computed: {}\n",
                           error_text(w.relative_l2), w.request, w.position, w.model_layer, r.check.computed,
                           r.check.samples.size(), verdict(r.check));
}

/// Which C4A layers choose entries (F) and which take the last choice (S).
std::string topk_pattern(const EngineOptions& o) {
  std::string letters;
  for (const LayerConfig& config : layer_configs(o)) {
    if (config.has_indexer()) letters += config.runs_indexer() ? 'F' : 'S';
  }
  return letters;
}

Json spread_json(const Spread& s) { return {{"count", s.count}, {"mean", s.mean}, {"p50", s.p50}, {"p99", s.p99}}; }

Json check_json(const CheckReport& c) {
  Json samples = Json::array();
  for (const CheckedSample& s : c.samples) {
    samples.push_back({{"request", s.request},
                       {"position", s.position},
                       {"layer", s.model_layer},
                       {"compress_ratio", s.compress_ratio},
                       {"computed", s.computed},
                       {"relative_l2", s.computed ? Json(s.relative_l2) : Json(nullptr)},
                       {"bound", s.computed ? Json(s.bound) : Json(nullptr)},
                       {"topk_difference", s.topk_difference},
                       {"topk_ok", s.topk_ok},
                       {"topk_text", s.topk_text}});
  }
  return {{"passed", c.passed},
          {"verdict", verdict(c)},
          {"computed", c.computed},
          {"bound", c.bound},
          {"samples", samples}};
}

}  // namespace

std::string layers_text(const EngineOptions& o) {
  std::string numbers;
  for (std::size_t i = 0; i < o.layers.size();) {
    std::size_t end = i + 1;
    while (end < o.layers.size() && o.layers[end] == o.layers[end - 1] + 1) ++end;
    numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", o.layers[i]);
    if (end > i + 1) numbers += fmt::format("-{}", o.layers[end - 1]);
    i = end;
  }
  std::string kinds;
  for (const int ratio : {1, 4, 128}) {
    const auto n = std::ranges::count_if(
        o.layers, [&](std::int64_t layer) { return o.model.layer(layer).compress_ratio == ratio; });
    if (n > 0) kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", n, kind_name(ratio));
  }
  std::string drafting;
  if (!o.dspark_layers.empty()) drafting = fmt::format(" and DSpark drafts by {}", fmt::join(o.dspark_layers, ", "));
  return fmt::format("{} layer{} {} ({}){}", o.layers.size(), o.layers.size() == 1 ? "" : "s", numbers, kinds,
                     drafting);
}

/// The quantised weights that a run keeps as they are stored.
std::string_view kept_words(const EngineOptions& o) {
  if (o.fp8_weights && o.nvfp4_weights) return " (FP8 as stored, NVFP4 as stored)";
  if (o.nvfp4_weights) return " (NVFP4 as stored)";
  return o.fp8_weights ? " (FP8 as stored)" : "";
}

std::string drafts_text(const EngineOptions& o, const RunTotals& t) {
  std::string out = fmt::format("drafts      {} verified, {} rejected", t.draft_tokens, t.rejected_drafts);
  if (!o.dspark_layers.empty()) out += fmt::format(", computed in {} DSpark blocks", t.draft_blocks);
  return out + "\n";
}

void merge_implementations(std::string& all, const std::string& more) {
  for (std::size_t begin = 0; begin < more.size();) {
    const std::size_t end = std::min(more.find(", ", begin), more.size());
    const std::string entry = more.substr(begin, end - begin);
    if ((", " + all + ", ").find(", " + entry + ", ") == std::string::npos) all += (all.empty() ? "" : ", ") + entry;
    begin = end + 2;
  }
}

std::string report_text(const RunReport& r) {
  using State = RequestResult::State;
  const RunTotals& t = r.totals;
  std::string out;
  out += fmt::format("\n{}: {} on {}, {} front-end, rows {}, index {}, {} precision\n", r.model, layers_text(r.options),
                     name_of(r.options.layer.device), name_of(r.options.layer.front_end),
                     r.options.layer.caches.rows->name, r.options.layer.caches.index->name,
                     r.options.layer.precision == Precision::kF32 ? "f32" : "bf16");
  out += fmt::format(
      "requests from {}, lengths x {}; {} and a token's hidden state is f(seed {}, request or prompt block, position)",
      r.trace, r.scale_lengths,
      r.options.weights == nullptr ? "weights are seeded random"
                                   : "weights from " + r.options.weights->path() + std::string(kept_words(r.options)),
      r.options.seed);
  out += r.options.speculative > 0 ? "; rejected drafts come from another stream\n" : "\n";
  if (r.parallel.ranks() > 1) {
    out += fmt::format("ranks: {}, {} that share out heads x {} that share out compressed and index rows\n",
                       r.parallel.ranks(), r.parallel.tensor, r.parallel.context);
  }
  if (r.interrupted) out += "INTERRUPTED: the report covers what was done so far\n";
  out +=
      fmt::format("\nrequests    {} finished, {} refused, {} unfinished of {}\n", count(r, State::kFinished),
                  count(r, State::kRefused), count(r, State::kWaiting) + count(r, State::kRunning), r.results.size());
  for (const RequestResult& q : r.results) {
    if (q.state == State::kRefused) out += "            refused " + q.refusal + "\n";
  }
  out += fmt::format("steps       {} in {:.2f} s (set-up {:.2f} s)", t.steps, r.wall_seconds, r.setup_seconds);
  if (r.cpu_clock) out += ", times of the CPU by thread";
  out += t.graph_steps > 0 ? fmt::format(", {} as recorded graphs\n", t.graph_steps) : "\n";
  if (t.graphs_recorded > 0) {
    out += fmt::format("graphs      {} recorded, {} evicted, {} kept with {} bytes\n", t.graphs_recorded,
                       t.graphs_evicted, t.graphs, t.graph_bytes);
  }
  out += fmt::format("prefill     {} tokens, {:.1f} tokens/s\n", t.prefill_tokens,
                     rate(t.prefill_tokens, t.prefill_seconds));
  out +=
      fmt::format("decode      {} tokens, {:.1f} tokens/s\n", t.decode_tokens, rate(t.decode_tokens, t.decode_seconds));
  if (r.options.speculative > 0) out += drafts_text(r.options, t);
  out += fmt::format("preemptions {} ({} tokens recomputed)\n", t.preemptions, t.recomputed_tokens);
  out += prefix_text(r);
  for (const auto& [name, s] :
       {std::pair{"TTFT ms", ttft(r.results, r.arrival_speed)}, std::pair{"TPOT ms", tpot(r.results)}}) {
    out += s.count == 0 ? fmt::format("{}     no request got that far\n", name)
                        : fmt::format("{}     mean {:.1f}, p50 {:.1f}, p99 {:.1f}\n", name, s.mean, s.p50, s.p99);
  }

  out += fmt::format("\ncache at its peak: {} of {} blocks of {} bytes, {} tokens\n", t.peak_blocks,
                     r.options.num_blocks, r.layout.block_stride_bytes, t.peak_cached_tokens);
  out += "  group            blocks       bytes  bytes/token\n";
  for (const GroupUse& g : group_use(r))
    out += fmt::format("  {:<14} {:>8}  {:>10}  {:>11.1f}\n", g.name, g.blocks, bytes_text(g.bytes), g.per_token);

  if (r.options.time_stages) {
    out += "\ntime by stage          seconds  share\n";
    double sum = 0;
    for (const auto& [name, seconds] : stages(r)) sum += seconds;
    for (const auto& [name, seconds] : stages(r)) {
      out += fmt::format("  {:<20} {:>8.3f}  {:>4.1f} %\n", name, seconds, sum > 0 ? 100 * seconds / sum : 0);
    }
  } else {
    out += "\nstages are not timed on a GPU without --stage-times\n";
  }
  out += "implementations: " + r.implementations + "\n";
  if (r.checked) out += check_text(r);
  return out;
}

std::string report_json(const RunReport& r) {
  using State = RequestResult::State;
  constexpr const char* kStates[] = {"waiting", "running", "finished", "refused", "cancelled"};
  const RunTotals& t = r.totals;
  Json requests = Json::array();
  for (const RequestResult& q : r.results) {
    requests.push_back({{"id", q.spec.id},
                        {"state", kStates[static_cast<int>(q.state)]},
                        {"arrival_seconds", q.spec.arrival_seconds},
                        {"prompt_tokens", q.spec.prompt_tokens},
                        {"output_tokens", q.spec.output_tokens},
                        {"generated", q.generated},
                        {"preemptions", q.preemptions},
                        {"cached_tokens", q.cached_tokens},
                        {"first_token_seconds", q.first_token_seconds},
                        {"finish_seconds", q.finish_seconds},
                        {"digest", fmt::format("{:016x}", q.digest)},
                        {"refusal", q.refusal}});
  }
  Json groups = Json::array();
  for (const GroupUse& g : group_use(r))
    groups.push_back(
        {{"name", g.name}, {"peak_blocks", g.blocks}, {"peak_bytes", g.bytes}, {"bytes_per_token", g.per_token}});
  Json stage_seconds;
  for (const auto& [name, seconds] : stages(r)) stage_seconds[name] = seconds;
  Json j = {
      {"schema", "smla-run/1"},
      {"model", r.model},
      {"layers", r.options.layers},
      {"trace", r.trace},
      {"scale_lengths", r.scale_lengths},
      {"arrival_speed", r.arrival_speed},
      {"clock", r.cpu_clock ? "cpu" : "wall"},
      {"seed", r.options.seed},
      {"weights", r.options.weights == nullptr ? Json(nullptr) : Json(r.options.weights->path())},
      {"fp8_weights", r.options.fp8_weights},
      {"nvfp4_weights", r.options.nvfp4_weights},
      {"synthetic",
       std::string(r.options.weights == nullptr ? "weights are seeded random; " : "") +
           "hidden states are f(seed, request or prompt block, position); rejected drafts come from another stream"},
      {"front_end", name_of(r.options.layer.front_end)},
      {"device", name_of(r.options.layer.device)},
      {"tensor_parallel", r.parallel.tensor},
      {"context_parallel", r.parallel.context},
      {"graph_steps", t.graph_steps},
      {"graphs",
       {{"recorded", t.graphs_recorded},
        {"evicted", t.graphs_evicted},
        {"kept", t.graphs},
        {"bytes", t.graph_bytes},
        {"max", r.options.max_graphs},
        {"max_bytes", r.options.max_graph_bytes},
        {"after", r.options.graph_after}}},
      {"table_bytes_moved", t.table_bytes},
      {"cache_dtype", r.options.layer.caches.rows->name},
      {"index_dtype", r.options.layer.caches.index->name},
      {"index_topk_pattern", topk_pattern(r.options)},
      {"speculative", r.options.speculative},
      {"dspark_layers", r.options.dspark_layers},
      {"interrupted", r.interrupted},
      {"wall_seconds", r.wall_seconds},
      {"setup_seconds", r.setup_seconds},
      {"finished", count(r, State::kFinished)},
      {"refused", count(r, State::kRefused)},
      {"steps", t.steps},
      {"prefill_tokens", t.prefill_tokens},
      {"decode_tokens", t.decode_tokens},
      {"prefill_tokens_per_second", rate(t.prefill_tokens, t.prefill_seconds)},
      {"decode_tokens_per_second", rate(t.decode_tokens, t.decode_seconds)},
      {"draft_tokens", t.draft_tokens},
      {"rejected_drafts", t.rejected_drafts},
      {"draft_blocks", t.draft_blocks},
      {"preemptions", t.preemptions},
      {"recomputed_tokens", t.recomputed_tokens},
      {"prefix_cache", Json::parse(prefix_json(r))},
      {"ttft_ms", spread_json(ttft(r.results, r.arrival_speed))},
      {"tpot_ms", spread_json(tpot(r.results))},
      {"kv",
       {{"blocks", r.options.num_blocks},
        {"block_bytes", r.layout.block_stride_bytes},
        {"peak_blocks", t.peak_blocks},
        {"peak_cached_tokens", t.peak_cached_tokens},
        {"groups", groups}}},
      {"stage_seconds", stage_seconds},
      {"implementations", r.implementations},
      {"requests", requests}};
  if (r.checked) j["check"] = check_json(r.check);
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace smla
