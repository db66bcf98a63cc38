// A step of Python: its batch out of tensors, draft steps in place.
#include <algorithm>
#include <array>

#include "device/memory.h"
#include "python/layer.h"

namespace smla::python {

namespace {

std::vector<std::int32_t> read_lengths(const char* name, nb::handle given) {
  std::vector<std::int32_t> lengths;
  if (given.is_none()) return lengths;
  if (is_tensor(given)) {
    const Tensor t = read_tensor(std::string("Step: ") + name, given);
    if (t.place.kind != DeviceKind::kCpu || t.dtype != DType::kI32 || t.rank != 1)
      throw InvalidArgument(std::string("Step: ") + name + ": got " + describe(t) + " on " + describe(t.place) +
                            ", expected I32 with one dimension on cpu, or a list");
    for (std::int64_t i = 0; i < t.shape[0]; ++i)
      lengths.push_back(static_cast<const std::int32_t*>(t.data)[i * t.stride[0]]);
    return lengths;
  }
  for (const nb::handle number : given) {
    std::int32_t length = 0;
    if (!nb::try_cast(number, length))
      throw InvalidArgument(std::string("Step: ") + name + ": got " + nb::cast<std::string>(nb::repr(number)) +
                            ", expected integers");
    lengths.push_back(length);
  }
  return lengths;
}

}  // namespace

Step::Step(const Layer& layer)
    : config_(layer.layer().config()),
      layout_(layer.layout()),
      place_(layer.place()),
      metadata_(layout_, {&config_, 1}, layer.layer().options().front_end, place_.kind) {}

const StepMetadata& Step::built() const {
  if (!built_) throw InvalidArgument("Step: got one that was not built, expected build() before");
  return metadata_;
}

void Step::check_layer(const Layer& layer) const {
  const LayerConfig& config = layer.layer().config();
  bool same = layer.place() == place_ && config.compress_ratio == config_.compress_ratio &&
              config.window == config_.window && config.index_topk == config_.index_topk;
  for (const CacheRole role : kCacheRoles) {
    const LayerCache* a = layer.layout().find(0, role);
    const LayerCache* b = layout_.find(0, role);
    // A layer that reuses a choice runs with the step of the one that chooses, which has caches more.
    const bool extra = config.reuses_topk && a == nullptr;
    same = same && (extra || ((a == nullptr) == (b == nullptr) && (a == nullptr || a->block_size == b->block_size)));
  }
  if (same) return;
  throw InvalidArgument("Step: got one for compress_ratio " + std::to_string(config_.compress_ratio) + " on " +
                        describe(place_) + ", expected one for layers of compress_ratio " +
                        std::to_string(config.compress_ratio) + " on " + describe(layer.place()) +
                        " and their cache formats");
}

void Step::build(nb::handle query_start_loc, nb::handle seq_lens, nb::handle positions, const nb::list& block_tables,
                 std::optional<std::int64_t> max_seq_len, nb::handle host_query_start_loc, nb::handle host_seq_lens,
                 std::int64_t decode_threshold, std::int64_t dspark_tokens, nb::handle stream) {
  built_ = false;
  void* own = stream.is_none() ? nullptr : read_stream(stream);
  const auto read = [&](const std::string& name, nb::handle object) {
    Tensor t = read_tensor("Step: " + name, object, own);
    check_place("Step: " + name, t, place_);
    return t;
  };
  const std::array<Tensor, 3> lists{read("query_start_loc", query_start_loc), read("seq_lens", seq_lens),
                                    read("positions", positions)};
  const std::vector<std::int32_t> host_loc = read_lengths("host_query_start_loc", host_query_start_loc);
  const std::vector<std::int32_t> host_lens = read_lengths("host_seq_lens", host_seq_lens);
  StepBatch batch{.query_start_loc = view_tensor("Step: query_start_loc", lists[0]),
                  .seq_lens = view_tensor("Step: seq_lens", lists[1]),
                  .positions = view_tensor("Step: positions", lists[2]),
                  .block_tables = {},
                  .max_seq_len = 0,
                  .decode_threshold = decode_threshold,
                  .causal = dspark_tokens == 0,
                  .dspark_tokens = dspark_tokens,
                  .host_query_start_loc = host_loc,
                  .host_seq_lens = host_lens};
  tables_.clear();
  for (std::size_t g = 0; g < nb::len(block_tables); ++g) {
    const std::string name = "block_tables[" + std::to_string(g) + "]";
    tables_.push_back(read(name, block_tables[g]));
    batch.block_tables.push_back(view_tensor("Step: " + name, tables_.back()));
  }
  std::int64_t longest = 0;
  for (const std::int32_t length : host_lens) longest = std::max<std::int64_t>(longest, length);
  if (host_lens.empty() && place_.kind == DeviceKind::kCpu && lists[1].dtype == DType::kI32) {
    for (std::int64_t i = 0; i < lists[1].shape[0]; ++i)
      longest = std::max<std::int64_t>(longest,
                                       static_cast<const std::int32_t*>(lists[1].data)[i * batch.seq_lens.stride[0]]);
  }
  batch.max_seq_len = max_seq_len.value_or(longest);
  if (batch.max_seq_len < longest)
    throw InvalidArgument("Step: max_seq_len: got " + std::to_string(batch.max_seq_len) + ", expected at least " +
                          std::to_string(longest) + ", the largest of seq_lens");
  void* queue = stream_of(stream, lists[0]);
  const nb::gil_scoped_release released;
  const CurrentDevice current(place_.kind, place_.ordinal);
  metadata_.build(batch, {.handle = queue});
  built_ = true;
}

void Step::advance(nb::handle seq_lens, std::optional<std::int64_t> max_seq_len, nb::handle stream) {
  built();
  void* queue = stream.is_none() ? nullptr : read_stream(stream);
  if (seq_lens.is_none()) {
    if (max_seq_len) throw InvalidArgument("Step: max_seq_len: got it without seq_lens, expected both or neither");
    if (stream.is_none() && !tables_.empty()) queue = stream_of(stream, tables_.front());
    const nb::gil_scoped_release released;
    const CurrentDevice current(place_.kind, place_.ordinal);
    return metadata_.advance({.handle = queue});
  }
  const Tensor lens = read_tensor("Step: seq_lens", seq_lens, queue);
  check_place("Step: seq_lens", lens, place_);
  const TensorView view = view_tensor("Step: seq_lens", lens);
  queue = stream_of(stream, lens);
  const nb::gil_scoped_release released;
  const CurrentDevice current(place_.kind, place_.ordinal);
  metadata_.advance(view, max_seq_len.value_or(metadata_.shape().max_seq_len), {.handle = queue});
}

}  // namespace smla::python
