#include <cmath>

#include "core/check.h"
#include "layer/front_end_row.h"

namespace smla {

namespace {

constexpr std::string_view kWhat = "attention layer";

void check_scale(std::string_view name, float scale, bool used, const std::string& beside,
                 const std::string& expected) {
  check_that(std::isfinite(scale) && scale > 0.0F, kWhat, name, std::to_string(scale), "a finite number above 0");
  check_that(used || scale == 1.0F, kWhat, name, std::to_string(scale) + " with " + beside, "1, or " + expected);
}

}  // namespace

LayerOptions effective_options(const LayerOptions& given) {
  LayerOptions options = given;
  const bool f32 = options.precision == Precision::kF32;
  if (f32) options.caches.rows = &f32_rows(), options.caches.index = &index_f32_rows();
  const RowFormat& rows = *options.caches.rows;
  const bool per_tensor = rows.scale == ScaleKind::kPerTensor;
  check_that(!f32 || options.q != DType::kE4M3, kWhat, "q", std::string("F8_E4M3 at precision f32"), "BF16 or none");
  if (!options.q) options.q = per_tensor ? DType::kE4M3 : DType::kBF16;
  check_that(*options.q == DType::kBF16 || *options.q == DType::kE4M3, kWhat, "q", std::string(name_of(*options.q)),
             "BF16 or F8_E4M3");
  check_scale("kv_scale", options.caches.kv_scale, per_tensor, std::string(rows.name) + " rows", "per-tensor rows");
  check_scale("q_scale", options.q_scale, *options.q == DType::kE4M3, "BF16 queries", "E4M3 queries");
  if (options.gather_prefill) {
    check_that(row_of(options.front_end).gathers_prefills, kWhat, "gather_prefill",
               "true with the " + std::string(name_of(options.front_end)) + " front-end", "flashmla");
    check_that(rows.scale == ScaleKind::kUe8m0, kWhat, "gather_prefill",
               "true with " + std::string(rows.name) + " rows", "fp8_ds_mla rows");
  }
  return options;
}

}  // namespace smla
