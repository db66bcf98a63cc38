// Python's view of a prefix cache.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "python/caches.h"
#include "python/objects.h"
#include "sparsemla/prefix_cache.h"

namespace smla::python {

namespace {

/// A prefix cache and the pool that it is over.
class Prefixes {
 public:
  Prefixes(const Pool& pool, const PrefixCacheOptions& options)
      : pool_(pool), cache_(pool.pool().layout(), pool.pool().blocks(), options) {}
  PrefixCache& cache() { return cache_; }
  /// Requests of another pool would get blocks that are not theirs.
  void check(const Blocks& blocks) const {
    if (&blocks.pool().pool() != &pool_.pool())
      throw InvalidArgument("PrefixCache: blocks: got those of another pool, expected the cache's");
  }

 private:
  Pool pool_;  ///< outlives the cache
  PrefixCache cache_;
};

nb::dict stats_dict(const PrefixCacheStats& s) {
  nb::dict d;
  d["lookups"] = s.lookups, d["hits"] = s.hits, d["hit_tokens"] = s.hit_tokens;
  d["kept_tails"] = s.kept_tails, d["evicted_tails"] = s.evicted_tails, d["collisions"] = s.collisions;
  d["tails"] = s.tails, d["entries"] = s.entries, d["blocks"] = s.blocks;
  return d;
}

using TokenArray = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_prefixes(nb::module_& module) {
  using nb::arg;
  nb::class_<PrefixKeys>(module, "PrefixKeys",
                         "What a request's tokens are, in blocks of PrefixCache.unit, as a prefix cache compares them.")
      .def(nb::init<>())
      .def(
          "append_tokens",
          [](PrefixKeys& keys, const TokenArray& tokens, std::int64_t block_tokens) {
            return keys.append_tokens({tokens.data(), tokens.size()}, block_tokens);
          },
          arg("tokens"), arg("block_tokens"),
          nb::sig("def append_tokens(self, tokens: object, block_tokens: int) -> int"),
          "Appends as many whole blocks as there are tokens for, and returns their number; the rest is ignored.\n"
          "tokens: [n] int32 on the host.")
      .def(
          "append", [](PrefixKeys& keys, const std::vector<std::uint64_t>& words) { keys.append(words); }, arg("words"),
          "Appends a block by words that stand for its tokens, such as ids of a trace.")
      .def_prop_ro("blocks", &PrefixKeys::blocks);

  nb::class_<Prefixes>(module, "PrefixCache",
                       "Finds the blocks of prefixes that were computed before and lends them to requests\n"
                       "(docs/prefix-caching.md).\n\n"
                       "retention_interval: a prefix can end at each multiple of so many tokens, a multiple of unit.\n"
                       "keep_prompt_end: and at the end of a prompt, rounded down to unit.\n\n"
                       "Raises InvalidArgument.")
      .def(
          "__init__",
          [](Prefixes* to, const Pool& pool, std::int64_t interval, bool prompt_end) {
            new (to) Prefixes(pool, {.retention_interval = interval, .keep_prompt_end = prompt_end});
          },
          arg("pool"), arg("retention_interval") = PrefixCacheOptions{}.retention_interval,
          arg("keep_prompt_end") = true)
      .def_prop_ro(
          "unit", [](Prefixes& p) { return p.cache().unit(); }, "Tokens of a block of PrefixKeys.")
      .def(
          "find",
          [](Prefixes& p, const PrefixKeys& keys, std::optional<std::int64_t> max_tokens) {
            return p.cache().find(keys, max_tokens.value_or(keys.blocks() * p.cache().unit()));
          },
          arg("keys"), arg("max_tokens") = nb::none(), "Tokens of the longest prefix that is there.")
      .def(
          "adopt",
          [](Prefixes& p, const PrefixKeys& keys, Blocks& blocks, std::optional<std::int64_t> max_tokens) {
            p.check(blocks);
            const std::int64_t most = max_tokens.value_or(keys.blocks() * p.cache().unit());
            return blocks.with([&](KvPool&, RequestBlocks& own) { return p.cache().adopt(keys, most, own); });
          },
          arg("keys"), arg("blocks"), arg("max_tokens") = nb::none(),
          "Puts that prefix's blocks into a request that holds none, and returns its tokens: the first position to\n"
          "compute. max_tokens should leave one token.")
      .def(
          "keep",
          [](Prefixes& p, PrefixKeys& keys, Blocks& blocks, std::int64_t begin, std::int64_t end,
             std::int64_t prompt_tokens) {
            p.check(blocks);
            check_range(begin, end);
            blocks.with([&](KvPool&, RequestBlocks& own) { p.cache().keep(keys, own, begin, end, prompt_tokens); });
          },
          arg("keys"), arg("blocks"), arg("begin"), arg("end"), arg("prompt_tokens"),
          "Keeps what the rule wants of positions begin to end - 1, whose rows were computed or queued, before\n"
          "RequestBlocks.slide gives their blocks back.")
      .def(
          "make_room", [](Prefixes& p, std::int64_t free_blocks) { return p.cache().make_room(free_blocks); },
          arg("free_blocks"),
          "Evicts what was used longest ago until the pool has so many free blocks. False, with nothing evicted, when\n"
          "requests hold too many.")
      .def(
          "clear", [](Prefixes& p) { p.cache().clear(); }, "Gives everything up.")
      .def_prop_ro("stats", [](Prefixes& p) { return stats_dict(p.cache().stats()); });
}

}  // namespace smla::python
