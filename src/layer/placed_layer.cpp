#include "layer/placed_layer.h"

#include <algorithm>
#include <utility>

#include "model/weight_table.h"

namespace smla {

RopeTable::RopeTable(const RopeConfig& config, std::int64_t positions, DeviceKind device, bool keep_host)
    : config_(config), host_(DType::kF32, {positions, config.dim}) {
  std::ranges::copy(rope_table(config, positions), host_.as<float>());
  if (device == DeviceKind::kCpu) return;
  placed_ = DeviceTensor::copy_of(device, std::as_const(host_).view());
  if (!keep_host) host_ = HostTensor();
}

LayerSource LayerSource::of(LayerTensors tensors) {
  return {.config = tensors.config,
          .weights = layer_weights(tensors),
          .on_device = false,
          .q_scale = tensors.q_scale,
          .kv_scale = tensors.kv_scale,
          .compressed_kv_scale = tensors.compressed_kv_scale,
          .memory = std::move(tensors.memory)};
}

PlacedLayer::PlacedLayer(LayerSource source, LayerOptions options, std::shared_ptr<const RopeTable> rope)
    : source_(std::move(source)), rope_(std::move(rope)) {
  if (options.device != DeviceKind::kCpu && !source_.on_device) {
    visit_weights(source_.config, source_.weights, [&](std::string_view, ConstTensorView& view) {
      copies_.push_back(DeviceTensor::copy_of(options.device, view));
      view = std::as_const(copies_.back()).view();
    });
    source_.memory.reset();
  }
  options = effective_options(options);
  if (options.q == DType::kE4M3) options.q_scale = source_.q_scale.value_or(options.q_scale);
  layer_.emplace(source_.config, source_.weights, options, rope_->placed());
  layout_ = make_kv_layout({&source_.config, 1}, layer_->options().caches);
}

float PlacedLayer::scale_of(CacheRole role) const {
  const float window = source_.kv_scale.value_or(options().caches.kv_scale);
  if (role == CacheRole::kWindow) return window;
  return role == CacheRole::kCompressed ? source_.compressed_kv_scale.value_or(window) : 1.0F;
}

}  // namespace smla
