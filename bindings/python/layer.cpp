#include "python/layer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <utility>

#include "c/descriptors.h"
#include "device/memory.h"
#include "model/weight_table.h"
#include "python/workspace.h"
#include "sparsemla/front_end.h"

namespace smla::python {

namespace {

constexpr std::size_t kMostPlans = 64;

[[noreturn]] void fail(const std::string& name, const std::string& got, const std::string& expected) {
  throw InvalidArgument("AttentionLayer: " + name + ": got " + got + ", expected " + expected);
}

std::string repr_of(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

/// Takes values out of a dict by name; what is left over at the end is unknown.
class Reader {
 public:
  Reader(std::string what, const nb::dict& values) : what_(std::move(what)) {
    for (const auto& [key, value] : values) values_.emplace(nb::cast<std::string>(nb::str(key)), nb::borrow(value));
  }

  template <class T>
  void take(const char* name, T& to) {
    known_ += (known_.empty() ? "" : ", ") + std::string(name);
    const auto found = values_.find(name);
    if (found == values_.end()) return;
    const nb::object value = std::move(found->second);
    values_.erase(found);
    if (value.is_none()) return;
    if (!nb::try_cast(value, to)) fail(what_ + name, repr_of(value), expected(to));
  }

  void finish() const {
    if (!values_.empty()) fail(what_ + values_.begin()->first, "a value of that name", "one of " + known_);
  }

 private:
  static const char* expected(const std::string& /*to*/) { return "a word"; }
  static const char* expected(bool /*to*/) { return "True or False"; }
  template <class T>
  static const char* expected(T /*to*/) {
    return std::is_integral_v<T> ? "an integer" : "a number";
  }

  std::string what_;
  std::string known_{};
  std::map<std::string, nb::object, std::less<>> values_{};
};

}  // namespace

LayerConfig read_layer_config(const nb::dict& given) {
  LayerConfig c;
  Reader reader("config: ", given);
  reader.take("hidden_size", c.hidden_size), reader.take("num_heads", c.num_heads);
  reader.take("head_dim", c.head_dim), reader.take("rope_head_dim", c.rope_head_dim);
  reader.take("q_lora_rank", c.q_lora_rank), reader.take("o_lora_rank", c.o_lora_rank);
  reader.take("o_groups", c.o_groups), reader.take("window", c.window);
  reader.take("compress_ratio", c.compress_ratio), reader.take("index_n_heads", c.index_n_heads);
  reader.take("index_head_dim", c.index_head_dim), reader.take("index_topk", c.index_topk);
  reader.take("rms_norm_eps", c.rms_norm_eps), reader.take("hadamard", c.hadamard);
  reader.take("reuses_topk", c.reuses_topk);
  reader.finish();
  c.rope.dim = c.rope_head_dim;
  return c;
}

namespace {

const RowFormat& rows_of_dim(const char* name, const std::string& given, int dim) {
  const RowFormat& rows = row_format(given);
  if (rows.dim != dim)
    fail(name, given + ", rows of " + std::to_string(rows.dim) + " numbers", "rows of " + std::to_string(dim));
  return rows;
}

LayerOptions read_options(const nb::dict& given, const Place& place) {
  std::string precision = "bf16";
  std::string cache_rows = "fp8_ds_mla";
  std::string index_rows = "index_fp8";
  std::string front_end_name = "flashmla";
  std::string implementation;
  LayerOptions o{.device = place.kind};
  Reader reader("", given);
  reader.take("precision", precision), reader.take("cache_rows", cache_rows), reader.take("index_rows", index_rows);
  reader.take("kv_scale", o.caches.kv_scale), reader.take("q_scale", o.q_scale);
  reader.take("front_end", front_end_name), reader.take("implementation", implementation);
  reader.take("gather_prefill", o.gather_prefill), reader.take("strict", o.strict);
  reader.take("padded_heads", o.padded_heads), reader.take("score_bytes", o.score_bytes);
  reader.take("deterministic", o.deterministic), reader.take("threads", o.threads);
  reader.take("side_streams", o.side_streams), reader.take("draft_blocks", o.caches.draft_blocks);
  reader.finish();
  if (precision != "bf16" && precision != "f32") fail("precision", "\"" + precision + "\"", "\"bf16\" or \"f32\"");
  o.precision = precision == "f32" ? Precision::kF32 : Precision::kBF16;
  o.caches.rows = &rows_of_dim("cache_rows", cache_rows, fp8_ds_mla_rows().dim);
  o.caches.index = &rows_of_dim("index_rows", index_rows, index_fp8_rows().dim);
  o.front_end = front_end(front_end_name);
  if (!implementation.empty()) o.implementations["*"] = implementation;
  if (o.threads < 0) fail("threads", std::to_string(o.threads), "0 or more");
  return effective_options(o);
}

/// What tells steps apart that are planned apart; a plan serves shorter sequences, too.
std::string key_of(const StepShape& s) {
  std::string key = std::to_string(s.tokens) + " " + std::to_string(s.requests) + " " + std::to_string(s.max_seq_len) +
                    " " + std::to_string(s.window_width) + " " + std::to_string(s.split.decodes) + " " +
                    std::to_string(s.split.prefills) + " " + std::to_string(s.split.decode_tokens) + " " +
                    std::to_string(s.split.prefill_tokens);
  for (const std::int32_t n : s.prefill_query_lens) key += " " + std::to_string(n);
  for (const std::int32_t n : s.prefill_seq_lens) key += " " + std::to_string(n);
  return key;
}

}  // namespace

void check_place(const std::string& name, const Tensor& t, const Place& place) {
  if (t.place == place) return;
  throw InvalidArgument(name + ": got a tensor on " + describe(t.place) + ", expected one on " + describe(place));
}

void* stream_of(nb::handle given, const Tensor& leader) {
  if (!given.is_none()) return read_stream(given);
  return leader.place.kind == DeviceKind::kCpu ? nullptr : current_stream(leader);
}

TensorView view_tensor(const std::string& name, const Tensor& t) {
  if (t.rank < 1 || t.rank > TensorView::kMaxRank)
    throw InvalidArgument(name + ": got " + std::to_string(t.rank) + " dimensions, expected 1 to 4");
  TensorView view;
  view.data = t.data;
  view.dtype = t.dtype;
  view.rank = t.rank;
  std::int64_t step = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    view.shape[d] = t.shape[d];
    view.stride[d] = t.shape[d] == 1 || t.numel() == 0 ? step : t.stride[d];
    if (view.stride[d] < 1)
      throw InvalidArgument(name + ": got stride " + std::to_string(t.stride[d]) + " of dimension " +
                            std::to_string(i) + ", expected 1 or more");
    step *= std::max<std::int64_t>(t.shape[d], 1);
  }
  return view;
}

Layer::Layer(const nb::dict& config, const nb::dict& weights, nb::handle cos_sin, const nb::dict& options) {
  const Tensor& table = keep("cos_sin", cos_sin);
  place_ = table.place;
  config_ = read_layer_config(config);
  check_layer_config(config_);
  read_weights(weights);
  const LayerOptions read = read_options(options, place_);
  const TensorView rope = view_tensor("AttentionLayer: cos_sin", table);
  const nb::gil_scoped_release released;
  const CurrentDevice current(place_.kind, place_.ordinal);
  layer_.emplace(config_, weights_, read, rope);
  layout_ = make_kv_layout({&config_, 1}, layer_->options().caches);
}

const Tensor& Layer::keep(const std::string& name, nb::handle object) {
  const std::string full = "AttentionLayer: " + name;
  tensors_.push_back(read_tensor(full, object));
  if (tensors_.size() > 1) check_place(full, tensors_.back(), place_);
  return tensors_.back();
}

void Layer::read_weights(const nb::dict& weights) {
  std::map<std::string, nb::object, std::less<>> given;
  for (const auto& [key, value] : weights)
    if (!value.is_none()) given.emplace(nb::cast<std::string>(nb::str(key)), nb::borrow(value));
  std::string wrong;
  visit_weights(config_, weights_, [&](std::string_view name, ConstTensorView& view) {
    const auto found = given.find(name);
    if (found == given.end()) {
      wrong += "\n  " + std::string(name) + ": got no such tensor, expected it";
      return;
    }
    view = view_tensor("AttentionLayer: " + found->first, keep(found->first, found->second));
    given.erase(found);
  });
  for (const std::string& name : idle_weight_names(config_)) given.erase(name);
  for (const auto& [name, tensor] : given)
    wrong += "\n  " + name + ": got a tensor, expected none of that name in a layer of this kind";
  if (!wrong.empty()) throw InvalidArgument("AttentionLayer: weights:" + wrong);
}

nb::dict Layer::caches() const {
  nb::dict all;
  for (const CacheRole role : kCacheRoles) {
    const LayerCache* cache = layout_.find(0, role);
    if (cache == nullptr) continue;
    nb::dict need;
    need["format"] = nb::str(cache->format->name.data(), cache->format->name.size());
    need["block_size"] = cache->block_size;
    need["page_bytes"] = cache->page_bytes;
    need["group"] = layout_.group_of(0, role);
    all[nb::str(name_of(role).c_str())] = need;
  }
  return all;
}

nb::list Layer::groups() const {
  nb::list all;
  for (const CacheGroup& group : layout_.groups) {
    nb::dict d;
    d["name"] = group.name;
    d["block_tokens"] = group.block_tokens;
    d["window"] = group.kept();
    all.append(d);
  }
  return all;
}

PagedCache Layer::read_cache(CacheRole role, const std::string& name, nb::handle given, void* stream) const {
  const LayerCache& need = *layout_.find(0, role);
  if (!nb::isinstance<Cache>(given)) throw InvalidArgument(name + ": got " + repr_of(given) + ", expected a Cache");
  const CacheView view = python::read_cache(name, *nb::inst_ptr<Cache>(given), stream);
  check_place(name, view.tensor, place_);
  if (view.tensor.read_only) throw InvalidArgument(name + ": got read-only memory, expected blocks to write");
  const RowFormat& format = row_format(view.cache.format);
  if (format != *need.format || view.cache.block_size != need.block_size)
    throw InvalidArgument(name + ": got blocks of " + std::to_string(view.cache.block_size) + " " +
                          std::string(format.name) + " rows, expected " + std::to_string(need.block_size) + " " +
                          std::string(need.format->name) + " rows");
  return {.format = need.format,
          .base = static_cast<std::uint8_t*>(view.cache.base),
          .num_blocks = view.cache.num_blocks,
          .block_size = view.cache.block_size,
          .block_stride_bytes = view.cache.block_stride_bytes,
          .scale = need.format->scale == ScaleKind::kPerTensor ? view.cache.kv_scale : 1.0F};
}

LayerCaches Layer::read_caches(const nb::dict& caches, void* stream) const {
  LayerCaches out;
  std::size_t taken = 0;
  for (const CacheRole role : kCacheRoles) {
    const std::string role_name = name_of(role);
    const std::string name = "AttentionLayer: caches[\"" + role_name + "\"]";
    const nb::object given = caches.get(nb::str(role_name.c_str()), nb::none());
    taken += caches.contains(role_name.c_str()) ? 1 : 0;
    const LayerCache* need = layout_.find(0, role);
    if ((need == nullptr) != given.is_none())
      throw InvalidArgument(name + (need == nullptr ? ": got one, expected none: a layer of this kind has no such cache"
                                                    : ": got none, expected a Cache"));
    if (need != nullptr) out[role] = read_cache(role, name, given, stream);
  }
  if (taken != caches.size())
    throw InvalidArgument("AttentionLayer: caches: got " + repr_of(caches.keys()) +
                          ", expected names of window, compressed, index, state and index_state caches");
  return out;
}

const LayerPlan& Layer::plan(const Step& step) {
  step.check_layer(*this);
  const StepShape& shape = step.built().shape();
  std::string key = key_of(shape);
  const auto found = std::ranges::find(plans_, key, &Kept::key);
  if (found != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, found);
    return plans_.front().plan;
  }
  LayerCaches shapes;
  for (const CacheRole role : kCacheRoles) {
    if (const LayerCache* need = layout_.find(0, role); need != nullptr)
      shapes[role] = {.format = need->format, .block_size = need->block_size, .block_stride_bytes = need->page_bytes};
  }
  const CurrentDevice current(place_.kind, place_.ordinal);
  plans_.push_front({std::move(key), layer_->plan(shape, shapes)});
  if (plans_.size() > kMostPlans) plans_.pop_back();
  return plans_.front().plan;
}

std::size_t Layer::workspace_bytes(const Step& step) { return plan(step).workspace_bytes(); }
std::string Layer::describe(const Step& step) { return plan(step).describe(); }

void Layer::forward(const Step& step, const nb::dict& caches, nb::handle hidden, nb::handle output,
                    nb::handle workspace, nb::handle stream) {
  step.check_layer(*this);
  const std::string kHidden = "AttentionLayer: hidden";
  const std::string kOutput = "AttentionLayer: output";
  void* own = stream.is_none() ? nullptr : read_stream(stream);
  const Tensor x = read_tensor(kHidden, hidden, own);
  const Tensor y = read_tensor(kOutput, output, own);
  check_place(kHidden, x, place_), check_place(kOutput, y, place_);
  if (y.read_only || y.requires_grad)
    throw InvalidArgument(kOutput + (y.read_only ? ": got a read-only tensor" : ": got a tensor that requires grad") +
                          ", expected one that can be written");
  void* queue = stream_of(stream, x);
  const TensorView x_view = view_tensor(kHidden, x);
  const TensorView y_view = view_tensor(kOutput, y);
  const LayerCaches read = read_caches(caches, queue);
  const LayerPlan held = plan(step);
  const LentWorkspace lent("AttentionLayer", workspace, held.workspace_bytes(), place_, &x, queue, !stream.is_none());
  const LayerStep layer_step = step.built().layer(0);
  const nb::gil_scoped_release released;
  const CurrentDevice current(place_.kind, place_.ordinal);
  layer_->forward(held, layer_step, read, x_view, y_view, {.data = lent.data(), .bytes = lent.bytes()},
                  {.handle = queue});
}

void Layer::insert_context(nb::handle hidden, nb::handle positions, nb::handle slots, nb::handle window,
                           nb::handle workspace, nb::handle stream) {
  void* own = stream.is_none() ? nullptr : read_stream(stream);
  const auto read = [&](const std::string& name, nb::handle object) {
    Tensor t = read_tensor("AttentionLayer: " + name, object, own);
    check_place("AttentionLayer: " + name, t, place_);
    return t;
  };
  const Tensor x = read("hidden", hidden), at = read("positions", positions), to = read("slots", slots);
  void* queue = stream_of(stream, x);
  const TensorView x_view = view_tensor("AttentionLayer: hidden", x);
  const TensorView at_view = view_tensor("AttentionLayer: positions", at);
  const TensorView to_view = view_tensor("AttentionLayer: slots", to);
  const PagedCache cache = read_cache(CacheRole::kWindow, "AttentionLayer: window", window, queue);
  const std::int64_t tokens = x_view.rank == 2 ? x_view.size(0) : 0;
  const LentWorkspace lent("AttentionLayer", workspace, layer_->context_bytes(tokens), place_, &x, queue,
                           !stream.is_none());
  const nb::gil_scoped_release released;
  const CurrentDevice current(place_.kind, place_.ordinal);
  layer_->insert_context(x_view, at_view, to_view, cache, {.data = lent.data(), .bytes = lent.bytes()},
                         {.handle = queue});
}

}  // namespace smla::python
