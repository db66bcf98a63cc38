#include "model/weight_table.h"

namespace smla {

namespace {

using View = ConstTensorView& (*)(LayerWeights&);

/// A pointer to the function that names a member, such as SMLA_MEMBER(compressor.ape).
#define SMLA_MEMBER(path) ([](LayerWeights& w) -> ConstTensorView& { return w.path; })
/// Those of a linear weight and its scales.
#define SMLA_LINEAR(path) \
  Members { SMLA_MEMBER(path), SMLA_MEMBER(path##_scale), SMLA_MEMBER(path##_global_scale) }

struct Members {
  View weight, scale, global_scale;
};

class Table {
 public:
  explicit Table(const LayerConfig& config) : c_(config) {}

  std::vector<WeightSpec> make() {
    const std::int64_t group_inputs = c_.num_heads / c_.o_groups * c_.head_dim;
    fp8_linear("wq_a", {c_.q_lora_rank, c_.hidden_size}, SMLA_LINEAR(wq_a));
    norm("q_norm", c_.q_lora_rank, SMLA_MEMBER(q_norm));
    fp8_linear("wq_b", {c_.num_heads * c_.head_dim, c_.q_lora_rank}, SMLA_LINEAR(wq_b), WeightCut::kRows);
    fp8_linear("wkv", {c_.head_dim, c_.hidden_size}, SMLA_LINEAR(wkv));
    norm("kv_norm", c_.head_dim, SMLA_MEMBER(kv_norm));
    fp8_linear("wo_a", {c_.o_groups * c_.o_lora_rank, group_inputs}, SMLA_LINEAR(wo_a), WeightCut::kRows, c_.o_groups);
    fp8_linear("wo_b", {c_.hidden_size, c_.o_groups * c_.o_lora_rank}, SMLA_LINEAR(wo_b), WeightCut::kColumns);
    add({.stem = "attn_sink",
         .name = "attn_sink",
         .shape = {c_.num_heads},
         .kind = WeightKind::kSink,
         .cut = WeightCut::kRows,
         .view = SMLA_MEMBER(attn_sink)});
    if (c_.has_compressor()) {
      compressor("compressor.", c_.head_dim, SMLA_LINEAR(compressor.wkv), SMLA_LINEAR(compressor.wgate),
                 SMLA_MEMBER(compressor.ape), SMLA_MEMBER(compressor.norm));
    }
    if (c_.runs_indexer()) {
      compressor("indexer.compressor.", c_.index_head_dim, SMLA_LINEAR(index_compressor.wkv),
                 SMLA_LINEAR(index_compressor.wgate), SMLA_MEMBER(index_compressor.ape),
                 SMLA_MEMBER(index_compressor.norm));
      fp8_linear("indexer.wq_b", {c_.index_n_heads * c_.index_head_dim, c_.q_lora_rank}, SMLA_LINEAR(index_wq_b));
      linear("indexer.weights_proj", {c_.index_n_heads, c_.hidden_size}, SMLA_LINEAR(index_weights_proj));
    }
    for (WeightSpec& spec : rows_) {
      if (spec.stem == "wq_a" || spec.stem == "wkv") spec.joined = 1;
      if (spec.stem.ends_with("compressor.wkv") || spec.stem.ends_with("compressor.wgate")) spec.joined = 2;
    }
    return std::move(rows_);
  }

 private:
  void add(WeightSpec spec) { rows_.push_back(std::move(spec)); }
  void linear(const std::string& stem, std::vector<std::int64_t> shape, const Members& members,
              WeightCut cut = WeightCut::kNone, std::int64_t fp8_groups = 0) {
    add({.stem = stem,
         .name = stem + ".weight",
         .shape = std::move(shape),
         .cut = cut,
         .fp8_groups = fp8_groups,
         .view = members.weight,
         .scale = members.scale,
         .global_scale = members.global_scale});
  }
  void fp8_linear(const std::string& stem, std::vector<std::int64_t> shape, const Members& members,
                  WeightCut cut = WeightCut::kNone, std::int64_t groups = 1) {
    linear(stem, std::move(shape), members, cut, groups);
  }
  void norm(const std::string& stem, std::int64_t dim, View view) {
    add({.stem = stem, .name = stem + ".weight", .shape = {dim}, .kind = WeightKind::kNorm, .view = view});
  }
  void compressor(const std::string& prefix, std::int64_t dim, const Members& wkv, const Members& wgate, View ape,
                  View norm_weight) {
    const std::int64_t width = (c_.has_indexer() ? 2 : 1) * dim;
    linear(prefix + "wkv", {width, c_.hidden_size}, wkv);
    linear(prefix + "wgate", {width, c_.hidden_size}, wgate);
    add({.stem = prefix + "ape",
         .name = prefix + "ape",
         .shape = {c_.compress_ratio, width},
         .kind = WeightKind::kApe,
         .view = ape});
    norm(prefix + "norm", dim, norm_weight);
  }

  const LayerConfig& c_;
  std::vector<WeightSpec> rows_;
};

#undef SMLA_LINEAR
#undef SMLA_MEMBER

}  // namespace

std::vector<WeightSpec> weight_table(const LayerConfig& config) { return Table(config).make(); }

std::vector<WeightSpec> idle_weights(const LayerConfig& config) {
  if (!config.has_indexer() || config.runs_indexer()) return {};
  LayerConfig choosing = config;
  choosing.reuses_topk = false;
  std::vector<WeightSpec> all = weight_table(choosing);
  std::erase_if(all, [](const WeightSpec& spec) { return !spec.stem.starts_with("indexer."); });
  return all;
}

std::vector<std::string> idle_weight_names(const LayerConfig& config) {
  std::vector<std::string> names;
  for (const WeightSpec& spec : idle_weights(config)) {
    names.push_back(spec.name);
    if (spec.fp8_groups > 0) names.push_back(spec.stem + ".scale");
    if (spec.kind != WeightKind::kLinear) continue;
    for (const char* suffix : {".weight_scale", ".weight_scale_2"}) names.push_back(spec.stem + suffix);
  }
  return names;
}

void visit_weights(const LayerConfig& config, LayerWeights& weights,
                   const std::function<void(std::string_view, ConstTensorView&)>& visit) {
  for (const WeightSpec& spec : weight_table(config)) {
    ConstTensorView& view = spec.view(weights);
    visit(spec.name, view);
    if (view.absent() || spec.kind != WeightKind::kLinear) continue;
    if (view.dtype == DType::kE4M3 && spec.fp8_groups > 0) visit(spec.stem + ".scale", spec.scale(weights));
    if (view.dtype != kNvfp4Weight) continue;
    visit(spec.stem + ".weight_scale", spec.scale(weights));
    visit(spec.stem + ".weight_scale_2", spec.global_scale(weights));
  }
}

}  // namespace smla
