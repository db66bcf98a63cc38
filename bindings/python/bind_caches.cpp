// Python's view of pools of blocks and snapshots of requests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "python/caches.h"
#include "python/objects.h"
#include "sparsemla/snapshot.h"

namespace smla::python {

namespace {

std::span<const std::uint8_t> bytes_of(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}
nb::bytes to_bytes(const std::vector<std::uint8_t>& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

nb::dict info_dict(const SnapshotInfo& info) {
  nb::list caches;
  for (const SnapshotCache& c : info.caches) {
    nb::dict d;
    d["layer"] = c.layer, d["role"] = name_of(c.role), d["format"] = std::string(c.format->name);
    d["block_size"] = c.block_size, d["block_tokens"] = c.block_tokens, d["window"] = c.window;
    d["first_block"] = c.first_block, d["blocks"] = c.blocks, d["kv_scale"] = c.scale;
    caches.append(d);
  }
  nb::dict d;
  d["tokens"] = info.tokens, d["num_layers"] = info.num_layers;
  d["caches"] = caches, d["note"] = to_bytes(info.note);
  return d;
}

}  // namespace

void bind_caches(nb::module_& module) {
  using nb::arg;
  nb::class_<Pool>(module, "KvPool",
                   "The memory of the caches of a list of layers, in equal blocks, and who holds which.\n\n"
                   "layers: the numbers of each layer, as AttentionLayer takes them.\n"
                   "num_blocks: how many can be held; one more, block 0, nobody ever holds.\n"
                   "draft_blocks: windows are kept one token longer, for a block of DSpark sees that much more.\n\n"
                   "Raises InvalidArgument, Unsupported, MemoryError.")
      .def(
          "__init__",
          [](Pool* to, const nb::list& layers, std::int64_t num_blocks, nb::handle device,
             const std::string& cache_rows, const std::string& index_rows, float kv_scale, bool draft_blocks,
             nb::handle stream) {
            const CacheOptions options{.rows = &row_format(cache_rows),
                                       .index = &row_format(index_rows),
                                       .kv_scale = kv_scale,
                                       .draft_blocks = draft_blocks};
            new (to) Pool(layers, num_blocks, read_place(device).value_or(Place{}), options,
                          stream.is_none() ? nullptr : read_stream(stream));
          },
          arg("layers"), arg("num_blocks"), arg("device") = "cpu", arg("cache_rows") = "fp8_ds_mla",
          arg("index_rows") = "index_fp8", arg("kv_scale") = 1.0F, arg("draft_blocks") = false,
          arg("stream") = nb::none())
      .def_prop_ro("num_blocks", [](const Pool& p) { return p.pool().num_blocks(); })
      .def_prop_ro("free_blocks", [](const Pool& p) { return p.pool().free_blocks(); })
      .def_prop_ro("block_bytes", [](const Pool& p) { return p.pool().layout().block_stride_bytes; })
      .def_prop_ro("device", [](const Pool& p) { return describe(p.place()); })
      .def_prop_ro(
          "groups",
          [](const Pool& p) {
            nb::list all;
            for (const CacheGroup& group : p.pool().layout().groups) {
              nb::dict d;
              d["name"] = group.name, d["block_tokens"] = group.block_tokens, d["window"] = group.kept();
              all.append(d);
            }
            return all;
          },
          "The cache groups: name, block_tokens (token p is in column p // block_tokens of a block table), window.")
      .def("cache", &Pool::cache, arg("layer"), arg("role"),
           "A layer's cache: role is \"window\", \"compressed\", \"index\", \"state\" or \"index_state\".")
      .def(
          "group_of",
          [](const Pool& p, std::int64_t layer, const std::string& role) {
            return p.pool().layout().group_of(layer, role_of(role));
          },
          arg("layer"), arg("role"),
          "The group whose block table a layer's cache uses; -1: the layer has no such cache.")
      .def(
          "held", [](const Pool& p, int group) { return p.pool().held(p.group(group)); }, arg("group"),
          "Blocks that a group has.");

  nb::class_<Blocks>(module, "RequestBlocks",
                     "The blocks of one request in a pool: a table for each group. They go back to the pool with the\n"
                     "object.")
      .def(nb::init<const Pool&>(), arg("pool"))
      .def(
          "reserve",
          [](Blocks& b, std::int64_t begin, std::int64_t end) {
            check_range(begin, end);
            return b.with([&](KvPool& pool, RequestBlocks& blocks) { return blocks.reserve(pool, begin, end); });
          },
          arg("begin"), arg("end"),
          "Makes room for positions begin to end - 1, zeroed. False, and nothing changed, when the pool is too small.")
      .def(
          "reserve_live",
          [](Blocks& b, std::int64_t tokens) {
            check_range(0, tokens);
            return b.with([&](KvPool& pool, RequestBlocks& blocks) { return blocks.reserve_live(pool, tokens); });
          },
          arg("tokens"), "Makes room for what a request of so many computed positions needs to go on.")
      .def(
          "slide",
          [](Blocks& b, std::int64_t next_position) {
            check_range(0, next_position);
            b.with([&](KvPool& pool, RequestBlocks& blocks) { blocks.slide(pool, next_position); });
          },
          arg("next_position"), "Gives back what no query at next_position or later can see.")
      .def(
          "clear", [](Blocks& b) { b.with([](KvPool& pool, RequestBlocks& blocks) { blocks.clear(pool); }); },
          "Gives everything back.")
      .def(
          "table",
          [](const Blocks& b, int group) {
            const auto table = b.blocks().table(b.pool().group(group));
            return std::vector<std::int32_t>(table.begin(), table.end());
          },
          arg("group"), "Block numbers, -1 where there is none.")
      .def_prop_ro("empty", [](const Blocks& b) { return b.blocks().empty(); });

  module.def(
      "save_snapshot",
      [](Blocks& b, std::int64_t tokens, const nb::bytes& note) {
        check_range(0, tokens);
        const auto kept = bytes_of(note);
        return to_bytes(
            b.with([&](KvPool& pool, RequestBlocks& blocks) { return save_snapshot(pool, blocks, tokens, kept); }));
      },
      arg("blocks"), arg("tokens"), arg("note") = nb::bytes(""));
  module.def(
      "inspect_snapshot", [](const nb::bytes& snapshot) { return info_dict(inspect_snapshot(bytes_of(snapshot))); },
      arg("snapshot"));
  module.def(
      "load_snapshot",
      [](const nb::bytes& snapshot, Blocks& b) {
        const auto bytes = bytes_of(snapshot);
        return info_dict(
            b.with([&](KvPool& pool, RequestBlocks& blocks) { return load_snapshot(bytes, pool, blocks); }));
      },
      arg("snapshot"), arg("blocks"));
  module.def(
      "write_snapshot",
      [](const std::string& path, const nb::bytes& snapshot) { write_snapshot_file(path, bytes_of(snapshot)); },
      arg("path"), arg("snapshot"));
  module.def(
      "read_snapshot", [](const std::string& path) { return to_bytes(read_snapshot_file(path)); }, arg("path"));
}

}  // namespace smla::python
