// Snapshots. First byte 'R': the rest is a buffer as it is. Otherwise a good snapshot with some of its numbers changed
// (and its checksum made right again most of the time): it is refused and nothing is held, or it loads and what is
// saved from there loads again as the same bytes.
#include <algorithm>

#include "cache/snapshot_records.h"
#include "sparsemla/snapshot.h"
#include "support.h"

namespace smla::fuzz {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::int64_t kBlocks = 60;

KvLayout layout_of(int kind) {
  std::vector<LayerConfig> layers;
  for (const int ratio : {1, 4, 128}) {
    if (kind == 3 || ratio == (kind == 0 ? 1 : kind == 1 ? 4 : 128)) {
      layers.push_back(model_preset("v4-flash").layer(0));
      layers.back().compress_ratio = ratio;
    }
  }
  return make_kv_layout(layers, {});
}

/// A request of some tokens whose rows hold a pattern.
Bytes good_snapshot(int kind, std::int64_t tokens) {
  KvPool pool(layout_of(kind), kBlocks);
  RequestBlocks blocks(pool.layout());
  require(blocks.reserve(pool, 0, tokens), "the pool is too small");
  blocks.slide(pool, tokens);
  const std::uint8_t note[] = {1, 2, 3};
  return save_snapshot(pool, blocks, tokens, note);
}

void load(const Bytes& bytes, int kind) {
  survives([&] { inspect_snapshot(bytes); });
  KvPool pool(layout_of(kind), kBlocks);
  RequestBlocks blocks(pool.layout());
  SnapshotInfo info;
  if (!survives([&] { info = load_snapshot(bytes, pool, blocks); })) {
    require(pool.free_blocks() == kBlocks && blocks.empty(), "a refused snapshot left blocks behind");
    return;
  }
  const Bytes again = save_snapshot(pool, blocks, info.tokens, info.note);
  KvPool other(layout_of(kind), kBlocks);
  RequestBlocks moved(other.layout());
  load_snapshot(again, other, moved);
  require(save_snapshot(other, moved, info.tokens, info.note) == again,
          "a snapshot of a loaded snapshot has other bytes");
  blocks.clear(pool);
  require(pool.free_blocks() == kBlocks, "blocks were lost");
}

void run(Input in) {
  constexpr std::int64_t kTokens[] = {0, 1, 3, 130};
  const std::uint8_t mode = in.byte();
  const int kind = static_cast<int>(in.range(0, 3));
  if (mode == 'R') {
    const std::string rest = in.rest();
    load(Bytes(rest.begin(), rest.end()), kind);
    return;
  }
  static Bytes good[4][4];
  const auto length = static_cast<std::size_t>(in.range(0, 3));
  Bytes& base = good[kind][length];
  if (base.empty()) base = good_snapshot(kind, kTokens[length]);
  Bytes bytes = base;
  const std::int64_t edits = in.range(0, 6);
  for (std::int64_t i = 0; i < edits; ++i) {
    // Mostly in the records at the front, where every number means something.
    const std::size_t at = (in.flag() ? in.byte() : in.raw<std::uint16_t>()) % std::max<std::size_t>(bytes.size(), 1);
    const std::int64_t value = in.hostile(64, true);
    constexpr std::size_t kSizes[] = {1, 2, 4, 8};
    std::memcpy(bytes.data() + at, &value, std::min(in.choice(kSizes), bytes.size() - at));
  }
  if (mode % 8 == 1) bytes.resize(bytes.size() - std::min<std::size_t>(in.raw<std::uint16_t>(), bytes.size()));
  if (mode % 8 == 2) bytes.insert(bytes.end(), static_cast<std::size_t>(in.range(1, 64)), std::uint8_t{0});
  if (mode % 16 != 0 && bytes.size() >= 8) {
    const std::uint64_t sum = snapshot_records::checksum(std::span(bytes).first(bytes.size() - 8));
    std::memcpy(bytes.data() + bytes.size() - 8, &sum, sizeof sum);
  }
  load(bytes, mode % 32 == 3 ? (kind + 1) % 4 : kind);
}

}  // namespace
}  // namespace smla::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  smla::fuzz::run({data, size});
  return 0;
}
