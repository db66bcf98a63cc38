#include "engine/scheduler.h"

#include <algorithm>

#include "engine/prompt.h"

namespace smla {

void Scheduler::preempt(Request* request) {
  request->blocks.clear(pool_);
  request->computed = 0;
  request->result.state = RequestResult::State::kWaiting;
  ++request->result.preemptions;
  ++preemptions_;
  std::erase(running_, request);
  waiting_.push_front(request);
}

/// Blocks for the next `tokens` positions; what the prefix cache keeps for nobody goes first.
bool Scheduler::reserve(Request* request, std::int64_t tokens) {
  const std::int64_t end = request->computed + tokens;
  if (prefixes_ != nullptr) {
    const std::int64_t missing = request->blocks.missing(pool_.layout(), request->computed, end);
    if (missing > pool_.free_blocks() && !prefixes_->make_room(missing)) return false;
  }
  return request->blocks.reserve(pool_, request->computed, end, &fresh_);
}

/// The longest prefix that is kept; at least one token is left to compute.
void Scheduler::begin_with_prefix(Request* r) {
  if (prefixes_ == nullptr || r->computed > 0) return;
  extend_keys(r->keys, r->result.spec, prefixes_->unit(), r->known() - 1);
  std::vector<std::uint64_t> digests;
  r->computed = prefixes_->adopt(r->keys, r->known() - 1, r->blocks, &digests);
  std::ranges::copy(digests, r->digests.begin());
}

/// Takes in a request with a first chunk of at most `budget` tokens; false, and nothing taken, without enough blocks.
bool Scheduler::admit(Request* r, std::int64_t budget, std::int64_t& chunk) {
  begin_with_prefix(r);
  chunk = std::min(budget, r->known() - r->computed);
  if (!reserve(r, chunk)) {
    r->blocks.clear(pool_);
    r->computed = 0;
    if (prefixes_ != nullptr) prefixes_->forget_lookup();  // it is looked up again in the next step
    return false;
  }
  if (r->admitted) {
    recovered_tokens_ += r->computed;
  } else {
    r->result.cached_tokens = r->computed;
    cached_tokens_ += r->computed;
    cached_requests_ += r->computed > 0 ? 1 : 0;
  }
  r->admitted = true;
  r->furthest = std::max(r->furthest, r->computed);
  return true;
}

/// Frees the youngest requests until `request` fits; false when it had to go itself.
bool Scheduler::reserve_or_preempt(Request* request, std::int64_t tokens) {
  while (!reserve(request, tokens)) {
    Request* youngest = running_.back();
    preempt(youngest);
    if (youngest == request) return false;
  }
  return true;
}

std::vector<Scheduled> Scheduler::schedule() {
  std::vector<Scheduled> decodes;
  std::vector<Scheduled> prefills;
  std::int64_t budget = max_batched_tokens_;
  fresh_.clear();
  const std::int64_t preempted_before = preemptions_;

  // Preemption shortens running_ from its end, so positions before `i` stay valid.
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Request* r = running_[i];
    if (!r->decoding()) continue;
    const std::int64_t remaining = r->result.spec.output_tokens - r->result.generated;
    const std::int64_t drafts =
        std::min<std::int64_t>({speculative_, adaptive_ ? r->next_drafts : speculative_, remaining - 1, budget - 1});
    if (!reserve_or_preempt(r, 1 + drafts)) continue;
    decodes.push_back({.request = r, .tokens = 1 + drafts, .drafts = drafts});
    budget -= 1 + drafts;
  }
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Request* r = running_[i];
    if (r->decoding()) continue;
    const std::int64_t chunk = std::min(budget, r->known() - r->computed);
    if (!reserve_or_preempt(r, chunk)) continue;
    prefills.push_back({.request = r, .tokens = chunk, .drafts = 0});
    budget -= chunk;
  }
  // Somebody scheduled above may have been preempted by a later one.
  const auto gone = [](const Scheduled& s) { return s.request->result.state != RequestResult::State::kRunning; };
  std::erase_if(decodes, gone);
  std::erase_if(prefills, gone);

  while (!waiting_.empty() && budget > 0 && has_seat() && preemptions_ == preempted_before) {
    Request* r = waiting_.front();
    std::int64_t chunk = 0;
    if (!admit(r, budget, chunk)) break;
    waiting_.pop_front();
    running_.push_back(r);
    r->result.state = RequestResult::State::kRunning;
    prefills.push_back({.request = r, .tokens = chunk, .drafts = 0});
    budget -= chunk;
  }
  // A block that a preempted request gave back and another one took is in the list twice; both are as well zeroed.
  pool_.zero(fresh_);
  std::ranges::stable_sort(prefills, {}, &Scheduled::tokens);
  decodes.insert(decodes.end(), prefills.begin(), prefills.end());
  return decodes;
}

void Scheduler::adopt(Request* request) {
  request->result.state = RequestResult::State::kRunning;
  running_.push_back(request);
}

void Scheduler::finish(Request* request) {
  drop(request);
  request->result.state = RequestResult::State::kFinished;
}

void Scheduler::drop(Request* request) {
  request->blocks.clear(pool_);
  std::erase(running_, request);
  std::erase(waiting_, request);
}

}  // namespace smla
