#include "layer/joint_products.h"

#include "layer/grouped_views.h"
#include "sparsemla/plan.h"

namespace smla {

namespace {

/// Puts a joint product together, weight by weight.
class Joint {
 public:
  Joint(std::int64_t rows, std::int64_t inputs, std::int64_t groups, DType x) {
    made_.problem = {.m = rows, .k = inputs / groups, .groups = groups, .x = x, .parts = 0};
  }
  void add(const LinearWeight& weight, const TensorView& y, DType dtype) {
    const ConstTensorView& w = weight.w;
    const std::int64_t groups = made_.problem.groups;
    const auto i = static_cast<std::size_t>(made_.problem.parts++);
    made_.problem.part[i] = {.n = w.size(0) / groups, .w = w.dtype, .y = dtype};
    if (y.absent()) return;  // a plan is made
    made_.args.parts[i] = {.w = grouped(w, groups),
                           .y = as_groups(y, groups),
                           .w_scale = grouped_scales(w, weight.scale, groups),
                           .w_global_scale = weight.global_scale};
  }
  JointProduct of(const ConstTensorView& x) {
    if (!x.absent()) made_.args.x = as_groups(x, made_.problem.groups);
    return made_;
  }

 private:
  JointProduct made_;
};

ConstTensorView rows_or_none(const TensorView& v) { return v.absent() ? ConstTensorView() : as_rows(v); }
TensorView rows_to_write(const TensorView& v) { return v.absent() ? TensorView() : as_rows(v); }

/// The implementation that is chosen on the GPU.
template <class Op>
std::string chosen(const typename Op::Problem& problem) {
  for (const Candidate& c : explain<Op>(problem, {.device = DeviceKind::kCuda}))
    if (c.refusal.empty()) return c.name;
  return "";
}

/// Up to so many rows inputs of FP8 weights are never rounded where a joint product is chosen.
constexpr std::int64_t kUnroundedRows = 16;
/// Slices of fewer bytes of large weights keep joint products up to kJointRows, layers with a compressor up to so many.
constexpr std::int64_t kFewestBytes = std::int64_t{16} << 20;
constexpr std::int64_t kJointRowsWithCompressor = 32;

constexpr std::string_view kCublasLt = "cublaslt";

/// Whether products of E4M3 inputs are faster than joint ones: where tensor cores multiply them by E4M3 weights, unless
/// the weights are so small that launches count more.
bool rounding_pays(const LayerConfig& config, const LayerWeights& weights, std::int64_t tokens) {
  const std::int64_t bytes = weights.wq_b.numel() + weights.wo_a.numel() + weights.wo_b.numel();
  if (bytes < kFewestBytes && tokens <= (config.has_compressor() ? kJointRowsWithCompressor : kJointRows)) return false;
  const Projection::Problem p{
      .m = tokens, .n = Projection::kWeightBlock, .k = Projection::kScaleGroup, .x = DType::kE4M3, .w = DType::kE4M3};
  const std::string name = chosen<Projection>(p);
  return name == JointProjection::kOneLaunchOnHopper || name == kCublasLt;
}

std::int64_t named_joint_rows(const LayerOptions& options) {
  const auto named = options.implementations.find(JointProjection::kName);
  return named->second == JointProjection::kOneLaunchOnHopper ? kJointRowsOnHopper : kJointRows;
}

/// What is made of the latent queries, attention's, the indexer's or both.
JointProduct queries_of(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b, bool attention, bool indexer) {
  const DType act = activation_dtype(options);
  Joint joint(ops.tokens, config.q_lora_rank, 1, act);
  if (attention) joint.add(linear_wq_b(weights), rows_to_write(b.q), act);
  if (indexer) joint.add(linear_index_wq_b(weights), rows_to_write(b.index_q), act);
  JointProduct product = joint.of(b.qr);
  if (ops.queries_norm) {
    product.problem.norms_x = true;
    product.problem.eps = config.rms_norm_eps;
    product.args.x_weight = weights.q_norm;
  }
  return product;
}

}  // namespace

bool has_joint_products(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        std::int64_t tokens) {
  const auto fp8 = [](const ConstTensorView& w) { return w.dtype == DType::kE4M3; };
  const bool any_fp8 = fp8(weights.wq_a) || fp8(weights.wkv) || fp8(weights.wq_b) || fp8(weights.wo_a) ||
                       fp8(weights.wo_b) || (config.runs_indexer() && fp8(weights.index_wq_b));
  if (options.fp8_output && any_fp8) return false;
  if (names_joint_products(options)) return tokens <= named_joint_rows(options) || options.deterministic;
  const bool others_named =
      options.implementations.contains(Projection::kName) || options.implementations.contains("*");
  if (options.device != DeviceKind::kCuda || options.deterministic || others_named) return false;
  const bool large_fp8 = fp8(weights.wq_b) && fp8(weights.wo_a) && fp8(weights.wo_b);
  if (tokens > kUnroundedRows && large_fp8 && may_round_fp8_inputs(options) && rounding_pays(config, weights, tokens))
    return false;
  // The three large weights of every kind of layer decide.
  JointProjection::Problem p{.m = tokens, .k = config.hidden_size, .x = activation_dtype(options), .parts = 3};
  const ConstTensorView* const large[] = {&weights.wq_b, &weights.wo_a, &weights.wo_b};
  for (std::size_t i = 0; i < 3; ++i) p.part[i] = {.n = config.hidden_size, .w = large[i]->dtype};
  const std::string name = chosen<JointProjection>(p);
  return name == JointProjection::kOneLaunch || name == JointProjection::kOneLaunchOnHopper;
}

bool rounds_fp8_inputs(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                       std::int64_t tokens) {
  return may_round_fp8_inputs(options) && !has_joint_products(config, options, weights, tokens);
}

JointProduct joint_inputs(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                          const LayerPlan::Ops& ops, const LayerBuffers& b, const ConstTensorView& hidden) {
  const DType act = activation_dtype(options);
  Joint joint(ops.tokens, config.hidden_size, 1, act);
  joint.add(linear_wq_a(weights), b.qr, act);
  joint.add(linear_wkv(weights), b.kv, act);
  const auto add_compressor = [&](const CompressorWeights& w, const TensorView& kv_score) {
    const std::int64_t half = w.wkv.size(0);
    const bool there = !kv_score.absent();
    joint.add(linear_wkv(w), there ? kv_score.slice(1, 0, half) : TensorView(), DType::kF32);
    joint.add(linear_wgate(w), there ? kv_score.slice(1, half, 2 * half) : TensorView(), DType::kF32);
  };
  if (config.has_compressor()) add_compressor(weights.compressor, b.kv_score);
  if (config.runs_indexer()) {
    add_compressor(weights.index_compressor, b.index_kv_score);
    if (!ops.short_context) joint.add(linear_index_weights_proj(weights), b.index_weights, act);
  }
  return joint.of(hidden);
}

std::int64_t normed_query_rows(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                               const JointProjection::Problem& queries) {
  constexpr std::int64_t kWhereNamed = 16;
  constexpr std::int64_t kByItself = 8;
  constexpr std::int64_t kFewestBytes = std::int64_t{24} << 20;  // of fewer a layer with a compressor takes longer
  if (weights.q_norm.dtype != DType::kBF16) return 0;
  const auto named = options.implementations.find(JointProjection::kName);
  if (named != options.implementations.end())
    return named->second == JointProjection::kOneLaunchOnHopper ? kWhereNamed : 0;
  const bool beside_indexer = queries.parts > 1 && has_side_stream(config, options);
  return beside_indexer || weights.wq_b.numel() * size_of(weights.wq_b.dtype) >= kFewestBytes ? kByItself : 0;
}

bool wq_b_leaves_room(const LayerWeights& weights) {
  constexpr std::int64_t kMostBytes = std::int64_t{48} << 20;
  return weights.wq_b.dtype == DType::kE4M3 && weights.wq_b.numel() <= kMostBytes;
}

bool index_queries_rehearse(const LayerWeights& weights, std::int64_t tokens) {
  constexpr std::int64_t kFewestBytes = std::int64_t{16} << 20;
  constexpr std::int64_t kMostTokens = 4;
  return tokens <= kMostTokens && wq_b_leaves_room(weights) && weights.wq_b.numel() >= kFewestBytes;
}

bool compressors_run_apart(const LayerWeights& weights, std::int64_t tokens) {
  constexpr std::int64_t kFewestBytes = std::int64_t{32} << 20;
  constexpr std::int64_t kFewestTokens = 2;
  constexpr std::int64_t kMostTokens = 8;
  return tokens >= kFewestTokens && tokens <= kMostTokens && wq_b_leaves_room(weights) &&
         weights.wq_b.numel() >= kFewestBytes;
}

JointProduct joint_queries(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                           const LayerPlan::Ops& ops, const LayerBuffers& b) {
  return queries_of(config, options, weights, ops, b, /*attention=*/true,
                    /*indexer=*/config.runs_indexer() && !ops.short_context);
}
JointProduct joint_wq_b(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b) {
  return queries_of(config, options, weights, ops, b, /*attention=*/true, /*indexer=*/false);
}
JointProduct joint_index_wq_b(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                              const LayerPlan::Ops& ops, const LayerBuffers& b) {
  return queries_of(config, options, weights, ops, b, /*attention=*/false, /*indexer=*/true);
}

JointProduct joint_wo_a(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b) {
  const DType act = activation_dtype(options);
  Joint joint(ops.tokens, config.num_heads * config.head_dim, config.o_groups, act);
  joint.add(linear_wo_a(weights), b.z, act);
  TensorView heads = b.o_heads;
  if (!heads.absent()) heads = heads.slice(1, 0, config.num_heads);
  return joint.of(rows_or_none(heads));
}

JointProduct joint_wo_b(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                        const LayerPlan::Ops& ops, const LayerBuffers& b, const TensorView& out) {
  const DType act = activation_dtype(options);
  Joint joint(ops.tokens, config.o_groups * config.o_lora_rank, 1, act);
  joint.add(linear_wo_b(weights), out, act);
  return joint.of(b.z);
}

OutputProduct output_projection(const LayerConfig& config, const LayerOptions& options, const LayerWeights& weights,
                                const LayerPlan::Ops& ops, const LayerBuffers& b, const TensorView& out) {
  const JointProduct first = joint_wo_a(config, options, weights, ops, b);
  const JointProduct second = joint_wo_b(config, options, weights, ops, b, out);
  const JointProjection::PartArgs& wo_a = first.args.parts[0];
  const JointProjection::PartArgs& wo_b = second.args.parts[0];
  return {.problem = {.m = first.problem.m,
                      .k = first.problem.k,
                      .groups = first.problem.groups,
                      .rank = first.problem.part[0].n,
                      .n = second.problem.part[0].n,
                      .x = first.problem.x,
                      .wo_a = first.problem.part[0].w,
                      .wo_b = second.problem.part[0].w,
                      .y = second.problem.part[0].y},
          .args = {.x = first.args.x,
                   .wo_a = wo_a.w,
                   .z = wo_a.y,
                   .wo_b = wo_b.w,
                   .y = wo_b.y,
                   .wo_a_scale = wo_a.w_scale,
                   .wo_a_global_scale = wo_a.w_global_scale,
                   .wo_b_scale = wo_b.w_scale,
                   .wo_b_global_scale = wo_b.w_global_scale}};
}

}  // namespace smla
