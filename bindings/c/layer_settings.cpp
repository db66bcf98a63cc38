#include "c/layer_settings.h"

#include "c/descriptors.h"

namespace smla::c {

namespace {

const RowFormat& rows_of_dim(std::string_view name, const char* given, const RowFormat& otherwise) {
  const RowFormat& rows = given == nullptr ? otherwise : row_format(given);
  if (rows.dim == otherwise.dim) return rows;
  throw InvalidArgument(std::string(name) + ": got " + std::string(rows.name) + ", rows of " +
                        std::to_string(rows.dim) + " numbers, expected rows of " + std::to_string(otherwise.dim));
}

DType read_option_dtype(std::string_view name, smla_dtype given, DType other) {
  const DType dtype = given == 0 ? DType::kBF16 : read_dtype(name, given);
  if (dtype == DType::kBF16 || dtype == other) return dtype;
  throw InvalidArgument(std::string(name) + ": got " + std::string(name_of(dtype)) + ", expected BF16 or " +
                        std::string(name_of(other)));
}

std::optional<OutputScale> read_output_rows(const char* given) {
  const std::string_view name = given == nullptr ? "bf16" : given;
  if (name == "bf16") return std::nullopt;
  if (name == "fp8") return OutputScale::kF32;
  if (name == "fp8-ue8m0") return OutputScale::kUe8m0x4;
  throw InvalidArgument("output_rows: got \"" + std::string(name) + "\", expected \"bf16\", \"fp8\" or \"fp8-ue8m0\"");
}

}  // namespace

LayerConfig read_config(const smla_layer_config* config) {
  const smla_layer_config given = read_struct("smla_layer_config", config);
  const auto small = [](std::string_view name, std::int64_t value) {
    if (value < 0 || value > (1 << 20))
      throw InvalidArgument(std::string(name) + ": got " + std::to_string(value) + ", expected 0 to 1048576");
    return static_cast<int>(value);
  };
  const auto either = [](auto value, auto otherwise) {
    return value == 0 ? otherwise : static_cast<decltype(otherwise)>(value);
  };
  LayerConfig out{.hidden_size = given.hidden_size,
                  .num_heads = given.num_heads,
                  .head_dim = either(small("head_dim", given.head_dim), 512),
                  .rope_head_dim = either(small("rope_head_dim", given.rope_head_dim), 64),
                  .q_lora_rank = given.q_lora_rank,
                  .o_lora_rank = given.o_lora_rank,
                  .o_groups = either(given.o_groups, std::int64_t{1}),
                  .window = either(given.window, std::int64_t{128}),
                  .compress_ratio = either(small("compress_ratio", given.compress_ratio), 1),
                  .index_n_heads = either(given.index_n_heads, std::int64_t{64}),
                  .index_head_dim = either(small("index_head_dim", given.index_head_dim), 128),
                  .index_topk = either(given.index_topk, std::int64_t{512}),
                  .rms_norm_eps = either(given.rms_norm_eps, 1e-6F),
                  .rope = {.theta = either(given.rope_theta, 10000.0)},
                  .hadamard = read_flag("hadamard", given.hadamard),
                  .reuses_topk = read_flag("reuses_topk", given.reuses_topk)};
  out.rope.dim = out.rope_head_dim;
  if (given.yarn_factor != 0) {
    out.rope.yarn = YarnConfig{.factor = given.yarn_factor,
                               .original_max_position = either(given.yarn_max_position, std::int64_t{65536}),
                               .beta_fast = either(given.yarn_beta_fast, 32.0),
                               .beta_slow = either(given.yarn_beta_slow, 1.0)};
  }
  check_layer_config(out);
  if (out.reuses_topk && !out.has_indexer()) {
    throw InvalidArgument("reuses_topk: got 1 with compress_ratio " + std::to_string(out.compress_ratio) +
                          ", expected 0: only layers of compress_ratio 4 choose entries");
  }
  return out;
}

smla_layer_config write_config(const LayerConfig& c) {
  const YarnConfig yarn =
      c.rope.yarn.value_or(YarnConfig{.factor = 0, .original_max_position = 0, .beta_fast = 0, .beta_slow = 0});
  return {.struct_size = sizeof(smla_layer_config),
          .hidden_size = c.hidden_size,
          .num_heads = c.num_heads,
          .q_lora_rank = c.q_lora_rank,
          .o_lora_rank = c.o_lora_rank,
          .o_groups = c.o_groups,
          .head_dim = c.head_dim,
          .rope_head_dim = c.rope_head_dim,
          .window = c.window,
          .compress_ratio = c.compress_ratio,
          .index_n_heads = c.index_n_heads,
          .index_head_dim = c.index_head_dim,
          .index_topk = c.index_topk,
          .rms_norm_eps = c.rms_norm_eps,
          .rope_theta = c.rope.theta,
          .yarn_factor = yarn.factor,
          .yarn_max_position = yarn.original_max_position,
          .yarn_beta_fast = yarn.beta_fast,
          .yarn_beta_slow = yarn.beta_slow,
          .hadamard = c.hadamard ? 1 : 0,
          .reuses_topk = c.reuses_topk ? 1 : 0};
}

Options read_options(const smla_layer_options* options, int (*major_of)(DeviceKind)) {
  const smla_layer_options given = read_struct("smla_layer_options", options, offsetof(smla_layer_options, device));
  if (given.max_position < 1 || given.max_position > (std::int64_t{1} << 30)) {
    throw InvalidArgument("smla_layer_options: max_position: got " + std::to_string(given.max_position) +
                          ", expected 1 to 2^30");
  }
  Options out{.layer = {}, .max_position = given.max_position};
  out.layer.device = read_device(given.device);
  const DType precision = read_option_dtype("precision", given.precision, DType::kF32);
  out.layer.precision = precision == DType::kF32 ? Precision::kF32 : Precision::kBF16;
  out.layer.caches = {.rows = &rows_of_dim("cache_rows", given.cache_rows, fp8_ds_mla_rows()),
                      .index = &rows_of_dim("index_rows", given.index_rows, index_fp8_rows()),
                      .kv_scale = given.kv_scale == 0.0F ? 1.0F : given.kv_scale,
                      .draft_blocks = read_flag("draft_blocks", given.draft_blocks)};
  out.layer.q = read_option_dtype("q_dtype", given.q_dtype, DType::kE4M3);
  out.layer.q_scale = given.q_scale == 0.0F ? 1.0F : given.q_scale;
  out.layer.deterministic = read_flag("deterministic", given.deterministic);
  out.layer.threads = read_threads(given.threads);
  if (given.implementation != nullptr) out.layer.implementations["*"] = given.implementation;
  out.layer.front_end =
      front_end(given.front_end == nullptr ? "flashmla" : given.front_end, major_of(out.layer.device));
  out.layer.fp8_output = read_output_rows(given.output_rows);
  out.layer.padded_heads = given.padded_heads;
  out.layer.strict = read_flag("strict", given.strict);
  out.layer.gather_prefill = read_flag("gather_prefill", given.gather_prefill);
  out.fp8_weights = read_flag("fp8_weights", given.fp8_weights);
  out.nvfp4_weights = read_flag("nvfp4_weights", given.nvfp4_weights);
  return out;
}

}  // namespace smla::c
