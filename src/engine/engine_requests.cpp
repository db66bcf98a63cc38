// Requests on their way in and out of an engine: submitted, saved, restored, cancelled.
#include <algorithm>

#include "core/check.h"
#include "engine/engine_state.h"
#include "engine/request_note.h"
#include "sparsemla/snapshot.h"

namespace smla {

namespace {
constexpr std::string_view kWhat = kEngine;
}  // namespace

std::int64_t blocks_needed(const KvLayout& layout, const RequestSpec& request, std::int64_t chunk) {
  std::int64_t blocks = 0;
  for (const CacheGroup& group : layout.groups)
    blocks += max_blocks(group, request.positions(), std::min(chunk, request.positions()));
  return blocks;
}

/// Why a request can never run here; empty: it can.
std::string Engine::State::refusal(const RequestSpec& spec) const {
  const std::string who = "request " + std::to_string(spec.id);
  if (spec.positions() > options.max_model_len) {
    return who + ": got " + std::to_string(spec.positions()) + " positions, expected at most max_model_len " +
           std::to_string(options.max_model_len);
  }
  const std::int64_t need = blocks_needed(pool->layout(), spec, options.max_batched_tokens);
  if (need > pool->num_blocks()) {
    return who + ": needs " + std::to_string(need) + " cache blocks at its full length, the pool has " +
           std::to_string(pool->num_blocks());
  }
  return {};
}

void Engine::submit(const RequestSpec& spec) {
  State& s = *state_;
  const std::string who = "request " + std::to_string(spec.id);
  check_that(spec.prompt_tokens >= 1, who, "prompt tokens", spec.prompt_tokens, "1 or more");
  check_that(spec.output_tokens >= 1, who, "output tokens", spec.output_tokens, "1 or more");
  check_that(spec.prompt_ids.empty() || spec.prompt_id_tokens >= 1, who, "prompt_id_tokens", spec.prompt_id_tokens,
             "1 or more beside prompt_ids");
  check_that(!s.by_id.contains(spec.id), who, "id", spec.id, "one that was not submitted before");
  s.requests.push_back(std::make_unique<Request>(spec, s.pool->layout()));
  Request& r = *s.requests.back();
  s.by_id[spec.id] = &r;
  r.result.refusal = s.refusal(spec);
  if (!r.result.refusal.empty()) {
    r.result.state = RequestResult::State::kRefused;
    return;
  }
  r.accept();
  s.scheduler->add(&r);
}

/// The request of that id, waiting or running (or running alone).
Request& Engine::State::alive(std::int64_t id, bool running) const {
  const auto found = by_id.find(id);
  Request* r = found == by_id.end() ? nullptr : found->second;
  using enum RequestResult::State;
  const bool fits = r != nullptr && (r->result.state == kRunning || (!running && r->result.state == kWaiting));
  check_that(fits, kWhat, "id", id, running ? "a running request's" : "a waiting or running request's");
  return *r;
}

std::vector<std::uint8_t> Engine::save_request(std::int64_t id) const {
  state_->check_device();
  const Request& r = state_->alive(id, true);
  return save_snapshot(*state_->pool, r.blocks, r.computed, write_note(r));
}

std::int64_t Engine::restore_request(std::span<const std::uint8_t> snapshot) {
  State& s = *state_;
  s.check_device();
  const SnapshotInfo info = inspect_snapshot(snapshot);
  std::unique_ptr<Request> r = read_note(info.note, info.tokens, s.pool->layout());
  const std::int64_t id = r->result.spec.id;
  check_that(!s.by_id.contains(id), kWhat, "id of the snapshot", id, "one that was not submitted before");
  if (const std::string refusal = s.refusal(r->result.spec); !refusal.empty()) throw InvalidArgument(refusal);
  check_that(s.scheduler->has_seat(), kWhat, "request in flight " + std::to_string(id), s.options.max_seqs + 1,
             "at most max_seqs " + std::to_string(s.options.max_seqs));
  r->accept();
  load_snapshot(snapshot, *s.pool, r->blocks);
  s.scheduler->adopt(r.get());
  s.by_id[id] = r.get();
  s.requests.push_back(std::move(r));
  return id;
}

void Engine::cancel(std::int64_t id) {
  Request& r = state_->alive(id, false);
  state_->scheduler->drop(&r);
  r.result.state = RequestResult::State::kCancelled;
  r.retire();
}

std::vector<RequestResult> Engine::take_ended() {
  State& s = *state_;
  std::vector<RequestResult> out;
  for (std::unique_ptr<Request>& r : s.requests) {
    if (!r->ended()) continue;
    s.by_id.erase(r->result.spec.id);
    out.push_back(std::move(r->result));
    r.reset();
  }
  std::erase(s.requests, nullptr);
  return out;
}

}  // namespace smla
