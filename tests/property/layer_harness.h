#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/row_codec.h"
#include "core/host_tensor.h"
#include "engine/synthetic.h"
#include "join_weights.h"
#include "layer/joined_weights.h"
#include "sparsemla/layer.h"

namespace smla::test {

/// A layer small enough to run hundreds of times, of each kind.
inline LayerConfig small_layer(int ratio) {
  LayerConfig c{.hidden_size = 48,
                .num_heads = 2,
                .q_lora_rank = 24,
                .o_lora_rank = 12,
                .o_groups = 2,
                .compress_ratio = ratio,
                .index_n_heads = 3,
                .index_topk = 7};
  if (ratio > 1) c.rope = {.theta = 160000.0, .yarn = YarnConfig{}, .dim = 64};
  return c;
}

/// A piece of a request fed in one step. Rejected rows carry another token's input and are fed again later.
struct Piece {
  int request = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t rejected = 0;  ///< of its last rows
};
using Steps = std::vector<std::vector<Piece>>;

/// What must not matter.
struct Surroundings {
  unsigned block_seed = 0;  ///< which physical blocks
  std::int64_t gap = 0;     ///< bytes between blocks, a multiple of 16
  std::uint8_t fill = 0;    ///< of every byte not yet written
  std::int64_t padding_tokens = 0;
  std::int64_t padding_requests = 0;
  std::int64_t decode_threshold = 1;
  /// The host only knows that no request of the step has more tokens than this; 0: it knows how many each has.
  std::int64_t host_bound = 0;
  std::int64_t dspark_tokens = 0;  ///< the last step's decodes are draft blocks that see themselves whole; 0: causal
};

/// Everything a run leaves behind, in logical order.
struct Trace {
  std::map<std::pair<int, std::int64_t>, std::vector<std::uint8_t>>
      output;  ///< (request, position) -> bytes of the layer's output
  std::map<std::pair<int, std::int64_t>, std::vector<std::uint8_t>>
      attention;  ///< bytes of the attention output, all heads
  std::map<std::pair<int, std::int64_t>, std::vector<std::int32_t>> topk;
  std::map<std::pair<int, std::int64_t>, std::vector<float>> scores;
  std::map<std::string, std::vector<std::uint8_t>> caches;  ///< "compressed/0" -> bytes of its rows, by request
  std::string implementations;
};

/// One layer over its own strided, poisoned memory.
class LayerHarness {
 public:
  /// `joined`: weights that can be one product lie one after another.
  LayerHarness(int ratio, const LayerOptions& options, std::vector<std::int64_t> lengths, bool joined = false)
      : config_(small_layer(ratio)), lengths_(std::move(lengths)), weights_(random_weights(config_, 17)) {
    if (joined) join_weights();
    const std::int64_t longest = *std::ranges::max_element(lengths_);
    cos_sin_ = HostTensor(DType::kF32, {longest + 1, config_.rope_head_dim});
    std::ranges::copy(rope_table(config_.rope, longest + 1), cos_sin_.as<float>());
    layer_.emplace_back(config_, weights_.views, options, std::as_const(cos_sin_).view());
    layout_ = make_kv_layout({&config_, 1}, layer_[0].options().caches);
  }

  Trace run(const Steps& steps, const Surroundings& around) const;
  const LayerConfig& config() const { return config_; }
  const LayerWeights& weights() const { return weights_.views; }
  ConstTensorView cos_sin() const { return cos_sin_.view(); }
  /// Inputs of a request, as run() feeds them to its accepted rows.
  HostTensor inputs(int request, DType dtype) const {
    HostTensor hidden(dtype, {lengths_[static_cast<std::size_t>(request)], config_.hidden_size});
    for (std::int64_t i = 0; i < hidden.size(0); ++i)
      synthetic_hidden(5, 0, request, i, hidden.view().slice(0, i, i + 1));
    return hidden;
  }

 private:
  void join_weights() {
    for (const int number : {1, 2}) joined_.push_back(test::join_weights(config_, weights_.views, number));
    EXPECT_FALSE(joined_latents(weights_.views).w.absent());
    EXPECT_EQ(joined_compressors(config_, weights_.views).w.absent(), !config_.has_compressor());
  }
  struct Memory {
    std::vector<std::vector<std::uint8_t>> bytes;
    LayerCaches caches;
    std::vector<std::vector<std::vector<std::int32_t>>> tables;  ///< [group][request]
  };
  Memory make_memory(const Surroundings& around) const;
  void step(const std::vector<Piece>& pieces, const Surroundings& around, bool causal, Memory& memory,
            Trace& trace) const;
  void read_caches(const Memory& memory, Trace& trace) const;

  LayerConfig config_;
  std::vector<std::int64_t> lengths_;
  OwnedLayerWeights weights_;
  std::vector<std::vector<std::uint8_t>> joined_;
  HostTensor cos_sin_;
  std::vector<AttentionLayer> layer_;
  KvLayout layout_;
};

inline LayerHarness::Memory LayerHarness::make_memory(const Surroundings& around) const {
  Memory m;
  std::mt19937 random(around.block_seed);
  const auto pool = [&](CacheRole role) -> PagedCache {
    const LayerCache* c = layout_.find(0, role);
    if (c == nullptr) return {};
    const CacheGroup& group = layout_.groups[static_cast<std::size_t>(layout_.group_of(0, role))];
    std::int64_t blocks = 3;
    for (const std::int64_t n : lengths_) blocks += n / group.block_tokens + 1;
    const std::int64_t stride = block_bytes(*c->format, c->block_size) + around.gap;
    m.bytes.emplace_back(static_cast<std::size_t>(blocks * stride), around.fill);
    return {.format = c->format,
            .base = m.bytes.back().data(),
            .num_blocks = blocks,
            .block_size = c->block_size,
            .block_stride_bytes = stride,
            .scale = layout_.kv_scale};
  };
  for (const CacheRole role : kCacheRoles) m.caches[role] = pool(role);
  for (const CacheGroup& group : layout_.groups) {
    std::int64_t blocks = 3;
    for (const std::int64_t n : lengths_) blocks += n / group.block_tokens + 1;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    if (around.block_seed != 0) std::ranges::shuffle(ids, random);
    m.tables.emplace_back();
    std::size_t next = 0;
    for (const std::int64_t n : lengths_) {
      const auto count = static_cast<std::size_t>(n / group.block_tokens + 1);
      m.tables.back().emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(next),
                                   ids.begin() + static_cast<std::ptrdiff_t>(next + count));
      next += count;
    }
  }
  return m;
}

namespace detail {
class Keep : public LayerObserver {
 public:
  void on_stage(Stage, double) override {}
  void on_tensor(std::string_view name, const ConstTensorView& value, std::int64_t first) override {
    for (std::int64_t r = 0; r < value.size(0); ++r) {
      if (name == "topk")
        topk[first + r].assign(value.as<std::int32_t>() + r * value.stride[0],
                               value.as<std::int32_t>() + r * value.stride[0] + value.size(1));
      if (name == "attention") {
        const auto bytes = static_cast<std::size_t>(value.stride[0] * size_of(value.dtype));
        const auto* row = static_cast<const std::uint8_t*>(value.data) + static_cast<std::size_t>(r) * bytes;
        attention[first + r].assign(row, row + bytes);
      }
      if (name == "index_scores")
        scores[first + r].assign(value.as<float>() + r * value.stride[0],
                                 value.as<float>() + r * value.stride[0] + value.size(1));
    }
  }
  std::map<std::int64_t, std::vector<std::uint8_t>> attention;
  std::map<std::int64_t, std::vector<std::int32_t>> topk;
  std::map<std::int64_t, std::vector<float>> scores;
};
}  // namespace detail

inline void LayerHarness::step(const std::vector<Piece>& pieces, const Surroundings& around, bool causal,
                               Memory& memory, Trace& trace) const {
  const AttentionLayer& layer = layer_[0];
  const auto requests = static_cast<std::int64_t>(pieces.size()) + around.padding_requests;
  std::vector<std::int32_t> loc{0};
  std::vector<std::int32_t> seq;
  std::vector<std::int64_t> positions;
  std::int64_t longest = 0;
  for (const Piece& p : pieces) {
    for (std::int64_t i = p.begin; i < p.end; ++i) positions.push_back(i);
    loc.push_back(static_cast<std::int32_t>(positions.size()));
    seq.push_back(static_cast<std::int32_t>(p.end));
    longest = std::max(longest, p.end);
  }
  const std::size_t real = positions.size();
  for (std::int64_t i = 0; i < around.padding_requests; ++i) {
    loc.push_back(loc.back());
    seq.push_back(0);
  }
  std::vector<std::int32_t> host_loc;
  std::vector<std::int32_t> host_seq;
  std::size_t expected = real;
  if (around.host_bound > 0) {
    host_loc.push_back(0);
    for (std::size_t i = 0; i < seq.size(); ++i) {
      const bool padding = i >= pieces.size();
      host_loc.push_back(host_loc.back() + static_cast<std::int32_t>(padding ? 0 : around.host_bound));
      host_seq.push_back(static_cast<std::int32_t>(padding ? 0 : pieces[i].begin + around.host_bound));
      longest = std::max<std::int64_t>(longest, std::min<std::int64_t>(host_seq.back(), cos_sin_.size(0)));
    }
    expected = static_cast<std::size_t>(host_loc.back());
  }
  positions.resize(expected + static_cast<std::size_t>(around.padding_tokens), 0);
  const auto tokens = static_cast<std::int64_t>(positions.size());

  const DType act = layer.options().precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
  HostTensor hidden(act, {tokens, config_.hidden_size});
  HostTensor output(act, {tokens, config_.hidden_size});
  std::memset(hidden.data(), 0, hidden.bytes());
  std::int64_t row = 0;
  for (const Piece& p : pieces) {
    for (std::int64_t i = p.begin; i < p.end; ++i, ++row)
      synthetic_hidden(5, i >= p.end - p.rejected ? 1 : 0, p.request, i, hidden.view().slice(0, row, row + 1));
  }
  std::vector<HostTensor> tables;
  StepBatch batch{.query_start_loc = view_of(std::as_const(loc).data(), {requests + 1}),
                  .seq_lens = view_of(std::as_const(seq).data(), {requests}),
                  .positions = view_of(std::as_const(positions).data(), {tokens}),
                  .block_tables = {},
                  .max_seq_len = longest,
                  .decode_threshold = around.decode_threshold,
                  .causal = causal,
                  .dspark_tokens = around.dspark_tokens,
                  .host_query_start_loc = host_loc,
                  .host_seq_lens = host_seq};
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    std::size_t columns = 1;
    for (const Piece& p : pieces)
      columns = std::max(columns, memory.tables[g][static_cast<std::size_t>(p.request)].size());
    tables.emplace_back(DType::kI32, std::vector<std::int64_t>{requests, static_cast<std::int64_t>(columns)});
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::ranges::copy(memory.tables[g][static_cast<std::size_t>(pieces[i].request)],
                        tables.back().as<std::int32_t>() + i * columns);
    }
    batch.block_tables.push_back(tables.back().view());
  }
  StepMetadata metadata(layout_, {&config_, 1}, layer.options().front_end);
  metadata.build(batch);
  const LayerPlan plan = layer.plan(metadata.shape(), memory.caches);
  if (plan.workspace_bytes() > layer.reserve_bytes(tokens, requests, longest, memory.caches))
    throw Unsupported("a step needs more than was reserved");
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  std::memset(workspace.data(), 0xFF, workspace.bytes());
  std::memset(output.data(), 0xFF, output.bytes());
  detail::Keep keep;
  layer.forward(plan, metadata.layer(0), memory.caches, std::as_const(hidden).view(), output.view(),
                {.data = workspace.data(), .bytes = workspace.bytes()}, {}, &keep);
  trace.implementations = plan.describe();

  const auto* bytes = static_cast<const std::uint8_t*>(output.data());
  const std::size_t width = output.bytes() / static_cast<std::size_t>(std::max<std::int64_t>(tokens, 1));
  row = 0;
  for (const Piece& p : pieces) {
    for (std::int64_t i = p.begin; i < p.end; ++i, ++row) {
      if (i >= p.end - p.rejected) continue;
      trace.output[{p.request, i}].assign(bytes + static_cast<std::size_t>(row) * width,
                                          bytes + static_cast<std::size_t>(row + 1) * width);
      trace.attention[{p.request, i}] = keep.attention[row];
      if (keep.topk.contains(row)) trace.topk[{p.request, i}] = keep.topk[row];
      if (keep.scores.contains(row)) {
        keep.scores[row].resize(static_cast<std::size_t>((i + 1) / 4));
        trace.scores[{p.request, i}] = keep.scores[row];
      }
    }
  }
  // Padding tokens see nothing, so they give exactly 0.
  for (; row < tokens; ++row) {
    for (std::size_t i = 0; i < width; ++i) {
      if ((bytes[static_cast<std::size_t>(row) * width + i] & 0x7FU) != 0) trace.output[{-1, row}] = {1};
    }
  }
}

inline void LayerHarness::read_caches(const Memory& memory, Trace& trace) const {
  const auto read = [&](CacheRole role, const PagedCache& cache, std::int64_t tokens_a_row) {
    if (cache.format == nullptr) return;
    const auto group = static_cast<std::size_t>(layout_.group_of(0, role));
    for (std::size_t r = 0; r < lengths_.size(); ++r) {
      std::vector<std::uint8_t>& out = trace.caches[name_of(role) + "/" + std::to_string(r)];
      for (std::int64_t i = 0; i < lengths_[r] / tokens_a_row; ++i) {
        const std::int64_t block = memory.tables[group][r][static_cast<std::size_t>(i / cache.block_size)];
        const std::uint8_t* data = row_data(cache, block, i % cache.block_size);
        const std::uint8_t* scales = row_scales(cache, block, i % cache.block_size);
        out.insert(out.end(), data, data + cache.format->data_bytes);
        out.insert(out.end(), scales, scales + cache.format->scale_bytes);
      }
    }
  };
  for (const CacheRole role : kCacheRoles) {
    const bool entries = role == CacheRole::kCompressed || role == CacheRole::kIndex;
    read(role, memory.caches[role], entries ? config_.compress_ratio : 1);
  }
}

inline Trace LayerHarness::run(const Steps& steps, const Surroundings& around) const {
  Memory memory = make_memory(around);
  Trace trace;
  for (std::size_t i = 0; i < steps.size(); ++i)
    step(steps[i], around, around.dspark_tokens == 0 || i + 1 < steps.size(), memory, trace);
  read_caches(memory, trace);
  return trace;
}

/// The whole of every request in one step.
inline Steps whole(const std::vector<std::int64_t>& lengths) {
  Steps steps(1);
  for (std::size_t r = 0; r < lengths.size(); ++r)
    steps[0].push_back({.request = static_cast<int>(r), .begin = 0, .end = lengths[r], .rejected = 0});
  return steps;
}

/// Chunks of random sizes, requests interleaved in random order; with `speculation`, some chunks end in rejected rows.
inline Steps random_steps(const std::vector<std::int64_t>& lengths, unsigned seed, std::int64_t largest,
                          bool speculation) {
  std::mt19937 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<std::int64_t> done(lengths.size(), 0);
  Steps steps;
  while (done != lengths) {
    std::vector<Piece> pieces;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      if (done[r] == lengths[r] || pick(0, 2) == 0) continue;
      const std::int64_t n = std::min(pick(1, largest), lengths[r] - done[r]);
      const std::int64_t rejected = speculation ? std::min(pick(0, 3), lengths[r] - done[r] - n) : 0;
      pieces.push_back(
          {.request = static_cast<int>(r), .begin = done[r], .end = done[r] + n + rejected, .rejected = rejected});
      done[r] += n;
    }
    std::ranges::shuffle(pieces, random);
    if (!pieces.empty()) steps.push_back(pieces);
  }
  return steps;
}

}  // namespace smla::test
