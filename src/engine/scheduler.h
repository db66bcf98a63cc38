#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "sparsemla/engine.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/prefix_cache.h"

namespace smla {

/// A request as the engine sees it.
struct Request {
  const std::uint64_t serial = next_serial();  ///< no other request ever has it; ids come again
  RequestResult result;
  RequestBlocks blocks;
  std::int64_t computed = 0;           ///< positions whose rows stand in the caches
  std::int64_t furthest = 0;           ///< the most that was ever computed, to count recomputation
  std::vector<std::uint64_t> digests;  ///< of the output at each position, once an engine has accepted the request
  PrefixKeys keys;                     ///< of what was computed, with a prefix cache
  bool admitted = false;               ///< it ran before
  std::int64_t next_drafts = 1;        ///< adaptive speculation: draft tokens of the next step

  Request(const RequestSpec& spec, const KvLayout& layout) : blocks(layout) { result.spec = spec; }
  /// Memory for the whole request: only for one whose length was checked.
  void accept() { digests.resize(static_cast<std::size_t>(result.spec.positions()), 0); }
  /// It has ended: gives back the memory of all but its result.
  void retire() {
    digests = {};
    keys = {};
    blocks = RequestBlocks(KvLayout{});
  }
  /// Tokens that exist: the prompt and what was generated.
  std::int64_t known() const { return result.spec.prompt_tokens + result.generated; }
  /// One more draft after a step whose drafts were all accepted, otherwise as many as were.
  void learn(std::int64_t drafts, std::int64_t accepted) {
    if (drafts > 0) next_drafts = accepted == drafts ? drafts + 1 : std::max<std::int64_t>(accepted, 1);
  }
  bool decoding() const { return result.generated > 0 && known() - computed == 1; }
  /// Finished, refused or cancelled.
  bool ended() const {
    return result.state != RequestResult::State::kWaiting && result.state != RequestResult::State::kRunning;
  }

 private:
  static std::uint64_t next_serial() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

/// One request's part of a step: positions [computed, computed + tokens), the last `drafts` of them speculative.
struct Scheduled {
  Request* request = nullptr;
  std::int64_t tokens = 0;
  std::int64_t drafts = 0;
};

/// Decides what a step computes: decodes first, then prefill chunks, then new requests; preempts the youngest when
/// blocks run out.
class Scheduler {
 public:
  /// `prefixes`: null without a prefix cache; must outlive the scheduler.
  Scheduler(KvPool& pool, std::int64_t max_batched_tokens, std::int64_t max_seqs, int speculative, bool adaptive,
            PrefixCache* prefixes = nullptr)
      : pool_(pool),
        max_batched_tokens_(max_batched_tokens),
        max_seqs_(max_seqs),
        speculative_(speculative),
        adaptive_(adaptive),
        prefixes_(prefixes) {}

  void add(Request* request) { waiting_.push_back(request); }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  /// The next step's batch in its order: decodes, then prefills by length. Blocks are reserved, and those that are new
  /// are zeroed by one call.
  std::vector<Scheduled> schedule();
  bool has_seat() const { return static_cast<std::int64_t>(running_.size()) < max_seqs_; }
  /// Takes in a request whose blocks are already held, as the youngest.
  void adopt(Request* request);
  /// Takes a finished request out and its blocks back.
  void finish(Request* request);
  /// Takes any request out and its blocks back.
  void drop(Request* request);
  std::int64_t preemptions() const { return preemptions_; }
  std::int64_t cached_requests() const { return cached_requests_; }    ///< RunTotals::cached_requests
  std::int64_t cached_tokens() const { return cached_tokens_; }        ///< RunTotals::cached_tokens
  std::int64_t recovered_tokens() const { return recovered_tokens_; }  ///< RunTotals::recovered_tokens

 private:
  bool reserve_or_preempt(Request* request, std::int64_t tokens);
  bool reserve(Request* request, std::int64_t tokens);
  bool admit(Request* request, std::int64_t budget, std::int64_t& chunk);
  void begin_with_prefix(Request* request);
  void preempt(Request* request);

  KvPool& pool_;
  std::int64_t max_batched_tokens_;
  std::int64_t max_seqs_;
  int speculative_;
  bool adaptive_;
  PrefixCache* prefixes_;
  std::deque<Request*> waiting_;
  std::vector<Request*> running_;  ///< by admission: the youngest last
  std::int64_t preemptions_ = 0;
  std::int64_t cached_requests_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::int64_t recovered_tokens_ = 0;
  std::vector<GroupBlock> fresh_;  ///< taken in the step at work, to be zeroed together
};

}  // namespace smla
