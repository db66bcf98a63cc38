#include "sparsemla/weights.h"

#include "layer/weight_names.h"

namespace smla {

namespace {

void visit_compressor(const std::string& prefix, CompressorWeights& w, const std::function<void(std::string_view, ConstTensorView&)>& visit) {
  visit(prefix + "wkv.weight", w.wkv);
  visit(prefix + "wgate.weight", w.wgate);
  visit(prefix + "ape", w.ape);
  visit(prefix + "norm.weight", w.norm);
}

}  // namespace

void visit_weights(const LayerConfig& config, LayerWeights& w, const std::function<void(std::string_view, ConstTensorView&)>& visit) {
  visit("wq_a.weight", w.wq_a);
  visit("q_norm.weight", w.q_norm);
  visit("wq_b.weight", w.wq_b);
  visit("wkv.weight", w.wkv);
  visit("kv_norm.weight", w.kv_norm);
  visit("wo_a.weight", w.wo_a);
  visit("wo_b.weight", w.wo_b);
  visit("attn_sink", w.attn_sink);
  if (config.has_compressor()) visit_compressor("compressor.", w.compressor, visit);
  if (config.has_indexer()) {
    visit_compressor("indexer.compressor.", w.index_compressor, visit);
    visit("indexer.wq_b.weight", w.index_wq_b);
    visit("indexer.weights_proj.weight", w.index_weights_proj);
  }
}

LayerWeights layer_weights(const LayerTensors& tensors) {
  LayerWeights weights;
  visit_weights(tensors.config, weights, [&](std::string_view name, ConstTensorView& view) {
    const auto found = tensors.tensors.find(name);
    if (found == tensors.tensors.end()) throw InvalidArgument("layer weights: " + std::string(name) + ": got no such tensor, expected it");
    view = found->second;
  });
  return weights;
}

}  // namespace smla
