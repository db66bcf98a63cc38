#include "engine/request_note.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::uint64_t kMark = 0x31'51'45'52'41'4C'4D'53;         // "SMLAREQ1"
constexpr std::uint64_t kMarkWithIds = 0x32'51'45'52'41'4C'4D'53;  // "SMLAREQ2": ids and how many tokens one covers
constexpr std::size_t kNumbers = 9;                                // before the digests
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

void put(std::vector<std::uint8_t>& out, std::uint64_t v) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::uint8_t>(v >> (8 * i)));
}

std::uint64_t get(std::span<const std::uint8_t> in, std::size_t number) {
  std::uint64_t v = 0;
  for (int i = 0; i < 8; ++i) v |= static_cast<std::uint64_t>(in[8 * number + static_cast<std::size_t>(i)]) << (8 * i);
  return v;
}

}  // namespace

std::vector<std::uint8_t> write_note(const Request& r) {
  const RequestSpec& spec = r.result.spec;
  std::vector<std::uint8_t> out;
  put(out, spec.prompt_ids.empty() ? kMark : kMarkWithIds);
  put(out, static_cast<std::uint64_t>(spec.id));
  put(out, static_cast<std::uint64_t>(spec.prompt_tokens));
  put(out, static_cast<std::uint64_t>(spec.output_tokens));
  put(out, static_cast<std::uint64_t>(r.result.generated));
  put(out, static_cast<std::uint64_t>(r.result.preemptions));
  put(out, static_cast<std::uint64_t>(r.furthest));
  put(out, static_cast<std::uint64_t>(r.next_drafts));
  put(out, std::bit_cast<std::uint64_t>(spec.arrival_seconds));
  for (std::int64_t i = 0; i < r.computed; ++i) put(out, r.digests[static_cast<std::size_t>(i)]);
  if (spec.prompt_ids.empty()) return out;
  for (const std::int64_t id : spec.prompt_ids) put(out, static_cast<std::uint64_t>(id));
  put(out, static_cast<std::uint64_t>(spec.prompt_id_tokens));
  return out;
}

std::unique_ptr<Request> read_note(std::span<const std::uint8_t> note, std::int64_t tokens, const KvLayout& layout) {
  const auto refuse = [](const std::string& what, std::int64_t got, const std::string& expected) {
    throw InvalidArgument("request snapshot: " + what + ": got " + std::to_string(got) + ", expected " + expected);
  };
  const std::size_t want = 8 * (kNumbers + static_cast<std::size_t>(tokens));
  const bool with_ids = note.size() >= 8 && get(note, 0) == kMarkWithIds;
  const bool whole = with_ids ? note.size() >= want + 16 && note.size() % 8 == 0 : note.size() == want;
  if (!whole)
    refuse("bytes of the note", static_cast<std::int64_t>(note.size()),
           std::to_string(want) + " for " + std::to_string(tokens) + " tokens" + (with_ids ? " and ids behind" : ""));
  if (!with_ids && get(note, 0) != kMark)
    throw InvalidArgument("request snapshot: note: got one of another program, expected an engine's");
  const auto number = [&](std::size_t i, const char* what, std::int64_t least, std::int64_t most) {
    const auto v = static_cast<std::int64_t>(get(note, i));
    if (v < least || v > most) refuse(what, v, std::to_string(least) + " to " + std::to_string(most));
    return v;
  };
  RequestSpec spec{.id = static_cast<std::int64_t>(get(note, 1)),
                   .arrival_seconds = std::bit_cast<double>(get(note, 8))};
  if (!std::isfinite(spec.arrival_seconds) || spec.arrival_seconds < 0)
    throw InvalidArgument("request snapshot: arrival seconds: got " + std::to_string(spec.arrival_seconds) +
                          ", expected a finite number of 0 or more");
  spec.prompt_tokens = number(2, "prompt tokens", 1, kMaxCount);
  spec.output_tokens = number(3, "output tokens", 1, kMaxCount);
  if (with_ids) {
    const std::size_t end = note.size() / 8 - 1;
    for (std::size_t i = want / 8; i < end; ++i) spec.prompt_ids.push_back(static_cast<std::int64_t>(get(note, i)));
    spec.prompt_id_tokens = number(end, "tokens of a prompt id", 1, kMaxCount);
  }
  if (tokens > spec.positions())
    refuse("tokens", tokens, "at most " + std::to_string(spec.positions()) + ", the request's positions");
  const std::int64_t generated = number(4, "generated tokens", 0, spec.output_tokens - 1);
  const bool prefilled = tokens >= spec.prompt_tokens;
  if (prefilled ? generated != tokens - spec.prompt_tokens + 1
                : generated > 0 && number(6, "furthest", 0, spec.positions()) < spec.prompt_tokens) {
    refuse("generated tokens", generated,
           "a number that " + std::to_string(tokens) + " of " + std::to_string(spec.prompt_tokens) +
               " prompt tokens allow");
  }
  auto request = std::make_unique<Request>(spec, layout);
  request->result.generated = generated;
  request->result.preemptions = number(5, "preemptions", 0, kMaxCount);
  request->furthest = number(6, "furthest", tokens, spec.positions());
  request->next_drafts = number(7, "next drafts", 1, kMaxCount);
  request->computed = tokens;
  request->digests.resize(static_cast<std::size_t>(tokens));
  for (std::int64_t i = 0; i < tokens; ++i)
    request->digests[static_cast<std::size_t>(i)] = get(note, kNumbers + static_cast<std::size_t>(i));
  return request;
}

}  // namespace smla
