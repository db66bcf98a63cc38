#include "soak_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands.h"

namespace smla {

namespace {

using Json = nlohmann::ordered_json;

const char* name_of(SoakCheck::Outcome outcome) {
  return outcome == SoakCheck::Outcome::kPass ? "PASS" : outcome == SoakCheck::Outcome::kFail ? "FAIL" : "SKIP";
}

Json memory_json(const MemoryUse& use) {
  return {{"first_bytes", use.first}, {"last_bytes", use.last}, {"most_bytes", use.most}, {"growth", use.growth()}};
}

}  // namespace

std::string soak_text(const RunReport& run, const SoakOptions& options, const SoakReport& r) {
  const EngineOptions& o = run.options;
  const RunTotals& t = r.totals;
  std::string out = fmt::format("\n{}: {} on {}, {} front-end, rows {}, {} precision, deterministic\n", run.model,
                                layers_text(o), name_of(o.layer.device), name_of(o.layer.front_end),
                                o.layer.caches.rows->name, o.layer.precision == Precision::kF32 ? "f32" : "bf16");
  out += fmt::format("requests from {}, over and over, lengths x {}, {}; seed {}\n", run.trace, run.scale_lengths,
                     run.arrival_speed > 0 ? fmt::format("arrivals x {}", run.arrival_speed) : "all at once",
                     options.seed);
  out += fmt::format("ranks: {} that share out heads x {} that share out compressed and index rows\n",
                     run.parallel.tensor, run.parallel.context);
  if (r.interrupted) out += "INTERRUPTED: what was there was cancelled\n";
  out += fmt::format("\nrequests    {} came, {} finished, {} cancelled; {} came late\n", r.submitted, r.finished,
                     r.cancelled, r.delayed);
  out += fmt::format("steps       {} in {:.1f} s, of which {:.1f} s are warm-up\n", t.steps, r.wall_seconds,
                     r.warm_up_seconds < 0 ? r.wall_seconds : r.warm_up_seconds);
  if (o.layer.device == DeviceKind::kCuda)
    out += fmt::format("graphs      {} steps as graphs, {} recorded, {} evicted\n", t.graph_steps, t.graphs_recorded,
                       t.graphs_evicted);
  out += fmt::format("tokens      {} of prompts, {} of outputs\n", t.prefill_tokens, t.decode_tokens);
  out += drafts_text(o, t);
  out += fmt::format("preemptions {} ({} tokens recomputed)\n", t.preemptions, t.recomputed_tokens);
  out += fmt::format(
      "prefixes    {} requests began in the cache with {} tokens, {} tokens after preemptions; {} tails kept, {} "
      "evicted\n",
      t.cached_requests, t.cached_tokens, t.recovered_tokens, r.prefixes.kept_tails, r.prefixes.evicted_tails);
  out += fmt::format("blocks      {} of {} in use at the peak\n\n", t.peak_blocks, o.num_blocks);
  for (const SoakCheck& c : soak_checks(r, o, options))
    out += fmt::format("  {:<11} {}  {}\n", c.name, name_of(c.outcome), c.text);
  return out + fmt::format("soak: {}\n", soak_passed(r, o, options) ? "PASS" : "FAIL");
}

std::string soak_json(const RunReport& run, const SoakOptions& options, const SoakReport& r) {
  const EngineOptions& o = run.options;
  const RunTotals& t = r.totals;
  Json checks = Json::array();
  for (const SoakCheck& c : soak_checks(r, o, options))
    checks.push_back({{"name", c.name}, {"outcome", name_of(c.outcome)}, {"text", c.text}});
  Json j = {{"schema", "smla-soak/1"},
            {"command", command_line()},
            {"model", run.model},
            {"layers", o.layers},
            {"trace", run.trace},
            {"scale_lengths", run.scale_lengths},
            {"arrival_speed", run.arrival_speed},
            {"seed", options.seed},
            {"device", name_of(o.layer.device)},
            {"tensor_parallel", run.parallel.tensor},
            {"context_parallel", run.parallel.context},
            {"speculative", o.speculative},
            {"dspark_layers", o.dspark_layers},
            {"blocks", o.num_blocks},
            {"seconds", options.seconds},
            {"wall_seconds", r.wall_seconds},
            {"warm_up_seconds", r.warm_up_seconds},
            {"interrupted", r.interrupted},
            {"passed", soak_passed(r, o, options)},
            {"checks", checks},
            {"submitted", r.submitted},
            {"finished", r.finished},
            {"cancelled", r.cancelled},
            {"delayed", r.delayed},
            {"different", r.different},
            {"longest_seconds", r.longest_seconds},
            {"steps", t.steps},
            {"prefill_tokens", t.prefill_tokens},
            {"decode_tokens", t.decode_tokens},
            {"draft_tokens", t.draft_tokens},
            {"rejected_drafts", t.rejected_drafts},
            {"draft_blocks", t.draft_blocks},
            {"preemptions", t.preemptions},
            {"recomputed_tokens", t.recomputed_tokens},
            {"cached_requests", t.cached_requests},
            {"cached_tokens", t.cached_tokens},
            {"recovered_tokens", t.recovered_tokens},
            {"kept_tails", r.prefixes.kept_tails},
            {"evicted_tails", r.prefixes.evicted_tails},
            {"peak_blocks", t.peak_blocks},
            {"lost_blocks", r.lost_blocks},
            {"graphs",
             {{"steps", t.graph_steps},
              {"recorded", t.graphs_recorded},
              {"evicted", t.graphs_evicted},
              {"most", r.most_graphs},
              {"most_bytes", r.most_graph_bytes}}},
            {"memory", memory_json(r.host)},
            {"gpu_memory", options.device_bytes ? memory_json(r.device) : Json(nullptr)}};
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace smla
