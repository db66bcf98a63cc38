#include "checkpoint/layer_tensors.h"

#include <algorithm>
#include <set>

#include "model/weight_table.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

constexpr std::size_t kMaxListed = 64;

using Shape = std::vector<std::int64_t>;

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

/// Matches what a layer needs with what is stored, and collects everything that does not fit.
class Inventory {
 public:
  explicit Inventory(const StoredLayer& stored) : stored_(stored) {}

  bool has(const std::string& name) const { return stored_.contains(name); }
  LinearSource linear(const WeightSpec& wanted);
  StoredTensor plain(const WeightSpec& wanted);
  /// Null when there is none of that name.
  const StoredTensor* scalar(const std::string& name);
  /// @throws InvalidArgument with the whole list.
  void finish(const std::string& where) const;

 private:
  const StoredTensor* take(const std::string& name) {
    const auto found = stored_.find(name);
    if (found == stored_.end()) return nullptr;
    used_.insert(name);
    return &found->second;
  }
  void missing(const std::string& name, const std::string& expected) {
    problems_.push_back("missing: " + name + ", expected " + expected);
  }
  void misfit(const std::string& name, const StoredTensor& got, const std::string& expected) {
    problems_.push_back("misshaped: " + name + ": got " + text_of(got.entry->shape) + " " + got.entry->dtype +
                        ", expected " + expected);
  }
  void expect(const std::string& name, const StoredTensor& got, const Shape& shape,
              std::initializer_list<std::string_view> dtypes);
  void fp8_scale(const std::string& stem, LinearSource& source);
  void nvfp4_scales(const std::string& stem, LinearSource& source);

  const StoredLayer& stored_;
  std::set<std::string> used_;
  std::vector<std::string> problems_;
};

void Inventory::expect(const std::string& name, const StoredTensor& got, const Shape& shape,
                       std::initializer_list<std::string_view> dtypes) {
  const bool dtype_fits = std::find(dtypes.begin(), dtypes.end(), got.entry->dtype) != dtypes.end();
  if (dtype_fits && got.entry->shape == shape) return;
  std::string names;
  for (const std::string_view d : dtypes) names += (names.empty() ? "" : " or ") + std::string(d);
  misfit(name, got, text_of(shape) + " " + names);
}

void Inventory::fp8_scale(const std::string& stem, LinearSource& source) {
  const Shape shape{(source.outputs + kFp8Block - 1) / kFp8Block, (source.inputs + kFp8Block - 1) / kFp8Block};
  std::string found;
  for (const char* suffix : {".scale", ".weight_scale_inv", ".weight_scale"}) {
    const StoredTensor* scale = take(stem + suffix);
    if (scale == nullptr) continue;
    if (!found.empty()) {
      problems_.push_back("unknown: " + stem + suffix + ", expected no second block scale beside " + found);
      continue;
    }
    found = stem + suffix;
    expect(found, *scale, shape, {"F8_E8M0", "U8", "F32"});
    source.scale = *scale;
  }
  if (found.empty())
    missing(stem + ".scale",
            text_of(shape) + " F8_E8M0 or F32 (also .weight_scale_inv or .weight_scale) beside FP8 weights");
}

void Inventory::nvfp4_scales(const std::string& stem, LinearSource& source) {
  const Shape shape{source.outputs, source.inputs / kNvfp4Group};
  if (const StoredTensor* scale = take(stem + ".weight_scale")) {
    expect(stem + ".weight_scale", *scale, shape, {"F8_E4M3"});
    source.scale = *scale;
  } else {
    missing(stem + ".weight_scale", text_of(shape) + " F8_E4M3 beside NVFP4 weights");
  }
  if (const StoredTensor* scale = scalar(stem + ".weight_scale_2")) {
    source.global_scale = *scale;
  } else {
    missing(stem + ".weight_scale_2", "[] F32 beside NVFP4 weights");
  }
}

LinearSource Inventory::linear(const WeightSpec& wanted) {
  LinearSource source{.outputs = wanted.shape[0], .inputs = wanted.shape[1]};
  const StoredTensor* weight = take(wanted.name);
  if (weight == nullptr) {
    missing(wanted.name, text_of(wanted.shape));
    // Its scales would be called unknown; they only lack their weight.
    for (const char* suffix : {".scale", ".weight_scale_inv", ".weight_scale", ".weight_scale_2"})
      take(wanted.stem + suffix);
    return source;
  }
  source.weight = *weight;
  const std::string& stem = wanted.stem;
  if (weight->entry->dtype == "F8_E4M3") {
    source.encoding = LinearEncoding::kFp8;
    expect(wanted.name, *weight, wanted.shape, {"F8_E4M3"});
    fp8_scale(stem, source);
  } else if (weight->entry->dtype == "U8") {
    source.encoding = LinearEncoding::kNvfp4;
    if (source.inputs % kNvfp4Group != 0) {
      misfit(wanted.name, *weight,
             "no NVFP4, whose columns are a multiple of 16, for " + std::to_string(source.inputs) + " inputs");
    }
    expect(wanted.name, *weight, {source.outputs, source.inputs / 2}, {"U8"});
    nvfp4_scales(stem, source);
  } else {
    expect(wanted.name, *weight, wanted.shape, {"BF16", "F32", "F8_E4M3", "U8"});
  }
  return source;
}

StoredTensor Inventory::plain(const WeightSpec& wanted) {
  const StoredTensor* tensor = take(wanted.name);
  if (tensor == nullptr) {
    missing(wanted.name, text_of(wanted.shape));
    return {};
  }
  expect(wanted.name, *tensor, wanted.shape, {"BF16", "F32"});
  return *tensor;
}

const StoredTensor* Inventory::scalar(const std::string& name) {
  const StoredTensor* tensor = take(name);
  if (tensor == nullptr) return nullptr;
  expect(name, *tensor, tensor->entry->shape == Shape{1} ? Shape{1} : Shape{}, {"F32", "BF16"});
  return tensor;
}

void Inventory::finish(const std::string& where) const {
  std::vector<std::string> all = problems_;
  for (const auto& [name, tensor] : stored_) {
    if (!used_.contains(name)) {
      all.push_back("unknown: " + name + ": got " + text_of(tensor.entry->shape) + " " + tensor.entry->dtype +
                    ", expected no such tensor");
    }
  }
  if (all.empty()) return;
  std::string text =
      where + ": " + std::to_string(all.size()) + (all.size() == 1 ? " tensor does" : " tensors do") + " not fit";
  for (std::size_t i = 0; i < std::min(all.size(), kMaxListed); ++i) text += "\n  " + all[i];
  if (all.size() > kMaxListed) text += "\n  and " + std::to_string(all.size() - kMaxListed) + " more";
  throw InvalidArgument(text);
}

/// Scales of queries and caches, when the checkpoint has them.
struct CacheScales {
  const StoredTensor* q = nullptr;
  std::vector<const StoredTensor*> window;
  std::vector<const StoredTensor*> compressed;
};

CacheScales find_scales(Inventory& inventory, bool compresses) {
  CacheScales scales{.q = inventory.scalar("q_scale"), .window = {}, .compressed = {}};
  for (const char* name : {"kv_scale", "k_scale", "v_scale"}) {
    if (const StoredTensor* s = inventory.scalar(name)) scales.window.push_back(s);
    if (!compresses) continue;
    if (const StoredTensor* s = inventory.scalar(std::string("compressor.") + name)) scales.compressed.push_back(s);
  }
  return scales;
}

/// Keys are values too, so all scales of one cache must be the same number.
std::optional<float> common_scale(const std::vector<const StoredTensor*>& sources) {
  std::optional<float> common;
  for (const StoredTensor* source : sources) {
    const float value = read_scalar(*source);
    if (common && *common != value) {
      throw IoError(source->where() + ": got " + std::to_string(value) + ", expected " + std::to_string(*common) +
                    " as in " + sources[0]->name + " (keys are values, one scale serves both)");
    }
    common = value;
  }
  return common;
}

Range part(std::int64_t size, bool cut, int rank, int ranks) {
  return cut ? Range{size / ranks * rank, size / ranks * (rank + 1)} : Range{0, size};
}

/// Whether a layer can take rows x columns of this weight as they are stored in FP8: its inputs and each group's
/// outputs must be whole blocks.
bool can_keep_fp8(const WeightSpec& w, const LinearSource& source, Range rows, Range columns) {
  if (w.fp8_groups == 0 || source.encoding != LinearEncoding::kFp8 || !is_whole_blocks(source, rows, columns))
    return false;
  return columns.size() % kFp8Block == 0 && (w.fp8_groups == 1 || w.shape[0] / w.fp8_groups % kFp8Block == 0);
}

/// The same in NVFP4: columns must be whole groups, and a layer takes wkv and wgate of a compressor in one dtype.
bool can_keep_nvfp4(const WeightSpec& w, const std::map<std::string, LinearSource>& linears, Range columns) {
  const auto nvfp4 = [&](const std::string& name) { return linears.at(name).encoding == LinearEncoding::kNvfp4; };
  if (!nvfp4(w.name) || columns.begin % kNvfp4Group != 0 || columns.end % kNvfp4Group != 0) return false;
  constexpr std::string_view kWkv = "compressor.wkv";
  constexpr std::string_view kWgate = "compressor.wgate";
  const auto beside = [&](std::string_view own, std::string_view other) {
    return !w.stem.ends_with(own) ||
           nvfp4(w.stem.substr(0, w.stem.size() - own.size()) + std::string(other) + ".weight");
  };
  return beside(kWkv, kWgate) && beside(kWgate, kWkv);
}

}  // namespace

LayerConfig tensor_parallel_slice(const LayerConfig& layer, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw InvalidArgument("tensor parallel slice: got rank " + std::to_string(rank) + " of " + std::to_string(size) +
                          ", expected 0 <= rank < size");
  }
  LayerConfig slice = layer;
  for (const auto& [name, count] : {std::pair("num_heads", &slice.num_heads), std::pair("o_groups", &slice.o_groups)}) {
    if (*count % size != 0) {
      throw InvalidArgument("tensor parallel slice: " + std::string(name) + ": got " + std::to_string(*count) +
                            ", expected a multiple of tp_size " + std::to_string(size));
    }
    *count /= size;
  }
  return slice;
}

LayerTensors read_layer(const std::string& where, const StoredLayer& stored, const LayerConfig& layer, int tp_rank,
                        int tp_size, const LoadOptions& options) {
  check_layer_config(layer);
  LayerTensors out;
  out.config = tensor_parallel_slice(layer, tp_rank, tp_size);

  const std::vector<WeightSpec> wanted = weight_table(layer);
  Inventory inventory(stored);
  std::map<std::string, LinearSource> linears;
  std::map<std::string, StoredTensor> plains;
  const auto is_linear = [](const WeightSpec& w) { return w.kind == WeightKind::kLinear; };
  for (const WeightSpec& w : wanted) {
    if (is_linear(w)) {
      linears.emplace(w.name, inventory.linear(w));
    } else {
      plains.emplace(w.name, inventory.plain(w));
    }
  }
  for (const WeightSpec& w : idle_weights(layer)) {
    if (!inventory.has(w.name)) continue;
    is_linear(w) ? void(inventory.linear(w)) : void(inventory.plain(w));
  }
  const CacheScales scales = find_scales(inventory, layer.has_compressor());
  inventory.finish(where);

  const auto memory = std::make_shared<std::vector<HostTensor>>();
  memory->reserve(3 * wanted.size());
  for (const WeightSpec& w : wanted) {
    const Range rows = part(w.shape[0], w.cut == WeightCut::kRows, tp_rank, tp_size);
    const auto keep = [&](const std::string& name, HostTensor tensor) {
      memory->push_back(std::move(tensor));
      out.tensors.emplace(name, std::as_const(memory->back()).view());
    };
    const Range columns = is_linear(w) ? part(w.shape[1], w.cut == WeightCut::kColumns, tp_rank, tp_size) : Range{};
    if (is_linear(w) && options.keep_nvfp4 && can_keep_nvfp4(w, linears, columns)) {
      KeptLinear kept = read_nvfp4(linears.at(w.name), rows, columns);
      keep(w.name, std::move(kept.codes));
      keep(w.stem + ".weight_scale", std::move(kept.scales));
      keep(w.stem + ".weight_scale_2", std::move(kept.global_scale));
    } else if (is_linear(w) && options.keep_fp8 && can_keep_fp8(w, linears.at(w.name), rows, columns)) {
      KeptLinear kept = read_fp8(linears.at(w.name), rows, columns);
      keep(w.name, std::move(kept.codes));
      keep(w.stem + ".scale", std::move(kept.scales));
    } else if (is_linear(w)) {
      keep(w.name, read_linear(linears.at(w.name), rows, columns));
    } else {
      // A sink of -inf is no sink, +inf one that takes all.
      memory->push_back(read_plain(plains.at(w.name), w.kind != WeightKind::kNorm, w.kind == WeightKind::kSink));
      out.tensors.emplace(w.name, std::as_const(memory->back()).view().slice(0, rows.begin, rows.end));
    }
  }
  if (scales.q != nullptr) out.q_scale = read_scalar(*scales.q);
  out.kv_scale = common_scale(scales.window);
  out.compressed_kv_scale = common_scale(scales.compressed);
  out.memory = memory;
  return out;
}

}  // namespace smla
