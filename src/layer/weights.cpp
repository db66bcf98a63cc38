#include "sparsemla/weights.h"

#include "layer/weight_names.h"

namespace smla {

namespace {

void visit_compressor(const std::string& prefix, CompressorWeights& w,
                      const std::function<void(std::string_view, ConstTensorView&)>& visit) {
  visit(prefix + "wkv.weight", w.wkv);
  visit(prefix + "wgate.weight", w.wgate);
  visit(prefix + "ape", w.ape);
  visit(prefix + "norm.weight", w.norm);
}

/// A linear weight; an E4M3 one has its scales beside it.
void visit_linear(const std::string& stem, ConstTensorView& w, ConstTensorView& scale,
                  const std::function<void(std::string_view, ConstTensorView&)>& visit) {
  visit(stem + ".weight", w);
  if (!w.absent() && w.dtype == DType::kE4M3) visit(stem + ".scale", scale);
}

}  // namespace

void visit_weights(const LayerConfig& config, LayerWeights& w,
                   const std::function<void(std::string_view, ConstTensorView&)>& visit) {
  visit_linear("wq_a", w.wq_a, w.wq_a_scale, visit);
  visit("q_norm.weight", w.q_norm);
  visit_linear("wq_b", w.wq_b, w.wq_b_scale, visit);
  visit_linear("wkv", w.wkv, w.wkv_scale, visit);
  visit("kv_norm.weight", w.kv_norm);
  visit_linear("wo_a", w.wo_a, w.wo_a_scale, visit);
  visit_linear("wo_b", w.wo_b, w.wo_b_scale, visit);
  visit("attn_sink", w.attn_sink);
  if (config.has_compressor()) visit_compressor("compressor.", w.compressor, visit);
  if (config.has_indexer()) {
    visit_compressor("indexer.compressor.", w.index_compressor, visit);
    visit_linear("indexer.wq_b", w.index_wq_b, w.index_wq_b_scale, visit);
    visit("indexer.weights_proj.weight", w.index_weights_proj);
  }
}

LayerWeights layer_weights(const LayerTensors& tensors) {
  LayerWeights weights;
  visit_weights(tensors.config, weights, [&](std::string_view name, ConstTensorView& view) {
    const auto found = tensors.tensors.find(name);
    if (found == tensors.tensors.end())
      throw InvalidArgument("layer weights: " + std::string(name) + ": got no such tensor, expected it");
    view = found->second;
  });
  return weights;
}

}  // namespace smla
