#include "layer/placed_layer.h"

#include <algorithm>
#include <utility>

#include "model/weight_table.h"

namespace smla {

namespace {

/// A layer's weights in the memory of a GPU.
class Placement {
 public:
  Placement(DeviceKind device, std::vector<DeviceTensor>* copies) : device_(device), copies_(copies) {}

  void place(const LayerConfig& config, LayerWeights& weights) {
    const std::vector<WeightSpec> table = weight_table(config);
    for (const int number : {1, 2}) {
      std::vector<ConstTensorView*> views;
      std::vector<ConstTensorView*> scales;
      for (const WeightSpec& spec : table) {
        if (spec.joined != number) continue;
        ConstTensorView& view = spec.view(weights);
        views.push_back(&view);
        if (view.dtype == DType::kE4M3) scales.push_back(&spec.scale(weights));
      }
      // NVFP4 weights are never one product.
      if (!views.empty() && views[0]->dtype == kNvfp4Weight) continue;
      if (!one_after_another(views)) continue;
      one_after_another(scales);
    }
    visit_weights(config, weights, [&](std::string_view, ConstTensorView& view) {
      if (std::ranges::find(placed_, &view) != placed_.end()) return;
      copies_->push_back(DeviceTensor::copy_of(device_, view));
      view = std::as_const(copies_->back()).view();
    });
  }

 private:
  /// Copies dense tensors of one dtype behind each other; false, with nothing done, for others.
  bool one_after_another(const std::vector<ConstTensorView*>& views) {
    if (views.empty()) return false;
    std::int64_t bytes = 0;
    for (const ConstTensorView* view : views) {
      if (view->absent() || view->dtype != views[0]->dtype || !view->contiguous()) return false;
      bytes += view->numel() * size_of(view->dtype);
    }
    const DeviceTensor& all = copies_->emplace_back(device_, DType::kU8, std::vector{bytes});
    auto* to = static_cast<std::uint8_t*>(all.data());
    for (ConstTensorView* view : views) {
      const auto size = static_cast<std::size_t>(view->numel() * size_of(view->dtype));
      copy_bytes(device_, to, view->data, size);
      view->data = to;
      to += size;
      placed_.push_back(view);
    }
    synchronize(device_);
    return true;
  }

  DeviceKind device_;
  std::vector<DeviceTensor>* copies_;
  std::vector<const ConstTensorView*> placed_;
};

}  // namespace

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
    Placement(options.device, &copies_).place(source_.config, source_.weights);
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
