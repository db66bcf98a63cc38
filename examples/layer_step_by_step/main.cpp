// One C4A layer by hand: what an engine does around it, without the engine.
#include <sparsemla/layer.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>
using namespace smla;

namespace {

// Weights of a layer, made up: small numbers from a counter.
class Weights {
 public:
  explicit Weights(const LayerConfig& c) {
    const std::int64_t d = c.head_dim, wide = c.num_heads * d;
    views = {.wq_a = matrix(c.q_lora_rank, c.hidden_size),
             .q_norm = ones(c.q_lora_rank),
             .wq_b = matrix(wide, c.q_lora_rank),
             .wkv = matrix(d, c.hidden_size),
             .kv_norm = ones(d),
             .wo_a = matrix(c.o_groups * c.o_lora_rank, wide / c.o_groups),
             .wo_b = matrix(c.hidden_size, c.o_groups * c.o_lora_rank),
             .attn_sink = ones(c.num_heads),
             .compressor = compressor(c, d),
             .index_compressor = compressor(c, c.index_head_dim),
             .index_wq_b = matrix(c.index_n_heads * c.index_head_dim, c.q_lora_rank),
             .index_weights_proj = matrix(c.index_n_heads, c.hidden_size)};
  }
  LayerWeights views;

 private:
  CompressorWeights compressor(const LayerConfig& c, std::int64_t dim) {
    return {.wkv = matrix(2 * dim, c.hidden_size),
            .wgate = matrix(2 * dim, c.hidden_size),
            .ape = matrix(c.compress_ratio, 2 * dim),
            .norm = ones(dim)};
  }
  ConstTensorView matrix(std::int64_t rows, std::int64_t columns) {
    std::vector<float>& m = memory_.emplace_back(rows * columns);
    for (float& x : m) x = next() / std::sqrt(static_cast<float>(columns));
    return view_of(std::as_const(m).data(), {rows, columns});
  }
  ConstTensorView ones(std::int64_t n) {
    return view_of(std::as_const(memory_.emplace_back(n, 1.0F)).data(), {n});
  }
  float next() {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<float>(state_ >> 8) / 8388608.0F - 1.0F;
  }
  std::vector<std::vector<float>> memory_;
  std::uint32_t state_ = 1;
};

// One request that is fed a few tokens at a time.
class Request {
 public:
  Request(const AttentionLayer& layer, const KvLayout& layout)
      : layer_(layer),
        pool_(layout, 16),
        blocks_(layout),
        metadata_(layout, {&layer.config(), 1}) {}

  // The layer's output for the next tokens [n, hidden].
  std::vector<float> feed(const std::vector<float>& hidden) {
    const std::int64_t width = layer_.config().hidden_size;
    const auto n = static_cast<std::int64_t>(hidden.size()) / width;
    // 1. Blocks: room for the new positions in every cache group.
    if (!blocks_.reserve(pool_, length_, length_ + n)) return {};
    // 2. The batch: one request of n new tokens.
    const std::vector<std::int32_t> loc = {0, static_cast<std::int32_t>(n)};
    const std::vector<std::int32_t> seq = {static_cast<std::int32_t>(length_ + n)};
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < n; ++i) positions.push_back(length_ + i);
    StepBatch batch{.query_start_loc = view_of(loc.data(), {2}),
                    .seq_lens = view_of(seq.data(), {1}),
                    .positions = view_of(positions.data(), {n}),
                    .block_tables = {},
                    .max_seq_len = length_ + n};
    for (std::size_t g = 0; g < pool_.layout().groups.size(); ++g) {
      const std::span<const std::int32_t> table = blocks_.table(static_cast<int>(g));
      const auto columns = static_cast<std::int64_t>(table.size());
      batch.block_tables.push_back(view_of(table.data(), {1, columns}));
    }
    // 3. Slots and index rows, once a step for all layers.
    metadata_.build(batch);
    // 4. The plan: implementations and workspace of this step's shape.
    const LayerCaches caches = caches_of(pool_, 0);
    const LayerPlan plan = layer_.plan(metadata_.shape(), caches);
    std::vector<std::byte> memory(plan.workspace_bytes() + 64);
    void* scratch = memory.data();
    std::size_t room = memory.size();
    std::align(64, plan.workspace_bytes(), scratch, room);
    // 5. The layer itself.
    std::vector<float> output(hidden.size());
    layer_.forward(plan, metadata_.layer(0), caches, view_of(hidden.data(), {n, width}),
                   view_of(output.data(), {n, width}), {scratch, plan.workspace_bytes()});
    length_ += n;
    // 6. Give back what no later token can see.
    blocks_.slide(pool_, length_);
    return output;
  }
  std::int64_t blocks_in_use() const { return pool_.num_blocks() - pool_.free_blocks(); }

 private:
  const AttentionLayer& layer_;
  KvPool pool_;
  RequestBlocks blocks_;
  StepMetadata metadata_;
  std::int64_t length_ = 0;
};

}  // namespace

int main() {
  const LayerConfig config = model_preset("tiny").layer(1);
  const Weights weights(config);
  const std::vector<float> rope = rope_table(config.rope, 64);
  const LayerOptions options{.precision = Precision::kF32};
  const AttentionLayer layer(config, weights.views, options,
                             view_of(rope.data(), {64, config.rope_head_dim}));
  const KvLayout layout = make_kv_layout({&config, 1}, layer.options().caches);
  std::printf("compress ratio %d, hidden %lld, %lld heads\n", config.compress_ratio,
              static_cast<long long>(config.hidden_size), static_cast<long long>(config.num_heads));
  for (const CacheGroup& group : layout.groups) {
    std::printf("group %s: %lld tokens a block,", group.name.c_str(),
                static_cast<long long>(group.block_tokens));
    for (const LayerCache& cache : group.caches) std::printf(" %s", name_of(cache.role).c_str());
    std::printf("\n");
  }

  constexpr std::int64_t kTokens = 21;
  std::vector<float> hidden(kTokens * config.hidden_size);
  for (std::size_t i = 0; i < hidden.size(); ++i)
    hidden[i] = std::sin(0.37F * static_cast<float>(i));

  Request at_once(layer, layout);
  const std::vector<float> whole = at_once.feed(hidden);
  std::printf(
      "21 tokens at once: blocks in use %lld, last output %.3f %.3f %.3f ...\n",
      static_cast<long long>(at_once.blocks_in_use()), whole[(kTokens - 1) * config.hidden_size],
      whole[(kTokens - 1) * config.hidden_size + 1], whole[(kTokens - 1) * config.hidden_size + 2]);

  Request in_steps(layer, layout);
  double worst = 0;
  std::int64_t done = 0;
  for (const std::int64_t n : {13, 5, 1, 1, 1}) {
    const auto begin = hidden.begin() + done * config.hidden_size;
    const std::vector<float> part = in_steps.feed({begin, begin + n * config.hidden_size});
    for (std::size_t i = 0; i < part.size(); ++i)
      worst = std::fmax(worst, std::fabs(part[i] - whole[done * config.hidden_size + i]));
    done += n;
  }
  std::printf("13 + 5 + 1 + 1 + 1 tokens: %s\n", worst < 1e-4 ? "the same" : "different");
}
