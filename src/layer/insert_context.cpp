// Rows of a draft layer's context, written into its window cache by themselves.
#include "core/arena.h"
#include "core/check.h"
#include "layer/grouped_views.h"
#include "layer/joint_products.h"
#include "layer/layer_plan.h"
#include "layer/op_planner.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "insert_context";

/// The part of a forward that makes window rows, and its tensors.
struct ContextOps {
  ContextOps(const LayerConfig& c, const LayerWeights& weights, const LayerOptions& options, std::int64_t tokens_in)
      : tokens(tokens_in), hidden(c.hidden_size), dim(c.head_dim), act(activation_dtype(options)) {
    const OpPlanner planner(options, &scratch_bytes, &text);
    const bool fp8 = rounds_fp8_inputs(c, options, weights, tokens_in) && weights.wkv.dtype == DType::kE4M3;
    if (fp8) quantize = planner.make<QuantizeRows>({.rows = tokens, .dim = hidden, .in = act});
    wkv = planner.make<Projection>({.m = tokens,
                                    .n = dim,
                                    .k = hidden,
                                    .groups = 1,
                                    .x = fp8 ? DType::kE4M3 : act,
                                    .w = weights.wkv.dtype,
                                    .y = act});
    norm = planner.make<RmsNorm>({.rows = tokens, .dim = dim, .in = act, .out = act, .eps = c.rms_norm_eps});
    insert = planner.make<QNormRopeInsert>({.tokens = tokens,
                                            .dim = c.head_dim,
                                            .rope_dim = c.rope_head_dim,
                                            .in = act,
                                            .q_out = act,
                                            .format = options.caches.rows,
                                            .eps = c.rms_norm_eps,
                                            .clamp = options.clamp});
  }

  /// Places the tensors at `base`. @return the bytes that they and the scratch take.
  std::size_t lay_out(void* base) {
    Arena arena(base);
    if (quantize) {
      values = arena.take(DType::kE4M3, {tokens, hidden});
      scales = arena.take(DType::kF32, {1, hidden / QuantizeRows::kGroup, (tokens + 3) / 4 * 4});
    }
    kv = arena.take(act, {tokens, dim});
    scratch = {.data = arena.raw(scratch_bytes), .bytes = scratch_bytes};
    return arena.used();
  }

  std::int64_t tokens, hidden, dim;
  DType act;
  std::size_t scratch_bytes = 0;
  std::string text;
  std::optional<Plan<QuantizeRows>> quantize;  ///< of hidden states, where wkv wants them in FP8
  std::optional<Plan<Projection>> wkv;
  std::optional<Plan<RmsNorm>> norm;
  std::optional<Plan<QNormRopeInsert>> insert;
  TensorView values;  ///< [T, hidden] E4M3
  TensorView scales;  ///< [1, hidden/128, T to a multiple of 4] F32
  TensorView kv;      ///< [T, d]
  Workspace scratch;
};

}  // namespace

std::size_t AttentionLayer::context_bytes(std::int64_t tokens) const {
  return ContextOps(config_, weights_, options_, tokens).lay_out(nullptr);
}

void AttentionLayer::insert_context(const ConstTensorView& hidden, const ConstTensorView& positions,
                                    const ConstTensorView& slots, const PagedCache& window, Workspace workspace,
                                    Stream stream) const {
  check_that(!config_.has_compressor(), kWhat, "layer",
             "one of compress_ratio " + std::to_string(config_.compress_ratio), "a window-only layer");
  check_tensor(kWhat, "hidden", hidden, {kAny, config_.hidden_size}, {activation_dtype(options_)});
  const std::int64_t tokens = hidden.size(0);
  check_tensor(kWhat, "positions", positions, {tokens}, {DType::kI64});
  check_tensor(kWhat, "slots", slots, {tokens}, {DType::kI64});
  ContextOps ops(config_, weights_, options_, tokens);
  const std::size_t bytes = ops.lay_out(workspace.data);
  check_that(workspace.bytes >= bytes, kWhat, "workspace", std::to_string(workspace.bytes) + " bytes",
             "at least " + std::to_string(bytes));
  if (ops.quantize) ops.quantize->run({.x = hidden, .values = ops.values, .scales = ops.scales}, ops.scratch, stream);
  ops.wkv->run({.x = as_groups(ops.quantize ? ConstTensorView(ops.values) : hidden, 1),
                .w = grouped(weights_.wkv, 1),
                .y = as_groups(ops.kv, 1),
                .x_scale = ops.scales,
                .w_scale = grouped_scales(weights_.wkv, weights_.wkv_scale, 1),
                .w_global_scale = weights_.wkv_global_scale},
               ops.scratch, stream);
  ops.norm->run({.x = ops.kv, .weight = weights_.kv_norm, .y = ops.kv}, ops.scratch, stream);
  ops.insert->run({.kv = ops.kv, .positions = positions, .cos_sin = cos_sin_, .slot_mapping = slots, .cache = window},
                  ops.scratch, stream);
}

}  // namespace smla
