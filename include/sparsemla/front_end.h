#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparsemla/export.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/kv_pool.h"
#include "sparsemla/ops/norm_rope.h"

namespace SMLA_API smla {

/// How a layer prepares attention's index lists, after one of upstream's three backends (spec 8). A front-end chooses
/// index layout, chunking, names and checks; it never chooses the formula, and all three run on every device with the
/// same result.
enum class FrontEnd : std::uint8_t {
  kFlashMla,    ///< two scopes; prefills may be gathered into bf16 rows first (spec 8.5)
  kFlashInfer,  ///< one index matrix over window and entries; decodes and prefills called apart (spec 8.6)
  kSm120        ///< two scopes everywhere; prefills in chunks of 4 requests (spec 8.7)
};

/// The name of a front-end: "flashmla", "flashinfer" or "sm120".
SMLA_API std::string_view name_of(FrontEnd front_end);

/// The front-end of a name or of one of upstream's backend names (spec 8.1, 15). "" and "auto": sm120 where
/// `device_major` is 12, else flashmla. `device_major`: compute capability of the device, 0 for a CPU; it tells
/// FLASHINFER_MLA_SPARSE_DSV4's two classes apart.
/// @throws InvalidArgument for other names with the accepted ones, for the two that upstream refuses with its text.
SMLA_API FrontEnd front_end(std::string_view name, int device_major = 0);

/// Every accepted name of a front-end, its own first.
SMLA_API std::vector<std::string_view> front_end_names(FrontEnd front_end);

/// The attention rows that a cache dtype name means (spec 15's table):
///   fp8_ds_mla; bf16 = bfloat16; fp8_per_tensor: the same for all three;
///   fp8 = fp8_e4m3 = fp8_inc: fp8_ds_mla, with flashinfer fp8_per_tensor;  auto: fp8_ds_mla, with flashinfer bf16.
/// `strict`: upstream's refusals with its texts (spec 8.2).
/// @throws InvalidArgument for e5m2 and unknown names with the accepted ones.
SMLA_API const RowFormat& cache_rows(FrontEnd front_end, std::string_view cache_dtype, bool strict = false);

/// The index rows of an indexer dtype name: fp8 = auto, mxfp4 (spec 4.4). `strict`: mxfp4 needs `device_major` 10, as
/// upstream says.
/// @throws InvalidArgument with upstream's texts.
SMLA_API const RowFormat& index_rows(std::string_view indexer_kv_dtype, bool strict = false, int device_major = 0);

/// Heads that upstream's kernels of this front-end compute for `heads` (spec 8.3): flashmla 64 or 128; flashinfer and
/// sm120 the next of 8, 16, 32, 64, 128. @throws InvalidArgument with upstream's text above 128.
SMLA_API std::int64_t upstream_padded_heads(FrontEnd front_end, std::int64_t heads);

/// One call of attention as upstream's kernel would see it.
struct UpstreamCall {
  std::int64_t tokens = 0;            ///< query tokens
  std::int64_t padded_heads = 0;      ///< heads of the kernel's buffers
  std::int64_t window_width = 0;      ///< columns of the window part
  std::int64_t compressed_width = 0;  ///< columns of the compressed part; 0: none
};

/// Throws what upstream's kernels refuse about a call (spec 8.5 to 8.7): flashmla's widths in steps of 64 (128 with 128
/// heads), flashinfer's row in steps of 4, sm120's decode kernels for up to 64 tokens. @throws Unsupported with
/// upstream's text where it has one.
SMLA_API void check_upstream_call(FrontEnd front_end, const UpstreamCall& call);

/// Throws what upstream refuses about cache blocks (spec 5.4): window blocks in steps of 64 tokens, compressed blocks
/// of 256 source tokens. `compress_ratio` 1: no compressed cache. @throws InvalidArgument naming the block.
SMLA_API void check_upstream_blocks(std::int64_t window_block, std::int64_t compressed_block,
                                    std::int64_t compress_ratio);

/// Throws what upstream refuses about a layout (spec 15): layer names that come twice, caches of a group without a
/// common block size, pages larger than a block. `names`: of the layers, in the layout's order. @throws InvalidArgument
/// with upstream's texts.
SMLA_API void check_upstream_layout(const KvLayout& layout, std::span<const std::string> names);

/// The argument checks of upstream's fused insert op, with upstream's texts (spec 5.3): for hosts that call
/// QNormRopeInsert themselves; a layer's own tensors always pass.
/// @throws InvalidArgument with the first that fails.
SMLA_API void check_upstream_insert(const QNormRopeInsert::Problem& problem, const QNormRopeInsert::Args& args);

}  // namespace smla
