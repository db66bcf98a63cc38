#include "prefix_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "run_times.h"

namespace smla {

namespace {

using Json = nlohmann::ordered_json;

/// Prompt tokens of the requests that ran.
std::int64_t prompt_tokens(const RunReport& r) {
  std::int64_t sum = 0;
  for (const RequestResult& q : r.results) sum += q.first_token_seconds >= 0 ? q.spec.prompt_tokens : 0;
  return sum;
}

std::string times_text(const Spread& s) {
  return fmt::format("TTFT ms mean {:.1f}, p50 {:.1f}, p99 {:.1f}", s.mean, s.p50, s.p99);
}

/// Whether bits say anything: without `deterministic` they depend on the batch.
std::string outputs_text(const RunReport& r) {
  const std::int64_t different = different_outputs(r);
  if (!r.options.layer.deterministic) return "outputs are not compared without --deterministic";
  return different == 0 ? "the same outputs, bit for bit" : fmt::format("OTHER OUTPUTS of {} requests", different);
}

Json spread_json(const Spread& s) { return {{"count", s.count}, {"mean", s.mean}, {"p50", s.p50}, {"p99", s.p99}}; }

}  // namespace

std::int64_t different_outputs(const RunReport& r) {
  std::int64_t different = 0;
  for (const RequestResult& q : r.results) {
    const auto other = std::ranges::find(r.without, q.spec.id, [](const RequestResult& w) { return w.spec.id; });
    const bool comparable = other != r.without.end() && q.state == RequestResult::State::kFinished &&
                            other->state == RequestResult::State::kFinished;
    different += comparable && other->digest != q.digest ? 1 : 0;
  }
  return different;
}

std::string prefix_text(const RunReport& r) {
  if (!r.options.prefix_cache) return {};
  const RunTotals& t = r.totals;
  const std::int64_t all = prompt_tokens(r);
  std::string out = fmt::format(
      "prefixes    {} of {} requests began in the cache, {} of {} prompt tokens ({:.1f} %), {} tokens after "
      "preemptions\n"
      "            a tail each {} tokens{}; {} kept, {} evicted, {} there with {} blocks\n",
      t.cached_requests, r.results.size(), t.cached_tokens, all,
      all > 0 ? 100.0 * static_cast<double>(t.cached_tokens) / static_cast<double>(all) : 0, t.recovered_tokens,
      r.options.prefix_cache->retention_interval,
      r.options.prefix_cache->keep_prompt_end ? " and at the end of a prompt" : "", r.prefixes.kept_tails,
      r.prefixes.evicted_tails, r.prefixes.tails, r.prefixes.blocks);
  if (!r.compared) return out;
  out += fmt::format("with        {}; {:.2f} s\n", times_text(ttft(r.results, r.arrival_speed)), r.wall_seconds);
  out += fmt::format("without     {}; {:.2f} s; {}\n", times_text(ttft(r.without, r.arrival_speed)), r.without_seconds,
                     outputs_text(r));
  return out;
}

std::string prefix_json(const RunReport& r) {
  if (!r.options.prefix_cache) return "null";
  const RunTotals& t = r.totals;
  const std::int64_t all = prompt_tokens(r);
  Json j = {{"retention_interval", r.options.prefix_cache->retention_interval},
            {"keep_prompt_end", r.options.prefix_cache->keep_prompt_end},
            {"requests", t.cached_requests},
            {"prompt_tokens", all},
            {"cached_tokens", t.cached_tokens},
            {"hit_rate", all > 0 ? static_cast<double>(t.cached_tokens) / static_cast<double>(all) : 0},
            {"recovered_tokens", t.recovered_tokens},
            {"kept_tails", r.prefixes.kept_tails},
            {"evicted_tails", r.prefixes.evicted_tails},
            {"tails", r.prefixes.tails},
            {"blocks", r.prefixes.blocks},
            {"without", nullptr}};
  if (r.compared) {
    j["without"] = {{"wall_seconds", r.without_seconds},
                    {"ttft_ms", spread_json(ttft(r.without, r.arrival_speed))},
                    {"tpot_ms", spread_json(tpot(r.without))},
                    {"different_outputs", different_outputs(r)}};
  }
  return j.dump();
}

}  // namespace smla
