// Upstream's norm, RoPE, insert, compressor and gather calls.
#include "cases/upstream.h"
#include "core/codecs.h"
#include "sparsemla/ops/attention.h"
#include "sparsemla/ops/compressor.h"
#include "sparsemla/ops/norm_rope.h"

namespace smla::upstream {

namespace {

float epsilon(const CaseFile& file) { return static_cast<float>(file.reader().number("eps", 0, 1, 1e-6)); }

/// A scalar that upstream hands over as a tensor of one number, or a parameter, or 1.
float scalar(const CaseFile& file, const char* name) {
  if (const HostTensor* tensor = file.find(std::string("in.") + name)) {
    check_that(tensor->dtype() == DType::kF32 && tensor->numel() == 1, file.path, std::string("in.") + name,
               describe(tensor->view()), "[1] F32");
    return tensor->as<float>()[0];
  }
  return static_cast<float>(file.reader().number(name, -3.4e38, 3.4e38, 1.0));
}

/// The three forms of the fused insert: they differ in the rows of the cache and in what becomes of q.
ReplayResult insert(const CaseFile& file, const ReplayOptions& options, const RowFormat& format, DType q_out,
                    const std::string& q_name) {
  const CaseParams params = file.reader();
  const ConstTensorView q = input(file, "q", {kAny, kAny, kAny}, DType::kBF16);
  HostTensor cache = input(file, "cache_before").clone();
  check_that(cache.rank() >= 2, file.path, "in.cache_before", describe(cache.view()), "[blocks, ...]");
  const bool raw = cache.dtype() == DType::kU8;
  const std::int64_t block_size =
      params.integer("block_size", 1, INT32_MAX, raw ? std::nullopt : std::optional<std::int64_t>(cache.size(1)));
  const std::int64_t heads = q.size(1);
  const std::vector<std::int64_t> shape =
      shape_of(file, q_name, {q.size(0), params.integer("padded_heads", heads, INT32_MAX, heads), q.size(2)});

  QNormRopeInsert::Args args;
  args.q = q;
  args.kv = input(file, "kv", {q.size(0), q.size(2)}, DType::kBF16);
  args.positions = input(file, "position", {q.size(0)}, DType::kI64);
  args.cos_sin = input(file, "cos_sin", {kAny, kAny}, DType::kF32);
  args.slot_mapping = input(file, "slot_mapping", {kAny}, DType::kI64);
  args.cache = cache_of(file, "in.cache_before", cache, format, block_size);
  args.cache.scale = scalar(file, "kv_scale");
  HostTensor made = poisoned(q_out, shape);
  args.q_out = made.view();
  const QNormRopeInsert::Problem problem{.tokens = q.size(0),
                                         .heads = heads,
                                         .out_heads = shape.size() < 2 ? heads : shape[1],
                                         .dim = static_cast<int>(q.size(2)),
                                         .rope_dim = static_cast<int>(args.cos_sin.size(1)),
                                         .q_out = q_out,
                                         .format = &format,
                                         .eps = epsilon(file),
                                         .q_scale_inv = scalar(file, "q_scale_inv")};
  ReplayResult result;
  run<QNormRopeInsert>(problem, options, args, result);
  // The nope part is quantised from the given bf16 numbers; a per-tensor row also from rotated ones.
  const std::int64_t steps = format.scale == ScaleKind::kPerTensor ? 1 : 0;
  result.bounds.emplace(q_name, ulps(1));
  result.bounds.emplace("cache", written_rows(args.cache, args.slot_mapping, steps, 1));
  result.results.emplace(q_name, std::move(made));
  result.results.emplace("cache", std::move(cache));
  return result;
}

}  // namespace

ReplayResult q_kv_rmsnorm(const CaseFile& file, const ReplayOptions& options) {
  const ConstTensorView both = input(file, "qr_kv", {kAny, kAny}, DType::kBF16);
  const HostTensor& q_weight = input(file, "q_weight");
  const HostTensor& kv_weight = input(file, "kv_weight");
  check_that(q_weight.numel() + kv_weight.numel() == both.size(1), file.path, "columns of in.qr_kv", both.size(1),
             "those of in.q_weight and in.kv_weight");
  ReplayResult result;
  HostTensor qr = poisoned(DType::kBF16, {both.size(0), q_weight.numel()});
  HostTensor kv = poisoned(DType::kBF16, {both.size(0), kv_weight.numel()});
  const LatentNorms::Problem problem{
      .rows = both.size(0), .qr_dim = q_weight.numel(), .kv_dim = kv_weight.numel(), .eps = epsilon(file)};
  run<LatentNorms>(problem, options,
                   {.qr = both.slice(1, 0, problem.qr_dim),
                    .qr_weight = q_weight.view(),
                    .qr_out = qr.view(),
                    .kv = both.slice(1, problem.qr_dim, both.size(1)),
                    .kv_weight = kv_weight.view(),
                    .kv_out = kv.view()},
                   result);
  result.bounds = {{"qr_out", ulps(1)}, {"kv_out", ulps(1)}};
  result.results.emplace("qr_out", std::move(qr));
  result.results.emplace("kv_out", std::move(kv));
  return result;
}

ReplayResult insert_fp8_ds_mla(const CaseFile& file, const ReplayOptions& options) {
  return insert(file, options, fp8_ds_mla_rows(), DType::kBF16, "q_out");
}
ReplayResult insert_bf16(const CaseFile& file, const ReplayOptions& options) {
  return insert(file, options, bf16_rows(), DType::kBF16, "q_out");
}
ReplayResult insert_fp8(const CaseFile& file, const ReplayOptions& options) {
  return insert(file, options, fp8_per_tensor_rows(), DType::kE4M3, "q_fp8");
}

ReplayResult insert_keys(const CaseFile& file, const ReplayOptions& options) {
  const ConstTensorView k = input(file, "k", {kAny, kAny}, DType::kBF16);
  const RowFormat& format = k.size(1) == index_fp8_rows().dim ? index_fp8_rows() : fp8_ds_mla_rows();
  HostTensor cache = input(file, {"cache_before", "k_cache_before"}).clone();
  InsertRows::Args args;
  args.rows = k;
  args.slot_mapping = input(file, "slot_mapping", {kAny}, DType::kI64);
  args.cache = cache_of(file, "in.cache_before", cache, format, file.reader().integer("block_size", 1, INT32_MAX));
  ReplayResult result;
  run<InsertRows>({.tokens = k.size(0), .format = &format}, options, args, result);
  result.bounds.emplace("cache", written_rows(args.cache, args.slot_mapping, 0, 1));
  result.results.emplace("cache", std::move(cache));
  return result;
}

ReplayResult inverse_rope_quant(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  const ConstTensorView o = input(file, "o", {kAny, kAny, kAny}, DType::kBF16);
  const std::string kind = params.text("scale");
  check_that(kind == "f32" || kind == "ue8m0x4", params.where(), "scale", "\"" + kind + "\"", "\"f32\" or \"ue8m0x4\"");
  InverseRopeQuant::Problem problem{.tokens = o.size(0),
                                    .heads = params.integer("heads", 0, o.size(1), o.size(1)),
                                    .groups = params.integer("groups", 1, INT32_MAX),
                                    .dim = static_cast<int>(o.size(2)),
                                    .scale = kind == "f32" ? OutputScale::kF32 : OutputScale::kUe8m0x4};
  InverseRopeQuant::Args args;
  args.x = o;
  args.positions = input(file, "position", {o.size(0)}, DType::kI64);
  args.cos_sin = input(file, "cos_sin", {kAny, kAny}, DType::kF32);
  problem.rope_dim = static_cast<int>(args.cos_sin.size(1));
  const std::int64_t width = problem.heads / problem.groups * problem.dim;
  const std::int64_t chunks = width / InverseRopeQuant::kGroup;
  const std::int64_t rows = kind == "f32" ? chunks : (chunks + 3) / 4;
  const DType scale_type = kind == "f32" ? DType::kF32 : DType::kI32;
  const std::int64_t padded = (o.size(0) + 3) / 4 * 4;
  // Upstream hands out [T, G, ...] views of [G, ..., T] memory; a case file holds what the view shows.
  HostTensor values = poisoned(DType::kE4M3, {o.size(0), problem.groups, width});
  args.values = TensorView(values.data(), DType::kE4M3, {problem.groups, o.size(0), width});
  args.values.stride = {width, problem.groups * width, 1, 0};
  HostTensor scales = poisoned(scale_type, {problem.groups, rows, padded});
  args.scales = scales.view();
  ReplayResult result;
  run<InverseRopeQuant>(problem, options, args, result);
  HostTensor seen(scale_type, {o.size(0), problem.groups, rows});
  const auto* from = static_cast<const std::uint32_t*>(scales.data());
  auto* to = static_cast<std::uint32_t*>(seen.data());
  for (std::int64_t t = 0; t < o.size(0); ++t) {
    for (std::int64_t i = 0; i < problem.groups * rows; ++i) to[t * problem.groups * rows + i] = from[i * padded + t];
  }
  result.bounds.emplace("o_fp8", ulps(1));
  result.results.emplace("o_fp8", std::move(values));
  result.results.emplace("o_scale", std::move(seen));
  return result;
}

ReplayResult compress(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  const int ratio = static_cast<int>(params.integer("compress_ratio", 4, 128));
  const int dim = static_cast<int>(params.integer("head_dim", 128, 512));
  const std::string quant = params.text("quant", "fp8");
  const std::string clamp = params.text("clamp", "amax");
  check_that(ratio == 4 || ratio == 128, params.where(), "compress_ratio", ratio, "4 or 128");
  check_that(quant == "fp8" || (quant == "mxfp4" && dim == 128), params.where(), "quant", "\"" + quant + "\"",
             "\"fp8\", or \"mxfp4\" with head_dim 128");
  check_that(clamp == "amax" || clamp == "scale", params.where(), "clamp", "\"" + clamp + "\"",
             "\"amax\" or \"scale\"");
  const RowFormat& format = dim == 512 ? fp8_ds_mla_rows() : (quant == "fp8" ? index_fp8_rows() : index_mxfp4_rows());

  HostTensor state = input(file, "state_before").clone();
  HostTensor cache = input(file, "cache_before").clone();
  check_tensor(file.path, "in.state_before", state.view(), {kAny, kAny, kAny}, {DType::kF32});
  SaveState::Args save;
  save.kv_score = input(file, "kv_score", {kAny, kAny}, DType::kF32);
  const std::int64_t tokens = save.kv_score.size(0);
  save.ape = input(file, "ape", {kAny, kAny}, DType::kF32);
  save.positions = input(file, "position", {tokens}, DType::kI64);
  save.state_slots = input(file, "state_slot", {kAny}, DType::kI64);
  save.state = cache_of(file, "in.state_before", state, state_rows(dim, ratio == 4 ? 2 : 1),
                        params.integer("state_block", 1, INT32_MAX, state.size(1)));
  ReplayResult result;
  run<SaveState>({.tokens = tokens, .ratio = ratio, .dim = dim}, options, save, result);

  CompressStore::Args store;
  store.positions = save.positions;
  store.token_to_req = input(file, "token_to_req", {tokens}, DType::kI32);
  CompressStore::Compressor& own = store.compressors[0];
  own.state_slots = save.state_slots;
  store.entry_slots = input(file, "kv_slot", {kAny}, DType::kI64);
  own.block_table = input(file, "block_table", {kAny, kAny}, DType::kI32);
  own.norm_weight = input(file, "norm_weight").view();
  store.cos_sin = input(file, "cos_sin", {kAny, kAny}, DType::kF32);
  own.state = save.state;
  own.entries = cache_of(file, "in.cache_before", cache, format, params.integer("kv_block", 1, INT32_MAX));
  CompressStore::Problem problem{.tokens = tokens,
                                 .ratio = ratio,
                                 .rope_dim = static_cast<int>(store.cos_sin.size(1)),
                                 .compressor = {{{.dim = dim, .format = &format}}}};
  problem.eps = epsilon(file);
  problem.clamp = clamp == "amax" ? ClampRule::kAmax : ClampRule::kScale;
  run<CompressStore>(problem, options, store, result);

  const std::int64_t row_bytes = save.state.format->data_bytes;
  HostTensor rows(DType::kF32, {save.state_slots.size(0), row_bytes / 4});
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const std::int64_t slot = save.state_slots.as<std::int64_t>()[i];
    if (slot < 0 || slot >= save.state.num_slots()) continue;
    std::memcpy(static_cast<std::uint8_t*>(rows.data()) + i * row_bytes,
                save.state.block(slot / save.state.block_size) + slot % save.state.block_size * row_bytes,
                static_cast<std::size_t>(row_bytes));
  }
  result.bounds.emplace("state_rows", floats());
  result.bounds.emplace("cache", written_rows(own.entries, store.entry_slots, 1, 1));
  result.results.emplace("state_rows", std::move(rows));
  result.results.emplace("cache", std::move(cache));
  return result;
}

ReplayResult gather_rows(const CaseFile& file, const ReplayOptions& options) {
  const CaseParams params = file.reader();
  const HostTensor& cache = input(file, {"cache", "k_cache"});
  const HostTensor& want = file.tensor("out.out");
  check_tensor(file.path, "out.out", want.view(), {kAny, kAny, kAny}, {DType::kBF16});
  HostTensor out(DType::kBF16, want.shape());
  const BF16 fill = to_bf16(static_cast<float>(params.number("fill", -3.4e38, 3.4e38, 0.0)));
  for (std::int64_t i = 0; i < out.numel(); ++i) out.as<BF16>()[i] = fill;
  const RowFormat& format = row_format(params.text("format", std::string(fp8_ds_mla_rows().name)));
  GatherRows::Args args;
  args.cache = cache_of(file, "in.cache", cache, format, params.integer("block_size", 1, INT32_MAX));
  args.seq_lens = input(file, "seq_lens", {want.size(0)}, DType::kI32);
  if (file.find("in.gather_lens") != nullptr)
    args.gather_lens = input(file, "gather_lens", {want.size(0)}, DType::kI32);
  args.block_table = input(file, "block_table", {kAny, kAny}, DType::kI32);
  args.out = out.view();
  const GatherRows::Problem problem{.requests = want.size(0),
                                    .rows = want.size(1),
                                    .offset = params.integer("offset", 0, kMaxCount, 0),
                                    .format = &format};
  ReplayResult result;
  run<GatherRows>(problem, options, args, result);
  result.bounds.emplace("out", ulps(1));
  result.results.emplace("out", std::move(out));
  return result;
}

}  // namespace smla::upstream
