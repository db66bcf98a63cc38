#include "engine/soak.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "core/check.h"
#include "engine/synthetic.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "soak";
constexpr std::uint64_t kComes = 1;  // streams of random numbers
constexpr std::uint64_t kCancelled = 2;
constexpr std::int64_t kMostWaiting = 2;
constexpr double kNap = 0.01;  // seconds to sleep at most while nothing is there

/// Printf to a string: numbers with so many digits.
template <class... Values>
std::string printed(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Writes to every page of a pool's memory what is there: the system gives pages out when they are written first, which
/// would look like growth until every block was in use once.
void touch(const Slab& slab) {
  if (slab.device() != DeviceKind::kCpu) return;
  const LayerCache& first = slab.layout().groups.front().caches.front();
  const PagedCache cache = slab.cache(first.layer, first.role);
  volatile std::uint8_t* bytes = cache.base;
  const std::int64_t end = (cache.num_blocks - 1) * cache.block_stride_bytes;
  for (std::int64_t at = 0; at < end; at += sysconf(_SC_PAGESIZE)) bytes[at] = bytes[at];
}

/// A request that is in the engine.
struct Present {
  const RequestSpec* spec = nullptr;
  double since = 0;            ///< seconds
  std::int64_t cancel_at = 0;  ///< before the step after so many; -1: never
};

/// One soak at work.
class Soak {
 public:
  Soak(ParallelEngine& engine, const EngineOptions& engine_options, const std::vector<RequestSpec>& specs,
       const std::map<std::int64_t, std::uint64_t>& alone, const SoakOptions& options)
      : engine_(engine), engine_options_(engine_options), specs_(specs), alone_(alone), options_(options) {
    if (specs.back().arrival_seconds > 0) {  // the next round begins one mean distance behind the last request
      const auto n = static_cast<double>(specs.size());
      round_seconds_ = specs.back().arrival_seconds * n / std::max(n - 1, 1.0);
    }
  }

  SoakReport run(const std::function<bool(const SoakReport&)>& on_step) {
    for (int rank = 0; rank < engine_.ranks(); ++rank) touch(engine_.engine(rank).pool().slab());
    start_ = std::chrono::steady_clock::now();
    while (report_.stuck.empty()) {
      if (!ends_) ends_ = share_done() >= 1;
      submit_due();
      cancel_some();
      if (engine_.idle()) {
        take_ended();
        if (ends_) break;
        std::this_thread::sleep_for(std::chrono::duration<double>(kNap));
      } else {
        step();
      }
      take_ended();
      watch();
      if (on_step && !report_.interrupted && !on_step(report_)) interrupt();
    }
    finish();
    return std::move(report_);
  }

 private:
  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  /// Of the time or of the arrivals, whichever is further.
  double share_done() const {
    const double came =
        options_.arrivals == 0 ? 0 : static_cast<double>(report_.submitted) / static_cast<double>(options_.arrivals);
    return std::max(now() / options_.seconds, came);
  }

  void submit_due() {
    const std::size_t n = specs_.size();
    while (!ends_ && share_done() < 1) {
      const std::size_t rounds = next_ / n;
      const double round = static_cast<double>(rounds) - 1;
      const RequestSpec* spec = &specs_[next_ % n];
      if (next_ >= n && round * round_seconds_ + spec->arrival_seconds > now()) return;
      const std::uint64_t bits = mix(mix(options_.seed, kComes), next_);
      if (again_ != nullptr && !present_.contains(again_->id) && coin(bits) < options_.repeated_share) spec = again_;
      const bool full = next_ >= n && waiting() >= kMostWaiting;
      if (full || present_.contains(spec->id)) {
        report_.delayed += delayed_ == next_ ? 0 : 1;
        delayed_ = next_;
        return;
      }
      engine_.submit(*spec);
      present_[spec->id] = {.spec = spec, .since = now(), .cancel_at = cancel_step(*spec)};
      ++report_.submitted;
      ++next_;
    }
  }

  std::int64_t waiting() const {
    const std::vector<RequestResult> all = engine_.engine().results();
    return std::ranges::count(all, RequestResult::State::kWaiting, &RequestResult::state);
  }

  /// The upper half of 64 random bits as a number from 0 on below 1.
  static double coin(std::uint64_t bits) { return static_cast<double>(bits >> 32) * 0x1p-32; }

  /// A step within twice the steps that the request needs when nobody waits; some are too late.
  std::int64_t cancel_step(const RequestSpec& spec) const {
    const std::uint64_t bits = mix(mix(options_.seed, kCancelled), next_);
    if (coin(bits) >= options_.cancelled_share) return -1;
    const std::int64_t needed = spec.output_tokens + spec.prompt_tokens / engine_options_.max_batched_tokens + 1;
    return steps() + static_cast<std::int64_t>((bits & 0xFFFF'FFFFU) % static_cast<std::uint64_t>(2 * needed));
  }

  void cancel_some() {
    for (auto& [id, present] : present_) {
      if (present.cancel_at < 0 || present.cancel_at > steps()) continue;
      engine_.cancel(id);
      present.cancel_at = -1;
    }
  }

  void step() {
    const std::int64_t before = steps();
    engine_.step([&] { return now(); });
    idle_steps_ = steps() == before ? idle_steps_ + 1 : 0;
    if (idle_steps_ > 1 && !engine_.idle())
      report_.stuck = std::to_string(present_.size()) + " requests are there and step " + std::to_string(before + 1) +
                      " computes none of them";
  }

  void take_ended() {
    for (const RequestResult& r : engine_.take_ended()) {
      const auto present = present_.find(r.spec.id);
      report_.longest_seconds = std::max(report_.longest_seconds, now() - present->second.since);
      again_ = r.state == RequestResult::State::kFinished ? present->second.spec : again_;
      present_.erase(present);
      if (r.state == RequestResult::State::kCancelled) {
        ++report_.cancelled;
      } else {
        ++report_.finished;
        if (r.digest != alone_.at(r.spec.id)) report_.different.push_back(r.spec.id);
      }
    }
    for (const auto& [id, present] : present_) {
      if (now() - present.since > options_.stall_seconds)
        report_.stuck =
            printed("request %lld has been there for %.1f s", static_cast<long long>(id), now() - present.since);
    }
  }

  static void measure(MemoryUse& use, const std::function<std::int64_t()>& bytes, bool warm) {
    if (!bytes) return;
    use.last = bytes();
    if (!warm) return;
    if (use.first < 0) use.first = use.last;
    use.most = std::max(use.most, use.last);
  }

  void watch() {
    const RunTotals& t = engine_.engine().totals();
    report_.most_graphs = std::max(report_.most_graphs, t.graphs);
    std::int64_t& most_bytes = t.graphs == 1 ? report_.lone_graph_bytes : report_.most_graph_bytes;
    most_bytes = std::max(most_bytes, t.graph_bytes);
    report_.totals = t;
    report_.wall_seconds = now();
    const bool warm = share_done() >= options_.warm_up_share && steps() >= options_.warm_up_steps &&
                      report_.finished + report_.cancelled >= static_cast<std::int64_t>(specs_.size());
    if (warm && report_.warm_up_seconds < 0) report_.warm_up_seconds = report_.wall_seconds;
    measure(report_.host, options_.host_bytes, warm);
    measure(report_.device, options_.device_bytes, warm);
  }

  void interrupt() {
    report_.interrupted = true;
    ends_ = true;
    for (auto& [id, present] : present_) present.cancel_at = 0;
  }

  void finish() {
    watch();
    for (int rank = 0; rank < engine_.ranks(); ++rank) {
      const Engine& one = engine_.engine(rank);
      const KvPool& pool = one.pool();
      const std::int64_t kept = one.prefix_cache() == nullptr ? 0 : one.prefix_cache()->stats().blocks;
      report_.lost_blocks += pool.num_blocks() - pool.free_blocks() - kept;
      report_.lost_blocks += std::abs(pool.blocks().idle_blocks() - kept);
    }
    if (engine_.engine().prefix_cache() != nullptr) report_.prefixes = engine_.engine().prefix_cache()->stats();
  }

  std::int64_t steps() const { return engine_.engine().totals().steps; }

  ParallelEngine& engine_;
  const EngineOptions& engine_options_;
  const std::vector<RequestSpec>& specs_;
  const std::map<std::int64_t, std::uint64_t>& alone_;
  const SoakOptions& options_;
  std::chrono::steady_clock::time_point start_;
  double round_seconds_ = 0;
  std::size_t next_ = 0;  ///< counted over all rounds
  std::size_t delayed_ = static_cast<std::size_t>(-1);
  const RequestSpec* again_ = nullptr;  ///< what finished last
  bool ends_ = false;
  int idle_steps_ = 0;
  std::map<std::int64_t, Present> present_;
  SoakReport report_;
};

using Outcome = SoakCheck::Outcome;

Outcome passed_if(bool good) { return good ? Outcome::kPass : Outcome::kFail; }

SoakCheck memory_check(const char* name, const MemoryUse& use, const SoakReport& r, const SoakOptions& options) {
  if (use.first <= 0) {
    return {.name = name,
            .outcome = Outcome::kSkip,
            .text = printed("the warm-up was not over: %lld steps of %lld, or not every request ended once",
                            static_cast<long long>(r.totals.steps), static_cast<long long>(options.warm_up_steps))};
  }
  return {.name = name,
          .outcome = passed_if(use.growth() <= options.memory_growth),
          .text = printed("%.1f MiB after the warm-up, %.1f MiB at the end: %+.2f %%, bound %+.2f %%",
                          mebibytes(use.first), mebibytes(use.last), 100 * use.growth(), 100 * options.memory_growth)};
}

}  // namespace

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0;
  std::int64_t resident = 0;
  if (!(file >> all >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

std::vector<SoakCheck> soak_checks(const SoakReport& r, const EngineOptions& engine, const SoakOptions& options) {
  const auto count = [](std::int64_t n) { return static_cast<long long>(n); };
  std::vector<SoakCheck> out;
  const auto different = static_cast<std::int64_t>(r.different.size());
  std::string outputs = printed("%lld of %lld finished requests are, bit for bit, what each is alone",
                                count(r.finished - different), count(r.finished));
  if (different > 0) {
    outputs += "; not so:";
    for (std::size_t i = 0; i < std::min<std::size_t>(r.different.size(), 8); ++i)
      outputs += (i == 0 ? " " : ", ") + std::to_string(r.different[i]);
    if (different > 8) outputs += ", ...";
  }
  out.push_back(
      {.name = "outputs", .outcome = passed_if(different == 0 && r.finished > 0), .text = std::move(outputs)});
  out.push_back(memory_check("memory", r.host, r, options));
  if (options.device_bytes) out.push_back(memory_check("GPU memory", r.device, r, options));
  out.push_back({.name = "blocks",
                 .outcome = passed_if(r.lost_blocks == 0 && r.stuck.empty()),
                 .text = printed("%lld not back, %lld of %lld kept for prefixes", count(r.lost_blocks),
                                 count(r.prefixes.blocks), count(engine.num_blocks))});
  if (engine.layer.device == DeviceKind::kCuda) {
    out.push_back(
        {.name = "graphs",
         .outcome = passed_if(r.most_graphs <= engine.max_graphs && r.most_graph_bytes <= engine.max_graph_bytes),
         .text = printed("at most %lld of %lld at once, %.1f of %.1f MiB", count(r.most_graphs),
                         count(engine.max_graphs), mebibytes(r.most_graph_bytes), mebibytes(engine.max_graph_bytes))});
  }
  out.push_back({.name = "progress",
                 .outcome = passed_if(r.stuck.empty()),
                 .text = r.stuck.empty() ? printed("no request was there longer than %.1f s, bound %.0f s",
                                                   r.longest_seconds, options.stall_seconds)
                                         : r.stuck});
  return out;
}

bool soak_passed(const SoakReport& report, const EngineOptions& engine, const SoakOptions& options) {
  return std::ranges::none_of(soak_checks(report, engine, options),
                              [](const SoakCheck& check) { return check.outcome == Outcome::kFail; });
}

std::map<std::int64_t, std::uint64_t> digests_alone(EngineOptions engine, const ParallelOptions& parallel,
                                                    const std::vector<RequestSpec>& specs,
                                                    const std::function<void(std::int64_t)>& on_finish) {
  engine.max_seqs = 1;
  engine.speculative = 0;
  engine.dspark_layers.clear();
  engine.adaptive_speculation = false;
  engine.prefix_cache.reset();
  engine.planted_error = PlantedError::kNone;
  ParallelEngine ranks(engine, parallel);
  for (const RequestSpec& spec : specs) ranks.submit(spec);
  std::map<std::int64_t, std::uint64_t> out;
  while (!ranks.idle()) {
    ranks.step([] { return 0.0; });
    for (const RequestResult& r : ranks.take_ended()) {
      if (r.state == RequestResult::State::kFinished) out[r.spec.id] = r.digest;
    }
    if (on_finish) on_finish(static_cast<std::int64_t>(out.size()));
  }
  return out;
}

SoakReport soak(ParallelEngine& engine, const EngineOptions& engine_options, const std::vector<RequestSpec>& specs,
                const std::map<std::int64_t, std::uint64_t>& alone, const SoakOptions& options,
                const std::function<bool(const SoakReport&)>& on_step) {
  check_that(!specs.empty(), kWhat, "requests", std::int64_t{0}, "at least one that can run");
  check_that(engine_options.layer.deterministic, kWhat, "deterministic", std::string("false"),
             "true, to compare outputs");
  for (const RequestSpec& spec : specs)
    check_that(alone.contains(spec.id), kWhat, "request", spec.id, "one that has run alone");
  return Soak(engine, engine_options, specs, alone, options).run(on_step);
}

}  // namespace smla
