#include "engine/synthetic.h"

#include <cmath>

namespace smla {

namespace {

/// Fills with uniform numbers of standard deviation `deviation` around `mean`, four from each 64 random bits.
void fill(const TensorView& t, std::uint64_t seed, double mean, double deviation) {
  const std::int64_t n = t.numel();
  const auto half_width = static_cast<float>(deviation * std::sqrt(3.0));
  const auto middle = static_cast<float>(mean);
#pragma omp parallel for schedule(static)
  for (std::int64_t block = 0; block < (n + 3) / 4; ++block) {
    std::uint64_t bits = mix(seed, static_cast<std::uint64_t>(block));
    for (std::int64_t i = 4 * block; i < std::min<std::int64_t>(4 * block + 4, n); ++i) {
      const float u = (static_cast<float>(bits & 0xFFFFU) + 0.5F) * 0x1p-15F - 1.0F;
      bits >>= 16;
      const float v = middle + half_width * u;
      if (t.dtype == DType::kBF16) {
        static_cast<BF16*>(t.data)[i] = to_bf16(v);
      } else {
        static_cast<float*>(t.data)[i] = v;
      }
    }
  }
}

/// Weights of a layer, each made by `add`(dtype, shape, mean, standard deviation).
template <class Add>
LayerWeights make_weights(const LayerConfig& c, const Add& add) {
  using Shape = std::vector<std::int64_t>;
  const auto linear = [&](std::int64_t outputs, std::int64_t inputs) {
    return add(DType::kBF16, Shape{outputs, inputs}, 0, 1.0 / std::sqrt(static_cast<double>(inputs)));
  };
  const auto norm = [&](std::int64_t dim, double mean) { return add(DType::kBF16, Shape{dim}, mean, 0.1 * mean); };
  // Keys of length 0.7 sqrt(dim) against queries of length sqrt(dim): scores with a standard deviation of 0.7, a
  // softmax that prefers without singling out.
  constexpr double kKeyNorm = 0.7;
  const auto compressor = [&](std::int64_t dim) {
    const std::int64_t width = (c.has_indexer() ? 2 : 1) * dim;
    CompressorWeights w;
    w.wkv = linear(width, c.hidden_size);
    w.wgate = linear(width, c.hidden_size);
    w.ape = add(DType::kF32, Shape{c.compress_ratio, width}, 0, 0.2);
    w.norm = norm(dim, kKeyNorm);
    return w;
  };

  LayerWeights w;
  w.wq_a = linear(c.q_lora_rank, c.hidden_size);
  w.q_norm = norm(c.q_lora_rank, 1.0);
  w.wq_b = linear(c.num_heads * c.head_dim, c.q_lora_rank);
  w.wkv = linear(c.head_dim, c.hidden_size);
  w.kv_norm = norm(c.head_dim, kKeyNorm);
  w.wo_a = linear(c.o_groups * c.o_lora_rank, c.num_heads / c.o_groups * c.head_dim);
  w.wo_b = linear(c.hidden_size, c.o_groups * c.o_lora_rank);
  w.attn_sink = add(DType::kF32, Shape{c.num_heads}, 0, 1.0);
  if (c.has_compressor()) w.compressor = compressor(c.head_dim);
  if (c.has_indexer()) {
    w.index_compressor = compressor(c.index_head_dim);
    w.index_wq_b = linear(c.index_n_heads * c.index_head_dim, c.q_lora_rank);
    w.index_weights_proj = linear(c.index_n_heads, c.hidden_size);
  }
  return w;
}

}  // namespace

OwnedLayerWeights random_weights(const LayerConfig& config, std::uint64_t seed) {
  OwnedLayerWeights out;
  std::uint64_t next = 0;
  out.views =
      make_weights(config, [&](DType dtype, const std::vector<std::int64_t>& shape, double mean, double deviation) {
        out.storage.emplace_back(dtype, shape);
        fill(out.storage.back().view(), mix(seed, next++), mean, deviation);
        return ConstTensorView(out.storage.back().view());
      });
  return out;
}

LayerWeights weight_shapes(const LayerConfig& config) {
  return make_weights(config, [](DType dtype, const std::vector<std::int64_t>& shape, double, double) {
    ConstTensorView view;
    view.dtype = dtype;
    view.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      view.shape[i] = shape[i];
      view.stride[i] = stride;
      stride *= shape[i];
    }
    return view;
  });
}

void synthetic_hidden(std::uint64_t seed, std::uint64_t stream, std::int64_t request, std::int64_t position,
                      const TensorView& row) {
  const std::uint64_t key = mix(mix(seed, 0xD1B5'4A32'D192'ED03U + stream),
                                mix(static_cast<std::uint64_t>(request), static_cast<std::uint64_t>(position)));
  const std::int64_t n = row.numel();
  constexpr float kHalfWidth = 1.7320508F;  // variance 1
  for (std::int64_t i = 0; i < n; i += 4) {
    std::uint64_t bits = mix(key, static_cast<std::uint64_t>(i));
    for (std::int64_t j = i; j < std::min(i + 4, n); ++j) {
      const float v = ((static_cast<float>(bits & 0xFFFFU) + 0.5F) * 0x1p-15F - 1.0F) * kHalfWidth;
      bits >>= 16;
      if (row.dtype == DType::kBF16) {
        static_cast<BF16*>(row.data)[j] = to_bf16(v);
      } else {
        static_cast<float*>(row.data)[j] = v;
      }
    }
  }
}

}  // namespace smla
