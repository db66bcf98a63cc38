#include "sparsemla/kv_format.h"

#include <array>
#include <cmath>

#include "cache/check_cache.h"
#include "sparsemla/error.h"

namespace smla {

namespace {

// The only place where record sizes stand as numbers (spec 3, 4.4, 5.1, 5.2, 5.4).
constexpr RowFormat kFp8DsMla{.name = "fp8_ds_mla",
                              .dim = 512,
                              .nope_dim = 448,
                              .nope = Element::kE4M3,
                              .rope = Element::kBF16,
                              .scale = ScaleKind::kUe8m0,
                              .group = 64,
                              .data_bytes = 576,
                              .scale_bytes = 8,
                              .page_alignment = 576};
constexpr RowFormat kBf16{.name = "bf16",
                          .dim = 512,
                          .nope_dim = 512,
                          .nope = Element::kBF16,
                          .rope = Element::kBF16,
                          .data_bytes = 1024,
                          .page_alignment = 512};
constexpr RowFormat kFp8PerTensor{.name = "fp8_per_tensor",
                                  .dim = 512,
                                  .nope_dim = 512,
                                  .nope = Element::kE4M3,
                                  .rope = Element::kE4M3,
                                  .scale = ScaleKind::kPerTensor,
                                  .data_bytes = 512,
                                  .page_alignment = 512};
constexpr RowFormat kFp8V32{.name = "fp8_v32",
                            .dim = 576,
                            .nope_dim = 512,
                            .nope = Element::kE4M3,
                            .rope = Element::kBF16,
                            .scale = ScaleKind::kF32,
                            .group = 128,
                            .data_bytes = 656,
                            .page_alignment = 16,
                            .inline_scale_bytes = 16};
constexpr RowFormat kF32{.name = "f32", .dim = 512, .nope_dim = 512, .data_bytes = 2048, .page_alignment = 512};
constexpr RowFormat kIndexFp8{.name = "index_fp8",
                              .dim = 128,
                              .nope_dim = 128,
                              .nope = Element::kE4M3,
                              .rope = Element::kE4M3,
                              .scale = ScaleKind::kF32,
                              .group = 128,
                              .data_bytes = 128,
                              .scale_bytes = 4,
                              .page_alignment = 576};
// As upstream keeps index_fp8 on SM100: the scale as four equal bytes in the place of one fp32.
constexpr RowFormat kIndexFp8Ue8m0{.name = "index_fp8_ue8m0",
                                   .dim = 128,
                                   .nope_dim = 128,
                                   .nope = Element::kE4M3,
                                   .rope = Element::kE4M3,
                                   .scale = ScaleKind::kUe8m0,
                                   .group = 128,
                                   .data_bytes = 128,
                                   .scale_bytes = 4,
                                   .page_alignment = 576};
constexpr RowFormat kIndexMxfp4{.name = "index_mxfp4",
                                .dim = 128,
                                .nope_dim = 128,
                                .nope = Element::kE2M1,
                                .rope = Element::kE2M1,
                                .scale = ScaleKind::kUe8m0,
                                .group = 32,
                                .data_bytes = 64,
                                .scale_bytes = 4,
                                .page_alignment = 576};
constexpr RowFormat kIndexF32{
    .name = "index_f32", .dim = 128, .nope_dim = 128, .data_bytes = 512, .page_alignment = 512};
constexpr RowFormat kStateC4{
    .name = "state_c4", .dim = 2048, .nope_dim = 2048, .data_bytes = 8192, .page_alignment = 576};
constexpr RowFormat kStateC128{
    .name = "state_c128", .dim = 1024, .nope_dim = 1024, .data_bytes = 4096, .page_alignment = 576};
constexpr RowFormat kStateIndex{
    .name = "state_index", .dim = 512, .nope_dim = 512, .data_bytes = 2048, .page_alignment = 576};

constexpr std::array<const RowFormat*, 12> kAll{&kFp8DsMla, &kBf16,          &kFp8PerTensor, &kF32,
                                                &kIndexFp8, &kIndexFp8Ue8m0, &kIndexMxfp4,   &kIndexF32,
                                                &kStateC4,  &kStateC128,     &kStateIndex,   &kFp8V32};

}  // namespace

const RowFormat& fp8_ds_mla_rows() { return kFp8DsMla; }
const RowFormat& bf16_rows() { return kBf16; }
const RowFormat& fp8_per_tensor_rows() { return kFp8PerTensor; }
const RowFormat& f32_rows() { return kF32; }
const RowFormat& fp8_v32_rows() { return kFp8V32; }
const RowFormat& index_fp8_rows() { return kIndexFp8; }
const RowFormat& index_mxfp4_rows() { return kIndexMxfp4; }
const RowFormat& index_f32_rows() { return kIndexF32; }

const RowFormat& state_rows(int dim, int coff) {
  for (const RowFormat* format : {&kStateC4, &kStateC128, &kStateIndex}) {
    const bool index = format == &kStateIndex;
    if (dim == (index ? 128 : 512) && format->dim == 2 * coff * dim) return *format;
  }
  throw InvalidArgument("state rows: got dim " + std::to_string(dim) + " with " + std::to_string(coff) +
                        " halves, expected (512, 2), (512, 1) or (128, 2)");
}

std::span<const RowFormat* const> all_row_formats() { return kAll; }

const RowFormat& row_format(std::string_view name) {
  for (const RowFormat* format : kAll) {
    if (format->name == name) return *format;
  }
  std::string accepted;
  for (const RowFormat* format : kAll) accepted += (accepted.empty() ? "" : ", ") + std::string(format->name);
  throw InvalidArgument("row format: got \"" + std::string(name) + "\", expected one of " + accepted);
}

std::int64_t block_bytes(const RowFormat& format, std::int64_t block_size) { return block_size * format.row_bytes(); }

std::int64_t page_bytes(const RowFormat& format, std::int64_t block_size) {
  const std::int64_t raw = block_bytes(format, block_size);
  return (raw + format.page_alignment - 1) / format.page_alignment * format.page_alignment;
}

namespace {

/// fail(got, expected) with the first thing that is wrong.
void look_at(const PagedCache& cache, const auto& fail) {
  if (cache.format == nullptr) return fail("no row format", "one");
  if (cache.num_blocks < 0) return fail(words(cache.num_blocks, " blocks"), "0 or more");
  if (cache.block_size < 1) return fail(words("block size ", cache.block_size), "1 or more");
  if (cache.format->scale == ScaleKind::kPerTensor && !(std::isfinite(cache.scale) && cache.scale > 0))
    return fail(words("scale ", std::to_string(cache.scale)), "a finite number above 0");
  if (cache.num_blocks > 0 && cache.base == nullptr) return fail("no memory", words(cache.num_blocks, " blocks"));
  const std::int64_t least = block_bytes(*cache.format, cache.block_size);
  if (cache.num_blocks > 1 && cache.block_stride_bytes < least) {
    fail(words("block stride ", cache.block_stride_bytes, " bytes"),
         words("at least ", least, " (", cache.block_size, " rows of ", cache.format->name, ")"));
  }
}

}  // namespace

void check_cache(std::string_view name, const PagedCache& cache) {
  look_at(cache, [&](const Text& got, const Text& expected) {
    throw InvalidArgument(std::string(name) + ": got " + got.str() + ", expected " + expected.str());
  });
}

void check_cache(std::string_view op, const Text& what, const PagedCache& cache) {
  look_at(cache, [&](const Text& got, const Text& expected) { check_that(false, op, what, got, expected); });
}

}  // namespace smla
